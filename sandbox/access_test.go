package sandbox_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// entrance is an Access whose wake-ups a settler carries out in the background until the test ends.
func (r *rig) entrance() *sandbox.Access {
	ctx, stop := context.WithCancel(context.Background())
	woken := make(chan struct{}, 1)
	var worker sync.WaitGroup
	worker.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-woken:
			}
			for {
				if n, err := r.settler.Pass(ctx, place); err != nil || n == 0 {
					break
				}
			}
		}
	})
	a := sandbox.NewAccess(sandbox.AccessConfig{Store: r.store, HTTP: r.agents.Client(), Wake: func(models.Place) {
		select {
		case woken <- struct{}{}:
		default:
		}
	}})
	r.Cleanup(func() { a.Close(); stop(); worker.Wait() })
	return a
}

// enter reads a box and enters it, as a request does that leaves at once.
func (r *rig) enter(ctx context.Context, a *sandbox.Access, id uuid.UUID) (*models.Sandbox, error) {
	read, err := r.store.Sandbox(ctx, uuid.Nil, id)
	if err != nil {
		return nil, err
	}
	box, leave, err := a.Enter(ctx, read, "user:u")
	if err == nil {
		leave()
	}
	return box, err
}

func TestS1_047_S0_086_APausedBoxIsResumedBeforeItIsEnteredOnceForAllCallers(t *testing.T) {
	each(t, sandboxtest.Quirks{RotateKey: true, SlowResume: 3}, withDelay, func(r *rig) {
		run, box := r.paused()
		a := r.entrance()
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				entered, err := r.enter(context.Background(), a, box.ID)
				if err != nil {
					r.Error(err)
					return
				}
				if err := sandbox.AgentOf(entered, r.agents.Client()).Ready(context.Background()); err != nil {
					r.Error(err)
				}
			})
		}
		callers.Wait()
		require.Equal(r, 1, r.fake.Count("Resume"), "one start however many callers")
		b := r.box(box.ID)
		require.Equal(r, models.WantRunning, b.Desired)
		require.NotNil(r, b.LastAccessAt)
		require.Equal(r, run.CleanupDueAt, r.run(run.ID).CleanupDueAt, "S1-046: resuming does not extend")
	})
}

func TestS0_087_AfterAWakeTheAgentServerMayTakeItsTime(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.paused()
		r.agent(box.ID).NotReady(4)
		_, err := r.enter(r.Context(), r.entrance(), box.ID)
		require.NoError(r, err)
		require.NoError(r, r.clockedReady(box))
	})
}

func (r *rig) clockedReady(box *models.Sandbox) error {
	return sandbox.AgentOf(r.box(box.ID), r.agents.Client()).Ready(r.Context())
}

func TestS0_087_20SecondsAreAllowedAndNoMore(t *testing.T) {
	for after, ready := range map[time.Duration]bool{19 * time.Second: true, 21 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			up := time.Now().Add(after)
			agent := sandbox.Agent{URL: "http://box", HTTP: clientOf(func(path string) int {
				if time.Now().Before(up) {
					return 503
				}
				return 200
			})}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			require.Equal(t, ready, agent.WaitReady(ctx) == nil)
		})
	}
}

func TestABoxThatRunsIsEnteredWithoutACallToTheProvider(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.clock.Advance(time.Minute)
		calls := len(r.fake.Calls())
		a := r.entrance()
		entered, err := r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		require.Equal(r, box.URL, entered.URL)
		first := r.box(box.ID)
		require.NotNil(r, first.LastAccessAt)
		for range 5 {
			_, err = r.enter(r.Context(), a, box.ID)
			require.NoError(r, err)
		}
		require.Equal(r, first, r.box(box.ID), "requests soon after another write nothing")
		require.Len(r, r.agent(box.ID).Requests(), 1, "nor is the box asked each time whether it is there")
		require.Len(r, r.fake.Calls(), calls)
	})
}

