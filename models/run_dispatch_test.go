package models_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// dispatch claims up to limit runs for boxes of the tests' backend.
func dispatch(limit int) models.DispatchClaim {
	return models.DispatchClaim{
		Limit: limit, Backend: modelstest.Backend, MaxAttempts: 3,
		Budget: 5 * time.Minute, Lease: time.Minute, DefaultRun: 10 * time.Minute,
	}
}

func claimRuns(t *testing.T, s *models.Store, c models.DispatchClaim) (claimed []models.Dispatched, exhausted []*models.Run) {
	t.Helper()
	claimed, exhausted, err := s.ClaimDispatch(t.Context(), c)
	require.NoError(t, err)
	return claimed, exhausted
}

func TestDispatchClaimsOldestFirstWithABoxRowInTheSameTransaction(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s, func(a *models.Automation) { a.TimeoutSeconds = ptr(60) })
		first := modelstest.Pending(t, s, a)
		clock.Advance(time.Second)
		second := modelstest.Pending(t, s, a)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now(), at)

		claimed, exhausted := claimRuns(t, s, dispatch(1))
		require.Empty(t, exhausted)
		require.Len(t, claimed, 1)
		require.Equal(t, first.ID, claimed[0].Run.ID)
		require.Equal(t, a.ID, claimed[0].Automation.ID)
		r, b := read(t, s, first.ID), claimed[0].Box
		require.Equal(t, models.RunRunning, r.Status)
		require.Equal(t, "Preparing environment", *r.CurrentPhase)
		require.Nil(t, r.StatusDetail)
		require.Nil(t, r.ProviderID)
		require.Equal(t, 1, r.Attempt)
		sameTime(t, clock.Now(), r.StartedAt)
		sameTime(t, clock.Now().Add(6*time.Minute), r.TimeoutAt)
		require.Equal(t, b.ID, r.Box.ID)
		require.Equal(t, models.WantRunning, r.Box.Desired)
		require.Equal(t, models.SeenProvisioning, r.Box.Observed)
		require.Nil(t, r.Box.NextStepAt, "dispatch owns the box")
		require.Equal(t, models.CreatedByDispatch, r.Box.CreatedBy)
		require.Equal(t, a.UserID, r.Box.UserID)
		require.Equal(t, *b.LeaseToken, *r.Box.LeaseToken)
		require.True(t, r.Box.Leased(clock.Now().Add(59*time.Second)))

		claimed, _ = claimRuns(t, s, dispatch(10))
		require.Len(t, claimed, 1)
		require.Equal(t, second.ID, claimed[0].Run.ID)
	}, models.WithClock(clock.Now))
}

func TestDispatchClaimsManualRunsOfDisabledAutomationsOnly(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		off := modelstest.Automation(t, s, func(a *models.Automation) { a.State = models.AutomationInactive })
		manual := modelstest.Pending(t, s, off)
		cron := models.TriggerCron
		modelstest.Pending(t, s, off, func(r *models.Run) { r.TriggerSource = &cron })
		modelstest.Pending(t, s, off, func(r *models.Run) { r.TriggerSource = nil })
		on := modelstest.Automation(t, s)
		scheduled := modelstest.Pending(t, s, on, func(r *models.Run) { r.TriggerSource = &cron })
		claimed, _ := claimRuns(t, s, dispatch(10))
		require.Len(t, claimed, 2)
		require.Equal(t, manual.ID, claimed[0].Run.ID)
		require.Equal(t, scheduled.ID, claimed[1].Run.ID)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		require.NotNil(t, at, "the leases of the two")
		require.True(t, at.After(s.Now()), "what may not be dispatched is no work")
	})
}

