package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

const (
	leaseTime = 60 * time.Second
	// recordWithin bounds a write that must be made although its caller is stopping.
	recordWithin = 10 * time.Second
)

// hold is the box that dispatch works on, under its lease.
type hold struct {
	*sandbox.Lease
	box   *models.Sandbox
	token uuid.UUID
}

// holdBox starts to renew the lease that a box was claimed with.
func (d *Dispatch) holdBox(ctx context.Context, box *models.Sandbox) *hold {
	claim := models.Claim{Box: box, Token: *box.LeaseToken, Generation: box.Generation}
	lease := sandbox.HoldLease(ctx, d.Store, claim, sandbox.Timing{Lease: leaseTime})
	return &hold{Lease: lease, box: box, token: claim.Token}
}

// letGo stops renewing, gives the lease back, also while the service stops, and wakes the settler, which may have been waiting
// for it. What ends the run comes before it: a run without a lease that still seems to work is claimed anew.
func (d *Dispatch) letGo(h *hold, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Wire), recordWithin)
	defer cancel()
	h.End()
	if releaseErr := d.Store.Release(ctx, h.box.ID, h.token); releaseErr != nil && !errors.Is(releaseErr, models.ErrLeaseLost) {
		err = errors.Join(err, fmt.Errorf("release box %s: %w", h.box.ID, releaseErr))
	}
	d.Settle()
	return err
}
