package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/models"
	"automation/testhooks"
)

// Steps that call the provider. An order that comes in meanwhile does not end them: what they name is stored, and what they
// see is recorded.

func (w *work) inspect() (models.Step, bool, error) {
	b := w.claim.Box
	step := w.blank(StepInspect)
	obs, err := w.look()
	if w.stopped(err) {
		return step, false, err
	}
	if err != nil {
		if w.again(&step, "inspected", err); b.Desired != models.WantDeleted {
			step.Waited = true // a provider that is down for an hour does not use up what is left for the box
			return step, true, nil
		}
		// A delete does not wait for a look that fails: it goes on with what was last seen, in this same claim.
		w.facts.Blind = true
		step.Attempts, step.Next = b.Attempts, b.NextStepAt
		return step, false, nil
	}
	w.facts.Looked = true
	answered(&step)
	w.sees(&step, obs.State)
	step.ExpiresAt = obs.ExpiresAt
	if obs.State != b.Observed && b.Observed != models.SeenDeleting { // a delete that was accepted and does not show is no progress
		step.Attempts = 0
	}
	switch obs.State {
	case models.SeenMissing, models.SeenDeleted:
		return w.inspectedGone(step)
	case models.SeenDeleting:
		w.again(&step, "inspected", errors.New("the provider shows it deleting"))
		return step, true, nil
	case models.SeenProvisioning:
		if b.Desired == models.WantSuspended { // somebody starts it, unless the order is still to be fulfilled
			running := models.WantRunning
			step.Adopt = &running
		}
		if b.Desired == models.WantDeleted || b.Desired == models.WantSuspended && b.CreatedBy == models.CreatedByRuntime {
			return step, false, nil
		}
		w.again(&step, "inspected", errors.New("the provider shows it starting"))
		return step, true, nil
	case models.SeenFailed:
		step.LastError = &obs.Detail
		if b.Observed != models.SeenFailed {
			step.Events = append(step.Events, w.event("box_failed", "failed", clip(obs.Detail, 500)))
		}
	case models.SeenRunning, models.SeenSuspended:
		if state := models.Desired(obs.State); b.Desired != models.WantDeleted && state != b.Desired {
			step.Adopt = &state // where the present order was seen fulfilled: adopted, not fought
		}
	}
	switch {
	case obs.State != models.SeenRunning || b.Desired != models.WantSuspended:
	case evicting(b):
		w.facts.LastActivity = w.lastWork()
	case tried(b, markSuspendSent):
		w.facts.LastActivity = w.lastActivity(obs)
	}
	return step, false, nil
}

// look asks the provider and stores what it names. A box that is gone is seen missing, one in transition deleting.
func (w *work) look() (Observation, error) {
	ctx, cancel := w.call()
	defer cancel()
	obs, err := w.backend.Inspect(ctx, w.ref())
	switch {
	case errors.Is(err, ErrGone), err == nil && obs.State == models.SeenDeleted:
		return Observation{State: models.SeenMissing}, nil
	case errors.Is(err, ErrBusy):
		return Observation{State: models.SeenDeleting}, nil
	case err != nil:
		return obs, fmt.Errorf("inspect: %w", err)
	}
	return obs, w.seen(obs.Identity)
}

// inspectedGone is what follows when the provider shows no identity of the box any more. A delete that was accepted is done;
// otherwise the box is missing.
func (w *work) inspectedGone(step models.Step) (models.Step, bool, error) {
	b := w.claim.Box
	if b.Desired == models.WantDeleted && b.Observed == models.SeenDeleting {
		return w.deleted(step, "")
	}
	if b.Observed != models.SeenMissing {
		step.Events = append(step.Events, w.event("missing", "ok", "the provider does not show it any more"))
	}
	return step, false, nil
}

// lastActivity is the newest activity in the box: as the provider shows it, else as its agent server does, where looking does
// not count as activity. nil: unreadable.
func (w *work) lastActivity(obs Observation) *time.Time {
	if obs.LastActivity != nil {
		return obs.LastActivity
	}
	if w.backend.Capabilities().LookingCounts || w.claim.Box.URL == "" {
		return nil
	}
	info, err := w.agent().ServerInfo(w.lease.Patient)
	if err != nil {
		return nil
	}
	at := w.Store.Now().Add(-info.IdleTime)
	return &at
}

