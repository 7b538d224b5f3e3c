package models_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestStaleRunsAreClaimedByMovingTheirCheck(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		one, two := db.Open(t, models.WithClock(clock.Now)), db.Open(t, models.WithClock(clock.Now))
		a := modelstest.Automation(t, one)
		at := func(check, timeout time.Duration) *models.Run {
			r, _ := modelstest.Running(t, one, a, func(r *models.Run, _ *models.Sandbox) {
				r.CheckAt, r.TimeoutAt = ptr(clock.Now().Add(check)), ptr(clock.Now().Add(timeout))
			})
			return r
		}
		second, first := at(-time.Second, time.Hour), at(-time.Minute, time.Hour)
		timedOut := at(0, -time.Second)
		at(time.Minute, time.Hour)
		unchecked := at(0, -2*time.Second)
		modelstest.Set(t, one, unchecked, "check_at = NULL")
		terminal := at(-time.Hour, -time.Hour)
		finish(t, one, terminal, callback(models.RunCompleted), suspendFor(0))

		next, err := one.NextStaleAt(t.Context(), everywhere)
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(-time.Minute), next)
		var got []uuid.UUID
		for _, s := range []*models.Store{one, two, one, two} {
			runs, err := s.ClaimStale(t.Context(), everywhere, 2, 30*time.Second)
			require.NoError(t, err)
			for _, r := range runs {
				require.NotNil(t, r.Box)
				require.NotEmpty(t, r.Box.Identities)
				sameTime(t, clock.Now().Add(30*time.Second), r.CheckAt)
				got = append(got, r.ID)
			}
		}
		require.ElementsMatch(t, []uuid.UUID{first.ID, second.ID, timedOut.ID, unchecked.ID}, got)
		require.ElementsMatch(t, []uuid.UUID{first.ID, second.ID}, got[:2], "checks first")
		next, err = one.NextStaleAt(t.Context(), everywhere)
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(30*time.Second), next)
	})
}

// A process that cannot ask the box must not keep those from it who can.
func TestARunInABoxOfAnotherPlaceIsLeftToThoseWhoServeIt(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		elsewhere := []models.Place{{Backend: modelstest.Backend, Location: "another host"}}
		modelstest.Running(t, s, modelstest.Automation(t, s), func(r *models.Run, _ *models.Sandbox) {
			r.CheckAt, r.TimeoutAt = ptr(clock.Now().Add(-time.Second)), ptr(clock.Now().Add(time.Hour))
		})
		claim := func(places []models.Place) int {
			runs, err := s.ClaimStale(t.Context(), models.Reach{In: places, Rest: true}, 10, time.Minute)
			require.NoError(t, err)
			return len(runs)
		}
		due := func(places []models.Place) bool {
			at, err := s.NextStaleAt(t.Context(), models.Reach{In: places, Rest: true})
			require.NoError(t, err)
			return at != nil && !at.After(clock.Now())
		}
		for _, places := range [][]models.Place{elsewhere, nil} {
			require.False(t, due(places))
			require.Zero(t, claim(places))
		}
		require.True(t, due(places))
		require.Equal(t, 1, claim(places))
		clock.Advance(time.Hour + time.Minute) // past its timeout, and nobody holds it any more
		require.False(t, due(elsewhere))
		require.Zero(t, claim(elsewhere))
		clock.Advance(2 * time.Minute)
		served := models.Reach{Rest: true, Served: places}
		at, err := s.NextStaleAt(t.Context(), served)
		require.NoError(t, err)
		require.Nil(t, at, "another duty of this process serves it")
		runs, err := s.ClaimStale(t.Context(), served, 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, runs)
		require.True(t, due(elsewhere), "those who serve the place may be gone for good")
		require.Equal(t, 1, claim(elsewhere))
		require.False(t, due(elsewhere), "held")
	}, models.WithClock(clock.Now))
}

func TestARunStillProvisionedIsStaleFromItsTimeoutOnlyAndHeldByTheClaim(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		modelstest.Pending(t, s, modelstest.Automation(t, s))
		c := dispatch(10)
		c.Lease = 24 * time.Hour
		claimRuns(t, s, c)
		next, err := s.NextStaleAt(t.Context(), everywhere)
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(15*time.Minute), next)
		clock.Advance(15 * time.Minute)
		runs, err := s.ClaimStale(t.Context(), everywhere, 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, runs, 1)
		runs, err = s.ClaimStale(t.Context(), everywhere, 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, runs)
		next, err = s.NextStaleAt(t.Context(), everywhere)
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(time.Minute), next)
	}, models.WithClock(clock.Now))
}

func TestACheckIsRecordedOnlyWhileTheRunIsRunning(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		first := clock.Now()
		record := func(c models.Check) *models.Run {
			t.Helper()
			require.NoError(t, s.RecordCheck(t.Context(), r.ID, c))
			return read(t, s, r.ID)
		}
		got := record(models.Check{ExitSeenAt: &first, ExitCode: ptr(3), NextAt: clock.Now().Add(10 * time.Second), StatusDetail: json.RawMessage(`{"kind":"transport"}`)})
		sameTime(t, first, got.ExitSeenAt)
		require.Equal(t, 3, *got.ExitCode)
		require.JSONEq(t, `{"kind":"transport"}`, string(got.StatusDetail))
		sameTime(t, clock.Now().Add(10*time.Second), got.CheckAt)
		require.Equal(t, *r.TimeoutAt, *got.TimeoutAt)

		later := clock.Now().Add(2 * time.Second)
		got = record(models.Check{ExitSeenAt: &later, NextAt: clock.Now().Add(time.Hour)})
		sameTime(t, first, got.ExitSeenAt)
		sameTime(t, *r.TimeoutAt, got.CheckAt)
		require.NotNil(t, got.StatusDetail)

		moved := clock.Now().Add(2 * time.Hour)
		got = record(models.Check{NextAt: later, WasTimeoutAt: ptr(r.TimeoutAt.Add(time.Second)), TimeoutAt: &moved})
		require.Equal(t, *r.TimeoutAt, *got.TimeoutAt, "it moved meanwhile")
		got = record(models.Check{NextAt: later, WasTimeoutAt: r.TimeoutAt, TimeoutAt: &moved})
		sameTime(t, moved, got.TimeoutAt)

		clock.Advance(3 * time.Hour) // past timeout_at, still unverified: the next look keeps its time
		got = record(models.Check{NextAt: clock.Now().Add(time.Minute)})
		sameTime(t, clock.Now().Add(time.Minute), got.CheckAt)

		finish(t, s, r, callback(models.RunCompleted), suspendFor(0))
		require.ErrorIs(t, s.RecordCheck(t.Context(), r.ID, models.Check{NextAt: later}), models.ErrConflict)
		require.ErrorIs(t, s.RecordCheck(t.Context(), uuid.New(), models.Check{NextAt: later}), models.ErrNotFound)
	}, models.WithClock(clock.Now))
}
