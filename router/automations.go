package router

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

const noAutomation = "Automation not found"

// as404 gives the contract's text to a row that the caller cannot see.
func as404(err error, text string) error {
	if errors.Is(err, models.ErrNotFound) {
		return notFound(text)
	}
	return err
}

// createAutomation is POST /v1 (contract section 2.2).
func (s *server) createAutomation(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, s.bodies.create, false)
	if err != nil {
		return err
	}
	if in["agent_profile_id"] != nil && in["model"] != nil {
		return unprocessable("An agent profile already specifies the model")
	}
	if made, err := s.fromTemplate(r.Context(), in, who); err != nil {
		return err
	} else if made != nil {
		return s.showCreated(w, made, false)
	}
	if err := s.checkAgentProfile(r.Context(), who, in, nil); err != nil {
		return err
	}
	if err := s.checkTarball(r.Context(), who, get[string](in, "tarball_path")); err != nil {
		return err
	}
	model, err := chooseModel(in, who)
	if err != nil {
		return err
	}
	a, err := s.newAutomation(in, who, model)
	if err != nil {
		return err
	}
	stored, fresh, err := s.insertAutomation(r.Context(), a)
	if err != nil {
		return err
	}
	return s.showCreated(w, stored, fresh)
}

// insertAutomation stores a. When another request has made one from the same template meanwhile, that is returned and not fresh.
func (s *server) insertAutomation(ctx context.Context, a *models.Automation) (stored *models.Automation, fresh bool, err error) {
	err = s.Store.CreateAutomation(ctx, a)
	if errors.Is(err, models.ErrConflict) && a.TemplateID != nil {
		stored, err = s.Store.AutomationByTemplate(ctx, a.OrgID, *a.TemplateID)
		return stored, false, err
	}
	return a, true, err
}

func (s *server) showCreated(w http.ResponseWriter, a *models.Automation, fresh bool) error {
	if !fresh {
		return ok(w, showAutomation(a))
	}
	nudge(s.Nudge.Schedule)
	return created(w, showAutomation(a))
}

func (s *server) newAutomation(in values, who Caller, model *string) (*models.Automation, error) {
	timeout := int(s.Config.Dispatch.DefaultRun / time.Second)
	if t := opt[int64](in, "timeout"); t != nil {
		timeout = int(*t)
	}
	a := &models.Automation{
		UserID: who.UserID, OrgID: who.OrgID, State: models.AutomationActive, TimeoutSeconds: &timeout, Model: model,
		Tags: []string{},
	}
	if t := get[values](in, "template"); t != nil {
		if !t.has("config") {
			t["config"] = nil // null is written
		}
		meta, err := json.Marshal(map[string]any{"template": t})
		if err != nil {
			return nil, err
		}
		id := get[string](t, "id")
		a.PresetMetadata, a.TemplateID = meta, &id
	}
	if in.has("enabled") && !get[bool](in, "enabled") {
		a.State = models.AutomationInactive
	}
	return a, s.apply(a, in)
}

var automationQuery = append(slices.Clone(paging),
	field{name: "created_by", rule: oneOf("literal_error", "me", "others")},
	field{name: "tag", rule: text(0, 0)})

type automationList struct {
	Automations []automationObject `json:"automations"`
	Total       int                `json:"total"`
}

// listAutomations is GET /v1 (contract section 2.3).
func (s *server) listAutomations(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, automationQuery...)
	if err := c.err(); err != nil {
		return err
	}
	f := models.AutomationFilter{OrgID: who.OrgID}
	f.Limit, f.Offset = page(in)
	switch get[string](in, "created_by") {
	case "me":
		f.CreatedBy = &who.UserID
	case "others":
		f.NotBy = &who.UserID
	}
	if in.has("tag") {
		t, err := tag(get[string](in, "tag"))
		if err != nil {
			return unprocessable(err.Error())
		}
		f.Tag = t
	}
	found, total, err := s.Store.ListAutomations(r.Context(), f)
	if err != nil {
		return err
	}
	list := make([]automationObject, 0, len(found))
	for _, a := range found {
		list = append(list, showAutomation(a))
	}
	return ok(w, automationList{list, total})
}

// automation reads the automation in the path, within the caller's organization.
func (s *server) automation(r *http.Request, who Caller) (*models.Automation, error) {
	var c check
	id := c.pathID(r, "automation_id")
	if err := c.err(); err != nil {
		return nil, err
	}
	a, err := s.Store.Automation(r.Context(), who.OrgID, id)
	return a, as404(err, noAutomation)
}

// getAutomation is GET /v1/{id}.
func (s *server) getAutomation(w http.ResponseWriter, r *http.Request, who Caller) error {
	a, err := s.automation(r, who)
	if err != nil {
		return err
	}
	return one(w, r, showAutomation(a))
}

// deleteAutomation is DELETE /v1/{id} (contract section 2.5).
func (s *server) deleteAutomation(w http.ResponseWriter, r *http.Request, who Caller) error {
	a, err := s.automation(r, who)
	if err == nil {
		err = who.mustManage(a.UserID)
	}
	if err == nil {
		err = as404(s.Store.DeleteAutomation(r.Context(), who.OrgID, a.ID), noAutomation)
	}
	if err != nil {
		return err
	}
	nudge(s.Nudge.Schedule)
	return noContent(w)
}

