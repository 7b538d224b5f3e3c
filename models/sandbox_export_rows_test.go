package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestOfTwoExportsAtOnceTheOneBegunLastCounts(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		_, box := modelstest.Running(t, s, modelstest.Automation(t, s))
		begin := func() *models.Export {
			clock.Advance(time.Second)
			x, err := s.BeginExport(t.Context(), box)
			require.NoError(t, err)
			return x
		}
		current := func() *models.Export {
			b, err := s.Sandbox(t.Context(), uuid.Nil, box.ID)
			require.NoError(t, err)
			return b.Export
		}
		slow, fast := begin(), begin()
		require.Nil(t, current(), "what was not finished does not count")
		require.NoError(t, s.FinishExport(t.Context(), fast))
		require.NoError(t, s.FinishExport(t.Context(), slow))
		require.Equal(t, fast.ID, current().ID, "what was begun before holds less")
		third := begin()
		require.NoError(t, s.FinishExport(t.Context(), third))
		require.Equal(t, third.ID, current().ID)
		expired, err := s.ExpiredExports(t.Context(), s.Now(), time.Time{}, 10)
		require.NoError(t, err)
		require.Len(t, expired, 2)
		expired, err = s.ExpiredExports(t.Context(), s.Now(), time.Time{}, 1)
		require.NoError(t, err)
		require.Len(t, expired, 1, "a bounded batch")

		boxes, _, err := s.ListSandboxes(t.Context(), models.SandboxFilter{OrgID: box.OrgID, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, third.ID, boxes[0].Export.ID)
		unknown := *third
		unknown.ID, unknown.SandboxID = uuid.New(), uuid.New()
		require.ErrorIs(t, s.FinishExport(t.Context(), &unknown), models.ErrNotFound)
	}, models.WithClock(clock.Now))
}

func TestAnOrderOnABoxThatRunsMakesItsExportStale(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		_, box := modelstest.Running(t, s, modelstest.Automation(t, s), func(r *models.Run, _ *models.Sandbox) { r.Status = models.RunCompleted })
		for observed, want := range map[models.Observed]int64{models.SeenRunning: 0, models.SeenSuspended: 1} {
			modelstest.Set(t, s, box, "observed = ?, awake_epoch = 1, exported_epoch = 1", observed)
			require.NoError(t, s.Order(t.Context(), box.ID, models.WantRunning, "user:u", "test"))
			b, err := s.Sandbox(t.Context(), uuid.Nil, box.ID)
			require.NoError(t, err)
			require.Equal(t, want, b.ExportedEpoch, observed)
		}
	})
}
