package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestTheDecoratorKeepsTheContract(t *testing.T) {
	sandboxtest.Exercise(t, func(*testing.T) sandboxtest.Subject {
		return sandboxtest.Subject{Backend: sandbox.Decorate(sandboxtest.NewFake(sandboxtest.Quirks{}), sandbox.Limits{PerSecond: 10000, Burst: 1000})}
	})
}

func TestOnlyTransportErrorsAnd5xxOpenTheBreaker(t *testing.T) {
	cases := map[string]struct {
		err   error
		opens bool
	}{
		"transport":         {errors.New("connection refused"), true},
		"deadline":          {context.DeadlineExceeded, true},
		"500":               {&sandbox.ProviderError{Status: 500}, true},
		"wrapped 503":       {fmt.Errorf("delete: %w", &sandbox.ProviderError{Status: 503}), true},
		"429":               {&sandbox.ProviderError{Status: 429}, false},
		"gone":              {sandbox.ErrGone, false},
		"busy":              {sandbox.ErrBusy, false},
		"quota":             {sandbox.ErrQuota, false},
		"refused":           {sandbox.ErrRefused, false},
		"invalid":           {sandbox.ErrInvalid, false},
		"unsupported":       {errors.ErrUnsupported, false},
		"the caller's stop": {context.Canceled, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := sandboxtest.NewFake(sandboxtest.Quirks{})
				fake.FailAlways("Delete", c.err)
				d := sandbox.Decorate(fake, sandbox.Limits{Failures: 3, Open: time.Minute})
				for range 3 {
					require.ErrorIs(t, d.Delete(t.Context(), sandbox.Ref{}), c.err)
				}
				wait, probe := d.ClosedIn()
				require.Equal(t, c.opens, wait > 0)
				require.Equal(t, c.opens, probe)
				err := d.Delete(t.Context(), sandbox.Ref{})
				require.Equal(t, c.opens, errors.Is(err, sandbox.ErrBreakerOpen))

				time.Sleep(time.Minute)
				fake.FailAlways("Delete", nil)
				require.ErrorIs(t, d.Delete(t.Context(), sandbox.Ref{}), sandbox.ErrGone)
				_, probe = d.ClosedIn()
				require.False(t, probe, "one good answer closes it")
			})
		})
	}
}

// A box that cannot be deleted (something is mounted in it) is no outage: new runs must get their boxes.
func TestWhatFailsOnThisMachineOpensNoBreaker(t *testing.T) {
	fake := sandboxtest.NewFake(sandboxtest.Quirks{Placed: true})
	fake.FailAlways("Delete", errors.New("home/m is a mount point"))
	d := sandbox.Decorate(fake, sandbox.Limits{Failures: 3})
	for range 10 {
		require.ErrorContains(t, d.Delete(t.Context(), sandbox.Ref{}), "mount point")
	}
	require.NoError(t, d.Create(t.Context(), sandbox.Spec{Label: sandbox.Label{WorkspaceID: uuid.New()}}, func(sandbox.Identity) error { return nil }))
}

func TestAPanicOfTheOneCallThatIsLetThroughDoesNotKeepTheBreakerShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := sandboxtest.NewFake(sandboxtest.Quirks{})
		fake.FailAlways("Delete", errors.New("connection refused"))
		d := sandbox.Decorate(fake, sandbox.Limits{Failures: 1, Open: time.Minute})
		require.ErrorContains(t, d.Delete(t.Context(), sandbox.Ref{}), "connection refused")
		time.Sleep(time.Minute)
		fake.Watch(func(sandboxtest.Call) { panic("broken backend") })
		require.Panics(t, func() { _ = d.Delete(t.Context(), sandbox.Ref{}) })
		fake.Watch(nil)
		fake.FailAlways("Delete", nil)
		time.Sleep(time.Minute)
		require.ErrorIs(t, d.Delete(t.Context(), sandbox.Ref{}), sandbox.ErrGone)
	})
}

func TestCallsInFlightAndCallsASecondAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := sandboxtest.NewFake(sandboxtest.Quirks{})
		fake.Delay("Inspect", 10*time.Second)
		var now, most atomic.Int64
		fake.Watch(func(sandboxtest.Call) { most.Store(max(most.Load(), now.Add(1))) })
		d := sandbox.Decorate(fake, sandbox.Limits{Parallel: 4, PerSecond: 1, Burst: 100, Observe: func(string, time.Duration, error) { now.Add(-1) }})
		var wait sync.WaitGroup
		started := time.Now()
		for range 12 {
			wait.Go(func() { _, _ = d.Inspect(t.Context(), sandbox.Ref{}) })
		}
		wait.Wait()
		require.EqualValues(t, 4, most.Load())
		require.Equal(t, 30*time.Second, time.Since(started))

		slow := sandbox.Decorate(sandboxtest.NewFake(sandboxtest.Quirks{}), sandbox.Limits{PerSecond: 2, Burst: 1})
		started = time.Now()
		for range 5 {
			_, _ = slow.Inspect(t.Context(), sandbox.Ref{})
		}
		require.Equal(t, 2*time.Second, time.Since(started))
	})
}

func TestTenThousandBoxesAreDeletedWithinTwentySeconds(t *testing.T) {
	remove := func(t *testing.T, boxes int, documented float64) time.Duration {
		fake := sandboxtest.NewFake(sandboxtest.Quirks{CallsPerSecond: documented})
		fake.Delay("Delete", 20*time.Millisecond)
		d := sandbox.Decorate(fake, sandbox.Limits{Failures: boxes + 1})
		started := time.Now()
		var wait sync.WaitGroup
		for range 16 {
			wait.Go(func() {
				for range boxes / 16 {
					_ = d.Delete(t.Context(), sandbox.Ref{})
				}
			})
		}
		wait.Wait()
		return time.Since(started)
	}
	synctest.Test(t, func(t *testing.T) {
		require.Less(t, remove(t, 10_000, 0), 20*time.Second)
		require.InDelta(t, 7, remove(t, 800, 100).Seconds(), 0.5, "a provider gets no more than it documents")
	})
}

func TestEveryCallIsObserved(t *testing.T) {
	var seen []string
	fake := sandboxtest.NewFake(sandboxtest.Quirks{})
	d := sandbox.Decorate(fake, sandbox.Limits{Observe: func(method string, _ time.Duration, err error) {
		seen = append(seen, fmt.Sprint(method, " ", err == nil))
	}})
	ctx, ref := t.Context(), sandbox.Ref{}
	named := func(i sandbox.Identity) error { ref.Identities = append(ref.Identities, i); return nil }
	require.NoError(t, d.Create(ctx, sandbox.Spec{}, named))
	_, err := d.Inspect(ctx, ref)
	require.NoError(t, err)
	require.NoError(t, d.Suspend(ctx, ref, named))
	require.NoError(t, d.Resume(ctx, ref, named))
	for range d.List(ctx, sandbox.Label{}) {
		break
	}
	require.NoError(t, d.Delete(ctx, ref))
	require.ErrorIs(t, d.Delete(ctx, ref), sandbox.ErrGone)
	require.Equal(t, []string{"Create true", "Inspect true", "Suspend true", "Resume true", "List true", "Delete true", "Delete false"}, seen)
}

func TestBR_27_AListShowsPausedBoxesToo(t *testing.T) {
	fake := sandboxtest.NewFake(sandboxtest.Quirks{})
	d := sandbox.Decorate(fake, sandbox.Limits{})
	deployment := uuid.New()
	for n := range 150 {
		workspace := uuid.New()
		fake.Plant(sandbox.Label{Deployment: deployment, WorkspaceID: workspace})
		if n < 60 {
			fake.IdlePause(workspace)
		}
	}
	fake.Plant(sandbox.Label{Deployment: uuid.New()})
	listed := 0
	for _, err := range d.List(t.Context(), sandbox.Label{Deployment: deployment}) {
		require.NoError(t, err)
		listed++
	}
	require.Equal(t, 150, listed)
}
