package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox/sandboxtest"
)

func TestS1_024_BothTerminalSitesDeferTheSameWay(t *testing.T) {
	sites := map[string]func(r *rig, run *models.Run, box *models.Sandbox){
		"S1-061 verified exit": func(r *rig, run *models.Run, box *models.Sandbox) { r.exit(run, box, "some output", "some error", 3) },
		"S1-061 unverifiable timeout": func(r *rig, _ *models.Run, box *models.Sandbox) {
			r.agent(box.ID).Fail("/api/bash/bash_events/search", 404)
		},
	}
	for name, arrange := range sites {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				run, box := r.running()
				arrange(r, run, box)
				r.timedOut(run)
				r.stale()
				require.Equal(r, models.RunFailed, r.run(run.ID).Status)
				t.Run("S1-025 stamp and status are committed together", func(*testing.T) {
					require.Equal(r, r.run(run.ID).CompletedAt.Add(time.Hour), *r.run(run.ID).CleanupDueAt)
				})
				r.deferred(run.ID)
				r.clock.Advance(2 * time.Hour)
				r.sweepAll()
				r.gone(box.ID)
			})
		})
	}
}

func TestS1_052_DelayZeroDeletesAtOnce(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.delay(0)
		run, box := r.running()
		r.exit(run, box, "", "", 3)
		r.timedOut(run)
		r.stale()
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		r.settle()
		r.gone(box.ID)
		require.Zero(r, r.fake.Count("Suspend"), "S1-016 deleted, not paused")
	})
}

func TestS1_026_PauseThatFailsDoesNotChangeTheOutcome(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.fake.FailAlways("Suspend", errors.New("503"))
		run, box := r.running()
		r.exit(run, box, "", "", 0)
		r.timedOut(run)
		r.stale()
		r.settle()
		run = r.run(run.ID)
		require.Equal(r, models.RunCompleted, run.Status)
		require.NotNil(r, run.CleanupDueAt)
		require.Equal(r, models.SeenRunning, r.box(box.ID).Observed)
		r.clock.Advance(2 * time.Hour)
		r.sweepAll()
		r.gone(box.ID)
	})
}

func TestS1_057_CallbacksAndWatchdogWriteOneEnd(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 0)
		r.timedOut(run)
		var ends sync.WaitGroup
		won := make(chan bool, 20)
		for range 20 {
			ends.Go(func() { won <- r.finish(run.ID, models.RunCompleted).Won })
		}
		for range 3 {
			ends.Go(func() { _, _ = r.stalePass(context.WithoutCancel(r.Context())) })
		}
		ends.Wait()
		close(won)
		winners := 0
		for w := range won {
			if w {
				winners++
			}
		}
		require.LessOrEqual(r, winners, 1)
		require.Equal(r, models.RunCompleted, r.run(run.ID).Status)
		stamp := *r.run(run.ID).CleanupDueAt
		r.deferred(run.ID)
		require.Equal(r, stamp, *r.run(run.ID).CleanupDueAt)
		require.Equal(r, 1, r.fake.CountFor("Suspend", box.ID), "one pause")
		events, _, err := r.store.Events(r.Context(), box.ID, 100, 0)
		require.NoError(r, err)
		finished := 0
		for _, e := range events {
			if e.What == "finished" {
				finished++
			}
		}
		require.Equal(r, 1, finished, "one terminal write")
	})
}

func TestS1_017_LateCallbackFlipsATimedOutRunAndStampsAnew(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", -1)
		r.timedOut(run)
		r.stale()
		r.settle()
		first := *r.run(run.ID).CleanupDueAt
		r.clock.Advance(10 * time.Minute)
		f, err := r.store.Reconcile(r.Context(), run.ID, models.Outcome{Actor: "callback", Reason: "callback"}, r.decide)
		require.NoError(r, err)
		require.True(r, f.Won)
		run = r.run(run.ID)
		require.Equal(r, models.RunCompleted, run.Status)
		require.True(r, run.CleanupDueAt.After(first))
		r.deferred(run.ID)
		require.Equal(r, 1, r.fake.CountFor("Suspend", box.ID), "it was paused already")
	})
}

