package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/models"
)

// Steps that keep the history of a box which is about to go (design section 9; S0-052, S0-073).

// outageMost is how long after the order a patient delete waits for a provider that does not answer.
const outageMost = 24 * time.Hour

// exportWithin bounds one try of a patient delete: it has not the short budget of what is done before a suspend.
const exportWithin = 10 * time.Minute

// export makes one try, among the preparing steps or as one of a patient delete.
func (w *work) export() (models.Step, bool, error) {
	if !patient(w.claim.Box, w.factsNow()) {
		step, err := w.prepare(StepExport)
		return step, false, err
	}
	ctx, cancel := context.WithTimeout(w.lease.Patient, exportWithin)
	defer cancel()
	started := w.Store.Now()
	step := w.blank(StepExport)
	step.ExportedDone = true
	event, err := w.exportNow(ctx)
	if err != nil {
		return w.exportFailed(err)
	}
	event.DurationMS = w.Store.Now().Sub(started).Milliseconds()
	step.Events = []models.Event{event}
	return step, false, nil
}

// exportNow takes the history out of the box, which runs.
func (w *work) exportNow(ctx context.Context) (models.Event, error) {
	b := w.claim.Box
	if b.Observed != models.SeenRunning {
		return models.Event{}, errors.New("the box does not run, and is not woken where that could suspend another one")
	}
	conversation := ""
	if id := w.claim.Run.ConversationID; id != nil {
		conversation = *id
	}
	export, err := w.Exports.Export(ctx, b, conversation)
	if err != nil {
		return models.Event{}, err
	}
	if export == nil {
		return w.event(pastOf[StepExport], "skipped", "no conversation: nothing to export"), nil
	}
	event := w.event(pastOf[StepExport], "ok", fmt.Sprintf("%d conversations", len(export.Conversations)))
	event.Bytes = export.Bytes
	return event, nil
}

// exportFailed counts a try of a patient delete. What follows, another one later or the delete, is for NextStep to say. While
// the provider does not answer it is no try: the box could not go either, and an outage would cost it its history.
func (w *work) exportFailed(err error) (models.Step, bool, error) {
	step := w.blank(StepExport)
	if w.lease.Patient.Err() != nil {
		return step, false, fmt.Errorf("%w: %w", errReleased, errInterrupted)
	}
	if w.facts.Blind && w.Store.Now().Before(w.claim.Box.OrderedAt.Add(outageMost)) {
		w.again(&step, pastOf[StepExport], err)
		return step, true, nil
	}
	text := w.errorText(err)
	step.ExportTried, step.LastError = true, &text
	step.Events = []models.Event{w.event(pastOf[StepExport], "failed", text)}
	w.Log.Warn("export failed", "workspace_id", w.claim.Box.ID, "tries", w.claim.Box.ExportTries+1, "error", text)
	return step, false, nil
}

// wakeToExport lets a suspended box run, so that its history can be taken: it is ordered deleted, so that nothing but this
// claim uses it.
func (w *work) wakeToExport() (models.Step, bool, error) {
	ctx, cancel := w.call()
	err := w.backend.Resume(ctx, w.ref(), w.seen)
	cancel()
	step := w.blank(StepWake)
	switch {
	case errors.Is(err, ErrBreakerOpen) && !w.facts.Blind: // else its look was the one call let through: another row's turn next
		return step, false, err
	case errors.Is(err, ErrGone):
		w.sees(&step, models.SeenMissing)
		step.Events = []models.Event{w.event("missing", "ok", "resume: the provider does not know it")}
		return step, false, nil
	case err != nil:
		return w.exportFailed(fmt.Errorf("wake it: %w", err))
	}
	obs, shown := w.until(models.SeenRunning)
	if shown {
		ready, cancel := context.WithTimeout(w.lease.Wire, readyAfterWake)
		defer cancel()
		err = w.agent().WaitReady(ready)
	}
	if obs == nil || !shown || err != nil {
		step, ends, failed := w.exportFailed(errors.Join(errors.New("woken, but it does not answer"), err))
		if obs != nil {
			w.sees(&step, obs.State)
		}
		return step, ends, failed
	}
	answered(&step)
	w.sees(&step, obs.State)
	step.ExpiresAt, step.Waited = obs.ExpiresAt, true // the budget of the preparing steps begins with the wake
	step.Events = []models.Event{w.event("woken", "ok", "for its export")}
	return step, false, nil
}

// lost writes down that a history goes with its box.
func (w *work) lost(n Next) models.Step {
	step := w.blank(StepLost)
	step.Tried, step.NeedsAttention = true, n.Attention
	step.Events = []models.Event{w.event("history_lost", "failed", n.Why)}
	return step
}
