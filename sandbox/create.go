package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/models"
)

// createWithin bounds the call that makes the box of a conversation; the agent server may be part of the wait.
const createWithin = 2 * time.Minute

// NothingMade reports whether Create failed so that the provider certainly made nothing: it refused, or was never asked.
func NothingMade(err error) bool {
	for _, sure := range []error{ErrQuota, ErrRefused, ErrInvalid, ErrNotMade, ErrBreakerOpen, errors.ErrUnsupported} {
		if errors.Is(err, sure) {
			return true
		}
	}
	return NeverDone(err)
}

// create makes the box of a conversation, once for its row. As in dispatch, the row says before and after that the call was
// made; a row whose answer was lost is looked up by its label.
func (w *work) create(ctx context.Context) (models.Step, bool, error) {
	started := w.Store.Now()
	step := w.blank(StepCreate)
	spec, err := w.spec()
	if err != nil {
		return step, false, err
	}
	err = w.Store.MarkCreate(w.lease.Patient, w.claim.Box.ID, w.claim.Token, true)
	if errors.Is(err, models.ErrDeletionOrdered) {
		w.Wake(w.place())
		return step, false, errReleased
	}
	if err != nil {
		return step, false, fmt.Errorf("mark create: %w", err)
	}
	call, cancel := context.WithTimeout(w.lease.Wire, createWithin)
	err = w.backend.Create(call, spec, w.seen)
	cancel()
	write, done := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer done()
	if markErr := w.Store.MarkCreate(write, w.claim.Box.ID, w.claim.Token, false); markErr != nil {
		return step, false, errors.Join(fmt.Errorf("mark the end of create: %w", markErr), err)
	}
	switch {
	case err == nil:
		answered(&step)
		w.sees(&step, models.SeenProvisioning)
		obs, shown := w.until(models.SeenRunning)
		if obs != nil {
			w.sees(&step, obs.State)
		}
		event := w.event("created", "ok", "")
		event.DurationMS = w.Store.Now().Sub(started).Milliseconds()
		if step.Events = []models.Event{event}; shown {
			w.done(&step)
		}
		return step, shown, nil
	case NothingMade(err):
		w.sees(&step, models.SeenDeleted)
		w.done(&step, w.event("created", "failed", w.errorText(err)))
		text := w.errorText(err)
		step.LastError = &text
		return step, true, nil
	}
	w.again(&step, "created", fmt.Errorf("create: %w", err))
	return step, true, nil
}

// spec is what the box of a conversation is made from.
func (w *work) spec() (Spec, error) {
	b := w.claim.Box
	runtime, err := w.Store.RuntimeOfBox(w.lease.Wire, b.ID)
	if err != nil {
		return Spec{}, err
	}
	return Spec{
		Label: Label{Deployment: w.Deployment, WorkspaceID: b.ID}, Owner: Owner{OrgID: b.OrgID, UserID: b.UserID},
		Idle:         w.backend.Capabilities().IdleTimer(w.Settings.IdleTTL),
		Conversation: runtime.ConversationID, Workspace: runtime.Workspace,
		SessionKey: runtime.SessionKey, SecretKey: runtime.SecretKey,
	}, nil
}
