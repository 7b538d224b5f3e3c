package scheduler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

const (
	leaseTime = 60 * time.Second
	// renewEvery leaves room for two failed renewals before two thirds of the lease have passed.
	renewEvery = leaseTime / 4
	// recordWithin bounds a write that must be made although its caller is stopping.
	recordWithin = 10 * time.Second
)

// errOrdered is the cause of the end of a hold's patience: somebody changed their mind about the box.
var errOrdered = errors.New("an order for the box came in")

// hold keeps the lease of a box while dispatch works on it, and watches for orders.
//
// Calls to a provider run under alive, which an order does not end: what they name is still stored. Waits run under patient,
// which it does.
type hold struct {
	box     *models.Sandbox
	token   uuid.UUID
	alive   context.Context // ends when the lease is lost, or cannot be renewed in time
	patient context.Context // ends then, and when an order comes in
	ordered atomic.Bool
	stop    func()
}

// holdBox starts to renew the lease of box until release is called.
func holdBox(ctx context.Context, store *models.Store, box *models.Sandbox) *hold {
	alive, lose := context.WithCancelCause(ctx)
	patient, ordered := context.WithCancelCause(alive)
	h := &hold{box: box, token: *box.LeaseToken, alive: alive, patient: patient}
	var renewing sync.WaitGroup
	renewing.Go(func() { h.renew(store, lose, ordered) })
	h.stop = sync.OnceFunc(func() {
		lose(context.Canceled)
		renewing.Wait()
	})
	return h
}

func (h *hold) renew(store *models.Store, lose, ordered context.CancelCauseFunc) {
	ticks := time.NewTicker(renewEvery)
	defer ticks.Stop()
	limit := time.AfterFunc(leaseTime*2/3, func() { lose(models.ErrLeaseLost) })
	defer limit.Stop()
	for {
		select {
		case <-h.alive.Done():
			return
		case <-ticks.C:
		}
		generation, err := store.Renew(h.alive, h.box.ID, h.token, leaseTime)
		switch {
		case errors.Is(err, models.ErrLeaseLost):
			lose(err)
			return
		case err != nil:
			continue // the next tick tries again; limit ends it
		case generation != h.box.Generation:
			h.ordered.Store(true)
			ordered(errOrdered)
		}
		limit.Reset(leaseTime * 2 / 3)
	}
}

// release stops renewing and gives the lease back, also while the service stops: else the run waits for its end.
func (h *hold) release(store *models.Store) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.alive), recordWithin)
	defer cancel()
	h.stop()
	err := store.Release(ctx, h.box.ID, h.token)
	if errors.Is(err, models.ErrLeaseLost) {
		return nil
	}
	return err
}
