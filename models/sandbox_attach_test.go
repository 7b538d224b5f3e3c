package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// swept reports whether the sweep takes a due box now.
func swept(t *testing.T, s *models.Store) bool {
	t.Helper()
	ordered, err := s.OrderDue(t.Context(), places, 10, time.Hour)
	require.NoError(t, err)
	return len(ordered) > 0
}

// startAnew lets a box be seen running after it was not.
func startAnew(t *testing.T, s *models.Store, box *models.Sandbox) {
	t.Helper()
	modelstest.Set(t, s, box, "awake_epoch = awake_epoch + 1, observed = ?", models.SeenRunning)
}

func TestAnAttachmentHoldsOneStartOfItsBox(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f, process, until := seed(t, s), uuid.New(), s.Now().Add(time.Minute)
		first, err := s.Attach(t.Context(), f.Box.ID, process, until)
		require.NoError(t, err)
		require.EqualValues(t, 2, first, "a suspended box is held for its next start")
		require.False(t, swept(t, s))
		startAnew(t, s, f.Box)
		require.False(t, swept(t, s), "that start")
		again, err := s.Attach(t.Context(), f.Box.ID, process, until)
		require.NoError(t, err)
		require.Equal(t, first, again)
		startAnew(t, s, f.Box)
		require.True(t, swept(t, s), "and none after it")
	})
}

func TestS3_018_ALateDetachNeverReleasesANewAttachment(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f, process, until := seed(t, s), uuid.New(), s.Now().Add(time.Minute)
		startAnew(t, s, f.Box)
		old, err := s.Attach(t.Context(), f.Box.ID, process, until)
		require.NoError(t, err)
		startAnew(t, s, f.Box)
		_, err = s.Attach(t.Context(), f.Box.ID, process, until)
		require.NoError(t, err)
		accessed := box(t, s, f.Box.ID).LastAccessAt
		waiting, err := s.Detach(t.Context(), f.Box.ID, process, old, s.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Nil(t, waiting)
		require.False(t, swept(t, s), "still held")
		require.Equal(t, accessed, box(t, s, f.Box.ID).LastAccessAt, "nor is what happened in an old start an access to the new one")
		require.NoError(t, detach(t.Context(), s, f.Box.ID, process))
		require.True(t, swept(t, s))
	})
}

func TestS3_026_TheLastDetachRestartsTheIdleTimeAndLetsASuspendGoOn(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f, process := seed(t, s, func(f *seeded) { f.Box.Observed = models.SeenRunning }), uuid.New()
		incarnation, err := s.Attach(t.Context(), f.Box.ID, process, s.Now().Add(time.Minute))
		require.NoError(t, err)
		modelstest.Set(t, s, f.Box, "next_step_at = ?", s.Now().Add(30*time.Second))
		left := s.Now().Add(time.Second)
		waiting, err := s.Detach(t.Context(), f.Box.ID, process, incarnation, left)
		require.NoError(t, err)
		require.Equal(t, &here, waiting)
		sameTime(t, left, box(t, s, f.Box.ID).LastAccessAt)
		claim(t, s) // it is due
		waiting, err = s.Detach(t.Context(), f.Box.ID, process, incarnation, left.Add(-time.Hour))
		require.NoError(t, err)
		require.Equal(t, &here, waiting, "a second time does no harm")
		sameTime(t, left, box(t, s, f.Box.ID).LastAccessAt)
		_, err = s.Detach(t.Context(), uuid.New(), process, 1, left)
		require.NoError(t, err, "nor one from a box that is gone")
	})
}

func TestAttachmentsAreRenewedTogetherAndTouchTheirBoxes(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		mine, theirs, process := seed(t, s), seed(t, s), uuid.New()
		started := seed(t, s)
		until := s.Now().Add(time.Minute)
		require.NoError(t, attach(t.Context(), s, mine.Box.ID, process, until))
		require.NoError(t, attach(t.Context(), s, started.Box.ID, process, until))
		require.NoError(t, attach(t.Context(), s, theirs.Box.ID, uuid.New(), until))
		startAnew(t, s, started.Box)
		startAnew(t, s, started.Box)
		clock.Advance(2 * time.Minute)
		forgotten := seed(t, s)
		require.NoError(t, attach(t.Context(), s, forgotten.Box.ID, process, until))
		held := []uuid.UUID{mine.Box.ID, started.Box.ID}
		require.NoError(t, s.RenewAttachments(t.Context(), process, held, s.Now().Add(time.Minute)))
		sameTime(t, s.Now(), box(t, s, mine.Box.ID).LastAccessAt)
		sameTime(t, s.Now().Add(-2*time.Minute), box(t, s, started.Box.ID).LastAccessAt)
		ordered, err := s.OrderDue(t.Context(), places, 10, time.Hour)
		require.NoError(t, err)
		require.ElementsMatch(t, []uuid.UUID{theirs.Box.ID, started.Box.ID, forgotten.Box.ID}, ordered)

		removed, err := s.PurgeAttachments(t.Context(), s.Now(), 10)
		require.NoError(t, err)
		require.Equal(t, 2, removed, "what ran out belongs to a process that died")
		require.NoError(t, s.DetachAll(t.Context(), process))
		require.True(t, swept(t, s))
	}, models.WithClock(clock.Now))
}
