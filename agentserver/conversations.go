package agentserver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"time"

	"automation/agentserver/conversation"
	"automation/agentserver/storage"
)

// readOnly is the answer to everything that would prompt or run an archived conversation (S0-049).
const readOnly = "Conversation runtime was archived; its history is read-only"

// runtimeInfo says whether a conversation can go on.
type runtimeInfo struct {
	Status    string  `json:"runtime_status"` // available, starting, missing
	CanResume bool    `json:"can_resume"`
	Error     *string `json:"runtime_error"`
}

// conversationInfo is a conversation as the contract shows it, as far as its disk says, and what is ours: archived and
// retention. It carries no setting of a model and no secret.
type conversationInfo struct {
	ID              string                 `json:"id"`
	Workspace       json.RawMessage        `json:"workspace"`
	ExecutionStatus string                 `json:"execution_status"`
	Title           *string                `json:"title"`
	CreatedAt       *time.Time             `json:"created_at"`
	UpdatedAt       *time.Time             `json:"updated_at"`
	Tags            map[string]string      `json:"tags"`
	Profile         json.RawMessage        `json:"launched_agent_profile"`
	RuntimeInfo     runtimeInfo            `json:"runtime_info"`
	Archived        bool                   `json:"archived"`
	Retention       conversation.Retention `json:"retention"`
}

// conversations reads all of them, or those of these ids.
func (s *Server) conversations(r *http.Request, ids []string) ([]conversationInfo, error) {
	tenants, err := s.storage.Tenants(r.Context())
	if err != nil {
		return nil, err
	}
	states := make(map[string]string, len(tenants))
	for _, t := range tenants {
		states[t.ID] = t.State
	}
	if ids == nil {
		if ids, err = s.histories.IDs(); err != nil {
			return nil, err
		}
	}
	all := []conversationInfo{}
	for _, id := range ids {
		c, err := s.histories.Get(id, s.now())
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.log.Warn("conversation left out", "error", err)
			}
			continue
		}
		all = append(all, s.describe(c, states[conversation.Dashed(id)]))
	}
	return all, nil
}

func (s *Server) describe(c conversation.Conversation, state string) conversationInfo {
	info := conversationInfo{
		ID: conversation.Dashed(c.ID), Workspace: orNull(c.Workspace), ExecutionStatus: c.Status, Title: c.Title, Tags: c.Tags,
		CreatedAt: momentOrNull(c.CreatedAt), UpdatedAt: momentOrNull(c.UpdatedAt), Profile: orNull(c.Profile),
		RuntimeInfo: runtimeInfo{Status: "available", CanResume: true}, Archived: state == storage.StateArchived,
	}
	if info.Tags == nil {
		info.Tags = map[string]string{}
	}
	if info.UpdatedAt == nil {
		info.UpdatedAt = momentOrNull(c.LastActive)
	}
	switch {
	case info.Archived:
		info.RuntimeInfo = runtimeInfo{Status: "missing"}
	case state == storage.StateStopped, s.config.Runtime == "docker" && state == "":
		info.RuntimeInfo.Status = "missing"
	case state == storage.StateStarting:
		info.RuntimeInfo.Status = "starting"
	}
	var err error
	if info.Retention, err = s.histories.Retention(c.ID); err != nil {
		s.log.Warn("retention not read", "conversation_id", info.ID, "error", err)
		info.Retention = conversation.Retention{Policy: conversation.Default}
	}
	return info
}

func orNull(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("null")
	}
	return text
}

func momentOrNull(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC().Truncate(time.Microsecond)
	return &at
}

// named reads the conversation of the path. false: the answer (422, 404, 500) has been written.
func (s *Server) named(w http.ResponseWriter, r *http.Request) (conversationInfo, bool) {
	var check fields
	id := check.id(r.PathValue("id"), "path", "conversation_id")
	if check.answered(w) {
		return conversationInfo{}, false
	}
	found, err := s.conversations(r, []string{id})
	switch {
	case err != nil:
		internalError(w, "500: "+err.Error())
	case len(found) == 0:
		notFound(w)
	default:
		return found[0], true
	}
	return conversationInfo{}, false
}

// getConversation answers for an archived conversation too (S0-048).
func (s *Server) getConversation(w http.ResponseWriter, r *http.Request) {
	if c, ok := s.named(w, r); ok {
		respond(w, http.StatusOK, c)
	}
}

