package watchdog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

const (
	aftercareWorkers = 4
	// aftercareAgain is when a run is looked after again whose command still runs, or whose agent server did not answer.
	aftercareAgain = 5 * time.Second
	// aftercareFor is how long a run is looked after; what is not done by then is left, for the box's own time-out ends the
	// command.
	aftercareFor = time.Hour
	// aftercareUnknown is how long a command is looked up that the agent server does not know: its start may be on the wire.
	aftercareUnknown = 2 * time.Minute
)

// Aftercare is the duty of local mode that does for ended runs what the settler does where there are boxes: a command that was
// cancelled, replaced or timed out is stopped (unlike in the Python service, its fault 30), and the finish response is stored.
func (w *Watchdog) Aftercare() loop.Loop {
	return loop.Loop{
		Name: "aftercare", Every: w.Config.Watchdog.Interval, Batch: 1, Workers: aftercareWorkers,
		Pass: w.aftercarePass, Until: w.Store.NextAftercareAt, Now: w.Store.Now, Nudge: w.AftercareNudge,
	}
}

func (w *Watchdog) aftercarePass(ctx context.Context) (int, error) {
	if at, err := w.Store.NextAftercareAt(ctx); err != nil || at == nil || at.After(w.Store.Now()) {
		return 0, err
	}
	run, err := w.Store.ClaimAftercare(ctx, staleHold)
	if err != nil || run == nil {
		return 0, err
	}
	w.AftercareNudge.Wake() // there may be more: another worker looks while this one is busy
	call, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	done, err := w.lookAfter(call, run)
	if ctx.Err() != nil {
		return 0, nil // we are stopping: the run is claimed again
	}
	now := w.Store.Now()
	var again *time.Time
	switch over := run.CompletedAt == nil || now.Sub(*run.CompletedAt) > aftercareFor; {
	case over && (err != nil || !done):
		w.Log.WarnContext(ctx, "ended run left as it is", "run_id", run.ID, "error", err)
	case err != nil || !done:
		next := now.Add(aftercareAgain)
		again = &next
	}
	if err != nil {
		w.Log.DebugContext(ctx, "ended run not looked after yet", "run_id", run.ID, "error", err)
	}
	if err := w.Store.SetAftercare(ctx, run.ID, again); err != nil {
		return 0, fmt.Errorf("look after run %s: %w", run.ID, err)
	}
	return 1, nil
}

// lookAfter does what is left to do for an ended run, and reports whether that is all.
func (w *Watchdog) lookAfter(ctx context.Context, run *models.Run) (done bool, err error) {
	if sandbox.Stops(run) {
		stopped, err := w.stopCommand(ctx, run)
		if err != nil || !stopped {
			return false, err
		}
	}
	if run.ConversationID == nil {
		return true, nil
	}
	finish, err := w.agent(run).FinishResponse(ctx, *run.ConversationID)
	var answer *sandbox.AgentError
	switch {
	case errors.As(err, &answer) && answer.Refused():
		return true, nil // the agent server knows no such conversation
	case err != nil:
		return false, err
	case finish == nil:
		return true, nil
	}
	return true, w.Store.RecordOutput(ctx, run.ID, models.Output{FinishResponse: finish})
}

// stopCommand stops the command of a run, and reports whether it is known to have ended.
func (w *Watchdog) stopCommand(ctx context.Context, run *models.Run) (bool, error) {
	out, err := w.lastOutput(ctx, run)
	if err != nil {
		return false, err
	}
	if run.BashCommandID == nil {
		return run.CompletedAt == nil || w.Store.Now().Sub(*run.CompletedAt) > aftercareUnknown, nil
	}
	if out.ExitCode != nil {
		return true, w.Store.RecordOutput(ctx, run.ID, models.Output{ExitCode: out.ExitCode})
	}
	err = w.agent(run).StopCommand(ctx, *run.BashCommandID)
	var answer *sandbox.AgentError
	if errors.As(err, &answer) && answer.Refused() { // it was started anew since and knows none of its old commands
		return true, nil
	}
	return false, err
}
