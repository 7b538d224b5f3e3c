package watchdog

import (
	"context"
	"fmt"

	"automation/models"
)

// end is the one way in which the watchdog ends a run, whether its command's exit was verified or nothing could be: one
// function decides about delete, pause or keep (S1-024, S1-055), and stamp and order are committed with the status (S1-025).
// The box is dealt with afterwards by the settler, whose failures change nothing here (S1-026, S1-054). A run whose command
// was never started leaves nothing to look into.
func (w *Watchdog) end(ctx context.Context, run *models.Run, o models.Outcome) error {
	o.Actor = "watchdog"
	o.NotStarted = run.StartingAt == nil
	done, err := w.Store.Finish(ctx, run.ID, o, w.Decide)
	if err != nil {
		return fmt.Errorf("finish run %s: %w", run.ID, err)
	}
	if !done.Won {
		w.Log.DebugContext(ctx, "run ended otherwise meanwhile", "run_id", run.ID)
		return nil
	}
	w.Log.InfoContext(ctx, "run ended", "run_id", run.ID, "status", o.Status, "reason", o.Reason, "disposition", done.Decision.Box)
	w.settleSoon()
	w.JanitorNudge.Wake()
	return w.Store.AfterEnd(ctx, done)
}