func TestTwoStoresClaimAVolumeOfRunsEachExactlyOnce(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		stores := []*models.Store{db.Open(t), db.Open(t)}
		a := modelstest.Automation(t, stores[0])
		want := 2 * modelstest.Volume(100)
		for range want {
			modelstest.Pending(t, stores[0], a)
		}
		var mu sync.Mutex
		got := map[uuid.UUID]int{}
		var group sync.WaitGroup
		for n := range 4 {
			group.Go(func() {
				for {
					claimed, _, err := stores[n%2].ClaimDispatch(context.Background(), dispatch(7))
					if err != nil {
						t.Error(err)
						return
					}
					if len(claimed) == 0 {
						return
					}
					mu.Lock()
					for _, d := range claimed {
						got[d.Run.ID]++
					}
					mu.Unlock()
				}
			})
		}
		group.Wait()
		// A claimer that found all rows locked by another one stopped early: what is left is claimed here.
		claimed, _ := claimRuns(t, stores[0], dispatch(want))
		for _, d := range claimed {
			got[d.Run.ID]++
		}
		require.Len(t, got, want)
		for id, n := range got {
			require.Equal(t, 1, n, id)
		}
		boxes, err := db.Raw().NewSelect().Model((*models.Sandbox)(nil)).Count(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, want, boxes)
	})
}

func TestADispatchThatDiedIsTakenOverWhenItsLeaseEndsUntilTheLastAttempt(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		dead := claimed[0]
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again, "its lease lives")
		require.Empty(t, exhausted)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(time.Minute), at)

		for attempt := 2; attempt <= 3; attempt++ {
			clock.Advance(time.Minute)
			claimed, exhausted = claimRuns(t, s, dispatch(10))
			require.Empty(t, exhausted)
			require.Len(t, claimed, 1)
			got := read(t, s, r.ID)
			require.Equal(t, attempt, got.Attempt)
			require.Equal(t, claimed[0].Box.ID, got.Box.ID)
			require.NotEqual(t, dead.Box.ID, got.Box.ID)
			old := box(t, s, dead.Box.ID)
			require.Equal(t, models.WantDeleted, old.Desired)
			require.Equal(t, "dispatch", old.OrderedBy)
			require.NotNil(t, old.NextStepAt)
			require.ErrorIs(t, s.MarkStarting(t.Context(), r.ID, dead.Box.ID, *dead.Box.LeaseToken, clock.Now(), clock.Now()),
				models.ErrConflict, "the dead dispatch must not start")
			dead = claimed[0]
		}
		clock.Advance(time.Minute)
		claimed, exhausted = claimRuns(t, s, dispatch(10))
		require.Empty(t, claimed)
		require.Len(t, exhausted, 1)
		require.Equal(t, r.ID, exhausted[0].ID)
		require.Equal(t, models.RunRunning, read(t, s, r.ID).Status, "the caller finishes it")
		require.Equal(t, models.WantDeleted, box(t, s, dead.Box.ID).Desired)
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_05_ALeaseRenewedMeanwhileKeepsTheAttempt(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		b := claimed[0].Box
		clock.Advance(50 * time.Second)
		_, err := s.Renew(t.Context(), b.ID, *b.LeaseToken, time.Minute)
		require.NoError(t, err)
		clock.Advance(50 * time.Second)
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again)
		require.Empty(t, exhausted)
	}, models.WithClock(clock.Now))
}

