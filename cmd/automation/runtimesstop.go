package main

import (
	"context"
	"time"

	"github.com/google/uuid"
)

const (
	// stopRuntimesWithin bounds how long a stopping service waits for the boxes of its conversations.
	stopRuntimesWithin = 45 * time.Second
	stopRuntimesLook   = 100 * time.Millisecond
)

// suspendRuntimes has the settler suspend the boxes of all conversations on this machine before the duties end, and waits for
// them (S3-014). Boxes of runs are left to their rows, as is what does not stop in time.
func (a *App) suspendRuntimes(ctx context.Context) {
	if !a.has(roleWatchdog) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stopRuntimesWithin)
	defer cancel()
	var ordered []uuid.UUID
	for name, b := range a.backends {
		if !b.Capabilities().Placed || !b.Capabilities().CanSuspend() || !a.stopsRuntimes[name] {
			continue
		}
		ids, err := a.store.SuspendRuntimes(ctx, a.place(name, b), "service", "the service stops")
		if err != nil {
			a.log.ErrorContext(ctx, "boxes of conversations left running", "provider", name, "error", err)
			continue
		}
		ordered = append(ordered, ids...)
	}
	if len(ordered) == 0 {
		return
	}
	a.nudges.wakeAll()
	began := time.Now()
	left, err := a.awaitAsleep(ctx, ordered)
	if err != nil || left > 0 {
		a.log.WarnContext(ctx, "boxes of conversations left running", "boxes", left, "error", err)
		return
	}
	a.log.InfoContext(ctx, "boxes of conversations suspended", "boxes", len(ordered), "seconds", time.Since(began).Seconds())
}

// awaitAsleep waits until none of the boxes runs, and returns how many still do when ctx ends.
func (a *App) awaitAsleep(ctx context.Context, ids []uuid.UUID) (left int, err error) {
	look := time.NewTicker(stopRuntimesLook)
	defer look.Stop()
	for {
		left, err = a.store.CountAwake(ctx, ids)
		if err != nil || left == 0 {
			return left, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return left, nil
		}
	}
}
