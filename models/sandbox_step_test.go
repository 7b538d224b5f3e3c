package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestRecordStepWritesObservationAndDecisions(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		f := seed(t, s, work(now.Add(-time.Second)), func(f *seeded) {
			f.Box.Desired, f.Box.Observed, f.Box.SuspendedAt = models.WantSuspended, models.SeenRunning, &now
		})
		c := claim(t, s)
		st := step(c, "suspend")
		st.Observed, st.Answered, st.ExpiresAt = ptr(models.SeenRunning), ptr(true), ptr(now.Add(time.Hour))
		st.URL, st.SessionKey = ptr("https://box"), ptr("secret")
		st.OutputDone, st.ReclaimedDone, st.FreedBytes, st.ExportTried = true, true, 42, true
		st.Storage = []byte(`{"root":"a\u0000b"}`)
		st.Tried, st.Next, st.Attempts, st.LastError = true, ptr(now.Add(time.Minute)), 3, ptr("timed out")
		st.NeedsAttention, st.Searches = "refused", 2
		st.Events = []models.Event{{What: "reclaimed", Actor: "settler", Bytes: 42}}
		changed, err := s.RecordStep(ctx, st)
		require.NoError(t, err)
		require.False(t, changed)

		b := box(t, s, f.Box.ID)
		require.Equal(t, models.SeenRunning, b.Observed)
		require.Nil(t, b.SuspendedAt)
		require.False(t, b.ObservedAt.Before(now))
		require.NotNil(t, b.AnsweredAt)
		sameTime(t, now.Add(time.Hour), b.ExpiresAt)
		require.Equal(t, "https://box", b.URL)
		require.Equal(t, "secret", b.SessionKey)
		require.EqualValues(t, 1, b.OutputEpoch)
		require.EqualValues(t, 1, b.ReclaimedEpoch)
		require.EqualValues(t, 0, b.ExportedEpoch)
		require.EqualValues(t, 42, b.ReclaimedBytes)
		require.JSONEq(t, `{"root":"a\ufffdb"}`, string(b.Storage), "what no column takes is replaced")
		require.NotNil(t, b.StorageAt)
		require.Equal(t, 1, b.ExportTries)
		require.NotNil(t, b.ExportTriedAt)
		require.Equal(t, []string{"suspend"}, b.Tried)
		sameTime(t, now.Add(time.Minute), b.NextStepAt)
		require.Equal(t, 3, b.Attempts)
		require.Equal(t, "timed out", *b.LastError)
		require.Equal(t, "refused", b.NeedsAttention)
		require.Equal(t, 2, b.Searches)
		require.NotNil(t, b.LeaseToken, "not released")
		require.Equal(t, []string{"reclaimed"}, whats(t, s, f.Box.ID))

		answered := *b.AnsweredAt
		st = step(c, "suspend")
		st.Observed, st.Answered, st.Woke, st.ExportedDone, st.Release = ptr(models.SeenSuspended), ptr(true), true, true, true
		_, err = s.RecordStep(ctx, st)
		require.NoError(t, err)
		b = box(t, s, f.Box.ID)
		require.EqualValues(t, 2, b.AwakeEpoch)
		require.EqualValues(t, 2, b.ExportedEpoch)
		require.Zero(t, b.ExportTries)
		require.Empty(t, b.Tried, "a wake clears them")
		require.NotNil(t, b.SuspendedAt)
		sameTime(t, answered, b.AnsweredAt)
		require.Nil(t, b.NextStepAt, "at rest")
		require.Nil(t, b.LastError)
		require.Nil(t, b.LeaseToken)
	})
}

func TestAnUnansweringProviderEndsAnsweredAt(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, work(s.Now()), func(f *seeded) { f.Box.AnsweredAt = ptr(s.Now()) })
		st := step(claim(t, s), "inspect")
		st.Answered, st.Next = ptr(false), ptr(s.Now())
		_, err := s.RecordStep(t.Context(), st)
		require.NoError(t, err)
		require.Nil(t, box(t, s, f.Box.ID).AnsweredAt)
	})
}