func TestTheNextAttemptIsTheOwnersAlone(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		deadline := clock.Now().Add(time.Hour)
		next, err := s.NextAttempt(t.Context(), claimed[0], dispatch(10), "image_pull_error", deadline)
		require.NoError(t, err)
		got := read(t, s, r.ID)
		require.Equal(t, next.ID, got.Box.ID)
		require.Equal(t, 2, got.Attempt)
		sameTime(t, deadline, got.TimeoutAt)
		require.True(t, got.Box.Leased(clock.Now()))
		old := box(t, s, claimed[0].Box.ID)
		require.Equal(t, models.WantDeleted, old.Desired)
		require.Equal(t, "image_pull_error", old.OrderReason)

		_, err = s.NextAttempt(t.Context(), claimed[0], dispatch(10), "again", deadline)
		require.ErrorIs(t, err, models.ErrConflict, "not the newest box")
		finish(t, s, r, models.Outcome{Status: models.RunCancelled, Actor: "user:x"}, suspendFor(0))
		_, err = s.NextAttempt(t.Context(), models.Dispatched{Run: r, Automation: claimed[0].Automation, Box: next}, dispatch(10), "late", deadline)
		require.ErrorIs(t, err, models.ErrConflict, "cancelled meanwhile")
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_04_NothingIsStartedForARunThatWasCancelled(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		modelstest.Pending(t, s, a)
		modelstest.Pending(t, s, a)
		claimed, _ := claimRuns(t, s, dispatch(10))
		timeout, check := clock.Now().Add(10*time.Minute), clock.Now().Add(5*time.Second)
		start := func(d models.Dispatched, token uuid.UUID) error {
			return s.MarkStarting(t.Context(), d.Run.ID, d.Box.ID, token, timeout, check)
		}
		cancelled, good := claimed[0], claimed[1]
		finish(t, s, cancelled.Run, models.Outcome{Status: models.RunCancelled, Actor: "user:x"}, suspendFor(time.Hour))
		require.ErrorIs(t, start(cancelled, *cancelled.Box.LeaseToken), models.ErrConflict)
		require.ErrorIs(t, start(good, uuid.New()), models.ErrConflict, "a lease that is not ours")
		require.NoError(t, start(good, *good.Box.LeaseToken))
		got := read(t, s, good.Run.ID)
		sameTime(t, clock.Now(), got.StartingAt)
		sameTime(t, timeout, got.TimeoutAt)
		sameTime(t, check, got.CheckAt)
		sameTime(t, check, got.Box.NextStepAt)
		require.Equal(t, "Starting automation", *got.CurrentPhase)
		require.ErrorIs(t, start(good, *good.Box.LeaseToken), models.ErrConflict, "once")

		clock.Advance(time.Hour)
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again, "from starting_at on nothing is repeated")
		require.Empty(t, exhausted)
	}, models.WithClock(clock.Now))
}

func TestS1_053_LocalModeHasNoBoxAndIsDispatchedAgainPastItsDeadline(t *testing.T) {
	clock := modelstest.NewClock()
	local := dispatch(10)
	local.Backend = ""
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, local)
		require.Len(t, claimed, 1)
		require.Nil(t, claimed[0].Box)
		require.Nil(t, read(t, s, r.ID).Box)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(local.Budget), at)
		stale, err := s.ClaimStale(t.Context(), everywhere, 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, stale)

		clock.Advance(local.Budget)
		stale, err = s.ClaimStale(t.Context(), everywhere, 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, stale, "still dispatch's")
		claimed, _ = claimRuns(t, s, local)
		require.Len(t, claimed, 1)
		require.Equal(t, 2, claimed[0].Run.Attempt)
		require.NoError(t, s.MarkStarting(t.Context(), r.ID, uuid.Nil, uuid.Nil, clock.Now().Add(time.Hour), clock.Now().Add(time.Second)))
		f := finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		require.True(t, f.Won)
		require.Equal(t, models.BoxNothing, f.Decision.Box)
		require.True(t, rawNull(t, s, r.ID))
	}, models.WithClock(clock.Now))
}

func TestStartingKeepsTheStepOfAnOrderThatCameBefore(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		d, ordered := claimed[0], clock.Now()
		require.NoError(t, s.Order(t.Context(), d.Box.ID, models.WantSuspended, "idle", "pressure"))
		clock.Advance(time.Second)
		require.NoError(t, s.MarkStarting(t.Context(), d.Run.ID, d.Box.ID, *d.Box.LeaseToken, clock.Now().Add(time.Hour), clock.Now().Add(time.Minute)))
		sameTime(t, ordered, box(t, s, d.Box.ID).NextStepAt)
	}, models.WithClock(clock.Now))
}
