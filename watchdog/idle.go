package watchdog

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"automation/loop"
	"automation/models"
	"automation/sandbox"
)

const (
	idleBatch = 128
	// idleAsks is how many boxes are asked side by side, askWithin how long one may take to answer.
	idleAsks   = 16
	askWithin  = 10 * time.Second
	idleWithin = 2 * time.Minute
	// askAgain is how soon a box is asked again that could not be asked.
	askAgain = 5 * time.Minute
)

// Idle is the duty that orders suspended what nobody uses in one place (S3-002): awake boxes without a running run, unaccessed
// for the TTL and without an attachment, of a provider that does not do it itself. A box is asked once, at its deadline, whether something
// runs in it, and is left awake where something does or it does not say. What becomes of an order is the settler's, which asks
// again under the box's lease.
func (w *Watchdog) Idle(p models.Place) loop.Loop {
	ttl := w.Config.Dispatch.IdleTTL
	clock := &evenClock{mono: w.Mono, most: min(5*time.Second, ttl/4)}
	if clock.mono == nil {
		start := time.Now()
		clock.mono = func() time.Duration { return time.Since(start) }
	}
	return loop.Loop{
		Name: "idle " + p.Backend, Every: idleEvery(ttl), Batch: idleBatch, Timeout: idleWithin,
		Pass: func(ctx context.Context) (int, error) {
			if now := w.Store.Now(); clock.even(now) >= ttl {
				return w.evictIdle(ctx, p, now, ttl)
			}
			return 0, nil
		},
	}
}

// idleEvery is how often is looked: twice within the TTL, but not more than once a second (S3-027).
func idleEvery(ttl time.Duration) time.Duration { return max(min(ttl/2, time.Minute), time.Second) }

// evenClock tells for how long the clock of rows has gone on evenly. A step of it (somebody sets the wall clock, a machine that
// slept) makes every box look unused, so that nothing is evicted before a whole TTL has really passed since (S3-030).
type evenClock struct {
	mono  func() time.Duration // the monotonic clock
	most  time.Duration        // by how much the two may differ between two looks
	rows  time.Time            // at the last look …
	at    time.Duration        // … which was then
	began time.Duration        // the first look, or the first after a step
}

func (c *evenClock) even(now time.Time) time.Duration {
	at := c.mono()
	if step := now.Sub(c.rows) - (at - c.at); c.rows.IsZero() || step.Abs() > c.most {
		c.began = at
	}
	c.rows, c.at = now, at
	return at - c.began
}

func (w *Watchdog) evictIdle(ctx context.Context, p models.Place, now time.Time, ttl time.Duration) (int, error) {
	boxes, err := w.Store.IdleBoxes(ctx, []models.Place{p}, now.Add(-ttl), idleBatch)
	if err != nil || len(boxes) == 0 {
		return 0, err
	}
	var asks errgroup.Group // one that fails does not end the others
	asks.SetLimit(idleAsks)
	for _, b := range boxes {
		asks.Go(func() error {
			if err := w.evict(ctx, b, now, ttl); err != nil {
				return fmt.Errorf("evict box %s: %w", b.ID, err)
			}
			return nil
		})
	}
	return len(boxes), asks.Wait()
}

// evict orders an unused box suspended, if nothing runs in it.
func (w *Watchdog) evict(ctx context.Context, b *models.Sandbox, now time.Time, ttl time.Duration) error {
	ask, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	work, err := sandbox.AgentOf(b, w.HTTP).Work(ask, now, ttl)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		w.Log.WarnContext(ctx, "an unused box is left awake: it does not say whether something runs in it", "workspace_id", b.ID, "provider", b.Backend, "error", err)
		return w.Store.HoldIdle(ctx, b.ID, models.HeldUnreadable, now.Add(min(ttl, askAgain)), models.AttentionIdle)
	case work.Running != "":
		return w.Store.HoldIdle(ctx, b.ID, work.Running, now.Add(ttl), "")
	case work.Idle < ttl:
		return w.Store.HoldIdle(ctx, b.ID, models.HeldActive, now.Add(ttl-work.Idle), "")
	}
	ordered, err := w.Store.OrderIdle(ctx, b, now.Add(-ttl), "idle for "+ttl.String())
	if err != nil || !ordered {
		return err
	}
	w.Log.InfoContext(ctx, "idle box ordered suspended", "workspace_id", b.ID, "provider", b.Backend)
	w.SettleNudges[models.Place{Backend: b.Backend, Location: b.Location}].Wake()
	return nil
}
