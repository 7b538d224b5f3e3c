package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"automation/models"
)

// A create whose answer was lost, at a provider that keeps no labels: nothing says which box it made, if any. The row is shown
// as unaccounted at once. Once, later, the user's boxes are listed, and the only one that can be it is taken for it and deleted;
// otherwise those that might be it are told, and nobody but a person decides (design section 5).
const (
	candidatesAfter = 10 * time.Minute // after the end of the call: by then a box of somebody else is in use, or named in its row
	clockSlack      = 10 * time.Second // between the provider's clock and ours
	candidatesMost  = 20               // that are asked whether they were used
)

// Candidate is a box that may be what a lost create made.
type Candidate struct {
	ProviderID string          `json:"provider_id"`
	State      models.Observed `json:"state"`
	CreatedAt  *time.Time      `json:"created_at"`
	Used       *bool           `json:"used"` // it has had a conversation or a command; nil: it could not be asked

	shown Observation
}

// candidatesAt is when the candidates of an unaccounted row are looked for; false when they are not, or were.
func candidatesAt(b *models.Sandbox, f Facts) (time.Time, bool) {
	can := f.Capabilities
	if b.Observed != models.SeenMissing || b.Searches > 0 || b.CreateSentAt == nil || b.CreateEndedAt == nil || !can.List || can.Labels {
		return time.Time{}, false
	}
	return b.CreateEndedAt.Add(candidatesAfter), true
}

// unaccounted shows the row as what it is, and sets the time at which candidates are looked for.
func (w *work) unaccounted() (models.Step, bool, error) {
	b := w.claim.Box
	step := w.blank(StepUnaccounted)
	if err := w.createEnded(); err != nil {
		return step, false, err
	}
	w.sees(&step, models.SeenMissing)
	step.Next, step.NeedsAttention = nil, AttentionUnaccounted
	if w.backend.Capabilities().List {
		at := b.CreateEndedAt.Add(candidatesAfter)
		step.Next = &at
	}
	step.Events = []models.Event{w.lostCreate("the answer of create was lost and the provider keeps no labels", nil)}
	return step, true, nil
}

// createEnded notes the end of a create whose caller died with it: now, which is after the lease's end.
func (w *work) createEnded() error {
	b := w.claim.Box
	if b.CreateEndedAt != nil {
		return nil
	}
	if err := w.Store.MarkCreate(w.lease.Wire, b.ID, w.claim.Token, false); err != nil {
		return fmt.Errorf("mark the end of create: %w", err)
	}
	now := w.Store.Now()
	b.CreateEndedAt = &now
	return nil
}

// lostCreate is the event that tells of an unaccounted create: when it was made, and what it may have made.
func (w *work) lostCreate(why string, candidates []Candidate) models.Event {
	b := w.claim.Box
	event := w.event("unaccounted", "failed", why)
	detail := map[string]any{"create_sent_at": b.CreateSentAt, "create_ended_at": b.CreateEndedAt}
	if candidates != nil {
		detail["candidates"] = candidates
	}
	if text, err := json.Marshal(detail); err == nil {
		event.Detail = text
	}
	return event
}

// account looks for the box of a lost create among those of its user.
func (w *work) account() (models.Step, bool, error) {
	step := w.blank(StepAccount)
	candidates, err := w.candidates()
	switch {
	case w.stopped(err):
		return step, false, err
	case err != nil: // could not check is never gone
		w.again(&step, "searched", err)
		if step.NeedsAttention == "" {
			step.NeedsAttention = AttentionUnaccounted
		}
		return step, true, nil
	}
	answered(&step)
	step.Attempts, step.LastError, step.Searches, step.Next = 0, nil, step.Searches+1, nil
	step.NeedsAttention = AttentionUnaccounted
	crowded, err := w.crowded()
	if err != nil {
		return step, false, err
	}
	unused := w.askUse(candidates)
	switch {
	case len(candidates) == 0:
		step.Events = []models.Event{w.lostCreate("no box of its user was made in that time that is not accounted for", candidates)}
	case crowded:
		step.Events = []models.Event{w.lostCreate("another create of its user was on its way in that time", candidates)}
	case unused == nil:
		step.Events = []models.Event{w.lostCreate("not exactly one box can be it that was never used", candidates)}
	default:
		return w.adopt(step, *unused)
	}
	return step, true, nil
}

