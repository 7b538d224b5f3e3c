package watchdog

import (
	"context"
	"fmt"
	"time"

	"automation/loop"
)

const (
	purgeEvery = time.Hour
	purgeBatch = 500
)

// Purge is the duty that removes records past their retention: events, sweeps, requests with an Idempotency-Key, stored outputs of runs and
// exported histories whose box is gone (design section 9). A blob goes before the row forgets it, so that a crash leaves no blob that nobody knows.
func (w *Watchdog) Purge() loop.Loop {
	return loop.Loop{Name: "purge", Every: purgeEvery, Batch: purgeBatch, Pass: w.purge}
}

func (w *Watchdog) purge(ctx context.Context) (int, error) {
	now, keep := w.Store.Now(), w.Config.Cleanup
	events, err := w.Store.PurgeEvents(ctx, now.Add(-keep.EventRetention), purgeBatch)
	if err != nil {
		return 0, fmt.Errorf("purge events: %w", err)
	}
	sweeps, err := w.Store.PurgeSweeps(ctx, now.Add(-keep.EventRetention), purgeBatch)
	if err != nil {
		return events, fmt.Errorf("purge sweeps: %w", err)
	}
	requests, err := w.Store.PurgeRequests(ctx, purgeBatch)
	if err != nil {
		return events, fmt.Errorf("purge requests: %w", err)
	}
	if _, err := w.Store.PurgeAttachments(ctx, now.Add(-time.Hour), purgeBatch); err != nil {
		return events, fmt.Errorf("purge attachments: %w", err)
	}
	expired, err := w.Store.ExpiredOutputs(ctx, now.Add(-keep.OutputRetention), purgeBatch)
	if err != nil {
		return events, fmt.Errorf("look for expired outputs: %w", err)
	}
	for run, key := range expired {
		if err := w.Blobs.Delete(ctx, key); err != nil {
			return events, fmt.Errorf("remove output %s: %w", key, err)
		}
		if err := w.Store.ForgetOutput(ctx, run); err != nil {
			return events, fmt.Errorf("forget output of run %s: %w", run, err)
		}
	}
	exports, err := w.purgeExports(ctx, now)
	if err != nil {
		return events, err
	}
	n := events + sweeps + requests + len(expired) + exports
	w.swept("events", now, n, 0)
	if n > 0 {
		w.Log.InfoContext(ctx, "records purged", "events", events, "sweeps", sweeps, "requests", requests, "outputs", len(expired), "exports", exports)
	}
	return max(events, sweeps, requests, len(expired), exports), nil
}

// purgeExports removes histories that a newer one replaced, and those of boxes that have been gone for long.
func (w *Watchdog) purgeExports(ctx context.Context, now time.Time) (int, error) {
	expired, err := w.Store.ExpiredExports(ctx, now, now.Add(-w.Config.Cleanup.ExportRetention), purgeBatch)
	if err != nil {
		return 0, fmt.Errorf("look for expired exports: %w", err)
	}
	for n, export := range expired {
		if err := w.Blobs.Delete(ctx, export.BlobKey); err != nil {
			return n, fmt.Errorf("remove export %s: %w", export.ID, err)
		}
		if err := w.Store.ForgetExport(ctx, export.ID); err != nil {
			return n, err
		}
	}
	return len(expired), nil
}
