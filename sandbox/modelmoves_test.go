package sandbox_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"automation/config"
	"automation/models"
	"automation/sandbox"
	"automation/watchdog"
)

// What may happen in the model of model_test.go.

func (l *life) moves(t *testing.T) map[string]func(*rapid.T) {
	crash := rapid.SampledFrom([]string{"before", "named", "after"})
	return map[string]func(*rapid.T){
		"": func(*rapid.T) { l.holds() },
		"callback": func(*rapid.T) {
			if l.timedOut && l.status == models.RunFailed {
				l.reconcile()
			} else {
				l.finish(models.RunCompleted)
			}
		},
		"times out": func(*rapid.T) { l.finish(models.RunFailed) },
		"cancel": func(rt *rapid.T) {
			if rapid.IntRange(0, 4).Draw(rt, "seldom") == 0 {
				l.finish(models.RunCancelled)
			}
		},
		"pause":  func(*rapid.T) { l.order(models.WantSuspended) },
		"resume": func(*rapid.T) { l.order(models.WantRunning) },
		"delete": func(rt *rapid.T) {
			if rapid.IntRange(0, 4).Draw(rt, "seldom") == 0 {
				l.order(models.WantDeleted)
			}
		},
		"keep":       func(*rapid.T) { l.keep() },
		"unkeep":     func(*rapid.T) { l.unkeep() },
		"extend":     func(*rapid.T) { l.extend() },
		"keep alive": func(rt *rapid.T) { l.keepsAlive(rapid.Bool().Draw(rt, "on")) },
		"sweep":      func(*rapid.T) { l.sweep() },
		"settle":     func(*rapid.T) { l.pass(t, 0, "") },
		"settle on":  func(*rapid.T) { l.pass(t, 0, "") },
		"crash": func(rt *rapid.T) {
			l.pass(t, rapid.IntRange(1, 3).Draw(rt, "call"), crash.Draw(rt, "when"))
		},
		"time goes by": func(rt *rapid.T) {
			l.clock.Advance(rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, 70 * time.Second, 20 * time.Minute, 2 * time.Hour}).Draw(rt, "by"))
		},
		"fault":    func(rt *rapid.T) { l.fault(rt) },
		"provider": func(rt *rapid.T) { l.provider(rt) },
		"orphans":  func(*rapid.T) { l.look(t) },
	}
}

func (l *life) decide(e models.Ending) models.Decision {
	return sandbox.Disposition(e, l.config, l.fake.Capabilities())
}

// ended is what must be after an end was accepted.
func (l *life) ended(f models.Finished) {
	l.status, l.due = f.Run.Status, nil
	if l.desired == models.WantDeleted {
		return
	}
	switch {
	case l.status == models.RunCancelled, !l.keepAlive && !l.kept && (l.config.CleanupDelay == 0 || !l.fake.Capabilities().CanSuspend()):
		l.ordered(models.WantDeleted)
	case l.keepAlive || l.kept:
	default:
		due := f.Run.CompletedAt.Add(l.config.CleanupDelay)
		l.due = &due
		l.ordered(models.WantSuspended)
	}
}

func (l *life) ordered(to models.Desired) {
	l.desired = to
	l.generation++
}

func (l *life) finish(status models.RunStatus) {
	o := models.Outcome{Status: status, Actor: "callback", Reason: "callback"}
	if status == models.RunFailed {
		text := models.TimedOutPrefix + "no bash output found"
		o.ErrorDetail, o.Actor, o.Reason = &text, "watchdog", "timed out"
	}
	f, err := l.store.Finish(context.Background(), l.run.ID, o, l.decide)
	require.NoError(l.t, err)
	require.Equal(l.t, l.status == models.RunRunning, f.Won, "a run ends once")
	if f.Won {
		l.ended(f)
		l.timedOut = status == models.RunFailed
	}
}

func (l *life) reconcile() {
	f, err := l.store.Reconcile(context.Background(), l.run.ID, models.Outcome{Actor: "callback", Reason: "callback"}, l.decide)
	require.NoError(l.t, err)
	require.True(l.t, f.Won)
	extended := l.due
	l.ended(f)
	if l.due != nil && extended != nil && extended.After(*l.due) {
		l.due = extended
	}
	l.timedOut = false
}

func (l *life) order(to models.Desired) {
	err := l.store.Order(context.Background(), l.box.ID, to, "user:ana", "by hand")
	switch {
	case l.desired == models.WantDeleted && (to == models.WantRunning || l.status != models.RunRunning):
		require.ErrorIs(l.t, err, models.ErrDeletionOrdered)
	case l.status == models.RunRunning && to != models.WantRunning:
		require.ErrorIs(l.t, err, models.ErrRunActive)
	default:
		require.NoError(l.t, err)
		l.ordered(to)
	}
}

