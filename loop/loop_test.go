package loop_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"automation/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// start runs a loop in the bubble; stop ends it and waits for it.
func start(t *testing.T, l loop.Loop) (runner *loop.Runner, stop func()) {
	t.Helper()
	runner, err := loop.New(quiet, l)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runner.Run(ctx)
	}()
	return runner, func() {
		cancel()
		<-ended
	}
}

// times records when passes began, since the start of the bubble.
type times struct {
	mu    sync.Mutex
	began time.Time
	all   []time.Duration
}

func newTimes() *times { return &times{began: time.Now()} }

func (r *times) add() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, time.Since(r.began))
	return len(r.all)
}

func (r *times) get() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Duration(nil), r.all...)
}

func TestPassesFollowEachOtherAtTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newTimes()
		_, stop := start(t, loop.Loop{Name: "tick", Every: time.Minute, Pass: func(context.Context) (int, error) {
			seen.add()
			return 0, nil
		}})
		time.Sleep(10*time.Minute + 30*time.Second)
		stop()
		all := seen.get()
		require.Len(t, all, 11)
		require.LessOrEqual(t, all[0], 2*time.Second, "the first pass is staggered, but not by an interval")
		for i := 1; i < len(all); i++ {
			require.Equal(t, time.Minute, all[i]-all[i-1])
		}
	})
}

func TestAFullPassIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backlog, seen := 25, newTimes()
		runner, stop := start(t, loop.Loop{Name: "drain", Every: time.Hour, Batch: 10, Pass: func(context.Context) (int, error) {
			seen.add()
			done := min(10, backlog)
			backlog -= done
			return done, nil
		}})
		time.Sleep(time.Minute)
		stop()
		require.Len(t, seen.get(), 3)
		require.Equal(t, seen.get()[0], seen.get()[2], "no time passes between full batches")
		require.Equal(t, int64(25), runner.Status()[0].Done)
	})
}

func TestTheWaitEndsAtTheEarliestWorkOrTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		due := []time.Duration{10 * time.Second, 15 * time.Second, 500 * time.Second}
		seen := newTimes()
		l := loop.Loop{Name: "due", Every: time.Minute, Now: time.Now}
		l.Pass = func(context.Context) (int, error) {
			seen.add()
			done := 0
			for len(due) > 0 && time.Since(began) >= due[0] {
				due = due[1:]
				done++
			}
			return done, nil
		}
		l.Until = func(context.Context) (*time.Time, error) {
			if len(due) == 0 {
				return nil, nil
			}
			at := began.Add(due[0])
			return &at, nil
		}
		_, stop := start(t, l)
		time.Sleep(2 * time.Minute)
		stop()
		all := seen.get()
		require.Equal(t, []time.Duration{10 * time.Second, 15 * time.Second, 75 * time.Second}, all[1:4])
	})
}

func TestDueWorkOfOthersDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newTimes()
		_, stop := start(t, loop.Loop{
			Name: "others", Every: time.Minute, Now: time.Now,
			Pass: func(context.Context) (int, error) { seen.add(); return 0, nil },
			Until: func(context.Context) (*time.Time, error) {
				past := time.Now().Add(-time.Hour)
				return &past, nil
			},
		})
		time.Sleep(time.Minute)
		stop()
		require.Less(t, len(seen.get()), 75, "the wait grows to a second")
		require.Greater(t, len(seen.get()), 50)
	})
}

func TestANudgeWakesAndSeveralCountAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nudge, seen := loop.NewNudge(), newTimes()
		_, stop := start(t, loop.Loop{Name: "nudged", Every: time.Hour, Nudge: nudge, Pass: func(context.Context) (int, error) {
			seen.add()
			return 0, nil
		}})
		time.Sleep(time.Minute)
		require.Len(t, seen.get(), 1)
		for range 5 {
			nudge.Wake()
		}
		synctest.Wait()
		require.LessOrEqual(t, len(seen.get()), 3)
		require.Equal(t, time.Minute, seen.get()[1], "at once")
		time.Sleep(time.Minute)
		require.LessOrEqual(t, len(seen.get()), 3)
		stop()
		loop.Nudge(nil).Wake() // harmless
	})
}

func TestNudgesInThousandsCostAFewLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minute = time.Minute
		looks := newTimes()
		work := atomic.Int64{}
		l := loop.Loop{Name: "idle", Every: minute, Workers: 8, Nudge: loop.NewNudge(), Pass: func(context.Context) (int, error) {
			looks.add()
			return int(work.Swap(0)), nil
		}}
		_, stop := start(t, l)
		defer stop()
		time.Sleep(minute / 2) // each worker's first pass is over
		synctest.Wait()
		before := len(looks.get())

		l.Nudge.Wake()
		synctest.Wait()
		require.Len(t, looks.get(), before+1, "the first is heard at once")
		for range 1000 {
			time.Sleep(time.Millisecond)
			l.Nudge.Wake()
			synctest.Wait()
		}
		require.LessOrEqual(t, len(looks.get())-before, 2*20+2, "all workers together: one a gap, and one that a look under way does not hold up")

		work.Store(1)
		l.Nudge.Wake()
		asked := time.Now()
		for work.Load() > 0 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		require.LessOrEqual(t, time.Since(asked), 60*time.Millisecond, "what comes meanwhile is found by the next")
	})
}

func TestANudgeDoesNotPutOffWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newTimes()
		l := loop.Loop{Name: "due", Every: time.Minute, Nudge: loop.NewNudge(), Now: time.Now}
		var due time.Time
		l.Pass = func(context.Context) (int, error) {
			seen.add()
			if due.IsZero() {
				due = time.Now().Add(20 * time.Millisecond)
			}
			return 0, nil
		}
		l.Until = func(context.Context) (*time.Time, error) {
			if due.After(time.Now()) {
				return &due, nil
			}
			return nil, nil
		}
		_, stop := start(t, l)
		defer stop()
		for len(seen.get()) == 0 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(5 * time.Millisecond)
		l.Nudge.Wake()
		time.Sleep(time.Second)
		all := seen.get()
		require.Equal(t, 20*time.Millisecond, all[1]-all[0], "not after the gap of a nudge")
	})
}

func TestErrorsAndPanicsBackOffAndDoNotEndTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nudge, seen := loop.NewNudge(), newTimes()
		runner, stop := start(t, loop.Loop{Name: "ill", Every: 10 * time.Second, Nudge: nudge, Pass: func(context.Context) (int, error) {
			n := seen.add()
			if n > 6 {
				return 1, nil
			}
			nudge.Wake() // a nudge must not shorten the wait after an error
			if n == 2 {
				panic("boom")
			}
			return 0, errors.New("database is away")
		}})
		time.Sleep(40 * time.Second)
		status := runner.Status()[0]
		stop()
		all := seen.get()
		var waits []time.Duration
		for i := 1; i < 7; i++ {
			waits = append(waits, all[i]-all[i-1])
		}
		require.Equal(t, []time.Duration{1e9, 2e9, 4e9, 8e9, 10e9, 10e9}, waits)
		require.Len(t, all, 8, "the nudge that came meanwhile counts once")
		require.Equal(t, int64(6), status.Failures)
		require.Zero(t, status.FailuresInRow)
		require.Empty(t, status.LastError)
		require.False(t, status.LastSuccess.IsZero())
	})
}

func TestARareLoopThatFailsIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		runner, stop := start(t, loop.Loop{Name: "hourly", Every: time.Hour, Pass: func(context.Context) (int, error) {
			if time.Since(began) < 2*time.Hour {
				return 0, errors.New("database is away")
			}
			return 0, nil
		}})
		<-time.After(2*time.Hour + 31*time.Second)
		status := runner.Status()[0]
		stop()
		require.Empty(t, status.LastError, "the database is back for half a minute")
		require.Less(t, status.Failures, int64(300), "and was not asked all the time")
	})
}

func TestStatusShowsAFailingLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runner, stop := start(t, loop.Loop{Name: "ill", Every: time.Minute, Pass: func(context.Context) (int, error) {
			panic("boom")
		}})
		time.Sleep(20 * time.Second)
		status := runner.Status()[0]
		require.Equal(t, "panic: boom", status.LastError)
		require.Equal(t, status.Failures, status.FailuresInRow)
		require.True(t, status.LastSuccess.IsZero())
		stop()
	})
}

func TestAPassIsTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newTimes()
		runner, stop := start(t, loop.Loop{Name: "slow", Every: time.Hour, Timeout: 5 * time.Second, Pass: func(ctx context.Context) (int, error) {
			seen.add()
			<-ctx.Done()
			seen.add()
			return 0, ctx.Err()
		}})
		time.Sleep(8 * time.Second)
		all := seen.get()
		require.Equal(t, 5*time.Second, all[1]-all[0])
		require.Contains(t, runner.Status()[0].LastError, context.DeadlineExceeded.Error())
		stop()
	})
}

func TestStopWaitsForTheLastPass(t *testing.T) {
	t.Run("without grace its context ends at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var finished atomic.Bool
			_, stop := start(t, loop.Loop{Name: "p", Every: time.Second, Pass: func(ctx context.Context) (int, error) {
				<-ctx.Done()
				time.Sleep(3 * time.Second) // what it still has to write
				finished.Store(true)
				return 0, ctx.Err()
			}})
			time.Sleep(5 * time.Second)
			stop()
			require.True(t, finished.Load())
		})
	})
	t.Run("with grace a pass may end by itself, and none starts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var passes, whole atomic.Int32
			_, stop := start(t, loop.Loop{
				Name: "p", Every: time.Second, Batch: 1, Timeout: loop.Unbounded, Grace: 20 * time.Second,
				Pass: func(ctx context.Context) (int, error) {
					passes.Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(15 * time.Second):
						whole.Add(1)
					}
					return 1, nil
				},
			})
			time.Sleep(5 * time.Second)
			stop()
			require.Equal(t, int32(1), passes.Load())
			require.Equal(t, int32(1), whole.Load())
		})
	})
	t.Run("grace ends too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, stop := start(t, loop.Loop{Name: "p", Every: time.Second, Timeout: loop.Unbounded, Grace: 20 * time.Second, Pass: func(ctx context.Context) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			}})
			time.Sleep(5 * time.Second)
			stop()
			require.Equal(t, 25*time.Second, time.Since(began))
		})
	})
}

func TestWorkersJoinInWhileThereIsWorkToClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		jobs, running, most := 0, 0, 0
		nudge := loop.NewNudge()
		_, stop := start(t, loop.Loop{
			Name: "settle", Every: time.Hour, Batch: 1, Workers: 16, Timeout: loop.Unbounded, Nudge: nudge,
			Pass: func(context.Context) (int, error) {
				mu.Lock()
				if jobs == 0 {
					mu.Unlock()
					return 0, nil
				}
				jobs, running = jobs-1, running+1
				most = max(most, running)
				mu.Unlock()
				nudge.Wake()
				time.Sleep(time.Minute)
				mu.Lock()
				running--
				mu.Unlock()
				return 1, nil
			},
		})
		time.Sleep(5 * time.Second)
		mu.Lock()
		jobs = 40
		mu.Unlock()
		began := time.Now()
		nudge.Wake()
		synctest.Wait()
		mu.Lock()
		require.Equal(t, 16, running)
		mu.Unlock()
		time.Sleep(3*time.Minute + time.Second)
		mu.Lock()
		require.Zero(t, jobs+running, "40 jobs of a minute in three rounds of 16, after %v", time.Since(began))
		require.Equal(t, 16, most)
		mu.Unlock()
		stop()
	})
}

func TestALoopThatCannotRunIsRefused(t *testing.T) {
	pass := func(context.Context) (int, error) { return 0, nil }
	until := func(context.Context) (*time.Time, error) { return nil, nil }
	for name, l := range map[string]loop.Loop{
		"no name":     {Every: time.Second, Pass: pass},
		"no pass":     {Name: "x", Every: time.Second},
		"no interval": {Name: "x", Pass: pass},
		"no clock":    {Name: "x", Every: time.Second, Pass: pass, Until: until},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, loop.Run(t.Context(), quiet, l))
		})
	}
}

func TestAnErrorOfUntilBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := newTimes()
		_, stop := start(t, loop.Loop{
			Name: "u", Every: time.Minute, Now: time.Now,
			Pass:  func(context.Context) (int, error) { seen.add(); return 0, nil },
			Until: func(context.Context) (*time.Time, error) { return nil, errors.New("away") },
		})
		time.Sleep(30 * time.Second)
		stop()
		require.LessOrEqual(t, len(seen.get()), 6)
	})
}
