package router

import (
	"crypto/rand"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

const noRuntime = "Runtime not found"

// Why the box of a conversation is not evicted now, beside the reasons that the idle duty finds by asking the box.
const (
	heldOff      = "eviction_off"  // nothing is ever evicted for idleness (S3-007)
	heldStarting = "starting"      // S3-025
	heldAttached = "attached"      // a request, stream or relay into it is open (S3-018)
	heldRecent   = "recently_used" // not idle for long enough yet
)

// runtimeObject is a conversation that has a box of its own. Its keys are never shown.
type runtimeObject struct {
	ConversationID      uuid.UUID      `json:"conversation_id"`
	OrgID               uuid.UUID      `json:"org_id"`
	UserID              uuid.UUID      `json:"user_id"`
	Backend             string         `json:"backend"`
	Workspace           *string        `json:"workspace"` // a caller's own checkout; null: the box's own
	State               string         `json:"state"`     // starting, running, stopping, stopped, missing, failed, deleting, deleted
	LastAccessAt        *stamp         `json:"last_access_at"`
	EvictAt             *stamp         `json:"evict_at"` // when it has been idle for long enough; null: it does not run, or is never evicted
	NotEvictableBecause *string        `json:"not_evictable_because"`
	LastError           *string        `json:"last_error"`
	CreatedAt           stamp          `json:"created_at"`
	Sandbox             *sandboxObject `json:"sandbox"`
}

type runtimeList struct {
	Runtimes []runtimeObject `json:"runtimes"`
	Total    int             `json:"total"`
}

// putRuntime is PUT /v1/runtimes/{conversation_id}: the conversation's box runs, or will. The first call makes it; later ones
// find the same one, with its files, its workspace and its keys as they were (S3-005, S3-017).
func (s *server) putRuntime(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, runtimeWish, true)
	if err != nil {
		return err
	}
	id := c.conversation(r)
	if err := c.err(); err != nil {
		return err
	}
	if s.Runtimes.Place.Backend == "" {
		return conflict("unsupported", "In local mode conversations have no sandbox of their own")
	}
	old, err := s.Store.Runtime(r.Context(), who.OrgID, id)
	if err == nil && !who.canManage(old.UserID) {
		return forbidden("Only admins, owners, or the creator of the runtime can open it")
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return err
	}
	want := models.Runtime{
		OrgID: who.OrgID, UserID: who.UserID, ConversationID: id, Backend: s.Runtimes.Place.Backend, Location: s.Runtimes.Place.Location,
		SessionKey: rand.Text(), SecretKey: rand.Text(),
	}
	if path := opt[string](in, "workspace"); path != nil {
		if want.Workspace, err = s.workspace(*path); err != nil {
			return err
		}
	}
	runtime, made, err := s.Store.OpenRuntime(r.Context(), want, who.name())
	if err != nil {
		return err
	}
	nudge(s.Nudge.Settle)
	if made {
		return created(w, s.showRuntime(runtime))
	}
	return ok(w, s.showRuntime(runtime))
}

// workspace checks a caller's own checkout and returns its real path.
func (s *server) workspace(path string) (string, error) {
	if s.Runtimes.Workspace == nil {
		return "", conflict("unsupported", "Sandboxes of "+s.Runtimes.Place.Backend+" have a workspace of their own")
	}
	resolved, err := s.Runtimes.Workspace(path)
	if err != nil {
		return "", badRequest("The workspace cannot be used: " + err.Error())
	}
	return resolved, nil
}

// conversation is the id that the path names.
func (c *check) conversation(r *http.Request) uuid.UUID {
	id, err := uuid.Parse(idOf(r))
	if err != nil {
		c.add("uuid_parsing", loc{"path", "conversation_id"}, "Input should be a valid UUID", idOf(r), nil)
	}
	return id
}

// listRuntimes is GET /v1/runtimes.
func (s *server) listRuntimes(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, paging...)
	if err := c.err(); err != nil {
		return err
	}
	limit, offset := page(in)
	runtimes, total, err := s.Store.Runtimes(r.Context(), who.OrgID, limit, offset)
	if err != nil {
		return err
	}
	list := make([]runtimeObject, 0, len(runtimes))
	for _, one := range runtimes {
		list = append(list, s.showRuntime(one))
	}
	return ok(w, runtimeList{list, total})
}

// runtime reads the conversation's runtime that the path names, within the caller's organization.
func (s *server) runtime(r *http.Request, who Caller) (*models.Runtime, error) {
	id, err := uuid.Parse(idOf(r))
	if err != nil {
		return nil, notFound(noRuntime)
	}
	runtime, err := s.Store.Runtime(r.Context(), who.OrgID, id)
	return runtime, as404(err, noRuntime)
}

