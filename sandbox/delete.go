package sandbox

import (
	"context"
	"errors"
	"fmt"

	"automation/models"
)

// busyMost is how often a delete is found under way until somebody should look: about twenty minutes, by the backoff.
const busyMost = 8

// delete asks the provider to remove every open identity. Its first record clears the run's stamp, whatever came of it
// (S1-033); from then on the box's own backoff counts.
func (w *work) delete() (models.Step, bool, error) {
	step := w.blank(StepDelete)
	err := w.change(func(ctx context.Context) error { return w.backend.Delete(ctx, w.ref()) })
	if errors.Is(err, ErrBreakerOpen) {
		if !w.facts.Blind {
			return step, false, err
		}
		w.again(&step, "inspected", err) // its look was the one call let through: another row's turn next
		return step, true, nil
	}
	step.ClearStamp = true
	reason := ""
	if errors.Is(err, ErrGone) {
		if err = w.believeGone(); err == nil {
			reason = "already gone"
		}
	}
	switch {
	case err == nil:
		return w.deleted(step, reason)
	case errors.Is(err, ErrBusy):
		answered(&step)
		w.sees(&step, models.SeenDeleting)
		w.again(&step, "deleted", fmt.Errorf("delete: %w", err))
		step.Events = nil // under way is no failure, unless it is for long
		if step.Attempts >= busyMost {
			step.NeedsAttention = AttentionDelete
		}
	default:
		w.Deletes(w.claim.Box, err)
		w.again(&step, "deleted", fmt.Errorf("delete: %w", err))
		if step.NeedsAttention == "" {
			step.NeedsAttention = AttentionDelete
		}
	}
	return step, true, nil
}

// believeGone looks again where a provider answers that way for its own failures too.
func (w *work) believeGone() error {
	if !w.backend.Capabilities().FalseGone {
		return nil
	}
	obs, err := w.look()
	if err != nil {
		return fmt.Errorf("the answer was gone, and a second look failed: %w", err)
	}
	if obs.State != models.SeenMissing {
		return fmt.Errorf("the answer was gone, but the provider shows it %s", obs.State)
	}
	return nil
}

// deleted records that every identity the call was about is gone.
func (w *work) deleted(step models.Step, reason string) (models.Step, bool, error) {
	b := w.claim.Box
	write, cancel := context.WithTimeout(context.WithoutCancel(w.lease.Wire), recordWithin)
	defer cancel()
	for _, i := range b.Open() {
		if err := w.Store.MarkGone(write, b.ID, i.Kind, i.ProviderID); err != nil {
			return step, false, fmt.Errorf("mark gone: %w", err)
		}
	}
	var before error
	if reason == "" {
		reason = b.OrderReason
	} else {
		before = ErrGone
	}
	w.Deletes(b, before)
	answered(&step)
	step.ClearStamp = true // also where somebody else deleted it, and no call of ours was needed
	w.sees(&step, models.SeenDeleted)
	w.done(&step, w.event("deleted", "ok", reason))
	if tried(b, StepLost) {
		step.NeedsAttention = AttentionHistoryLost
	}
	return step, true, nil
}