func TestABoxThatTheProviderPausedByItselfIsEnteredAllTheSame(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.clock.Advance(time.Minute)
		r.fake.IdlePause(box.ID) // nobody told us
		a := r.entrance()
		entered, err := r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		require.NoError(r, sandbox.AgentOf(entered, r.agents.Client()).Ready(r.Context()))
		require.Equal(r, 1, r.fake.Count("Resume"))
		require.Contains(r, r.events(box.ID), "adopted ok")

		r.clock.Advance(time.Minute)
		r.fake.IdlePause(box.ID) // and again, just after it answered: whoever finds that out says so
		a.Doubt(box.ID)
		_, err = r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		require.Equal(r, 2, r.fake.Count("Resume"))
	})
}

func TestBoxesThatCannotBeEnteredSayWhy(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		a := r.entrance()
		enter := func(id uuid.UUID) error {
			_, err := r.enter(r.Context(), a, id)
			return err
		}
		require.ErrorIs(r, enter(uuid.New()), models.ErrNotFound)

		_, box := r.paused()
		r.fake.Vanish(box.ID)
		require.ErrorIs(r, enter(box.ID), sandbox.ErrGone)

		run, box := r.paused()
		r.due(run)
		require.ErrorIs(r, enter(box.ID), models.ErrDeletionOrdered)

		starting := r.lost(false)
		require.ErrorIs(r, enter(starting.ID), models.ErrDeletionOrdered)

		made := modelstest.NewBox(r.store)
		made.Observed, made.ObservedAt = models.SeenProvisioning, nil
		modelstest.Box(r.T, r.store, made)
		require.ErrorIs(r, enter(made.ID), sandbox.ErrNotReady)
	})
}

func TestACallerThatGivesUpDoesNotEndTheWakeOfTheOthers(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.paused()
		hold := r.fake.Hold("Resume")
		a := r.entrance()
		hasty, giveUp := cancelable(r.T)
		given := make(chan error, 1)
		go func() { _, err := r.enter(hasty, a, box.ID); given <- err }()
		<-hold.Entered
		patient := make(chan error, 1)
		go func() {
			_, err := r.enter(context.Background(), a, box.ID)
			patient <- err
		}()
		giveUp()
		require.ErrorIs(r, <-given, context.Canceled)
		hold.Release()
		require.NoError(r, <-patient)
		require.Equal(r, 1, r.fake.Count("Resume"))
	})
}

func TestAResumeRacingTheSweepEndsInOneOfTwoLegalStates(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		a := r.entrance()
		for range 10 {
			run, box := r.paused()
			modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = completed_at")
			var racers sync.WaitGroup
			var entered error
			racers.Go(func() { _, entered = r.enter(context.Background(), a, box.ID) })
			racers.Go(func() {
				if _, err := r.store.OrderDue(context.Background(), []models.Place{place}, 50, time.Hour); err != nil {
					r.Error(err)
				}
			})
			racers.Wait()
			_, err := r.store.OrderDue(r.Context(), []models.Place{place}, 50, time.Hour) // a pass skips rows that are locked
			require.NoError(r, err)
			r.settle()
			require.Eventually(r, func() bool { return r.box(box.ID).LeaseToken == nil }, 10*time.Second, time.Millisecond)
			r.settle()
			r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
			if entered != nil {
				require.ErrorIs(r, entered, models.ErrDeletionOrdered)
			}
		}
		require.Empty(r, r.fake.Alive())
	})
}

func TestAttachmentsOfAProcessAreOneRowUntilTheLastOneLeaves(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.paused()
		a := r.entrance()
		var detach []func()
		for range 3 {
			d, err := a.Attach(r.Context(), box.ID)
			require.NoError(r, err)
			detach = append(detach, d)
		}
		modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = completed_at")
		r.sweep(0)
		for n, d := range detach {
			d()
			d() // twice is once
			if n < 2 {
				r.sweep(0)
			}
		}
		r.sweep(1)
		_, err := a.Attach(r.Context(), box.ID)
		require.ErrorIs(r, err, models.ErrDeletionOrdered)
	})
}

func TestAnAttachmentHoldsASuspendUntilItLeaves(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		a := r.entrance()
		detach, err := a.Attach(r.Context(), box.ID)
		require.NoError(r, err)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenRunning, false)
		detach() // wakes the settler, which need not sleep the half minute out
		require.Eventually(r, func() bool { return r.box(box.ID).Observed == models.SeenSuspended }, 10*time.Second, time.Millisecond)
	})
}