// crowded reports whether another create of the same user overlaps this one's window.
func (w *work) crowded() (bool, error) {
	b := w.claim.Box
	return w.Store.OtherCreates(w.lease.Wire, b, b.CreateSentAt.Add(-clockSlack), b.CreateEndedAt.Add(clockSlack))
}

// candidates lists the user's boxes that were made while the create was on its way and that no row knows.
func (w *work) candidates() ([]Candidate, error) {
	b := w.claim.Box
	ctx, cancel := w.call()
	defer cancel()
	found, ids := []Candidate{}, []string{}
	for obs, err := range w.backend.List(ctx, Label{Owner: Owner{OrgID: b.OrgID, UserID: b.UserID}}) {
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		made := obs.CreatedAt
		outside := made != nil && (made.Before(b.CreateSentAt.Add(-clockSlack)) || made.After(b.CreateEndedAt.Add(clockSlack)))
		if outside || obs.State == models.SeenMissing || obs.State == models.SeenDeleted {
			continue
		}
		found = append(found, Candidate{ProviderID: obs.Identity.ProviderID, State: obs.State, CreatedAt: made, shown: obs})
		ids = append(ids, obs.Identity.ProviderID)
	}
	known, err := w.Store.KnownAt(w.lease.Wire, b.Backend, ids)
	if err != nil {
		return nil, err
	}
	unknown := []Candidate{}
	for _, c := range found {
		if _, is := known[c.ProviderID]; !is {
			unknown = append(unknown, c)
		}
	}
	return unknown, nil
}

// askUse asks each candidate whether it was ever used, and returns the only one that can be it: one that was made in the window
// for sure, was never used, and beside which every other one was.
func (w *work) askUse(candidates []Candidate) *Candidate {
	var one *Candidate
	possible := 0
	for i := range candidates {
		c := &candidates[i]
		if i < candidatesMost && c.State == models.SeenRunning && c.shown.Identity.URL != "" {
			agent := Agent{URL: c.shown.Identity.URL, Key: c.shown.Identity.Key, HTTP: w.HTTP}
			if used, err := agent.Used(w.lease.Wire); err == nil {
				c.Used = &used
			}
		}
		if c.Used != nil && *c.Used {
			continue
		}
		if possible++; c.Used != nil && c.CreatedAt != nil {
			one = c
		}
	}
	if possible != 1 {
		return nil
	}
	return one
}

// adopt takes a box for what the lost create made: its name is a fact now, and the row is ordered deleted.
func (w *work) adopt(step models.Step, c Candidate) (models.Step, bool, error) {
	if err := w.seen(c.shown.Identity); err != nil {
		return step, false, err
	}
	now := w.Store.Now()
	w.sees(&step, c.State)
	step.NeedsAttention, step.Next = "", &now
	step.Events = []models.Event{w.event("create_found", "ok", c.ProviderID+" is the only box of its user that can be it, and was never used")}
	if w.claim.Box.Desired == models.WantDeleted {
		return step, false, nil
	}
	err := w.Store.Order(w.lease.Wire, w.claim.Box.ID, models.WantDeleted, "settler", "made by a create whose answer was lost")
	if err != nil && !errors.Is(err, models.ErrDeletionOrdered) {
		return step, false, fmt.Errorf("order deleted: %w", err)
	}
	return step, true, nil
}

// Used reports whether the box has a conversation or has had a command. Asking does not move its idle clock.
func (a Agent) Used(ctx context.Context) (bool, error) {
	var conversations int
	if err := a.get(ctx, "/api/conversations/count", nil, &conversations); err != nil {
		return false, err
	}
	if conversations > 0 {
		return true, nil
	}
	events, _, err := a.bashEvents(ctx, map[string][]string{"limit": {"1"}})
	return len(events) > 0, err
}
