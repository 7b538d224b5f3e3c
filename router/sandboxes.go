package router

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"automation/models"
)

const noSandbox = "Sandbox not found"

var boxState = oneOf("enum", string(models.SeenProvisioning), string(models.SeenRunning), string(models.SeenSuspended),
	string(models.SeenDeleting), string(models.SeenDeleted), string(models.SeenMissing), string(models.SeenFailed))

// The parameters of the routes of boxes.
var (
	sandboxQuery = append(slices.Clone(paging),
		field{name: "state", many: true, rule: boxState},
		field{name: "backend", rule: text(1, 100)},
		field{name: "due_within", rule: span},
		field{name: "needs_attention", rule: boolean})
	deletion = []field{
		{name: "export", rule: oneOf("literal_error", "auto", "skip")},
		{name: "confirm", rule: oneOf("literal_error", historyLost)},
	}
	reclaimQuery = []field{{name: "dry_run", rule: boolean}}
)

// The answers of the routes of boxes, beside the box itself.
type (
	sandboxList struct {
		Sandboxes []sandboxObject `json:"sandboxes"`
		Total     int             `json:"total"`
	}
	eventList struct {
		Events []eventObject `json:"events"`
		Total  int           `json:"total"`
	}
	extendedObject struct {
		DueAt stamp `json:"due_at"`
		sandboxObject
	}
)

// listSandboxes is GET /v1/sandboxes.
func (s *server) listSandboxes(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, sandboxQuery...)
	f := models.SandboxFilter{
		OrgID: who.OrgID, Backend: get[string](in, "backend"), DueWithin: opt[time.Duration](in, "due_within"),
		NeedsAttention: get[bool](in, "needs_attention"),
	}
	for _, state := range get[[]string](in, "state") {
		f.States = append(f.States, models.Observed(state))
	}
	if err := c.err(); err != nil {
		return err
	}
	f.Limit, f.Offset = page(in)
	boxes, total, err := s.Store.ListSandboxes(r.Context(), f)
	if err != nil {
		return err
	}
	list := make([]sandboxObject, 0, len(boxes))
	for _, b := range boxes {
		list = append(list, s.showSandbox(b))
	}
	return ok(w, sandboxList{list, total})
}

// span is a duration: a number of seconds, or with units (36h).
var span = rule{checkSpan, schema{"type": "string", "pattern": `^[0-9]+$|^([0-9.]+(h|m|s|ms))+$`}}

func checkSpan(c *check, at loc, v any) any {
	word, _ := v.(string)
	d, err := time.ParseDuration(word)
	if n, numErr := strconv.ParseInt(word, 10, 64); numErr == nil {
		d, err = time.Duration(n)*time.Second, nil
		if n > int64(1<<33) {
			err = errors.New("too long")
		}
	}
	if err != nil || d < 0 {
		c.add("time_delta_parsing", at, "Input should be a number of seconds, or a duration such as 36h", v, nil)
		return nil
	}
	return d
}

// box reads the box that the path names by its workspace id, within the caller's organization. A provider's id is not a name
// of a box, for it changes with a resume (S0-118, S0-154); the answer says what to use.
func (s *server) box(r *http.Request, who Caller) (*models.Sandbox, error) {
	name := idOf(r)
	if id, err := uuid.Parse(name); err == nil {
		b, err := s.Store.Sandbox(r.Context(), who.OrgID, id)
		if !errors.Is(err, models.ErrNotFound) {
			return b, err
		}
	}
	if strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
		return nil, notFound(noSandbox)
	}
	id, err := s.Store.SandboxByProviderID(r.Context(), who.OrgID, name)
	if err != nil {
		return nil, as404(err, noSandbox)
	}
	return nil, wrongProviderID(id.String())
}

// managed returns the box for a route that changes it, goes into it or ends it: as with the runs of an automation, its creator
// and whoever manages the organization's automations may.
func (s *server) managed(r *http.Request, who Caller) (*models.Sandbox, error) {
	b, err := s.box(r, who)
	if err != nil {
		return nil, err
	}
	if !who.canManage(b.UserID) {
		return nil, forbidden("Only admins, owners, or the creator of the sandbox can change or enter it")
	}
	return b, nil
}

// getSandbox is GET /v1/sandboxes/{id}.
func (s *server) getSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.box(r, who)
	if err != nil {
		return err
	}
	return one(w, r, s.showSandbox(b))
}

// again reads the box anew after a change.
func (s *server) again(ctx context.Context, b *models.Sandbox) (sandboxObject, error) {
	b, err := s.Store.Sandbox(ctx, b.OrgID, b.ID)
	if err != nil {
		return sandboxObject{}, as404(err, noSandbox)
	}
	return s.showSandbox(b), nil
}

// order is a person's wish for a box: it is written down, the settler makes it so.
func (s *server) order(w http.ResponseWriter, r *http.Request, who Caller, b *models.Sandbox, to models.Desired, why string) error {
	if to == models.WantSuspended {
		s.Access.Release(b.ID)
	}
	return s.ordered(w, r, b, s.Store.Order(r.Context(), b.ID, to, who.name(), why))
}

// ordered answers after an order, err being what came of writing it down.
func (s *server) ordered(w http.ResponseWriter, r *http.Request, b *models.Sandbox, err error) error {
	if err != nil {
		return as404(err, noSandbox)
	}
	nudge(s.Nudge.Settle)
	o, err := s.again(r.Context(), b)
	if err != nil {
		return err
	}
	return accepted(w, o)
}

