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
	staleWorkers = 8
	// staleHold is how long a claimed run is left alone by other processes: longer than a look may take.
	staleHold  = 90 * time.Second
	lookWithin = 40 * time.Second

	// A command is asked for its exit after so long, then in growing steps, at most mostBetween apart (design section 5).
	firstBetween = 5 * time.Second
	mostBetween  = 30 * time.Second

	// How long after its exit a command's callback is waited for: it may be on its way, or a child of the command's may send it.
	graceFailed = 10 * time.Second
	graceOK     = 60 * time.Second
)

// Stale is the duty for runs in boxes of one place that nobody ends: those whose command has ended without a callback, and
// those past timeout_at (contract section 3.8). Each worker claims one run at a time; no transaction is open while it asks a
// box. Each place has workers of its own, for those of a provider that does not answer are busy waiting for it.
func (w *Watchdog) Stale(p models.Place) loop.Loop {
	return w.staleLoop("stale "+p.Backend, models.Reach{In: []models.Place{p}}, w.StaleNudges[p])
}

// Stray is the same duty for runs without a box, which are those of local mode, and for those in boxes that nobody seems to
// serve any more. Local mode has no other.
func (w *Watchdog) Stray() loop.Loop {
	reach := models.Reach{Rest: true, Served: w.places()}
	if w.Local != nil {
		reach.In, reach.Served = reach.Served, nil
	}
	return w.staleLoop("stale", reach, w.StaleNudges[models.Place{}])
}

func (w *Watchdog) staleLoop(name string, reach models.Reach, nudge loop.Nudge) loop.Loop {
	return loop.Loop{
		Name: name, Every: w.Config.Watchdog.Interval, Batch: 1, Workers: staleWorkers,
		Pass: func(ctx context.Context) (int, error) { return w.stalePass(ctx, reach, nudge) },
		Now:  w.Store.Now, Nudge: nudge,
		Until: func(ctx context.Context) (*time.Time, error) { return w.Store.NextStaleAt(ctx, reach) },
	}
}

func (w *Watchdog) stalePass(ctx context.Context, reach models.Reach, nudge loop.Nudge) (int, error) {
	if at, err := w.Store.NextStaleAt(ctx, reach); err != nil || at == nil || at.After(w.Store.Now()) {
		return 0, err
	}
	runs, err := w.Store.ClaimStale(ctx, reach, 1, staleHold)
	if err != nil || len(runs) == 0 {
		return 0, err
	}
	nudge.Wake() // there may be more: another worker looks while this one is busy
	for _, run := range runs {
		if runErr := w.stale(ctx, run); runErr != nil && !errors.Is(runErr, models.ErrConflict) {
			err = errors.Join(err, fmt.Errorf("look after run %s: %w", run.ID, runErr))
		}
	}
	return len(runs), err
}

// stale deals with one claimed run.
func (w *Watchdog) stale(ctx context.Context, run *models.Run) error {
	now := w.Store.Now()
	if run.TimeoutAt != nil && !run.TimeoutAt.After(now) {
		return w.verify(ctx, run)
	}
	if !w.mayLook(run) {
		return w.Store.RecordCheck(ctx, run.ID, models.Check{NextAt: later(run.TimeoutAt, now.Add(mostBetween))})
	}
	call, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	out, err := w.lastOutput(call, run)
	if err != nil {
		w.Log.DebugContext(ctx, "command not asked", "run_id", run.ID, "error", err)
		out = sandbox.CommandOutput{}
	}
	return w.check(ctx, run, out)
}

// check acts on what the command's newest output says. Only an exit counts; anything else changes nothing.
func (w *Watchdog) check(ctx context.Context, run *models.Run, out sandbox.CommandOutput) error {
	now := w.Store.Now()
	code, seen := out.ExitCode, run.ExitSeenAt
	if code == nil && seen != nil {
		code = run.ExitCode // it has exited; only the box does not say so any more
	}
	if code == nil {
		return w.Store.RecordCheck(ctx, run.ID, models.Check{NextAt: now.Add(between(run, now))})
	}
	if seen == nil {
		return w.Store.RecordCheck(ctx, run.ID, models.Check{ExitSeenAt: &now, ExitCode: code, NextAt: now.Add(grace(*code))})
	}
	if over := seen.Add(grace(*code)); now.Before(over) {
		return w.Store.RecordCheck(ctx, run.ID, models.Check{NextAt: over})
	}
	o := exited(run, *code, out, now)
	o.IfExitSeen = seen
	return w.end(ctx, run, o)
}

// grace is how long the callback of a command that ended with code is waited for.
func grace(code int) time.Duration {
	if code == 0 {
		return graceOK
	}
	return graceFailed
}

// between is the wait before the next look at a command: as long as it has been running, within bounds.
func between(run *models.Run, now time.Time) time.Duration {
	if run.StartingAt == nil {
		return mostBetween
	}
	return min(max(now.Sub(*run.StartingAt), firstBetween), mostBetween)
}

// mayLook reports whether the run's box may be asked between start and timeout: not where looking resets a timer that matters
// (S0-130), nor where this process cannot reach it.
func (w *Watchdog) mayLook(run *models.Run) bool {
	if run.Box == nil {
		return w.Local != nil
	}
	b := w.Backends[placeOf(run.Box)]
	return b != nil && !b.Capabilities().LookingCounts && run.Box.URL != ""
}

// agent is the agent server that the run's command was started on.
func (w *Watchdog) agent(run *models.Run) sandbox.Agent {
	if run.Box == nil && w.Local != nil {
		return sandbox.Agent{URL: w.Local.URL, Key: w.Local.Key.Reveal(), HTTP: w.HTTP}
	}
	return sandbox.Agent{URL: run.Box.URL, Key: run.Box.SessionKey, HTTP: w.HTTP}
}

// lastOutput asks for the newest output of the run's command, which is looked up when its id was lost. A box that knows no
// such command gives an empty output.
func (w *Watchdog) lastOutput(ctx context.Context, run *models.Run) (sandbox.CommandOutput, error) {
	agent := w.agent(run)
	if run.BashCommandID == nil {
		id, err := agent.FindCommand(ctx, sandbox.StartMarker(run.ID))
		if err != nil || id == "" {
			return sandbox.CommandOutput{}, err
		}
		if err := w.Store.RecordCommand(ctx, run.ID, id); err != nil {
			return sandbox.CommandOutput{}, err
		}
		run.BashCommandID = &id
	}
	return agent.LastOutput(ctx, *run.BashCommandID)
}

// runTime is how long the run's command may run.
func (w *Watchdog) runTime(ctx context.Context, run *models.Run) (time.Duration, error) {
	a, err := w.Store.Automation(ctx, run.OrgID, run.AutomationID)
	switch {
	case errors.Is(err, models.ErrNotFound): // deleted meanwhile
		return w.Config.Dispatch.MaxRun, nil
	case err != nil:
		return 0, fmt.Errorf("read automation %s: %w", run.AutomationID, err)
	case a.TimeoutSeconds != nil:
		return time.Duration(*a.TimeoutSeconds) * time.Second, nil
	}
	return w.Config.Dispatch.DefaultRun, nil
}

func placeOf(b *models.Sandbox) models.Place {
	return models.Place{Backend: b.Backend, Location: b.Location}
}

// later is t where it is set and after other, else other.
func later(t *time.Time, other time.Time) time.Time {
	if t != nil && t.After(other) {
		return *t
	}
	return other
}