// lastWork is when something last ran in a box that is about to be suspended because nothing does; nil: unreadable.
func (w *work) lastWork() *time.Time {
	if w.backend.Capabilities().LookingCounts || w.claim.Box.URL == "" {
		return nil
	}
	now := w.Store.Now()
	did, err := w.agent().Work(w.lease.Patient, now, now.Sub(w.claim.Box.OrderedAt))
	if err != nil {
		return nil
	}
	at := did.At(now)
	return &at
}

// search looks a create up whose answer was lost, by label.
func (w *work) search() (models.Step, bool, error) {
	b := w.claim.Box
	step := w.blank(StepSearch)
	if err := w.createEnded(); err != nil {
		return step, false, err
	}
	found, err := w.find()
	switch {
	case w.stopped(err):
		return step, false, err
	case err != nil: // could not check is never gone
		w.again(&step, "searched", err)
		return step, true, nil
	case found != nil:
		answered(&step)
		w.sees(&step, found.State)
		step.Attempts, step.LastError = 0, nil
		step.Events = []models.Event{w.event("create_found", "ok", found.Identity.ProviderID)}
		return step, false, nil
	}
	answered(&step)
	step.Searches++
	step.Attempts, step.LastError = 0, nil
	if w.backend.Capabilities().ExactList || step.Searches >= len(searchAfter) {
		w.sees(&step, models.SeenMissing)
		w.done(&step, w.event("create_not_found", "failed", fmt.Sprintf("looked up %d times", step.Searches)))
		return step, true, nil
	}
	at := b.CreateEndedAt.Add(searchAfter[step.Searches])
	step.Next = &at
	return step, true, nil
}

// find lists the boxes with this workspace's label and stores what it finds; nil when there is none.
func (w *work) find() (*Observation, error) {
	ctx, cancel := w.call()
	defer cancel()
	label := Label{Deployment: w.Deployment, WorkspaceID: w.claim.Box.ID}
	var found *Observation
	for obs, err := range w.backend.List(ctx, label) {
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		if obs.Label != label {
			continue
		}
		if err := w.seen(obs.Identity); err != nil {
			return nil, err
		}
		if found == nil || obs.Identity.Kind == models.IdentityBox {
			found = &obs
		}
	}
	return found, nil
}

// change makes one call that changes the box.
func (w *work) change(call func(context.Context) error) error {
	ctx, cancel := w.call()
	defer cancel()
	testhooks.Reached(testhooks.SettleBeforeCall)
	err := call(ctx)
	testhooks.Reached(testhooks.SettleAfterCall)
	return err
}

// suspend asks the provider to suspend the box, and waits until it shows. That it is asked is recorded before: were this
// process to die meanwhile, a resume ordered later would else see the box still running and be content with that.
func (w *work) suspend(ctx context.Context) (models.Step, bool, error) {
	started := w.Store.Now()
	step := w.blank(StepSuspend)
	if !tried(w.claim.Box, markSuspendSent) {
		sent := w.blank(markSuspendSent)
		sent.Tried = true
		changed, err := w.record(ctx, sent)
		if err != nil {
			return step, false, err
		}
		if changed {
			w.Wake(w.place())
			return step, false, errReleased
		}
	}
	err := w.change(func(ctx context.Context) error { return w.backend.Suspend(ctx, w.ref(), w.seen) })
	if errors.Is(err, ErrBreakerOpen) {
		return step, false, err
	}
	if err != nil {
		return w.suspendFailed(step, err)
	}
	obs, shown := w.until(models.SeenSuspended)
	if obs != nil {
		answered(&step)
		w.sees(&step, obs.State)
		step.ExpiresAt = obs.ExpiresAt
	}
	switch {
	case shown:
		event := w.event("suspended", "ok", w.claim.Box.OrderReason)
		event.DurationMS = w.Store.Now().Sub(started).Milliseconds()
		w.done(&step, event)
		return step, true, nil
	case obs != nil && (obs.State == models.SeenFailed || obs.State == models.SeenMissing):
		w.facts.Looked = true // a box in error is not taken as parked
		step.Events = append(step.Events, w.event("suspended", "failed", "the provider shows it "+string(obs.State)))
		return step, false, nil
	}
	return w.suspendFailed(step, errors.New("accepted, but the box does not show it"))
}

