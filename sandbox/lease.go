package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"automation/models"
)

// errOrdered is the cause of the end of a lease's patience: somebody changed their mind about the box.
var errOrdered = errors.New("an order for the box came in")

// lease keeps a claimed box ours: a goroutine renews it until end is called, and watches for orders.
type lease struct {
	store   *models.Store
	claim   models.Claim
	timing  Timing
	wire    context.Context // for calls to a provider: an order does not end them, the loss of the lease does
	patient context.Context // for waits and preparing steps: an order ends them too
	lose    context.CancelCauseFunc
	hurry   context.CancelCauseFunc
	renewer sync.WaitGroup
}

func holdLease(ctx context.Context, store *models.Store, c models.Claim, t Timing) *lease {
	l := &lease{store: store, claim: c, timing: t}
	l.wire, l.lose = context.WithCancelCause(ctx)
	l.patient, l.hurry = context.WithCancelCause(l.wire)
	l.renewer.Go(l.renew)
	return l
}

// renew ends the lease's contexts when two thirds of it have passed without a renewal: another process may claim the row soon.
func (l *lease) renew() {
	ticks := time.NewTicker(l.timing.Renew)
	defer ticks.Stop()
	limit := time.AfterFunc(l.timing.Lease*2/3, func() { l.lose(models.ErrLeaseLost) })
	defer limit.Stop()
	for {
		select {
		case <-l.wire.Done():
			return
		case <-ticks.C:
		}
		generation, err := l.store.Renew(l.wire, l.claim.Box.ID, l.claim.Token, l.timing.Lease)
		switch {
		case errors.Is(err, models.ErrLeaseLost):
			l.lose(models.ErrLeaseLost)
			return
		case err != nil:
			continue // the next tick tries again; limit ends it
		case generation != l.claim.Generation:
			l.hurry(errOrdered)
		}
		limit.Reset(l.timing.Lease * 2 / 3)
	}
}

// end stops renewing and waits for it.
func (l *lease) end() {
	l.lose(context.Canceled)
	l.renewer.Wait()
}
