package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"golang.org/x/time/rate"
)

// ErrBreakerOpen means that the call was not made, because the provider is taken to be down. It changes nothing about a box:
// its row keeps its time.
var ErrBreakerOpen = errors.New("provider is taken to be down")

// Limits are what a decorated backend keeps to. Zero fields take the defaults.
type Limits struct {
	PerSecond float64       // calls a second; what the provider documents (Capabilities.CallsPerSecond), else 1000
	Burst     int           // calls at once after a pause; those of a second
	Parallel  int           // calls in flight; 32
	Failures  int           // transport errors and 5xx in a row that open the breaker; 5
	Open      time.Duration // how long it stays open before one call is let through; 30 s
	// Observe is called after every call: backend method, how long it took, how it ended.
	Observe func(method string, took time.Duration, err error)
}

// mostCalls is how many calls a second a provider gets that documents no limit: more than the deletes in flight come to where
// each takes two requests of 20 ms, so that it bounds only what goes wrong.
const mostCalls = 1000

// Decorated wraps a backend with rate limit, parallelism and breaker, the same for every provider.
type Decorated struct {
	backend Backend
	limits  Limits
	rate    *rate.Limiter
	slots   chan struct{}
	breaker circuitbreaker.CircuitBreaker[any]
}

var _ Backend = (*Decorated)(nil)

// Decorate wraps b.
func Decorate(b Backend, l Limits) *Decorated {
	if l.PerSecond <= 0 {
		l.PerSecond = cmp.Or(b.Capabilities().CallsPerSecond, mostCalls)
	}
	if l.Burst <= 0 {
		l.Burst = max(1, int(l.PerSecond))
	}
	if l.Parallel <= 0 {
		l.Parallel = 32
	}
	if l.Failures <= 0 {
		l.Failures = 5
	}
	if l.Open <= 0 {
		l.Open = 30 * time.Second
	}
	return &Decorated{
		backend: b,
		limits:  l,
		rate:    rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst),
		slots:   make(chan struct{}, l.Parallel),
		breaker: circuitbreaker.NewBuilder[any]().
			WithFailureThreshold(uint(l.Failures)).
			WithSuccessThreshold(1).
			WithDelay(l.Open).
			Build(),
	}
}

// ClosedIn returns how long no call will be made because the breaker is open: 0 when calls are made. probe says that only
// one call will be let through, to see whether the provider is back.
func (d *Decorated) ClosedIn() (wait time.Duration, probe bool) {
	if d.breaker.IsOpen() {
		wait = d.breaker.RemainingDelay()
	}
	return wait, !d.breaker.IsClosed()
}

// Capabilities are the backend's.
func (d *Decorated) Capabilities() Capabilities { return d.backend.Capabilities() }

// Create calls the backend under the limits.
func (d *Decorated) Create(ctx context.Context, spec Spec, seen func(Identity) error) error {
	return d.call(ctx, "Create", func() error { return d.backend.Create(ctx, spec, seen) })
}

// Inspect calls the backend under the limits.
func (d *Decorated) Inspect(ctx context.Context, box Ref) (obs Observation, err error) {
	err = d.call(ctx, "Inspect", func() error {
		obs, err = d.backend.Inspect(ctx, box)
		return err
	})
	return obs, err
}

// Suspend calls the backend under the limits.
func (d *Decorated) Suspend(ctx context.Context, box Ref, seen func(Identity) error) error {
	return d.call(ctx, "Suspend", func() error { return d.backend.Suspend(ctx, box, seen) })
}

// Resume calls the backend under the limits.
func (d *Decorated) Resume(ctx context.Context, box Ref, seen func(Identity) error) error {
	return d.call(ctx, "Resume", func() error { return d.backend.Resume(ctx, box, seen) })
}

// Delete calls the backend under the limits.
func (d *Decorated) Delete(ctx context.Context, box Ref) error {
	return d.call(ctx, "Delete", func() error { return d.backend.Delete(ctx, box) })
}

// List calls the backend under the limits; the whole iteration is one call.
func (d *Decorated) List(ctx context.Context, label Label) iter.Seq2[Observation, error] {
	return func(yield func(Observation, error) bool) {
		err := d.call(ctx, "List", func() error {
			for obs, err := range d.backend.List(ctx, label) {
				if err != nil {
					return err
				}
				if !yield(obs, nil) {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			yield(Observation{}, err)
		}
	}
}

func (d *Decorated) call(ctx context.Context, method string, do func() error) error {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return fmt.Errorf("wait for a free call: %w", ctx.Err())
	}
	if err := d.rate.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit: %w", err)
	}
	if !d.breaker.TryAcquirePermit() {
		return fmt.Errorf("%s: %w", method, ErrBreakerOpen)
	}
	started := time.Now()
	err := errPanicked
	defer func() { // also when do panics: a permit that is never given back would keep the breaker shut for ever
		// What fails at a backend of this machine is the one box's: others must not pay for it.
		if sick(ctx, err) && !d.backend.Capabilities().Placed {
			d.breaker.RecordFailure()
		} else {
			d.breaker.RecordSuccess()
		}
		if d.limits.Observe != nil {
			d.limits.Observe(method, time.Since(started), err)
		}
	}()
	err = do()
	return err
}

// errPanicked stands for how a call ended that did not return.
var errPanicked = errors.New("the backend panicked")

// sick reports whether err is a transport error or a 5xx, the only ones that say something about the provider's health. A
// caller that gave up does not; a call that ran into its own deadline does.
func sick(ctx context.Context, err error) bool {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	for _, fine := range []error{ErrGone, ErrBusy, ErrQuota, ErrRefused, ErrInvalid, errors.ErrUnsupported, context.Canceled} {
		if errors.Is(err, fine) {
			return false
		}
	}
	var answer *ProviderError
	return !errors.As(err, &answer) || answer.Status >= 500
}
