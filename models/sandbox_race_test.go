package models_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// rounds is how often each race is run.
const rounds = 40

// against runs a move of a person against a sweep, both from a barrier, and returns the move's error and whether the sweep
// ordered the box deleted.
func against(t *testing.T, s *models.Store, id uuid.UUID, move func() error) (swept bool, moveErr error) {
	t.Helper()
	var (
		ready, done sync.WaitGroup
		start       = make(chan struct{})
		ids         []uuid.UUID
		sweepErr    error
	)
	ready.Add(2)
	done.Go(func() { ready.Done(); <-start; moveErr = move() })
	done.Go(func() { ready.Done(); <-start; ids, sweepErr = s.OrderDue(t.Context(), places, 10, time.Hour) })
	ready.Wait()
	close(start)
	done.Wait()
	require.NoError(t, sweepErr)
	require.Equal(t, len(ids) > 0, box(t, s, id).Desired == models.WantDeleted)
	if len(ids) > 0 {
		require.Equal(t, []uuid.UUID{id}, ids)
	}
	return len(ids) > 0, moveErr
}

// settled puts a box out of the way of the next round.
func settled(t *testing.T, s *models.Store, f seeded) {
	t.Helper()
	modelstest.Set(t, s, f.Run, "sandbox_cleanup_due_at = NULL")
}

func TestExtendRacingTheSweepIsEitherExtendedOrSwept(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for range rounds {
			f := seed(t, s)
			later := s.Now().Add(time.Hour)
			swept, err := against(t, s, f.Box.ID, func() error { return s.Extend(t.Context(), f.Box.ID, later, "user:ana") })
			if swept {
				require.ErrorIs(t, err, models.ErrDeletionOrdered)
				sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
			} else {
				require.NoError(t, err)
				sameTime(t, later, stamp(t, s, f))
			}
			settled(t, s, f)
		}
	})
}

func TestKeepRacingTheSweepIsEitherKeptOrSwept(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for range rounds {
			f := seed(t, s)
			swept, err := against(t, s, f.Box.ID, func() error { return s.Keep(t.Context(), f.Box.ID, "user:ana", "why") })
			b := box(t, s, f.Box.ID)
			if swept {
				require.ErrorIs(t, err, models.ErrDeletionOrdered)
				require.Nil(t, b.KeptAt)
				require.NotNil(t, stamp(t, s, f))
			} else {
				require.NoError(t, err)
				require.NotNil(t, b.KeptAt)
				require.Nil(t, stamp(t, s, f))
			}
			settled(t, s, f)
		}
	})
}

func TestAttachRacingTheSweepIsEitherAttachedOrSwept(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for range rounds {
			f := seed(t, s)
			swept, err := against(t, s, f.Box.ID, func() error {
				return attach(t.Context(), s, f.Box.ID, uuid.New(), s.Now().Add(90*time.Second))
			})
			if swept {
				require.ErrorIs(t, err, models.ErrDeletionOrdered)
			} else {
				require.NoError(t, err, "nothing else keeps the sweep from it")
			}
			settled(t, s, f)
		}
	})
}

func TestS1_046_ResumeRacingTheSweepEndsInADeletion(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for range rounds {
			f := seed(t, s)
			swept, err := against(t, s, f.Box.ID, func() error {
				return s.Order(t.Context(), f.Box.ID, models.WantRunning, "user:ana", "look inside")
			})
			if !swept { // the resume held the run: the sweep passed over it, and comes back, for resuming does not extend
				require.NoError(t, err)
				require.Equal(t, models.WantRunning, box(t, s, f.Box.ID).Desired)
				require.Equal(t, []uuid.UUID{f.Box.ID}, sweep(t, s, 10))
			}
			b := box(t, s, f.Box.ID)
			require.Equal(t, models.WantDeleted, b.Desired)
			if err == nil {
				require.EqualValues(t, 3, b.Generation)
				require.Equal(t, []string{"ordered", "ordered"}, whats(t, s, f.Box.ID))
			} else {
				require.ErrorIs(t, err, models.ErrDeletionOrdered)
				require.EqualValues(t, 2, b.Generation)
			}
			settled(t, s, f)
		}
	})
}

