package watchdog

import (
	"encoding/json"
	"strconv"
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
		require.Equal(r, []string{"stale", "purge", "janitor", "unserved", "stale fake", "settle fake", "orphans fake", "idle fake"}, names())
		r.Local = &LocalAgent{URL: "http://127.0.0.1:1"}
		require.Equal(r, []string{"stale", "purge", "aftercare", "workspaces"}, names(), "S1-061: the sweep is no part of local mode")
	})
}

func TestCheck_EndsOnlyOnTheExitThatWasSeen(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", "", 1)
		r.clock.Advance(5 * time.Second)
		r.stale()
		r.clock.Advance(graceFailed + time.Second)
		r.agent(box.ID).Watch(func(string) { modelstest.Set(r.T, r.store, run, "exit_seen_at = ?", r.clock.Now()) })
		n, err := r.stalePass(r.Context())
		require.NoError(r, err)
		require.Equal(r, 1, n)
		require.Equal(r, models.RunRunning, r.run(run.ID).Status)
	})
}
