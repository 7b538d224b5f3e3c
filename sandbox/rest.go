package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"automation/models"
)

// Steps that call nobody, and what all steps share.

func (w *work) rest(n Next) models.Step {
	b := w.claim.Box
	step := w.blank(StepRest)
	step.Next = nil
	switch {
	case n.Attention != "":
		step.NeedsAttention = n.Attention
		if n.Attention != b.NeedsAttention {
			step.Events = []models.Event{w.event("needs_attention", "ok", n.Attention)}
		}
	case string(b.Observed) == string(b.Desired):
		step.Attempts, step.LastError, step.NeedsAttention = 0, nil, ""
	}
	return step
}

// giveWay leaves a box running although a suspend was ordered: a user's activity is newer, or nobody can tell.
func (w *work) giveWay(n Next) models.Step {
	step := w.blank(StepSuspend)
	step.Tried, step.Next, step.NeedsAttention, step.ExportStale = true, nil, n.Attention, true
	step.Events = []models.Event{w.event("suspend_given_up", "skipped", n.Why)}
	return step
}

// orderDeleted orders a failed box deleted; the order is carried out by the next claim.
func (w *work) orderDeleted(n Next) (models.Step, bool, error) {
	err := w.Store.Order(w.lease.Wire, w.claim.Box.ID, models.WantDeleted, "settler", n.Why)
	if err != nil && !errors.Is(err, models.ErrDeletionOrdered) {
		return models.Step{}, false, fmt.Errorf("order deleted: %w", err)
	}
	w.Wake(w.place())
	return models.Step{}, false, errReleased
}

// close ends a row that the provider can have nothing of.
func (w *work) close(n Next) models.Step {
	step := w.blank(StepClose)
	w.sees(&step, models.SeenDeleted)
	w.done(&step, w.event("deleted", "ok", n.Why))
	step.ClearStamp = true
	return step
}

// sees writes an observation into a step.
func (w *work) sees(step *models.Step, state models.Observed) {
	b := w.claim.Box
	step.Observed = &state
	if state != models.SeenRunning {
		return
	}
	switch b.Observed {
	case models.SeenRunning, models.SeenDeleting:
		step.Woke = b.AwakeEpoch == 0
	default:
		step.Woke = true
	}
}

// done makes a step the last: nothing is left to do, nothing is wrong.
func (w *work) done(step *models.Step, events ...models.Event) {
	step.Next, step.Attempts, step.LastError, step.NeedsAttention = nil, 0, nil, ""
	step.Events = append(step.Events, events...)
}

// again makes a step the last of this claim and repeats it after the backoff.
func (w *work) again(step *models.Step, what string, err error) {
	step.Attempts++
	wait := max(Backoff(step.Attempts), min(RetryAfter(err), backoffMost))
	switch {
	case errors.Is(err, ErrRefused):
		wait, step.NeedsAttention = max(wait, backoffRefuse), AttentionRefused
	case errors.Is(err, ErrQuota):
		wait, step.NeedsAttention = max(wait, backoffRefuse), AttentionQuota
	}
	at := w.Store.Now().Add(wait)
	text := w.errorText(err)
	step.Next, step.LastError = &at, &text
	if sick(w.lease.Wire, err) {
		no := false
		step.Answered = &no
	}
	if n := step.Attempts; n&(n-1) == 0 { // the 1st, 2nd, 4th, 8th … time: events are kept for long
		step.Events = append(step.Events, w.event(what, "failed", text))
	}
}

func answered(step *models.Step) {
	yes := true
	step.Answered = &yes
}

// errorText is an error for last_error and events: without the box's keys, and short.
func (w *work) errorText(err error) string {
	text := err.Error()
	hide := func(secret string) {
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "[redacted]")
		}
	}
	hide(w.claim.Box.SessionKey)
	for _, i := range w.claim.Box.Identities {
		hide(i.SessionKey)
	}
	return clip(text, 500)
}

// ref is the box as the backend is asked about it.
func (w *work) ref() Ref { return RefOf(w.claim.Box) }

// RefOf is a row as a backend is asked about it: with its open identities.
func RefOf(b *models.Sandbox) Ref {
	ref := Ref{WorkspaceID: b.ID, Location: b.Location, Owner: Owner{OrgID: b.OrgID, UserID: b.UserID}}
	for _, i := range b.Open() {
		ref.Identities = append(ref.Identities, Identity{Kind: i.Kind, ProviderID: i.ProviderID, URL: i.URL, Key: i.SessionKey})
	}
	return ref
}

// call bounds one call to the provider.
func (w *work) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.lease.Wire, w.Timing.Call)
}

// stopped reports whether a provider's answer says nothing, because the call was never made or we cut it ourselves.
func (w *work) stopped(err error) bool {
	return errors.Is(err, ErrBreakerOpen) || (err != nil && w.lease.Wire.Err() != nil)
}

// seen stores what the provider named. It tries until the row is stored; its error means that we are stopping.
func (w *work) seen(i Identity) error {
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		err := w.name(i)
		if err == nil {
			return nil
		}
		if pauseErr := pause(w.lease.Wire, wait); pauseErr != nil {
			return errors.Join(pauseErr, err)
		}
	}
}

// name stores an identity as a fact, where it is not known just so.
func (w *work) name(i Identity) error {
	b := w.claim.Box
	if i.ProviderID == "" {
		return nil
	}
	for _, known := range b.Identities {
		same := known.Kind == i.Kind && known.ProviderID == i.ProviderID && known.GoneAt == nil
		current := i.Kind != models.IdentityBox || (i.URL == "" || i.URL == b.URL) && (i.Key == "" || i.Key == b.SessionKey)
		if same && current {
			return nil
		}
	}
	row := models.Identity{SandboxID: b.ID, Kind: i.Kind, ProviderID: i.ProviderID, URL: i.URL, SessionKey: i.Key, SeenAt: w.Store.Now()}
	write, cancel := context.WithTimeout(context.WithoutCancel(w.lease.Wire), recordWithin)
	defer cancel()
	if err := w.Store.RecordIdentity(write, row); err != nil {
		return fmt.Errorf("record identity: %w", err)
	}
	b.Identities = append(b.Identities, &row)
	if i.Kind == models.IdentityBox {
		if i.URL != "" {
			b.URL = i.URL
		}
		if i.Key != "" {
			b.SessionKey = i.Key
		}
	}
	return nil
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