// batchConversations answers with one place for each id, null for those there are not.
func (s *Server) batchConversations(w http.ResponseWriter, r *http.Request) {
	var check fields
	var ids []string
	for i, text := range r.URL.Query()["ids"] {
		ids = append(ids, check.id(text, "query", "ids", i))
	}
	if len(ids) == 0 {
		check.add(missing("query", "ids"))
	}
	if check.answered(w) {
		return
	}
	found, err := s.conversations(r, ids)
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	answer := make([]*conversationInfo, len(ids))
	for i, id := range ids {
		at := slices.IndexFunc(found, func(c conversationInfo) bool { return c.ID == conversation.Dashed(id) })
		if at >= 0 {
			answer[i] = &found[at]
		}
	}
	respond(w, http.StatusOK, answer)
}

func (s *Server) countConversations(w http.ResponseWriter, r *http.Request) {
	if found, ok := s.selected(w, r); ok {
		respond(w, http.StatusOK, len(found))
	}
}

// selected reads the conversations of a status, in the order asked for.
func (s *Server) selected(w http.ResponseWriter, r *http.Request) ([]conversationInfo, bool) {
	var check fields
	query := r.URL.Query()
	status := check.oneOf(query, "status", "enum", conversation.Statuses...)
	order := check.oneOf(query, "sort_order", "enum", "CREATED_AT", "UPDATED_AT", "CREATED_AT_DESC", "UPDATED_AT_DESC")
	if check.answered(w) {
		return nil, false
	}
	found, err := s.conversations(r, nil)
	if err != nil {
		internalError(w, "500: "+err.Error())
		return nil, false
	}
	found = slices.DeleteFunc(found, func(c conversationInfo) bool { return status != "" && c.ExecutionStatus != status })
	at := func(c conversationInfo) time.Time {
		moment := c.CreatedAt
		if order == "UPDATED_AT" || order == "UPDATED_AT_DESC" {
			moment = c.UpdatedAt
		}
		if moment == nil {
			return time.Time{}
		}
		return *moment
	}
	slices.SortStableFunc(found, func(a, b conversationInfo) int {
		if order == "CREATED_AT" || order == "UPDATED_AT" {
			return at(a).Compare(at(b))
		}
		return at(b).Compare(at(a))
	})
	return found, true
}

// page is one page of a search.
type page[T any] struct {
	Items []T     `json:"items"`
	Next  *string `json:"next_page_id"`
}

// cut takes one page, from the item of this name on.
func cut[T any](all []T, name func(T) string, from string, limit int) page[T] {
	start := max(0, slices.IndexFunc(all, func(item T) bool { return name(item) == from }))
	p := page[T]{Items: all[start:min(len(all), start+limit)]}
	if start+limit < len(all) {
		next := name(all[start+limit])
		p.Next = &next
	}
	return p
}

func (s *Server) searchConversations(w http.ResponseWriter, r *http.Request) {
	var check fields
	limit := check.limit(r.URL.Query())
	if check.answered(w) {
		return
	}
	if found, ok := s.selected(w, r); ok {
		respond(w, http.StatusOK, cut(found, func(c conversationInfo) string { return c.ID }, r.URL.Query().Get("page_id"), limit))
	}
}

// searchEvents pages through the history of a conversation, archived or not.
func (s *Server) searchEvents(w http.ResponseWriter, r *http.Request) {
	var check fields
	limit := check.limit(r.URL.Query())
	if check.answered(w) {
		return
	}
	c, ok := s.named(w, r)
	if !ok {
		return
	}
	id := conversation.Plain(c.ID)
	names, err := s.histories.Events(id)
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	some := cut(names, func(name string) string { return name }, r.URL.Query().Get("page_id"), limit)
	answer := page[json.RawMessage]{Items: []json.RawMessage{}, Next: some.Next}
	for _, name := range some.Items {
		event, err := s.histories.Event(id, name)
		if err != nil {
			s.log.Warn("event left out", "conversation_id", c.ID, "error", err)
			continue
		}
		answer.Items = append(answer.Items, event)
	}
	respond(w, http.StatusOK, answer)
}

func (s *Server) countEvents(w http.ResponseWriter, r *http.Request) {
	c, ok := s.named(w, r)
	if !ok {
		return
	}
	names, err := s.histories.Events(conversation.Plain(c.ID))
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	respond(w, http.StatusOK, len(names))
}
