package router

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

// presetFiles are what runs in the box of a preset automation.
//
//go:embed preset
var presetFiles embed.FS

// The files of a preset that are made from what was asked for.
const (
	promptFile = "prompt.txt"
	reposFile  = "repos_config.json"
)

// largestArchive bounds what is read of a tarball that is rebuilt, in bytes unpacked.
const largestArchive = 16 << 20

// archive is a tarball in hand: files in their order.
type archive []archived

type archived struct {
	name    string
	mode    int64
	content []byte
}

// newPresetArchive makes the tarball of a prompt preset (contract section 2.7).
func newPresetArchive(prompt string, repos []repository, at time.Time) ([]byte, error) {
	var files archive
	for _, f := range []struct {
		name string
		mode int64
	}{{"main.py", 0o644}, {"finish_tool_hook.py", 0o644}, {presetSetup, 0o755}} {
		content, err := fs.ReadFile(presetFiles, "preset/"+f.name)
		if err != nil {
			return nil, fmt.Errorf("read %s of the preset: %w", f.name, err)
		}
		files.put(f.name, f.mode, content)
	}
	files.put(promptFile, 0o644, []byte(prompt))
	if err := files.putRepos(repos); err != nil {
		return nil, err
	}
	return files.pack(at)
}

// has reports whether the archive holds a file.
func (a archive) has(name string) bool {
	for _, f := range a {
		if f.name == name {
			return true
		}
	}
	return false
}

// put adds a file, or replaces the one of that name.
func (a *archive) put(name string, mode int64, content []byte) {
	for i := range *a {
		if (*a)[i].name == name {
			(*a)[i].content = content
			return
		}
	}
	*a = append(*a, archived{name, mode, content})
}

// putRepos writes the list of repositories; without any there is no file.
func (a *archive) putRepos(repos []repository) error {
	if len(repos) == 0 {
		kept := (*a)[:0]
		for _, f := range *a {
			if f.name != reposFile {
				kept = append(kept, f)
			}
		}
		*a = kept
		return nil
	}
	text, err := json.MarshalIndent(repos, "", "  ")
	if err != nil {
		return err
	}
	a.put(reposFile, 0o644, text)
	return nil
}

// pack writes a gzip tar.
func (a archive) pack(at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, f := range a {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at.Truncate(time.Second),
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}

// unpack reads a gzip tar of plain files; false: it is something else.
func unpack(r io.Reader) (archive, bool) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, false
	}
	var files archive
	in := tar.NewReader(io.LimitReader(zip, largestArchive))
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, true
		}
		if err != nil || header.Typeflag != tar.TypeReg {
			return nil, false
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return nil, false
		}
		files.put(header.Name, header.Mode, content)
	}
}

// storeArchive stores a tarball made here as an upload of the caller. The row comes first, as with any upload.
func (s *server) storeArchive(ctx context.Context, who Caller, name string, content []byte) (*models.Upload, error) {
	u := newUpload(who, firstRunes(name, 255))
	if err := s.Store.CreateUpload(ctx, u); err != nil {
		return nil, err
	}
	return u, s.storeUpload(ctx, u, bytes.NewReader(content))
}

// dropUpload takes back an upload that nothing came of. What cannot be removed stays listed.
func (s *server) dropUpload(ctx context.Context, u *models.Upload) {
	ctx = context.WithoutCancel(ctx)
	err := s.Blob.Delete(ctx, u.BlobKey)
	if err == nil {
		err = s.Store.DeleteUpload(ctx, u.ID)
	}
	if err != nil {
		s.log.WarnContext(ctx, "upload not taken back", "upload_id", u.ID, "error", err)
	}
}

// newUpload is the row of an upload that is about to be stored.
func newUpload(who Caller, name string) *models.Upload {
	id := uuid.Must(uuid.NewV7())
	return &models.Upload{
		ID: id, UserID: who.UserID, OrgID: who.OrgID, Name: name, Status: models.UploadUploading,
		BlobKey: fmt.Sprintf("automation/uploads/%s/%s/%s.tar", who.OrgID, who.UserID, id),
	}
}

func firstRunes(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}
