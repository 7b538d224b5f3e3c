package router

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"automation/models"
)

// rebuilt is the code of a preset after a change of its prompt or repositories.
type rebuilt struct {
	old     *models.Upload
	content []byte
	meta    map[string]any // what changes in preset_metadata
}

// presetOf is what preset_metadata says of a preset.
type presetOf struct {
	Type  string       `json:"preset_type"`
	Repos []repository `json:"repos"`
}

// rebuild makes the tarball that a PATCH of prompt or repos asks for (contract section 2.4); nil: none has to be made. What is
// in the tarball besides stays as it is.
func (s *server) rebuild(ctx context.Context, a *models.Automation, in values) (*rebuilt, error) {
	var preset presetOf
	_ = json.Unmarshal(a.PresetMetadata, &preset) // NULL is no preset
	if preset.Type == "" || in.has("tarball_path") {
		return nil, nil
	}
	prompt, repos := opt[string](in, "prompt"), get[[]repository](in, "repos")
	newPrompt := prompt != nil && (a.Prompt == nil || *prompt != *a.Prompt)
	newRepos := in.has("repos") && !slices.Equal(repos, preset.Repos)
	if !newPrompt && !newRepos {
		return nil, nil
	}
	old, files, err := s.presetFilesOf(ctx, a)
	if err != nil {
		return nil, err
	}
	if !files.has(promptFile) {
		if newRepos {
			return nil, unprocessable("The repos cannot be updated: the tarball of this automation was not made from a preset")
		}
		return nil, nil
	}
	code := &rebuilt{old: old, meta: map[string]any{}}
	if newPrompt {
		code.meta["prompt"] = *prompt
		files.put(promptFile, 0o644, []byte(*prompt))
	}
	if newRepos {
		code.meta["repos"] = nil
		if len(repos) > 0 {
			code.meta["repos"] = repos
		}
		if err := files.putRepos(repos); err != nil {
			return nil, err
		}
	}
	code.content, err = files.pack(s.Store.Now())
	return code, err
}

// presetFilesOf reads the files of an automation's own upload; there are none when it has no upload, or another kind of file.
func (s *server) presetFilesOf(ctx context.Context, a *models.Automation) (*models.Upload, archive, error) {
	if !strings.HasPrefix(a.TarballPath, internalScheme) {
		return nil, nil, nil
	}
	u, err := s.internalUpload(ctx, a.OrgID, a.TarballPath)
	if asProblem(err) != nil || err == nil && u.DeletedAt != nil {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	file, err := s.Blob.Open(ctx, u.BlobKey)
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	files, _ := unpack(file)
	return u, files, nil
}

// replaceCode stores the new tarball, writes the automation with it and deletes the old upload in one transaction, and removes
// the old file after that: whatever breaks off in between, the automation names a tarball that is there.
func (s *server) replaceCode(ctx context.Context, a *models.Automation, code *rebuilt, edit func(*models.Automation) error, who Caller) (*models.Automation, error) {
	u, err := s.storeArchive(ctx, who, a.Name, code.content)
	if err != nil {
		return nil, err
	}
	before := a.TarballPath
	changed, removed, err := s.Store.ReplaceTarball(ctx, a.OrgID, a.ID, s.Settings.CleanupDelay, code.old, func(a *models.Automation) error {
		if a.TarballPath != before {
			return conflict("conflict", "The automation has changed meanwhile")
		}
		if err := edit(a); err != nil {
			return err
		}
		a.TarballPath = uploadPath(u.ID)
		return addMetadata(a, code.meta)
	})
	if err != nil {
		s.dropUpload(ctx, u)
		return nil, err
	}
	if removed {
		if err := s.Blob.Delete(context.WithoutCancel(ctx), code.old.BlobKey); err != nil {
			s.log.WarnContext(ctx, "file of a replaced upload not removed", "upload_id", code.old.ID, "error", err)
		}
	}
	return changed, nil
}
