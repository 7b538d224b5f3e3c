package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func (r *rig) detail(run *models.Run) (d models.StatusDetail) {
	r.Helper()
	require.NoError(r, json.Unmarshal(run.StatusDetail, &d))
	return d
}

func TestCheck_CommandThatEndedWithoutACallback(t *testing.T) {
	for _, c := range []struct {
		code  int
		after time.Duration
		want  models.RunStatus
	}{{0, 60 * time.Second, models.RunCompleted}, {3, 10 * time.Second, models.RunFailed}} {
		t.Run(strconv.Itoa(c.code), func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				run, box := r.running()
				r.clock.Advance(5 * time.Second)
				r.stale()
				require.Nil(r, r.run(run.ID).ExitSeenAt, "it still runs")
				r.exit(run, box, "out\n", "err\n", c.code)
				r.clock.Advance(6 * time.Second)
				r.stale()
				seen := r.run(run.ID)
				require.NotNil(r, seen.ExitSeenAt)
				require.Equal(r, c.code, *seen.ExitCode)
				r.clock.Advance(c.after - time.Second)
				r.stale()
				require.Equal(r, models.RunRunning, r.run(run.ID).Status, "its callback may be on its way")
				r.clock.Advance(2 * time.Second)
				r.stale()
				require.Equal(r, c.want, r.run(run.ID).Status)
				r.deferred(run.ID)
			})
		})
	}
}

func TestCheck_CallbackWithinTheGraceWins(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 1)
		r.clock.Advance(5 * time.Second)
		r.stale()
		require.True(r, r.finish(run.ID, models.RunCompleted).Won)
		r.clock.Advance(time.Minute)
		r.stale()
		require.Equal(r, models.RunCompleted, r.run(run.ID).Status)
	})
}

func TestCheck_LooksLessOftenTheLongerACommandRuns(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		var waits []time.Duration
		for range 6 {
			next := *r.run(run.ID).CheckAt
			waits = append(waits, next.Sub(r.clock.Now()).Round(5*time.Second))
			r.clock.Advance(next.Sub(r.clock.Now()))
			r.stale()
		}
		require.Equal(r, []time.Duration{5e9, 5e9, 10e9, 20e9, 30e9, 30e9}, waits)
		require.Len(r, r.agent(box.ID).Requests(), 6)
		require.Equal(r, models.RunRunning, r.run(run.ID).Status)
		require.Zero(r, r.fake.Count("Inspect"), "the box is asked, not the provider")
	})
}

func TestCheck_LostCommandIsLookedUp(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running(func(run *models.Run, _ *models.Sandbox) { run.BashCommandID = nil })
		id := r.agent(box.ID).Commands()[0].ID
		r.agent(box.ID).Run("curl -o /home/box/.automation/" + run.ID.String() + ".tar.gz 'https://x'")
		r.clock.Advance(5 * time.Second)
		r.stale()
		require.Equal(r, id, *r.run(run.ID).BashCommandID)
	})
}

func TestS0_130_BoxIsNotAskedWhereLookingCounts(t *testing.T) {
	one(t, sandboxtest.Quirks{LookingCounts: true}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 0)
		for range 20 {
			r.clock.Advance(30 * time.Second)
			r.stale()
		}
		require.Empty(r, r.agent(box.ID).Requests())
		require.Zero(r, r.fake.Count("Inspect"))
		require.Equal(r, models.RunRunning, r.run(run.ID).Status)
		r.timedOut(run)
		r.stale()
		require.Equal(r, models.RunCompleted, r.run(run.ID).Status, "the deadline is verified as ever")
	})
}

func TestCheck_UnreachableBoxChangesNothing(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Down()
		r.clock.Advance(time.Minute)
		r.stale()
		run = r.run(run.ID)
		require.Equal(r, models.RunRunning, run.Status)
		require.True(r, run.CheckAt.After(r.clock.Now()))
		require.Nil(r, run.StatusDetail)
	})
}

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

