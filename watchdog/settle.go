package watchdog

import (
	"context"
	"time"

	"automation/loop"
	"automation/models"
)

// PlacedWorkers is how many boxes of a backend of this machine are worked on at once: stops are waited for side by side
// (D1), and cost no other provider anything.
const PlacedWorkers = 64

const (
	settleWorkers = 32
	// settleEvery is how often a place is looked at without any hint: a row whose time was written by another process.
	settleEvery = 15 * time.Second
	stopGrace   = 20 * time.Second
)

// Settle is the duty that takes ordered boxes of one place to rest (design section 8). Each worker claims one box, steps it,
// and sleeps until the earliest next_step_at; a provider that is taken to be down is not asked, and its rows keep their time.
func (w *Watchdog) Settle(p models.Place) loop.Loop {
	workers := settleWorkers
	if b := w.Backends[p]; b != nil && b.Capabilities().Placed {
		workers = PlacedWorkers
	}
	return loop.Loop{
		Name: "settle " + p.Backend, Every: settleEvery, Batch: 1, Workers: workers,
		Timeout: loop.Unbounded, Grace: stopGrace, // a step bounds itself
		Pass:  func(ctx context.Context) (int, error) { return w.settlePass(ctx, p) },
		Until: func(ctx context.Context) (*time.Time, error) { return w.Settler.NextAt(ctx, p) },
		Now:   w.Store.Now, Nudge: w.SettleNudges[p],
	}
}

// settlePass looks before it claims, which spares idle workers a write.
func (w *Watchdog) settlePass(ctx context.Context, p models.Place) (int, error) {
	at, err := w.Settler.NextAt(ctx, p)
	if err != nil || at == nil || at.After(w.Store.Now()) {
		return 0, err
	}
	return w.Settler.Pass(ctx, p)
}