func TestS1_018_OtherFailuresAreNotFlipped(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 3)
		r.timedOut(run)
		r.stale()
		before := r.run(run.ID)
		f, err := r.store.Reconcile(r.Context(), run.ID, models.Outcome{Actor: "callback"}, r.decide)
		require.NoError(r, err)
		require.False(r, f.Won)
		require.Equal(r, before.CleanupDueAt, r.run(run.ID).CleanupDueAt)
	})
}

func TestS1_020_KeepAliveIsNeverStampedPausedOrDeleted(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		yes := true
		kept := modelstest.Automation(r.T, r.store, func(a *models.Automation) { a.KeepAlive = &yes })
		run, box := r.runningOf(kept)
		r.exit(run, box, "", "", 3)
		r.timedOut(run)
		r.stale()
		require.Equal(r, models.RunFailed, r.run(run.ID).Status)
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		r.settle()
		r.clock.Advance(100 * 24 * time.Hour)
		r.sweepAll()
		require.Equal(r, models.SeenRunning, r.fake.State(box.ID))
		require.Zero(r, r.fake.CountFor("Suspend", box.ID)+r.fake.CountFor("Delete", box.ID))
	})
}

func TestS1_022_KeepAliveFalseIsServiceOwned(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		no := false
		run, box := r.runningOf(modelstest.Automation(r.T, r.store, func(a *models.Automation) { a.KeepAlive = &no }))
		r.exit(run, box, "", "", 0)
		r.timedOut(run)
		r.stale()
		r.deferred(run.ID)
	})
}

func TestS1_023_CancelDeletesAtOnceWhateverTheDelay(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		yes := true
		for _, a := range []*models.Automation{r.auto, modelstest.Automation(r.T, r.store, func(a *models.Automation) { a.KeepAlive = &yes })} {
			run, box := r.runningOf(a)
			require.True(r, r.finish(run.ID, models.RunCancelled).Won)
			require.Nil(r, r.run(run.ID).CleanupDueAt, "no stamp")
			r.settle()
			r.gone(box.ID)
			require.Zero(r, r.fake.CountFor("Suspend", box.ID))
		}
	})
}

func TestBR33_OutputIsStoredBeforeTheDelete(t *testing.T) {
	for name, end := range map[string]func(r *rig, run *models.Run, box *models.Sandbox){
		"timed out": func(r *rig, run *models.Run, box *models.Sandbox) { r.clock.Advance(time.Hour); r.stale() },
		"failed":    func(r *rig, run *models.Run, _ *models.Sandbox) { r.finish(run.ID, models.RunFailed) },
		"completed": func(r *rig, run *models.Run, _ *models.Sandbox) { r.finish(run.ID, models.RunCompleted) },
		"cancelled": func(r *rig, run *models.Run, _ *models.Sandbox) { r.finish(run.ID, models.RunCancelled) },
	} {
		t.Run(name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				r.delay(0)
				run, box := r.running()
				for n := range 200 {
					r.agent(box.ID).Print(*run.BashCommandID, fmt.Sprintf("line %d\n", n))
				}
				stored := make(chan struct{})
				r.blobs.put = func() { <-time.After(100 * time.Millisecond); close(stored) }
				r.fake.Watch(func(c sandboxtest.Call) {
					if c.Method == deleteCall {
						select {
						case <-stored:
						default:
							require.Fail(r, "deleted before the output was stored")
						}
					}
				})
				end(r, run, box)
				r.settle()
				r.gone(box.ID)
				require.NotEmpty(r, r.blobs.get(*r.run(run.ID).OutputKey))
			})
		})
	}
}
