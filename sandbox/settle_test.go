package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox/sandboxtest"
)

func TestS1_015_FinishedBoxIsStoredReclaimedAndPaused(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Frees(4096)
		r.exit(run, box, "hello\n", 3)
		r.finish(run, models.Outcome{})
		r.settle()
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.EqualValues(t, 4096, b.ReclaimedBytes)
		require.NotNil(t, b.SuspendedAt)
		stored := r.run(run.ID)
		require.Equal(t, 3, *stored.ExitCode)
		require.Contains(t, r.blobs.get(*stored.OutputKey), `"exit_code":3`)
		require.NotNil(t, stored.CleanupDueAt)
		t.Log(r.events(box.ID), r.fake.Methods(box.ID), r.agent(box.ID).Requests())
	})
}
