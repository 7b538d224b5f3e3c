package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"automation/models"
)

// ErrOrdered is the cause of the end of a lease's patience: somebody changed their mind about the box.
var ErrOrdered = errors.New("an order for the box came in")

// Lease keeps a claimed box ours while the settler, or dispatch, works on it: a goroutine renews it until End is called, and
// watches for orders (design section 4).
type Lease struct {
	// Wire is for calls to a provider: an order does not end it, so that what they name is stored; the loss of the lease does.
	Wire context.Context
	// Patient is for waits and preparing steps: an order ends it too, with ErrOrdered as its cause.
	Patient context.Context

	store   *models.Store
	claim   models.Claim
	timing  Timing
	lose    context.CancelCauseFunc
	hurry   context.CancelCauseFunc
	renewer sync.WaitGroup
}

// HoldLease starts to renew the lease of a claim: its Box, Token and Generation. Zero fields of t take the defaults. The
// caller calls End.
func HoldLease(ctx context.Context, store *models.Store, c models.Claim, t Timing) *Lease {
	l := &Lease{store: store, claim: c, timing: t.orDefault()}
	l.Wire, l.lose = context.WithCancelCause(ctx)
	l.Patient, l.hurry = context.WithCancelCause(l.Wire)
	l.renewer.Go(l.renew)
	return l
}

// renew ends the lease's contexts when two thirds of it have passed without a renewal: another process may claim the row soon.
func (l *Lease) renew() {
	ticks := time.NewTicker(l.timing.Renew)
	defer ticks.Stop()
	limit := time.AfterFunc(l.timing.Lease*2/3, func() { l.lose(models.ErrLeaseLost) })
	defer limit.Stop()
	for {
		select {
		case <-l.Wire.Done():
			return
		case <-ticks.C:
		}
		generation, err := l.store.Renew(l.Wire, l.claim.Box.ID, l.claim.Token, l.timing.Lease)
		switch {
		case errors.Is(err, models.ErrLeaseLost):
			l.lose(models.ErrLeaseLost)
			return
		case err != nil:
			continue // the next tick tries again; limit ends it
		case generation != l.claim.Generation:
			l.hurry(ErrOrdered)
		}
		limit.Reset(l.timing.Lease * 2 / 3)
	}
}

// End stops renewing and waits for it. It may be called again.
func (l *Lease) End() {
	l.lose(context.Canceled)
	l.renewer.Wait()
}