func (l *life) keep() {
	err := l.store.Keep(context.Background(), l.box.ID, "user:ana", "mine")
	if l.desired == models.WantDeleted {
		require.ErrorIs(l.t, err, models.ErrDeletionOrdered)
		return
	}
	require.NoError(l.t, err)
	l.kept, l.due = true, nil
}

func (l *life) unkeep() {
	due, err := l.store.Unkeep(context.Background(), l.box.ID, l.config.CleanupDelay, "user:ana")
	if l.desired == models.WantDeleted {
		require.ErrorIs(l.t, err, models.ErrDeletionOrdered)
		return
	}
	require.NoError(l.t, err)
	if l.kept && l.status.Terminal() && !l.keepAlive {
		require.NotNil(l.t, due)
		l.due = due
	}
	l.kept = false
}

func (l *life) extend() {
	due := l.clock.Now().Add(time.Hour)
	err := l.store.Extend(context.Background(), l.box.ID, due, "user:ana")
	switch {
	case l.desired == models.WantDeleted:
		require.ErrorIs(l.t, err, models.ErrDeletionOrdered)
	case l.due == nil:
		require.ErrorIs(l.t, err, models.ErrNoStamp)
	default:
		require.NoError(l.t, err)
		l.due = &due
	}
}

func (l *life) keepsAlive(on bool) {
	before := l.clock.Now()
	_, err := l.store.UpdateAutomation(context.Background(), l.auto.OrgID, l.auto.ID, l.config.CleanupDelay, func(a *models.Automation) error {
		a.KeepAlive = &on
		return nil
	})
	require.NoError(l.t, err)
	changed := on != l.keepAlive
	l.keepAlive = on
	if !changed || !l.status.Terminal() || l.desired == models.WantDeleted {
		return
	}
	switch {
	case on:
		l.due = nil
	case !l.kept && l.due == nil:
		run, err := l.store.Run(context.Background(), uuid.Nil, l.run.ID)
		require.NoError(l.t, err)
		require.NotNil(l.t, run.CleanupDueAt, "what is not kept alive any more gets a date")
		require.False(l.t, run.CleanupDueAt.Before(before.Add(l.config.CleanupDelay)))
		l.due = run.CleanupDueAt
	}
}

func (l *life) sweep() {
	ids, err := l.store.OrderDue(context.Background(), []models.Place{l.place}, 10, time.Hour)
	require.NoError(l.t, err)
	due := l.due != nil && !l.due.After(l.clock.Now()) && l.desired != models.WantDeleted
	require.Equal(l.t, due, len(ids) == 1, "exactly what is due is swept")
	if due {
		l.ordered(models.WantDeleted)
	}
}

// fault lets the next call of a method fail, or take effect without an answer.
func (l *life) fault(rt *rapid.T) {
	method := rapid.SampledFrom([]string{"Inspect", "Suspend", "Resume", "Delete"}).Draw(rt, "method")
	switch rapid.IntRange(0, 5).Draw(rt, "fault") {
	case 0:
		l.fake.LoseAnswer(method, 1)
	case 1:
		l.fake.Fail(method, &sandbox.ProviderError{Status: 503})
	case 2:
		l.fake.Fail(method, sandbox.ErrBusy)
	case 3:
		l.fake.Fail(method, sandbox.ErrRefused)
	case 4:
		if l.fake.Quirks.FalseGone {
			l.fake.LieGone(1)
		}
	case 5:
		if !l.fake.Quirks.NoList { // else nothing could tell that it was a lie
			l.fake.Fail("Inspect", sandbox.ErrGone)
		}
	}
}

// provider is what happens to a box that we did not ask for.
func (l *life) provider(rt *rapid.T) {
	if l.fake.Quirks.Suspend == sandbox.SuspendSnapshot {
		return
	}
	switch rapid.IntRange(0, 12).Draw(rt, "own") {
	case 0:
		l.fake.Vanish(l.box.ID)
	case 1:
		l.fake.Break(l.box.ID)
	case 2, 3:
		l.fake.IdlePause(l.box.ID)
	case 4, 5:
		l.fake.Wake(l.box.ID)
	case 6:
		l.fake.Active(l.box.ID, l.clock.Now())
	}
}

// heal ends all faults.
func (l *life) heal() {
	for _, method := range []string{"Inspect", "Suspend", "Resume", "Delete", "List"} {
		l.fake.LoseAnswer(method, 0)
		l.fake.Forgive(method)
	}
	l.fake.LieGone(0)
}

// look is a pass of the orphan duty.
func (l *life) look(t *testing.T) {
	if !l.fake.Capabilities().List || !l.fake.Capabilities().Labels {
		return
	}
	watch := &watchdog.Watchdog{
		Store: l.store, Config: config.Default(t.TempDir()), Deployment: l.deploy, Log: slog.New(slog.DiscardHandler),
		Backends: map[models.Place]sandbox.Backend{l.place: l.fake},
	}
	_, err := watch.Orphans(l.place).Pass(context.Background())
	require.NoError(l.t, err)
}