func TestS1_027_NeitherStillRunningNorTransientStampsOrPauses(t *testing.T) {
	for name, arrange := range map[string]func(r *rig, box *models.Sandbox){
		"still running": func(*rig, *models.Sandbox) {},
		"agent 503":     func(r *rig, box *models.Sandbox) { r.agent(box.ID).Fail("/api/bash/bash_events/search", 503) },
		"agent away":    func(r *rig, box *models.Sandbox) { r.agent(box.ID).Down() },
		"provider away": func(r *rig, _ *models.Sandbox) { r.fake.FailAlways("Inspect", errors.New("reset")) },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				run, box := r.running()
				arrange(r, box)
				r.timedOut(run)
				// The deadline of the makers is past the hard cap of a ten-minute run: start it later.
				started := r.clock.Now().Add(-time.Minute)
				modelstest.Set(r.T, r.store, run, "started_at = ?", started)
				r.stale()
				got := r.run(run.ID)
				require.Equal(r, models.RunRunning, got.Status)
				require.Nil(r, got.CleanupDueAt)
				require.Equal(r, models.WantRunning, r.box(box.ID).Desired)
				require.Zero(r, r.fake.Count("Suspend")+r.fake.Count("Delete"))
				if name == "still running" {
					require.WithinDuration(r, r.clock.Now().Add(time.Minute), *got.TimeoutAt, 5*time.Second)
				} else {
					require.Equal(r, *run.TimeoutAt, *got.TimeoutAt, "the deadline stays")
					require.True(r, r.detail(got).Transient)
					require.Equal(r, 1, r.detail(got).Count)
				}
			})
		})
	}
}

func TestBR24_CouldNotAskIsNotGone(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		modelstest.Set(r.T, r.store, run, "started_at = ?", r.clock.Now().Add(16*time.Minute))
		r.fake.Fail("Inspect", errors.New("429 too many requests"), errors.New("503"), errors.New("connection reset"))
		r.timedOut(run)
		for n := 1; n <= 3; n++ {
			r.stale()
			got := r.run(run.ID)
			require.Equal(r, models.RunRunning, got.Status)
			require.True(r, r.detail(got).Transient)
			r.clock.Advance(time.Minute)
		}
		r.exit(run, box, "", "", 0)
		r.stale()
		require.Equal(r, models.RunCompleted, r.run(run.ID).Status)
		require.Nil(r, r.run(run.ID).StatusDetail)
	})
}

// Fault 26 of the Python service: verification errors that never end.
func TestVerify_TransientErrorsHaveTheHardCap(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, _ := r.running()
		r.fake.FailAlways("Inspect", errors.New("503"))
		r.clock.Advance(5*time.Minute + 10*time.Minute + 10*time.Minute + time.Second) // ready, timeout, hard grace
		r.stale()
		got := r.run(run.ID)
		require.Equal(r, models.RunFailed, got.Status)
		require.Equal(r, "Timed out: 503", *got.ErrorDetail)
		require.NotNil(r, got.CleanupDueAt, "the box is decided on all the same")
	})
}

func TestVerify_Outcomes(t *testing.T) {
	long := strings.Repeat("é", 1500)
	cases := []struct {
		name    string
		arrange func(r *rig, run *models.Run, box *models.Sandbox)
		status  models.RunStatus
		detail  string
		kind    string
		code    string
		outcome string
	}{
		{"exit 0", func(r *rig, run *models.Run, box *models.Sandbox) { r.exit(run, box, "", "", 0) }, models.RunCompleted, "", "", "", ""},
		{"exit 3", func(r *rig, run *models.Run, box *models.Sandbox) { r.exit(run, box, "some output", "some error", 3) },
			models.RunFailed, "exit_code=3\nstderr: some error\nstdout: some output", "execution_error", "3", ""},
		{"long output", func(r *rig, run *models.Run, box *models.Sandbox) { r.exit(run, box, long, long, 3) },
			models.RunFailed, "exit_code=3\nstderr: " + long[:2000] + "\nstdout: " + long[:1000], "execution_error", "3", ""},
		{"exit -1", func(r *rig, run *models.Run, box *models.Sandbox) { r.exit(run, box, "", "some error", -1) },
			models.RunFailed, "Timed out: command timed out or was killed\nstderr: some error", "timeout", "-1", ""},
		{"still running at the cap", func(r *rig, _ *models.Run, _ *models.Sandbox) { r.clock.Advance(time.Hour) },
			models.RunFailed, "Timed out: No bash output found", "timeout", "", "still_running"},
		{"box gone", func(r *rig, _ *models.Run, box *models.Sandbox) { r.fake.Vanish(box.ID) },
			models.RunFailed, "Timed out: Sandbox not available", "environment_unavailable", "", "environment_unavailable"},
		{"box paused", func(r *rig, _ *models.Run, box *models.Sandbox) { r.fake.IdlePause(box.ID) },
			models.RunFailed, "Timed out: Sandbox not available", "environment_unavailable", "", "environment_unavailable"},
		{"agent refuses", func(r *rig, _ *models.Run, box *models.Sandbox) {
			r.agent(box.ID).Fail("/api/bash/bash_events/search", 404)
		},
			models.RunFailed, "Timed out: GET /api/bash/bash_events/search: status 404: 404: played", "timeout", "", "verification_error"},
		{"credential refused", func(r *rig, _ *models.Run, _ *models.Sandbox) { r.fake.FailAlways("Inspect", sandbox.ErrRefused) },
			models.RunFailed, "Timed out: verification failed: provider refused the credential", "unknown", "refused", "exception"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, func(r *rig) {
				run, box := r.running()
				r.timedOut(run)
				c.arrange(r, run, box)
				r.stale()
				run = r.run(run.ID)
				require.Equal(r, c.status, run.Status)
				require.NotNil(r, run.CleanupDueAt, "whatever was found, the box is decided on")
				if c.status == models.RunCompleted {
					require.Nil(r, run.ErrorDetail)
					require.Nil(r, run.StatusDetail)
					return
				}
				require.Equal(r, c.detail, *run.ErrorDetail)
				d := r.detail(run)
				require.Equal(r, c.kind, d.Kind)
				require.Equal(r, c.code, d.Code)
				require.Equal(r, c.outcome, d.VerificationOutcome)
			})
		})
	}
}

