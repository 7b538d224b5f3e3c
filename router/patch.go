package router

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"automation/models"
)

// patchAutomation is PATCH /v1/{id} (contract section 2.4). What the answer depends on elsewhere is looked up first; the
// change itself is made on the locked row.
func (s *server) patchAutomation(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "automation_id")
	in, err := s.body(&c, w, r, s.bodies.patch, false)
	if err != nil {
		return err
	}
	a, err := s.Store.Automation(r.Context(), who.OrgID, id)
	if err != nil {
		return as404(err, noAutomation)
	}
	if err := mayPatch(a, in, who); err != nil {
		return err
	}
	// Unlike the Python service, which lets any organization's upload be named here (its fault 18).
	if path := get[string](in, "tarball_path"); in.has("tarball_path") && path != a.TarballPath {
		if err := s.checkTarball(r.Context(), who, path); err != nil {
			return err
		}
	}
	if in.has("model") && (a.AgentProfileID == nil || in.has("agent_profile_id")) {
		model, err := chooseModel(in, who) // null is the caller's active profile, as it is when an automation is made
		if err != nil {
			return err
		}
		if model != nil {
			in["model"] = *model
		}
	}
	if err := s.checkAgentProfile(r.Context(), who, in, a.AgentProfileID); err != nil {
		return err
	}
	changed, err := s.change(r, a, in, who)
	if err != nil {
		return as404(err, noAutomation)
	}
	nudge(s.Nudge.Schedule)
	nudge(s.Nudge.Janitor)
	return one(w, r, showAutomation(changed))
}

// change writes the checked fields, with a new tarball where a preset's prompt or repositories have changed.
func (s *server) change(r *http.Request, a *models.Automation, in values, who Caller) (*models.Automation, error) {
	if err := fitsPreset(a, in); err != nil {
		return nil, err
	}
	edit := func(a *models.Automation) error {
		if err := matches(r, showAutomation(a)); err != nil { // again, on the locked row
			return err
		}
		return s.patch(a, in)
	}
	if code, err := s.rebuild(r.Context(), a, in); err != nil {
		return nil, err
	} else if code != nil {
		return s.replaceCode(r.Context(), a, code, edit, who)
	}
	return s.Store.UpdateAutomation(r.Context(), a.OrgID, a.ID, s.Settings.CleanupDelay, edit)
}

// mayPatch: only the creator may edit; whoever else can manage may only switch off.
func mayPatch(a *models.Automation, in values, who Caller) error {
	if err := who.mustManage(a.UserID); err != nil || a.UserID == who.UserID {
		return err
	}
	for name, v := range in {
		if !(name == "enabled" && v == false || name == "state" && v == string(models.AutomationInactive)) {
			return forbidden("Only the automation creator can edit it; admins and owners can only turn it off or delete it")
		}
	}
	return nil
}

// patch edits a. It is pure but for the clock, for it runs inside the transaction.
func (s *server) patch(a *models.Automation, in values) error {
	if err := fitsPreset(a, in); err != nil {
		return err
	}
	wasOn, state := a.State == models.AutomationActive, get[string](in, "state")
	if a.State == models.AutomationDraft && (state != "" || in.has("enabled")) {
		return conflict("draft", "Draft automation artifacts must be dispatched or activated through the draft API")
	}
	if state == "" && in.has("enabled") {
		a.State = models.AutomationInactive
		if get[bool](in, "enabled") {
			a.State = models.AutomationActive
		}
	}
	if err := patchModel(a, in); err != nil {
		return err
	}
	if in.has("timeout") {
		a.TimeoutSeconds = nil
		if t := opt[int64](in, "timeout"); t != nil {
			n := int(*t)
			a.TimeoutSeconds = &n
		}
	}
	if err := s.apply(a, in); err != nil {
		return err
	}
	switch {
	case a.State == models.AutomationActive:
		a.DisabledReason, a.DisabledDetail, a.DisabledAt = nil, nil, nil
	case wasOn:
		reason, now := "manual", s.Store.Now()
		a.DisabledReason, a.DisabledDetail, a.DisabledAt = &reason, json.RawMessage(`{"reason":"manual","source":"user"}`), &now
	}
	return keepConversations(a, in)
}

// keepConversations: a conversation that the next event continues lives in a box that stays (S1-021).
func keepConversations(a *models.Automation, in values) error {
	var t struct{ Destination string }
	if err := json.Unmarshal(a.Trigger, &t); err != nil {
		return err
	}
	if t.Destination != "continue_conversation" {
		return nil
	}
	if keep := opt[bool](in, "keep_alive"); keep != nil && !*keep {
		return badRequest(keptText)
	}
	yes := true
	a.KeepAlive = &yes
	return nil
}

// patchModel: an agent profile and a model exclude each other; choosing a profile takes the model away, and the reverse.
func patchModel(a *models.Automation, in values) error {
	if in["agent_profile_id"] != nil && in["model"] != nil {
		return unprocessable("An agent profile already specifies the model")
	}
	if in.has("model") {
		a.Model = opt[string](in, "model")
		if a.Model != nil && a.AgentProfileID != nil && !in.has("agent_profile_id") {
			return unprocessable("An agent profile already specifies the model")
		}
	}
	if opt[uuid.UUID](in, "agent_profile_id") != nil {
		a.Model = nil
	}
	return nil
}

// fitsPreset refuses fields that belong to kinds of automations that this one is not.
func fitsPreset(a *models.Automation, in values) error {
	var meta struct {
		PresetType string `json:"preset_type"`
	}
	_ = json.Unmarshal(a.PresetMetadata, &meta) // NULL has no preset type
	if in.has("repos") && meta.PresetType != "prompt" && meta.PresetType != "plugin" {
		return unprocessable("Only prompt and plugin preset automations can update repos")
	}
	if in.has("plugin") {
		if in["plugin"] == nil {
			return unprocessable("plugin cannot be null")
		}
		return unprocessable("Only plugin-spec automations can update plugin source")
	}
	return nil
}