// getRuntime is GET /v1/runtimes/{conversation_id}.
func (s *server) getRuntime(w http.ResponseWriter, r *http.Request, who Caller) error {
	runtime, err := s.runtime(r, who)
	if err != nil {
		return err
	}
	return ok(w, s.showRuntime(runtime))
}

// evictRuntime is POST /v1/runtimes/{conversation_id}/evict: it is suspended now, unless somebody is in it. Files, workspace
// and keys stay.
func (s *server) evictRuntime(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	if _, err := s.body(&c, w, r, nothing, true); err != nil {
		return err
	}
	runtime, err := s.runtime(r, who)
	if err == nil && runtime.Box != nil { // a request that has ended is nobody's presence
		s.Access.Release(runtime.Box.ID)
		runtime, err = s.runtime(r, who)
	}
	if err != nil {
		return err
	}
	if !who.canManage(runtime.UserID) {
		return forbidden("Only admins, owners, or the creator of the runtime can evict it")
	}
	switch {
	case runtime.Box == nil:
		return conflict("not_running", "The conversation has no sandbox")
	case runtime.Attached:
		return notEvictable(heldAttached, "Somebody is in it")
	case runtime.Box.Desired == models.WantRunning && runtime.Box.Observed == models.SeenProvisioning:
		return notEvictable(heldStarting, "It is being started")
	}
	if err := s.Store.Order(r.Context(), runtime.Box.ID, models.WantSuspended, who.name(), "evicted by hand"); err != nil {
		return as404(err, noRuntime)
	}
	nudge(s.Nudge.Settle)
	if runtime, err = s.Store.Runtime(r.Context(), who.OrgID, runtime.ConversationID); err != nil {
		return as404(err, noRuntime)
	}
	return accepted(w, s.showRuntime(runtime))
}

func notEvictable(because, message string) error {
	p := conflict("not_evictable", message)
	p.details = map[string]any{"not_evictable_because": because}
	return p
}

func (s *server) showRuntime(r *models.Runtime) runtimeObject {
	o := runtimeObject{
		ConversationID: r.ConversationID, OrgID: r.OrgID, UserID: r.UserID, Backend: r.Backend, CreatedAt: stamp(r.CreatedAt), State: "missing",
	}
	if r.Workspace != "" {
		o.Workspace = &r.Workspace
	}
	b := r.Box
	if b == nil {
		return o
	}
	box := s.showSandbox(b)
	o.Sandbox, o.State, o.LastAccessAt, o.LastError = &box, stateOf(b), optStamp(b.LastAccessAt), b.LastError
	if o.State != "running" && o.State != "starting" {
		return o
	}
	at := s.evictAt(b)
	if because := s.held(r, at); because != "" {
		o.NotEvictableBecause = &because
	}
	o.EvictAt = optStamp(at)
	return o
}

// stateOf is what a conversation's box is, in a word.
func stateOf(b *models.Sandbox) string {
	switch {
	case b.Desired == models.WantDeleted && b.Observed != models.SeenDeleted:
		return "deleting"
	case b.Observed == models.SeenRunning && b.Desired == models.WantSuspended && b.NextStepAt != nil:
		return "stopping"
	case b.Observed == models.SeenSuspended && b.Desired == models.WantRunning && b.NextStepAt != nil, b.Observed == models.SeenProvisioning:
		return "starting"
	case b.Observed == models.SeenSuspended:
		return "stopped"
	}
	return string(b.Observed)
}

// evictAt is when a box that runs has been unused for long enough; nil: never.
func (s *server) evictAt(b *models.Sandbox) *time.Time {
	if s.Settings.IdleTTL <= 0 {
		return nil
	}
	used := b.OrderedAt
	for _, at := range []*time.Time{b.LastAccessAt, b.ObservedAt} {
		if at != nil && at.After(used) {
			used = *at
		}
	}
	at := used.Add(s.Settings.IdleTTL)
	return &at
}

// held says why a box that runs is not evicted now, or "".
func (s *server) held(r *models.Runtime, evictAt *time.Time) string {
	switch b := r.Box; {
	case evictAt == nil:
		return heldOff
	case r.Attached:
		return heldAttached
	case b.Observed == models.SeenProvisioning || b.NextStepAt != nil:
		return heldStarting
	case evictAt.After(s.Store.Now()):
		return heldRecent
	default:
		return b.HeldBecause
	}
}