func TestVerify_RunThatNeverGotABox(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running(func(run *models.Run, b *models.Sandbox) {
			run.StartingAt, run.BashCommandID, run.CheckAt = nil, nil, nil
		})
		modelstest.Set(r.T, r.store, box, "url = ''")
		r.timedOut(run)
		r.stale()
		run = r.run(run.ID)
		require.Equal(r, "Timed out: No sandbox_id available for verification", *run.ErrorDetail)
		require.Nil(r, run.CleanupDueAt)
		r.settle()
		r.gone(box.ID)
	})
}

func TestVerify_OnlyTheDeadlineThatWasVerified(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 3)
		r.timedOut(run)
		moved := r.clock.Now().Add(time.Hour)
		r.agent(box.ID).Watch(func(string) { modelstest.Set(r.T, r.store, run, "timeout_at = ?", moved) })
		n, err := r.stalePass(r.Context())
		require.NoError(r, err)
		require.Equal(r, 1, n)
		require.Equal(r, models.RunRunning, r.run(run.ID).Status)
	})
}

func TestS1_054_NoTransactionIsOpenDuringHTTP(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		other, _ := r.running()
		writes := 0
		write := func() {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			writes++
			require.NoError(r, r.store.SetPhase(ctx, other.ID, "still answering"))
			require.NoError(r, r.store.Touch(ctx, box.ID, r.clock.Now()))
		}
		r.exit(run, box, "", "", 3)
		r.agent(box.ID).Watch(func(string) { write() })
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Workspace == box.ID {
				write()
			}
		})
		r.timedOut(run)
		r.stale()
		require.Equal(r, models.RunFailed, r.run(run.ID).Status)
		r.settle()
		require.Equal(r, models.SeenSuspended, r.box(box.ID).Observed)
		require.Greater(r, writes, 3, "inspect, search, suspend")
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

func TestS1_053_LocalModeIsNeitherStampedNorPaused(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		shared := sandbox.Identity{}
		err := r.fake.Create(r.Context(), sandbox.Spec{Label: sandbox.Label{WorkspaceID: uuid.New()}}, func(i sandbox.Identity) error { shared = i; return nil })
		require.NoError(r, err)
		r.Local = &LocalAgent{URL: shared.URL, Key: config.Secret(shared.Key)}
		r.Backends = nil
		agent := r.agents.Box(shared.ProviderID)
		run, _ := r.running()
		id := agent.Run("local")
		modelstest.Set(r.T, r.store, run, "box_id = NULL, bash_command_id = ?", id)
		agent.End(id, "", "boom", 2)
		r.timedOut(run)
		r.stale()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Equal(r, "exit_code=2\nstderr: boom", *run.ErrorDetail)
		require.Nil(r, run.CleanupDueAt, "S1-053: never stamped")
	})
}

func TestS1_061_SweepIsPartOfBoxModeOnly(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		names := func() (all []string) {
			for _, l := range r.Loops() {
				all = append(all, l.Name)
			}
			return all
		}
		require.Equal(r, []string{"stale", "purge", "janitor", "unserved", "settle fake", "orphans fake"}, names())
		r.Local = &LocalAgent{URL: "http://127.0.0.1:1"}
		require.Equal(r, []string{"stale", "purge"}, names(), "S1-061: the sweep is no part of local mode")
	})
}
