package models_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestS1_013_LosingTheRaceWritesNothing(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		before := read(t, s, r.ID)
		late := finish(t, s, r, models.Outcome{Status: models.RunFailed, Actor: "watchdog", Reason: "timed out"}, suspendFor(2*time.Hour))
		require.False(t, late.Won)
		require.Equal(t, models.RunCompleted, late.Run.Status)
		require.Equal(t, before, read(t, s, r.ID))
		require.Equal(t, []string{"finished", "ordered"}, whats(t, s, b.ID))
		_, err := s.Finish(t.Context(), uuid.New(), callback(models.RunCompleted), suspendFor(0))
		require.ErrorIs(t, err, models.ErrNotFound)
	})
}

func TestS1_057_ManyCallbacksAndTheWatchdogGiveOneTerminalWriteAndOneStamp(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		stores := []*models.Store{db.Open(t)}
		if db.Dialect == models.Postgres {
			stores = append(stores, db.Open(t))
		}
		r, b := modelstest.Running(t, stores[0], modelstest.Automation(t, stores[0]))
		var won atomic.Int32
		var group sync.WaitGroup
		start := make(chan struct{})
		for n := range 16 {
			group.Go(func() {
				o, delay := callback(models.RunCompleted), time.Duration(n+1)*time.Hour
				if n == 0 {
					o = models.Outcome{Status: models.RunFailed, ErrorDetail: ptr("Timed out: x"), Actor: "watchdog", IfTimeoutAt: r.TimeoutAt}
				}
				<-start
				f, err := stores[n%len(stores)].Finish(t.Context(), r.ID, o, suspendFor(delay))
				if err != nil {
					t.Error(err)
				}
				if f.Won {
					won.Add(1)
				}
			})
		}
		close(start)
		group.Wait()
		require.EqualValues(t, 1, won.Load())
		got := read(t, stores[0], r.ID)
		require.NotNil(t, got.CleanupDueAt)
		require.EqualValues(t, 2, got.Box.Generation, "one pause")
		require.Equal(t, []string{"finished", "ordered"}, whats(t, stores[0], b.ID))
	})
}

// waitForLock returns when somebody waits for a row lock; on SQLite nobody ever does.
func waitForLock(t *testing.T, s *models.Store) {
	t.Helper()
	if s.Dialect() == models.SQLite {
		return
	}
	raw := modelstest.Of(t, s).Raw()
	require.Eventually(t, func() bool {
		var n int
		query := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
		return raw.NewRaw(query).Scan(t.Context(), &n) == nil && n > 0
	}, 10*time.Second, time.Millisecond)
}

func TestKeepAliveSwitchedOnWhileARunFinishesNeverLeavesAStamp(t *testing.T) {
	yes := true
	switchOn := func(a *models.Automation) error { a.KeepAlive = &yes; return nil }
	t.Run("the switch is first", func(t *testing.T) {
		modelstest.Each(t, func(t *testing.T, s *models.Store) {
			a := modelstest.Automation(t, s)
			r, _ := modelstest.Running(t, s, a)
			switching, finished := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(finished)
				<-switching
				if _, err := s.Finish(t.Context(), r.ID, callback(models.RunCompleted), suspendFor(time.Hour)); err != nil {
					t.Error(err)
				}
			}()
			_, err := s.UpdateAutomation(t.Context(), a.OrgID, a.ID, time.Hour, func(a *models.Automation) error {
				close(switching)
				waitForLock(t, s)
				return switchOn(a)
			})
			require.NoError(t, err)
			<-finished
			got := read(t, s, r.ID)
			require.Equal(t, models.RunCompleted, got.Status)
			require.Equal(t, models.WantRunning, got.Box.Desired)
			require.True(t, rawNull(t, s, r.ID))
		})
	})
	t.Run("the finish is first", func(t *testing.T) {
		modelstest.Each(t, func(t *testing.T, s *models.Store) {
			a := modelstest.Automation(t, s)
			r, _ := modelstest.Running(t, s, a)
			finishing, switched := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(switched)
				<-finishing
				if _, err := s.UpdateAutomation(t.Context(), a.OrgID, a.ID, time.Hour, switchOn); err != nil {
					t.Error(err)
				}
			}()
			_, err := s.Finish(t.Context(), r.ID, callback(models.RunCompleted), func(e models.Ending) models.Decision {
				close(finishing)
				waitForLock(t, s)
				return suspendFor(time.Hour)(e)
			})
			require.NoError(t, err)
			<-switched
			require.True(t, rawNull(t, s, r.ID), "the switch clears what the finish wrote")
		})
	})
}

func TestBR_14_VolumeOfCompletionsDuringASweepNeverFindsTheDatabaseLocked(t *testing.T) {
	workers, each := 8, modelstest.Volume(50)
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		var runs []*models.Run
		for range workers * each {
			r, _ := modelstest.Running(t, s, a)
			runs = append(runs, r)
		}
		stop := make(chan struct{})
		var sweeps, work sync.WaitGroup
		sweeps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.OrderDue(t.Context(), places, 50, hold); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for w := range workers {
			work.Go(func() {
				for _, r := range runs[w*each : (w+1)*each] {
					read, err := s.Run(t.Context(), uuid.Nil, r.ID)
					if err != nil {
						t.Error(err)
						return
					}
					f, err := s.Finish(t.Context(), read.ID, callback(models.RunCompleted), suspendFor(time.Microsecond))
					if err != nil || !f.Won {
						t.Errorf("finish: won %v, %v", f.Won, err)
						return
					}
				}
			})
		}
		work.Wait()
		close(stop)
		sweeps.Wait()
		counts, err := s.RunStatusCounts(t.Context(), a.ID)
		require.NoError(t, err)
		require.Equal(t, map[models.RunStatus]int{models.RunCompleted: workers * each}, counts)
	})
}
