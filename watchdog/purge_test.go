package watchdog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/sandbox/sandboxtest"
)

func TestPurge_RemovesWhatHasOutlivedItsUse(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.finished()
		key := *run.OutputKey
		r.clock.Advance(time.Hour)
		r.sweepAll()
		r.gone(box.ID)
		r.clock.Advance(29 * 24 * time.Hour)
		r.drain(r.purge)
		require.NotEmpty(r, r.blobs.get(key), "thirty days after the box is gone")
		r.clock.Advance(2 * 24 * time.Hour)
		r.blobs.fail = true
		_, err := r.purge(r.Context())
		require.Error(r, err)
		require.NotNil(r, r.run(run.ID).OutputKey, "the blob goes first")
		r.blobs.fail = false
		r.drain(r.purge)
		require.Empty(r, r.blobs.get(key))
		require.Nil(r, r.run(run.ID).OutputKey)

		events := func() int {
			_, total, err := r.store.Events(r.Context(), box.ID, 1, 0)
			require.NoError(r, err)
			return total
		}
		require.Positive(r, events())
		r.clock.Advance(330 * 24 * time.Hour)
		r.drain(r.purge)
		require.Positive(r, events())
		r.clock.Advance(10 * 24 * time.Hour)
		r.drain(r.purge)
		require.Zero(r, events())
	})
}