// wish reads the box of a route whose body is empty.
func (s *server) wish(w http.ResponseWriter, r *http.Request, who Caller) (*models.Sandbox, error) {
	var c check
	if _, err := s.body(&c, w, r, nothing, true); err != nil {
		return nil, err
	}
	return s.managed(r, who)
}

// pauseSandbox is POST /v1/sandboxes/{id}/pause.
func (s *server) pauseSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	if !s.Capabilities(b.Backend).CanSuspend() {
		return conflict("unsupported", "Sandboxes of "+b.Backend+" cannot be paused")
	}
	return s.order(w, r, who, b, models.WantSuspended, "paused by hand")
}

// resumeSandbox is POST /v1/sandboxes/{id}/resume. The answer carries the due date, which a resume does not move (S1-046).
func (s *server) resumeSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	return s.order(w, r, who, b, models.WantRunning, "resumed by hand")
}

// historyLost is what a person says who deletes a box although its history goes with it (S0-155).
const historyLost = "history-will-be-lost"

func confirmationNeeded(message string) error {
	p := conflict("confirmation_needed", message)
	p.details = map[string]any{"confirm": historyLost}
	return p
}

// deleteSandbox is DELETE /v1/sandboxes/{id}. What has no record was not created here and is not deleted from here (S0-002).
func (s *server) deleteSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, deletion...)
	if err := c.err(); err != nil {
		return err
	}
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	if b.Desired == models.WantDeleted {
		return accepted(w, s.showSandbox(b)) // final already: asking again changes nothing
	}
	err = s.Store.OrderDeletion(r.Context(), b.ID, models.Deletion{
		Who: who.name(), Why: "deleted by hand", LossAccepted: get[string](in, "confirm") == historyLost,
		SkipExport: get[string](in, "export") == "skip",
	})
	if errors.Is(err, models.ErrNoCurrentExport) {
		return confirmationNeeded("No current export of the history in this sandbox exists: add confirm=" + historyLost)
	}
	return s.ordered(w, r, b, err)
}

// extendSandbox is POST /v1/sandboxes/{id}/extend: seconds count from the present due date, or from now when it has passed.
func (s *server) extendSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, extension, false)
	if err != nil {
		return err
	}
	b, err := s.managed(r, who)
	if err != nil {
		return err
	}
	if until := opt[time.Time](in, "until"); until != nil {
		return s.extend(w, r, who, b, *until)
	}
	if b.DueAt == nil {
		if b.Desired == models.WantDeleted {
			return models.ErrDeletionOrdered
		}
		return models.ErrNoStamp
	}
	from, seconds := s.Store.Now(), get[int64](in, "seconds")
	if b.DueAt.After(from) {
		from = *b.DueAt
	}
	if seconds > int64(s.Config.Cleanup.MaxExtension/time.Second) {
		return s.tooFar()
	}
	return s.extend(w, r, who, b, from.Add(time.Duration(seconds)*time.Second))
}

func (s *server) tooFar() error {
	most := s.Config.Cleanup.MaxExtension
	return badRequest(fmt.Sprintf("A due date can be at most %d seconds (%d days) from now", most/time.Second, most/(24*time.Hour)))
}

// extend moves the due date.
func (s *server) extend(w http.ResponseWriter, r *http.Request, who Caller, b *models.Sandbox, due time.Time) error {
	now := s.Store.Now()
	if !due.After(now) {
		return badRequest("The due date must be in the future")
	}
	if due.Sub(now) > s.Config.Cleanup.MaxExtension {
		return s.tooFar()
	}
	if err := s.Store.Extend(r.Context(), b.ID, due, who.name()); err != nil {
		return as404(err, noSandbox)
	}
	nudge(s.Nudge.Janitor)
	o, err := s.again(r.Context(), b)
	if err != nil {
		return err
	}
	return ok(w, extendedObject{stamp(due), o})
}

// keepSandbox is PUT /v1/sandboxes/{id}/keep: the box is pinned and its stamp cleared; with until it is an extend to that date.
func (s *server) keepSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, keeping, true)
	if err != nil {
		return err
	}
	b, err := s.managed(r, who)
	if err != nil {
		return err
	}
	if until := opt[time.Time](in, "until"); until != nil {
		return s.extend(w, r, who, b, *until)
	}
	if err := s.Store.Keep(r.Context(), b.ID, who.name(), get[string](in, "reason")); err != nil {
		return as404(err, noSandbox)
	}
	return s.changed(w, r, b)
}

// unkeepSandbox is DELETE /v1/sandboxes/{id}/keep: the box of a run that has ended is stamped from now.
func (s *server) unkeepSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	if _, err := s.Store.Unkeep(r.Context(), b.ID, s.Settings.CleanupDelay, who.name()); err != nil {
		return as404(err, noSandbox)
	}
	return s.changed(w, r, b)
}

// changed answers with the box after its due date was changed.
func (s *server) changed(w http.ResponseWriter, r *http.Request, b *models.Sandbox) error {
	nudge(s.Nudge.Janitor)
	o, err := s.again(r.Context(), b)
	if err != nil {
		return err
	}
	return ok(w, o)
}

// listSandboxEvents is GET /v1/sandboxes/{id}/events, oldest first.
func (s *server) listSandboxEvents(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, paging...)
	if err := c.err(); err != nil {
		return err
	}
	b, err := s.box(r, who)
	if err != nil {
		return err
	}
	limit, offset := page(in)
	events, total, err := s.Store.Events(r.Context(), b.ID, limit, offset)
	if err != nil {
		return err
	}
	list := make([]eventObject, 0, len(events))
	for _, e := range events {
		list = append(list, showEvent(e))
	}
	return ok(w, eventList{list, total})
}
