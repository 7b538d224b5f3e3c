package watchdog

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
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

func TestPurge_RemovesAnExportThirtyDaysAfterItsBoxIsGoneAndAnObsoleteOneAtOnce(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		_, box := r.finished()
		taken := func() *models.Export {
			x, err := r.store.BeginExport(r.Context(), box)
			require.NoError(r, err)
			_, err = r.blobs.Put(r.Context(), x.BlobKey, strings.NewReader("zip"))
			require.NoError(r, err)
			require.NoError(r, r.store.FinishExport(r.Context(), x))
			return x
		}
		known := func() *models.Export {
			b, err := r.store.Sandbox(r.Context(), uuid.Nil, box.ID)
			require.NoError(r, err)
			return b.Export
		}
		older, newer := taken(), taken()
		abandoned, err := r.store.BeginExport(r.Context(), box)
		require.NoError(r, err)
		r.clock.Advance(time.Second)
		r.drain(r.purge)
		require.Empty(r, r.blobs.get(older.BlobKey), "a newer one is there")
		require.Equal(r, newer.ID, known().ID)
		unfinished := func() []*models.Export {
			found, err := r.store.ExpiredExports(r.Context(), abandoned.BegunAt.Add(25*time.Hour), time.Time{}, 10)
			require.NoError(r, err)
			return found
		}
		require.Len(r, unfinished(), 1)

		r.clock.Advance(time.Hour)
		r.sweepAll()
		r.gone(box.ID)
		r.clock.Advance(29 * 24 * time.Hour)
		r.drain(r.purge)
		require.Empty(r, unfinished(), "its maker died")
		require.NotEmpty(r, r.blobs.get(newer.BlobKey), "thirty days after the box is gone")
		r.clock.Advance(2 * 24 * time.Hour)
		r.blobs.fail = true
		_, err = r.purge(r.Context())
		require.Error(r, err)
		require.NotNil(r, known(), "the blob goes first")
		r.blobs.fail = false
		r.drain(r.purge)
		require.Empty(r, r.blobs.get(newer.BlobKey))
		require.Nil(r, known())
	})
}
