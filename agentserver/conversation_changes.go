package agentserver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"

	"automation/agentserver/conversation"
	"automation/agentserver/storage"
)

// createConversation records a conversation with its retention. One that exists is answered as it is, but an archived one
// is read-only.
func (s *Server) createConversation(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	retention, err := conversation.Retention{}.Check()
	if value := body["retention"]; value != nil && err == nil {
		retention, err = conversation.ParseRetention(value)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var check fields
	id := conversation.NewID()
	if text, there := check.text(body, "conversation_id"); there {
		id = check.id(text, "body", "conversation_id")
	}
	workspace, _ := body["workspace"].(map[string]any)
	dir, _ := workspace["working_dir"].(string)
	if !filepath.IsAbs(dir) {
		check.add(missing("body", "workspace", "working_dir"))
	}
	if check.answered(w) {
		return
	}
	found, err := s.conversations(r, []string{id})
	switch {
	case err != nil:
		internalError(w, "500: "+err.Error())
	case len(found) > 0 && found[0].Archived:
		refuse(w, http.StatusGone, readOnly)
	case len(found) > 0:
		respond(w, http.StatusOK, found[0])
	default:
		s.create(w, r, id, dir, retention)
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, id, dir string, retention conversation.Retention) {
	now := s.now().UTC().Truncate(time.Microsecond)
	shared := map[string]any{
		"id": conversation.Dashed(id), "workspace": map[string]string{"working_dir": dir, "kind": "LocalWorkspace"},
	}
	state, err := json.Marshal(shared)
	shared["created_at"], shared["updated_at"] = now, now
	meta, metaErr := json.Marshal(shared)
	err = errors.Join(err, metaErr)
	if err == nil {
		err = s.histories.Create(id, meta, state)
	}
	if err == nil && retention.Policy != conversation.Default {
		err = s.histories.SetRetention(id, retention)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // made by another call just now: answered as it is
		internalError(w, "500: "+err.Error())
		return
	}
	found, readErr := s.conversations(r, []string{id})
	if readErr != nil || len(found) == 0 {
		internalError(w, "500: the conversation cannot be read")
		return
	}
	s.idle.touch() // a conversation event
	status := http.StatusCreated
	if err != nil {
		status = http.StatusOK
	}
	respond(w, status, found[0])
}

// putRetention sets how long a conversation's runtime is kept: default, days or on_stop, anything else is 400 (S0-067).
func (s *Server) putRetention(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	retention, err := conversation.ParseRetention(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	c, ok := s.named(w, r)
	if !ok {
		return
	}
	if c.Archived {
		refuse(w, http.StatusGone, readOnly)
		return
	}
	if err := s.histories.SetRetention(conversation.Plain(c.ID), retention); err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	answer := struct {
		conversation.Retention
		Effective bool   `json:"effective"` // false: this box has no runtimes to drop (S0-008, S0-047)
		Reason    string `json:"reason"`
	}{Retention: retention, Effective: s.config.Runtime == "docker"}
	if !answer.Effective {
		answer.Reason = "conversations of this box have no runtime of their own: retention has no effect"
	}
	respond(w, http.StatusOK, answer)
}

// unarchive brings an archived conversation back as it was, as long as the trash still holds its runtime whole: 410 afterwards.
func (s *Server) unarchive(w http.ResponseWriter, r *http.Request) {
	c, ok := s.named(w, r)
	if !ok {
		return
	}
	err := s.storage.Restore(r.Context(), c.ID)
	inUse, isInUse := errors.AsType[*storage.InUseError](err)
	switch {
	case isInUse:
		refuse(w, http.StatusConflict, inUse.Error())
	case errors.Is(err, storage.ErrNotArchived):
		refuse(w, http.StatusConflict, "Conversation is not archived")
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusGone, readOnly)
	case err != nil:
		internalError(w, "500: "+err.Error())
	default:
		s.getConversation(w, r)
	}
}

// deleteConversation removes a conversation that is not in use, its runtime and its history.
func (s *Server) deleteConversation(w http.ResponseWriter, r *http.Request) {
	var check fields
	id := check.id(r.PathValue("id"), "path", "conversation_id")
	if check.answered(w) {
		return
	}
	err := s.storage.Remove(r.Context(), id)
	inUse, isInUse := errors.AsType[*storage.InUseError](err)
	switch {
	case isInUse:
		refuse(w, http.StatusConflict, inUse.Error())
	case errors.Is(err, fs.ErrNotExist):
		notFound(w)
	case err != nil:
		internalError(w, "500: "+err.Error())
	default:
		respond(w, http.StatusOK, success{true})
	}
}

// prompt is everything that would have an agent work. This server runs none; of an archived conversation it says so first.
func (s *Server) prompt(w http.ResponseWriter, r *http.Request) {
	c, ok := s.named(w, r)
	switch {
	case !ok:
	case c.Archived:
		refuse(w, http.StatusGone, readOnly)
	default:
		respond(w, http.StatusNotImplemented, detail{"This server runs no agent"})
	}
}