func (w *work) suspendFailed(step models.Step, err error) (models.Step, bool, error) {
	switch {
	case errors.Is(err, ErrGone):
		w.sees(&step, models.SeenMissing)
		w.done(&step, w.event("missing", "ok", "suspend: the provider does not know it"))
	case errors.Is(err, errors.ErrUnsupported):
		step.Next, step.NeedsAttention = nil, AttentionUnsuspending
		step.Name, step.Tried = string(StepSuspend), true
	default:
		step.Name, step.Tried = string(markSuspendSent), true
		// The box runs on, and what is exported by now may not be all of it when it is suspended.
		step.ExportStale = w.claim.Box.ExportedEpoch == w.claim.Box.AwakeEpoch
		step.Waited = step.ExportStale
		w.again(&step, "suspended", fmt.Errorf("suspend: %w", err))
	}
	return step, true, nil
}

func (w *work) resume() (models.Step, bool, error) {
	started := w.Store.Now()
	step := w.blank(StepResume)
	err := w.change(func(ctx context.Context) error { return w.backend.Resume(ctx, w.ref(), w.seen) })
	switch {
	case errors.Is(err, ErrBreakerOpen):
		return step, false, err
	case errors.Is(err, ErrGone):
		w.sees(&step, models.SeenMissing)
		w.done(&step, w.event("missing", "ok", "resume: the provider does not know it"))
		return step, true, nil
	case errors.Is(err, errors.ErrUnsupported):
		step.Tried, step.Next, step.NeedsAttention = true, nil, AttentionResume
		return step, true, nil
	case err != nil:
		w.again(&step, "resumed", fmt.Errorf("resume: %w", err))
		return step, true, nil
	}
	obs, shown := w.until(models.SeenRunning)
	if obs != nil {
		answered(&step)
		w.sees(&step, obs.State)
		step.ExpiresAt = obs.ExpiresAt
	}
	if shown {
		event := w.event("resumed", "ok", w.claim.Box.OrderReason)
		event.DurationMS = w.Store.Now().Sub(started).Milliseconds()
		w.done(&step, event)
		return step, true, nil
	}
	w.again(&step, "resumed", errors.New("resume: accepted, but the box does not show it"))
	return step, true, nil
}

// await gives a suspend that was asked for before the present order the time to show.
func (w *work) await() (models.Step, bool, error) {
	step := w.blank(StepAwait)
	obs, _ := w.until(models.SeenSuspended)
	switch {
	case w.lease.Wire.Err() != nil:
		return step, false, context.Cause(w.lease.Wire)
	case obs == nil:
		w.again(&step, "inspected", errors.New("a suspend may be under way, and the provider does not say"))
		return step, true, nil
	}
	answered(&step)
	w.sees(&step, obs.State)
	step.ExpiresAt = obs.ExpiresAt
	w.facts.Looked = true
	return step, false, nil
}

// until looks until the provider shows a state, for at most Timing.Shows, whatever is ordered meanwhile: an accepted suspend
// that nobody waits for would end a resume that is ordered next. It returns the last observation.
func (w *work) until(want models.Observed) (last *Observation, shown bool) {
	ctx, cancel := context.WithTimeout(w.lease.Wire, w.Timing.Shows)
	defer cancel()
	for wait := w.Timing.Poll; ; wait = min(wait*2, 2*time.Second) {
		obs, err := w.look()
		if err == nil {
			last = &obs
			if obs.State == want {
				return last, true
			}
			if obs.State == models.SeenFailed || obs.State == models.SeenMissing {
				return last, false
			}
		}
		if pause(ctx, wait) != nil {
			return last, false
		}
	}
}