func TestRecordStepWithALostLeaseWritesNothing(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, work(s.Now()))
		lost := claim(t, s)
		clock.Advance(2 * time.Minute)
		claim(t, s)
		before := box(t, s, f.Box.ID)
		st := step(lost, "delete")
		st.Observed, st.ClearStamp, st.Release = ptr(models.SeenDeleted), true, true
		st.Next, st.Tried, st.Attempts = ptr(s.Now()), true, 7
		st.Events = []models.Event{{What: "deleted", Actor: "settler"}}
		_, err := s.RecordStep(t.Context(), st)
		require.ErrorIs(t, err, models.ErrLeaseLost)
		require.Equal(t, before, box(t, s, f.Box.ID))
		require.NotNil(t, stamp(t, s, f))
		require.Empty(t, whats(t, s, f.Box.ID))
	}, models.WithClock(clock.Now))
}

func TestAGenerationChangeDuringAStepKeepsTheOrdersNextStep(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, work(s.Now()), func(f *seeded) { f.Box.Desired, f.Box.Observed = models.WantSuspended, models.SeenRunning })
		c := claim(t, s)
		clock.Advance(time.Second)
		ordered := s.Now()
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantRunning, "user:ana", "look inside"))
		clock.Advance(time.Second)

		st := step(c, "suspend") // the suspend that was on the wire
		st.Observed, st.Answered = ptr(models.SeenSuspended), ptr(true)
		st.Next, st.Attempts, st.LastError, st.Tried = nil, 5, ptr("x"), true
		st.NeedsAttention, st.Searches, st.Adopt = "unreadable", 3, ptr(models.WantSuspended)
		st.Release = true
		changed, err := s.RecordStep(ctx, st)
		require.NoError(t, err)
		require.True(t, changed)

		b := box(t, s, f.Box.ID)
		require.Equal(t, models.SeenSuspended, b.Observed, "an observation is written whatever the generation")
		require.True(t, b.ObservedAt.Before(b.OrderedAt), "what was seen before the order does not answer it: inspect first")
		require.NotNil(t, b.AnsweredAt)
		sameTime(t, ordered, b.NextStepAt)
		require.Equal(t, models.WantRunning, b.Desired)
		require.Zero(t, b.Attempts)
		require.Zero(t, b.Searches)
		require.Nil(t, b.LastError)
		require.Empty(t, b.Tried)
		require.Empty(t, b.NeedsAttention)
		require.Nil(t, b.LeaseToken, "given back all the same")
	}, models.WithClock(clock.Now))
}

func TestAdoptTakesOverOnlyWhatIsSeenOfARowAtRest(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		cases := map[string]struct {
			desired  models.Desired
			observed models.Observed
			seen     time.Duration // after the order
			adopt    models.Desired
			want     models.Desired
		}{
			"the provider's idle pause":      {models.WantRunning, models.SeenRunning, time.Minute, models.WantSuspended, models.WantSuspended},
			"a wake behind our back":         {models.WantSuspended, models.SeenSuspended, time.Minute, models.WantRunning, models.WantRunning},
			"a box that was missing":         {models.WantRunning, models.SeenMissing, time.Minute, models.WantSuspended, models.WantSuspended},
			"an order never looked at":       {models.WantRunning, models.SeenRunning, -time.Minute, models.WantSuspended, models.WantRunning},
			"an order that is not fulfilled": {models.WantRunning, models.SeenSuspended, time.Minute, models.WantSuspended, models.WantRunning},
			"deletion is final":              {models.WantDeleted, models.SeenMissing, time.Minute, models.WantRunning, models.WantDeleted},
			"nothing adopts a deletion":      {models.WantRunning, models.SeenRunning, time.Minute, models.WantDeleted, models.WantRunning},
		}
		for name, tc := range cases {
			f := seed(t, s, func(f *seeded) {
				f.Box.Desired, f.Box.Observed, f.Box.NextStepAt = tc.desired, tc.observed, &now
				f.Box.ObservedAt = ptr(f.Box.OrderedAt.Add(tc.seen))
			})
			st := step(claim(t, s), "inspect")
			st.Observed, st.Adopt = ptr(models.SeenSuspended), ptr(tc.adopt)
			st.Next, st.Release = ptr(now.Add(time.Hour)), true
			_, err := s.RecordStep(ctx, st)
			require.NoError(t, err, name)
			b := box(t, s, f.Box.ID)
			require.Equal(t, tc.want, b.Desired, name)
			require.EqualValues(t, 1, b.Generation, "no new generation")
			var events []string
			if tc.want != tc.desired {
				events = []string{"adopted"}
			}
			require.Equal(t, events, whats(t, s, f.Box.ID), name)
		}
	})
}

