package watchdog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

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
