package models_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestNowIsUTCInMicroseconds(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		now := s.Now()
		require.Equal(t, time.UTC, now.Location())
		require.Zero(t, now.Nanosecond()%1000)
		require.WithinDuration(t, time.Now(), now, 5*time.Second)
		for range 1000 {
			next := s.Now()
			require.False(t, next.Before(now))
			now = next
		}
	})
}

func TestWithClockIsTheClock(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		before := clock.Now()
		require.Equal(t, before, s.Now())
		clock.Advance(-time.Hour)
		require.Equal(t, before.Add(-time.Hour), s.Now())
		skew, err := s.Sync(t.Context())
		require.NoError(t, err)
		require.Zero(t, skew)
	}, models.WithClock(clock.Now))
}

// shifted is a machine whose clock on the wall is off by what the test says; its monotonic clock only goes on.
type shifted struct{ by atomic.Int64 }

func (h *shifted) now() time.Time { return time.Now().Add(time.Duration(h.by.Load())) }

func TestBR_11_OnSQLiteAStepBackOnlyWaitsAndAStepForwardCounts(t *testing.T) {
	machine := new(shifted)
	s := modelstest.NewSQLite(t).Open(t, models.WithHost(machine.now))
	start := s.Now()
	machine.by.Store(int64(-2 * time.Hour))
	after := s.Now()
	require.False(t, after.Before(start), "never backward")
	require.WithinDuration(t, start, after, 10*time.Second)
	require.Eventually(t, func() bool { return s.Now().After(after) }, 10*time.Second, time.Millisecond, "it goes on")
	machine.by.Store(int64(8 * time.Hour))
	require.WithinDuration(t, start.Add(8*time.Hour), s.Now(), 10*time.Second)
	skew, err := s.Sync(t.Context())
	require.NoError(t, err)
	require.Zero(t, skew)
}

func TestPostgresIsTheClockOfAllReplicas(t *testing.T) {
	db := modelstest.NewPostgres(t)
	ahead, behind := new(shifted), new(shifted)
	ahead.by.Store(int64(time.Hour))
	behind.by.Store(int64(-time.Hour))
	one, two := db.Open(t, models.WithHost(ahead.now)), db.Open(t, models.WithHost(behind.now))
	require.WithinDuration(t, one.Now(), two.Now(), 2*time.Second)
	skew, err := one.Sync(t.Context())
	require.NoError(t, err)
	require.InDelta(t, time.Hour.Seconds(), skew.Seconds(), 2)
	skew, err = two.Sync(t.Context())
	require.NoError(t, err)
	require.InDelta(t, -time.Hour.Seconds(), skew.Seconds(), 2)

	now := one.Now()
	ahead.by.Store(0)
	require.WithinDuration(t, now, one.Now(), 2*time.Second, "between two readings the wall does not count")
	one.SetReading(now.Add(-500 * time.Millisecond))
	require.False(t, one.Now().Before(now), "the noise of a round trip never turns the clock back")
	one.SetReading(now.Add(-time.Hour))
	require.WithinDuration(t, now.Add(-time.Hour), one.Now(), 2*time.Second, "a database that was set back is followed")
	one.SetReading(now.Add(time.Hour))
	require.WithinDuration(t, now.Add(time.Hour), one.Now(), 2*time.Second)
}

func TestWithShiftMovesTheClockOfRowsAndNotTheSkew(t *testing.T) {
	var by atomic.Int64
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for _, d := range []time.Duration{time.Hour, -90 * time.Second, 0} {
			by.Store(int64(d))
			require.WithinDuration(t, time.Now().Add(d), s.Now(), 5*time.Second, "both ways, at once")
			skew, err := s.Sync(t.Context())
			require.NoError(t, err)
			require.Less(t, skew.Abs(), 5*time.Second)
		}
	}, models.WithShift(func() time.Duration { return time.Duration(by.Load()) }))
}
