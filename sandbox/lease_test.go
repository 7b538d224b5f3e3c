package sandbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestARenewalThatSeesAnOrderEndsTheWaitForTheCommand(t *testing.T) {
	settings := withDelay
	settings.ExitGrace = time.Minute
	one(t, sandboxtest.Quirks{}, settings, func(r *rig) {
		r.config.Timing.Renew = 10 * time.Millisecond
		r.settler = sandbox.NewSettler(r.config)
		run, box := r.running() // its command does not end
		asked := make(chan struct{}, 1000)
		r.agent(box.ID).Watch(func(string) { asked <- struct{}{} })
		r.finish(run, models.Outcome{})
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(r.Context(), place)
			done <- err
		}()
		<-asked
		r.order(box.ID, models.WantRunning, "user:u")
		require.NoError(r, <-done, "the wait of a minute is over")
		r.settle()
		b := r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Zero(r, r.fake.Count("Suspend"))
		require.Empty(r, b.Tried, "an interrupted step was not tried")
	})
}

func TestErrorsOfABoxCarryNoKey(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.fake.Fail("Inspect", errors.New("call with "+box.SessionKey+" failed"))
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settle()
		require.Equal(r, "inspect: call with [redacted] failed", *r.box(box.ID).LastError)
		events, _, err := r.store.Events(r.Context(), box.ID, 10, 0)
		require.NoError(r, err)
		for _, e := range events {
			require.NotContains(r, e.Reason, box.SessionKey)
		}
	})
}

func TestALeaseThatIsNotRenewedEndsTheCallBeforeItRunsOut(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		r.config.Timing = sandbox.Timing{Lease: 300 * time.Millisecond, Renew: time.Hour, Call: time.Minute, Poll: time.Millisecond}
		r.settler = sandbox.NewSettler(r.config)
		_, box := r.running()
		hold := r.fake.Hold("Inspect")
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		started := time.Now()
		_, err := r.settler.Pass(r.Context(), place)
		require.Error(r, err)
		require.Less(r, time.Since(started), 10*time.Second)
		require.Len(r, hold.Entered, 1)
		r.is(box.ID, models.WantRunning, models.SeenRunning, false)
	})
}

func TestAPassThatIsStoppedGivesTheLeaseBackAndKeepsTheTime(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		hold := r.fake.Hold("Inspect")
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		ctx, stop := cancelable(r.T)
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(ctx, place)
			done <- err
		}()
		<-hold.Entered
		stop()
		require.Error(r, <-done)
		b := r.is(box.ID, models.WantRunning, models.SeenRunning, false)
		require.Zero(r, b.Attempts)
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
	})
}

func TestAPanicOfABackendEndsOnlyItsOwnBox(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		_, other := r.running()
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Workspace == box.ID {
				panic("broken backend")
			}
		})
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		_, err := r.settler.Pass(r.Context(), place)
		require.ErrorContains(r, err, "broken backend")
		r.fake.Watch(nil)
		require.NoError(r, r.store.NudgeBox(r.Context(), other.ID))
		r.settle()
		r.is(other.ID, models.WantRunning, models.SeenRunning, true)
	})
}

func TestBR_03_ABackendThatIsNotConfiguredIsNotClaimed(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		_, err := r.settler.Pass(r.Context(), models.Place{Backend: "other"})
		require.Error(r, err)
		n, err := r.settler.Pass(r.Context(), models.Place{Backend: modelstest.Backend, Location: "elsewhere"})
		require.NoError(r, err)
		require.Zero(r, n)
		r.is(box.ID, models.WantRunning, models.SeenRunning, false)
	})
}
