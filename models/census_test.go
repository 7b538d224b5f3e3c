package models_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/migrations"
	"automation/models"
	"automation/models/modelstest"
)

func TestCensusCountsRunsBoxesAndWhatIsLate(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		empty, err := s.Census(t.Context())
		require.NoError(t, err)
		require.Empty(t, empty.Runs)
		require.Empty(t, empty.Boxes)
		require.Empty(t, empty.Cleanups)
		require.Equal(t, migrations.Latest(), empty.Migration)
		require.False(t, empty.Dirty)

		a := modelstest.Automation(t, s)
		modelstest.Pending(t, s, a)
		modelstest.Running(t, s, a)
		now := s.Now()
		stamped := func(due time.Time, edit func(*models.Sandbox)) {
			modelstest.Running(t, s, a, func(r *models.Run, b *models.Sandbox) {
				ended := now.Add(-3 * time.Hour)
				r.Status, r.CompletedAt, r.CleanupDueAt = models.RunFailed, &ended, &due
				b.Observed, b.Desired = models.SeenSuspended, models.WantSuspended
				edit(b)
			})
		}
		stamped(now.Add(time.Hour), func(b *models.Sandbox) {
			b.Storage = []byte(`{"trash_bytes":2,"conversations":[{"id":"a","size_bytes":40},{"id":"b","size_bytes":8}]}`)
		})
		stamped(now.Add(time.Hour), func(b *models.Sandbox) { b.KeptAt = &now })
		stamped(now.Add(-time.Minute), func(*models.Sandbox) {})
		stamped(now.Add(-time.Minute), func(b *models.Sandbox) { // the order counts from when it was given
			b.Desired, b.NextStepAt, b.OrderedAt = models.WantDeleted, &now, now.Add(-2*time.Hour)
			b.CreatedBy = models.CreatedByOrphan
		})
		stamped(now.Add(-time.Minute), func(b *models.Sandbox) { // nothing works on it any more
			b.Desired, b.Observed, b.OrderedAt = models.WantDeleted, models.SeenMissing, now.Add(-2*time.Hour)
		})
		stamped(now.Add(-time.Minute), func(b *models.Sandbox) { b.Desired, b.Observed = models.WantDeleted, models.SeenDeleted })

		c, err := s.Census(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[models.RunStatus]int{models.RunPending: 1, models.RunRunning: 1, models.RunFailed: 6}, c.Runs)
		require.ElementsMatch(t, []models.BoxCount{
			{Backend: "fake", Observed: models.SeenRunning, N: 1},
			{Backend: "fake", Observed: models.SeenSuspended, N: 3, Orphans: 1},
			{Backend: "fake", Observed: models.SeenSuspended, Kept: true, N: 1},
			{Backend: "fake", Observed: models.SeenMissing, N: 1},
		}, c.Boxes)
		require.Equal(t, map[models.BoxState]int64{{Backend: "fake", Observed: models.SeenSuspended}: 50}, c.Held)
		late := c.Cleanups["fake"]
		require.Equal(t, 1, late.Pending)
		require.Equal(t, 2, late.Overdue)
		require.InDelta(t, (2 * time.Hour).Seconds(), late.OldestOverdue.Seconds(), 60)
	})
}

func TestEveryEndOfARunIsToldOnceAfterItsCommit(t *testing.T) {
	var told []models.RunEnd
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		told = nil
		a := modelstest.Automation(t, s)
		run, _ := modelstest.Running(t, s, a)
		text := models.TimedOutPrefix + "too long"
		keep := func(models.Ending) models.Decision { return models.Decision{Box: models.BoxNothing} }
		failed := models.Outcome{Status: models.RunFailed, ErrorDetail: &text, Actor: "watchdog", Reason: "timed out"}
		for range 2 { // the second loses, and tells nothing
			_, err := s.Finish(t.Context(), run.ID, failed, keep)
			require.NoError(t, err)
		}
		_, err := s.Reconcile(t.Context(), run.ID, models.Outcome{Actor: "callback", Reason: "callback"}, keep)
		require.NoError(t, err)
		pending := modelstest.Pending(t, s, a)
		require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))

		require.Len(t, told, 3)
		require.Equal(t, models.RunFailed, told[0].Run.Status)
		require.False(t, told[0].Reconciled)
		require.Equal(t, models.RunCompleted, told[1].Run.Status)
		require.True(t, told[1].Reconciled)
		require.Equal(t, pending.ID, told[2].Run.ID)
		require.Equal(t, models.RunSkipped, told[2].Run.Status)
		require.Equal(t, models.TriggerManual, *told[2].Run.TriggerSource)
		require.NotNil(t, told[2].Run.CompletedAt)
	}, models.WithRunEnds(func(e models.RunEnd) { told = append(told, e) }))
}