// dispatchAutomation is POST /v1/{id}/dispatch (contract section 3.4): also of a disabled automation.
func (s *server) dispatchAutomation(w http.ResponseWriter, r *http.Request, who Caller) error {
	a, err := s.automation(r, who)
	if err == nil {
		err = who.mustManage(a.UserID)
	}
	if err != nil {
		return err
	}
	if a.State == models.AutomationDraft {
		return conflict("draft", "Draft automation artifacts must be dispatched or activated through the draft API")
	}
	manual := models.TriggerManual
	run := &models.Run{AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunPending, TriggerSource: &manual}
	if err := s.Store.CreateRun(r.Context(), run); err != nil {
		return as404(err, noAutomation)
	}
	nudge(s.Nudge.Dispatch)
	return created(w, s.showRun(run))
}

// apply writes the given fields to a, and the state that follows; a's first fire time is computed from now, so that nothing
// that passed while it was off is caught up with.
func (s *server) apply(a *models.Automation, in values) error {
	if in.has("name") {
		a.Name = get[string](in, "name")
	}
	if in.has("entrypoint") {
		a.Entrypoint = get[string](in, "entrypoint")
	}
	if in.has("tarball_path") {
		a.TarballPath = get[string](in, "tarball_path")
	}
	if in.has("description") {
		a.Description = opt[string](in, "description")
	}
	if in.has("setup_script_path") {
		a.SetupScriptPath = opt[string](in, "setup_script_path")
	}
	if in.has("prompt") {
		a.Prompt = opt[string](in, "prompt")
	}
	if in.has("keep_alive") {
		a.KeepAlive = opt[bool](in, "keep_alive")
	}
	if in.has("overlap") {
		a.Overlap = models.Overlap(get[string](in, "overlap"))
	}
	if in.has("tags") {
		a.Tags = get[[]string](in, "tags")
	}
	if in.has("agent_profile_id") {
		a.AgentProfileID = opt[uuid.UUID](in, "agent_profile_id")
	}
	if state := get[string](in, "state"); state != "" {
		a.State = models.AutomationState(state)
	}
	if err := applyJSON(&a.Trigger, in, "trigger"); err != nil {
		return err
	}
	if err := applyJSON(&a.Observability, in, "observability_associations"); err != nil {
		return err
	}
	return s.schedule(a)
}

func applyJSON(to *json.RawMessage, in values, name string) error {
	v, given := in[name]
	if !given {
		return nil
	}
	if v == nil {
		*to = nil
		return nil
	}
	text, err := json.Marshal(v)
	*to = text
	return err
}

// schedule computes when a fires next: never, unless it is an enabled cron automation.
func (s *server) schedule(a *models.Automation) error {
	var t struct{ Type, Schedule, Timezone string }
	if err := json.Unmarshal(a.Trigger, &t); err != nil {
		return err
	}
	a.NextRunAt = nil
	if t.Type == "cron" && a.State == models.AutomationActive {
		if at, fires := s.NextFire(t.Schedule, t.Timezone, s.Store.Now()); fires {
			a.NextRunAt = &at
		}
	}
	return nil
}

// chooseModel is rule 6 of the contract's section 2.2: the given name, else the caller's active profile; none beside an agent
// profile. A name is checked where the caller's profiles are known.
func chooseModel(in values, who Caller) (*string, error) {
	model := opt[string](in, "model")
	if in["agent_profile_id"] != nil {
		return nil, nil
	}
	if who.Models == nil {
		return model, nil
	}
	if model == nil {
		if who.Models.Active == "" {
			return nil, nil
		}
		model = &who.Models.Active
	}
	if !slices.Contains(who.Models.Names, *model) {
		return nil, unprocessable("Model profile `" + *model + "` not found")
	}
	return model, nil
}

// getTarball is GET /v1/{id}/tarball.
func (s *server) getTarball(w http.ResponseWriter, r *http.Request, who Caller) error {
	a, err := s.automation(r, who)
	if err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(a.TarballPath, "://")
	switch scheme {
	case "http", "https":
		return found(w, a.TarballPath)
	case "oh-internal":
	default:
		return unprocessable("Cannot proxy " + scheme + ":// tarball URLs. Download it from its own store")
	}
	u, err := s.internalUpload(r.Context(), who.OrgID, a.TarballPath)
	if err != nil || u.DeletedAt != nil {
		if p := asProblem(err); err != nil && p == nil {
			return err
		}
		return notFound("Tarball not found (underlying upload may have been deleted)")
	}
	file, err := s.Blob.Open(r.Context(), u.BlobKey)
	if errors.Is(err, fs.ErrNotExist) {
		return notFound("Tarball file not found in storage")
	} else if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return streamFile(w, file, a.Name)
}

// checkTarball is rule 5 of the contract's section 2.2.
func (s *server) checkTarball(ctx context.Context, who Caller, path string) error {
	if strings.HasPrefix(path, "http://") {
		return unprocessable("Invalid tarball_path. Must be oh-internal://uploads/{uuid} or a public URL (https://, s3://, gs://)")
	}
	if !strings.HasPrefix(path, internalScheme) {
		return nil
	}
	u, err := s.internalUpload(ctx, who.OrgID, path)
	switch {
	case err != nil:
		return err
	case u.UserID != who.UserID:
		return forbidden("Upload belongs to another user")
	case u.DeletedAt != nil:
		return badRequest("Upload has been deleted")
	case u.Status != models.UploadCompleted:
		return badRequest("Upload is not ready (status: " + string(u.Status) + ")")
	}
	return nil
}
