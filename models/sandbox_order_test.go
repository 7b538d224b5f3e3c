package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestOrderChangesTheDesiredStateAndGivesTheSettlerWork(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, func(f *seeded) {
			f.Box.Tried, f.Box.Attempts = []string{"reclaim"}, 4
			f.Box.PrepareUntil = ptr(s.Now())
		})
		require.NoError(t, s.Order(t.Context(), f.Box.ID, models.WantRunning, "user:ana", "look inside"))

		b := box(t, s, f.Box.ID)
		require.Equal(t, models.WantRunning, b.Desired)
		require.EqualValues(t, 2, b.Generation)
		require.Equal(t, "user:ana", b.OrderedBy)
		require.Equal(t, "look inside", b.OrderReason)
		require.Empty(t, b.Tried)
		require.Zero(t, b.Attempts)
		require.Nil(t, b.PrepareUntil)
		sameTime(t, b.OrderedAt, b.NextStepAt)
		require.True(t, b.OrderedAt.After(f.Box.OrderedAt))

		events, total, err := s.Events(t.Context(), f.Box.ID, 10, 0)
		require.NoError(t, err)
		require.Equal(t, 1, total)
		require.Equal(t, "ordered", events[0].What)
		require.Equal(t, "user:ana", events[0].Actor)
		require.Equal(t, "running: look inside", events[0].Reason)
		require.Equal(t, f.Run.ID, *events[0].RunID)
		require.Equal(t, f.Automation.ID, *events[0].AutomationID)
		require.Equal(t, f.Automation.OrgID, events[0].OrgID)
	})
}

func TestDeletedIsFinal(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s)
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantDeleted, "user:ana", "by hand"))
		before := box(t, s, f.Box.ID)
		for _, to := range []models.Desired{models.WantRunning, models.WantSuspended, models.WantDeleted} {
			require.ErrorIs(t, s.Order(ctx, f.Box.ID, to, "user:ana", "again"), models.ErrDeletionOrdered, to)
		}
		require.ErrorIs(t, s.Extend(ctx, f.Box.ID, s.Now().Add(time.Hour), "user:ana"), models.ErrDeletionOrdered)
		require.ErrorIs(t, s.Keep(ctx, f.Box.ID, "user:ana", "why"), models.ErrDeletionOrdered)
		_, err := s.Unkeep(ctx, f.Box.ID, time.Hour, "user:ana")
		require.ErrorIs(t, err, models.ErrDeletionOrdered)
		require.ErrorIs(t, attach(ctx, s, f.Box.ID, uuid.New(), s.Now().Add(time.Minute)), models.ErrDeletionOrdered)
		require.Equal(t, before, box(t, s, f.Box.ID))
		require.Equal(t, []string{"ordered"}, whats(t, s, f.Box.ID))
	})
}

func TestOrderOfAnUnknownBoxIsNotFound(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, id := t.Context(), uuid.New()
		require.ErrorIs(t, s.Order(ctx, id, models.WantDeleted, "janitor", "due"), models.ErrNotFound)
		require.ErrorIs(t, s.Extend(ctx, id, s.Now(), "user:ana"), models.ErrNotFound)
		require.ErrorIs(t, s.Keep(ctx, id, "user:ana", ""), models.ErrNotFound)
		require.ErrorIs(t, attach(ctx, s, id, uuid.New(), s.Now()), models.ErrNotFound)
	})
}

func TestAPersonMustCancelARunningRunFirst(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, running)
		for _, to := range []models.Desired{models.WantSuspended, models.WantDeleted} {
			require.ErrorIs(t, s.Order(ctx, f.Box.ID, to, "user:ana", "by hand"), models.ErrRunActive)
		}
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantRunning, "user:ana", "wake it"))
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantDeleted, "dispatch", "attempt lost"), "a duty may")

		old := older(t, s, f, func(b *models.Sandbox) {})
		require.NoError(t, s.Order(ctx, old.ID, models.WantDeleted, "user:ana", "left over"), "not the box the run is in")
	})
}

func TestExtendMovesTheStamp(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s)
		later := s.Now().Add(3 * time.Hour)
		require.NoError(t, s.Extend(ctx, f.Box.ID, later, "user:ana"))
		sameTime(t, later, stamp(t, s, f))
		sameTime(t, later, box(t, s, f.Box.ID).DueAt)
		events, _, err := s.Events(ctx, f.Box.ID, 10, 0)
		require.NoError(t, err)
		require.Equal(t, "extended", events[0].What)
		require.Contains(t, string(events[0].Detail), later.Format("2006-01-02T15:04"))

		none := seed(t, s, func(f *seeded) { f.Run.CleanupDueAt = nil })
		require.ErrorIs(t, s.Extend(ctx, none.Box.ID, later, "user:ana"), models.ErrNoStamp)
		old := older(t, s, f, func(b *models.Sandbox) {})
		require.ErrorIs(t, s.Extend(ctx, old.ID, later, "user:ana"), models.ErrNoStamp, "the stamp is about the newest box")
	})
}

func TestKeepClearsTheStampAndUnkeepStampsFromNow(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s)
		require.NoError(t, s.Keep(ctx, f.Box.ID, "user:ana", "flaky test"))
		b := box(t, s, f.Box.ID)
		require.NotNil(t, b.KeptAt)
		require.Equal(t, "user:ana", b.KeptBy)
		require.Equal(t, "flaky test", b.KeptReason)
		require.Nil(t, stamp(t, s, f))
		require.EqualValues(t, 1, b.Generation, "keeping changes no order")

		before := s.Now()
		at, err := s.Unkeep(ctx, f.Box.ID, time.Hour, "user:ben")
		require.NoError(t, err)
		require.NotNil(t, at)
		require.False(t, at.Before(before.Add(time.Hour)))
		sameTime(t, *at, stamp(t, s, f))
		b = box(t, s, f.Box.ID)
		require.Nil(t, b.KeptAt)
		require.Empty(t, b.KeptBy)

		again, err := s.Unkeep(ctx, f.Box.ID, 5*time.Hour, "user:ben")
		require.NoError(t, err)
		sameTime(t, *at, again)
		require.Equal(t, []string{"kept", "unkept"}, whats(t, s, f.Box.ID))
	})
}

func TestBR_29_S1_020_UnkeepNeverStampsAKeepAliveOrAnUnfinishedRun(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		for name, f := range map[string]seeded{"keep_alive": seed(t, s, keepAlive), "running": seed(t, s, running)} {
			require.NoError(t, s.Keep(ctx, f.Box.ID, "user:ana", ""))
			at, err := s.Unkeep(ctx, f.Box.ID, time.Hour, "user:ana")
			require.NoError(t, err, name)
			require.Nil(t, at, name)
			require.Nil(t, stamp(t, s, f), name)
			require.Nil(t, box(t, s, f.Box.ID).KeptAt, name)
		}
	})
}

func TestKeepOfAnEarlierAttemptLeavesTheStampOfTheNewestBox(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s)
		old := older(t, s, f, func(b *models.Sandbox) {})
		require.NoError(t, s.Keep(t.Context(), old.ID, "user:ana", ""))
		sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
		at, err := s.Unkeep(t.Context(), old.ID, 7*time.Hour, "user:ana")
		require.NoError(t, err)
		require.Nil(t, at)
		sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
	})
}