func TestBR_01_TwoStoresSweepAndClaimEachDueBoxExactlyOnce(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		const boxes = 200
		stores := []*models.Store{db.Open(t), db.Open(t)}
		seedMany(t, stores[0], boxes)
		var (
			mu      sync.Mutex
			ordered = make(map[uuid.UUID]int)
			taken   = make(map[uuid.UUID]int)
			start   = make(chan struct{})
			work    sync.WaitGroup
			failed  error
		)
		count := func(in map[uuid.UUID]int, ids []uuid.UUID, err error) int {
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			for _, id := range ids {
				in[id]++
			}
			return len(in)
		}
		for n := range 6 {
			s := stores[n%2]
			work.Go(func() {
				<-start
				for {
					ids, err := s.OrderDue(t.Context(), places, 7, time.Hour)
					if count(ordered, ids, err) == boxes || err != nil {
						return
					}
				}
			})
			work.Go(func() {
				<-start
				for {
					claims, err := s.ClaimBoxes(t.Context(), here, 5, time.Hour, time.Minute)
					if len(claims) > 5 {
						err = errors.Join(err, errors.New("a claim took more than its slots"))
					}
					if count(taken, claimed(claims), err) == boxes || err != nil {
						return
					}
				}
			})
		}
		close(start)
		work.Wait()
		require.NoError(t, failed)
		require.Len(t, ordered, boxes)
		require.Len(t, taken, boxes)
		for id, n := range ordered {
			require.Equal(t, 1, n, "ordered once")
			require.Equal(t, 1, taken[id], "claimed once")
			require.Equal(t, []string{"ordered"}, whats(t, stores[0], id))
		}
	})
}

func TestRecordedDeletesAndSweepsNeverLockEachOtherOut(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		stores := []*models.Store{db.Open(t), db.Open(t)}
		const boxes = 60
		seedMany(t, stores[0], boxes)
		var (
			work   sync.WaitGroup
			mu     sync.Mutex
			failed error
			ended  int
			all    = make(chan struct{})
		)
		note := func(err error, done int) {
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			if ended += done; done > 0 && ended == boxes || err != nil {
				select {
				case <-all:
				default:
					close(all)
				}
			}
		}
		open := func() bool {
			select {
			case <-all:
				return false
			default:
				return true
			}
		}
		for _, s := range stores {
			work.Go(func() {
				for open() {
					_, err := s.OrderDue(t.Context(), places, 10, time.Hour)
					note(err, 0)
				}
			})
			work.Go(func() {
				for open() {
					claims, err := s.ClaimBoxes(t.Context(), here, 8, time.Hour, time.Minute)
					note(err, 0)
					for _, c := range claims {
						st := step(c, "delete")
						st.Observed, st.ClearStamp, st.Release = ptr(models.SeenDeleted), true, true
						_, err := s.RecordStep(t.Context(), st)
						note(err, 1)
					}
				}
			})
		}
		work.Wait()
		require.NoError(t, failed)
		require.Equal(t, boxes, ended)
		var stamps int
		require.NoError(t, db.Raw().NewRaw("SELECT count(*) FROM automation_runs WHERE sandbox_cleanup_due_at IS NOT NULL").Scan(t.Context(), &stamps))
		require.Zero(t, stamps)
	})
}

func TestARepeatedIdentityFromManySidesIsOneRow(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s)
		var work sync.WaitGroup
		errs := make([]error, 8)
		for n := range errs {
			work.Go(func() {
				errs[n] = s.RecordIdentity(t.Context(), models.Identity{SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "sb-1"})
			})
		}
		work.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Len(t, box(t, s, f.Box.ID).Identities, 1)
	})
}
