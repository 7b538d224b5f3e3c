package watchdog

import (
	"context"
	"fmt"
	"time"

	"automation/loop"
	"automation/models"
	"automation/testhooks"
)

// sweepBatch bounds one pass of the janitor (S1-031); while passes are full the next follows at once.
const sweepBatch = 100

// Janitor is the duty that orders due boxes deleted (S1-028…039, C-005): oldest stamp first, one bounded transaction a pass,
// no call to any provider and no lease. What becomes of an order is the settler's. It sleeps until the earliest stamp.
func (w *Watchdog) Janitor() loop.Loop {
	places := w.places()
	var repairAt time.Time
	return loop.Loop{
		Name: "janitor", Every: w.Config.Watchdog.Interval, Batch: sweepBatch,
		Pass: func(ctx context.Context) (int, error) {
			ordered, err := w.sweep(ctx, places)
			now := w.Store.Now()
			wait := repairAt.Sub(now) // more than an interval: the clock was set back
			if err != nil || ordered >= sweepBatch || wait > 0 && wait <= w.Config.Watchdog.Interval {
				return ordered, err
			}
			repaired, err := w.repair(ctx)
			if err == nil && repaired < sweepBatch {
				repairAt = now.Add(w.Config.Watchdog.Interval)
			}
			return max(ordered, repaired), err
		},
		Until: func(ctx context.Context) (*time.Time, error) { return w.Store.NextDueAt(ctx, places) },
		Now:   w.Store.Now, Nudge: w.JanitorNudge,
	}
}

func (w *Watchdog) sweep(ctx context.Context, places []models.Place) (int, error) {
	began := w.Store.Now()
	defer func() { w.swept("due", began, 0, 0) }()
	ordered, err := w.Store.OrderDue(ctx, places, sweepBatch, models.AttachedHold)
	if err != nil {
		return 0, fmt.Errorf("order due boxes: %w", err)
	}
	if len(ordered) > 0 {
		testhooks.Reached(testhooks.JanitorOrdered)
		w.Log.InfoContext(ctx, "due boxes ordered deleted", "boxes", len(ordered))
		w.settleSoon()
	}
	return len(ordered), nil
}

// repair takes away stamps that no sweep can act on, and gives new ones where they are impossible. Nobody waits for it, so it
// is done once an interval.
func (w *Watchdog) repair(ctx context.Context) (int, error) {
	repaired, err := w.Store.RepairStamps(ctx, w.Config.Cleanup.Delay, sweepBatch)
	if err != nil {
		return 0, fmt.Errorf("repair stamps: %w", err)
	}
	if repaired > 0 {
		w.Log.InfoContext(ctx, "stamps repaired", "runs", repaired)
	}
	return repaired, nil
}
