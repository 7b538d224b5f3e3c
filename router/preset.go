package router

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"automation/models"
)

// What a preset automation runs (contract section 2.7).
const (
	promptPreset     = "prompt"
	presetSetup      = "setup.sh"
	presetEntrypoint = ".venv/bin/python main.py"
)

// repository is what a preset clones before its prompt runs, as it is stored and written into the tarball.
type repository struct {
	URL      string `json:"url"`
	Ref      string `json:"ref,omitempty"`
	Provider string `json:"provider,omitempty"`
}

var (
	shortRepo  = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)
	repoObject = object([]field{
		{name: "url", required: true, rule: text(1, 2000)},
		{name: "ref", rule: nullable(text(1, 255))},
		{name: "provider", rule: nullable(oneOf("literal_error", "github", "gitlab", "bitbucket", "azure_devops"))},
	})
	repoShape = schema{"anyOf": []schema{{"type": "string"}, repoObject.schema}}
	repoRule  = rule{checkRepo, repoShape}
	// repoList is one repository or several.
	repoList = rule{checkRepos, schema{"anyOf": []schema{repoShape, {"type": "array", "items": repoShape}}}}
)

func checkRepos(c *check, at loc, v any) any {
	if _, isList := v.([]any); !isList {
		v = []any{v}
	}
	return list[repository](repoRule).check(c, at, v)
}

// checkRepo takes a URL or an object, and makes a repository of it.
func checkRepo(c *check, at loc, v any) any {
	given := v
	if url, isText := v.(string); isText {
		v = map[string]any{"url": url}
	}
	before := len(c.issues)
	in, _ := repoObject.check(c, at, v).(values)
	if len(c.issues) > before {
		return nil
	}
	r := repository{URL: strings.TrimSpace(get[string](in, "url")), Ref: get[string](in, "ref"), Provider: get[string](in, "provider")}
	if err := r.normalize(); err != nil {
		c.refuse(at, given, err)
		return nil
	}
	return r
}

// normalize checks where a repository lies. Git reads words that begin with a dash as options.
func (r *repository) normalize() error {
	if rest, isPlain := strings.CutPrefix(r.URL, "http://"); isPlain {
		r.URL = "https://" + rest
	}
	whole := strings.HasPrefix(r.URL, "https://") || strings.HasPrefix(r.URL, "git@") || strings.HasPrefix(r.URL, "file://")
	switch {
	case strings.HasPrefix(r.Ref, "-"):
		return saysf("The ref '%s' must not begin with a dash", r.Ref)
	case whole:
		return nil
	case !shortRepo.MatchString(r.URL):
		return saysf("Repository URL '%s' must start with https://, git@ or file://, or be owner/repo with a provider", r.URL)
	case r.Provider == "":
		return saysf(`Short URL format '%s' requires explicit 'provider' field. Use: {"url": "owner/repo", "provider": "github"} `+
			`or provide a full URL like https://github.com/owner/repo`, r.URL)
	case r.Provider == "azure_devops":
		return saysf("Short URL format '%s' is not known for azure_devops. Give the full URL", r.URL)
	}
	return nil
}

// createPrompt is POST /v1/preset/prompt: an automation whose code is made here from a prompt.
func (s *server) createPrompt(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, s.bodies.prompt, false)
	if err != nil {
		return err
	}
	if made, err := s.fromTemplate(r.Context(), in, who); err != nil {
		return err
	} else if made != nil {
		return s.showCreated(w, made, false)
	}
	model, err := chooseModel(in, who)
	if err != nil {
		return err
	}
	repos := get[[]repository](in, "repos")
	meta := map[string]any{"preset_type": promptPreset, "prompt": in["prompt"]}
	if len(repos) > 0 {
		meta["repos"] = repos
	}
	in["setup_script_path"], in["entrypoint"] = presetSetup, presetEntrypoint
	a, err := s.newAutomation(in, who, model)
	if err == nil {
		err = addMetadata(a, meta)
	}
	if err != nil {
		return err
	}
	archive, err := newPresetArchive(get[string](in, "prompt"), repos, s.Store.Now())
	if err != nil {
		return err
	}
	u, err := s.storeArchive(r.Context(), who, a.Name, archive)
	if err != nil {
		return err
	}
	a.TarballPath = uploadPath(u.ID)
	stored, fresh, err := s.insertAutomation(r.Context(), a)
	if err != nil || !fresh {
		s.dropUpload(r.Context(), u)
	}
	if err != nil {
		return err
	}
	return s.showCreated(w, stored, fresh)
}

// fromTemplate finds the live automation of the organization that was made from the template named in the body; nil: none.
func (s *server) fromTemplate(ctx context.Context, in values, who Caller) (*models.Automation, error) {
	t := get[values](in, "template")
	if t == nil {
		return nil, nil
	}
	a, err := s.Store.AutomationByTemplate(ctx, who.OrgID, get[string](t, "id"))
	if errors.Is(err, models.ErrNotFound) {
		return nil, nil
	}
	return a, err
}

// addMetadata adds fields to preset_metadata; null takes one away.
func addMetadata(a *models.Automation, more map[string]any) error {
	meta := map[string]any{}
	if len(a.PresetMetadata) > 0 {
		if err := json.Unmarshal(a.PresetMetadata, &meta); err != nil {
			return err
		}
	}
	for name, v := range more {
		if v == nil {
			delete(meta, name)
		} else {
			meta[name] = v
		}
	}
	text, err := json.Marshal(meta)
	a.PresetMetadata = text
	return err
}

// uploadPath is how automations name an upload.
func uploadPath(id uuid.UUID) string { return internalScheme + "uploads/" + id.String() }