func TestS1_033_TheFirstDeleteCallClearsTheStampWhateverItsOutcome(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for name, seen := range map[string]models.Observed{"failed": models.SeenSuspended, "accepted": models.SeenDeleting, "gone": models.SeenDeleted} {
			f := seed(t, s, work(s.Now()))
			st := step(claim(t, s), "delete")
			st.Observed, st.ClearStamp, st.Release = &seen, true, true
			if seen != models.SeenDeleted {
				st.Next, st.LastError = ptr(s.Now().Add(time.Hour)), ptr(name)
			}
			_, err := s.RecordStep(t.Context(), st)
			require.NoError(t, err, name)
			require.Nil(t, stamp(t, s, f), name)
			b := box(t, s, f.Box.ID)
			require.Equal(t, models.WantDeleted, b.Desired, name)
			require.Equal(t, seen != models.SeenDeleted, b.NextStepAt != nil, "the rest is the box's own backoff")
		}
	})
}

func TestAnOlderAttemptsDeleteNeverClearsTheStampOfTheNewerBox(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s)
		old := older(t, s, f, func(b *models.Sandbox) { b.Desired, b.NextStepAt = models.WantDeleted, ptr(s.Now()) })
		c := claim(t, s)
		require.Equal(t, old.ID, c.Box.ID)
		st := step(c, "delete")
		st.Observed, st.ClearStamp, st.Release = ptr(models.SeenDeleted), true, true
		_, err := s.RecordStep(t.Context(), st)
		require.NoError(t, err)
		require.Equal(t, models.SeenDeleted, box(t, s, old.ID).Observed)
		sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
	})
}

func TestBR_05_ABoxIsDeletedOnlyWhenEveryIdentityIsGone(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, work(s.Now()), named("sbx-1"), named("sbx-2"))
		require.NoError(t, attach(ctx, s, seed(t, s).Box.ID, uuid.New(), s.Now().Add(time.Hour)))
		c := claim(t, s)
		deleted := func(release bool) *models.Sandbox {
			st := step(c, "delete")
			st.Observed, st.Release = ptr(models.SeenDeleted), release
			_, err := s.RecordStep(ctx, st)
			require.NoError(t, err)
			return box(t, s, f.Box.ID)
		}
		require.NoError(t, s.MarkGone(ctx, f.Box.ID, models.IdentityBox, "sbx-1"))
		b := deleted(false)
		require.Equal(t, models.SeenMissing, b.Observed)
		require.Nil(t, b.DeletedAt)
		require.NotNil(t, b.NextStepAt, "an identity that nobody saw gone is work")

		require.NoError(t, s.MarkGone(ctx, f.Box.ID, models.IdentityBox, "sbx-2"))
		b = deleted(true)
		require.Equal(t, models.SeenDeleted, b.Observed)
		require.NotNil(t, b.DeletedAt)
		require.Nil(t, b.NextStepAt)
	})
}
