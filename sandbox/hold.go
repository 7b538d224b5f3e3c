package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

// Bounds of attachments (design section 4).
const (
	attachFor   = 90 * time.Second
	attachRenew = 30 * time.Second
	lingerFor   = 5 * time.Second // how long the row of a short request is kept for the next, which then writes nothing
	keepEvery   = time.Second
)

// hold is what this process holds one incarnation of a box with: one row, however many requests.
type hold struct {
	mu sync.Mutex // held while the row is made or removed

	// Under Access.mu.
	incarnation int64 // that the row holds, changed under mu too; 0: there is no row
	users       int
	answered    time.Time // when the agent server last did
	refused     bool      // the key that the row has
	left        time.Time // when the last user left, on the monotonic clock …
	leftAt      time.Time // … and as rows have it
}

// Attach holds a box for one stream or relay until detach is called: suspends and sweeps wait. It is models.ErrDeletionOrdered
// where the box is ordered deleted. Only the start of the box that it was made in, or the next where the box does not run, is
// held: a box that was started anew since is not, and a late detach does not release it (S3-018).
func (a *Access) Attach(ctx context.Context, boxID uuid.UUID) (detach func(), err error) {
	h, _, err := a.join(ctx, boxID)
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { a.leave(boxID, h, false) }), nil
}

// join makes the caller a user of the box's hold, whose row is there afterwards; fresh says that it was not before. The caller
// leaves once.
func (a *Access) join(ctx context.Context, boxID uuid.UUID) (h *hold, fresh bool, err error) {
	if h = a.use(boxID); h == nil {
		return nil, false, errStopping
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.incarnation != 0 {
		return h, false, nil
	}
	incarnation, err := a.Store.Attach(ctx, boxID, a.process, a.Store.Now().Add(attachFor))
	if err != nil {
		a.quit(boxID, h)
		return nil, false, fmt.Errorf("attach: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.incarnation = incarnation
	return h, true, nil
}

// use counts the caller in; nil after Close.
func (a *Access) use(boxID uuid.UUID) *hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	h := a.holds[boxID]
	if h == nil {
		h = &hold{}
		a.holds[boxID] = h
	}
	h.users++
	a.users++
	return h
}

// follow returns the hold of the box's present start: another than h where the box was started anew since h was made. What is
// still open in an older start holds nothing any more.
func (a *Access) follow(ctx context.Context, box *models.Sandbox, h *hold) (*hold, error) {
	for a.outlived(box, h) {
		next, _, err := a.join(ctx, box.ID)
		if err != nil {
			return h, err
		}
		a.quit(box.ID, h)
		h = next
	}
	return h, nil
}

// outlived reports whether a box was started anew since h was made, which is then no longer the box's hold.
func (a *Access) outlived(box *models.Sandbox, h *hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.incarnation >= box.AwakeEpoch {
		return false
	}
	if a.holds[box.ID] == h {
		delete(a.holds, box.ID)
	}
	return true
}

// quit takes one user off, and reports whether the hold is now one that nobody uses.
func (a *Access) quit(boxID uuid.UUID, h *hold) (unused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.users--
	if a.users--; a.users == 0 && a.closed {
		close(a.empty)
	}
	h.left, h.leftAt = time.Now(), a.Store.Now()
	if h.users > 0 || a.holds[boxID] != h {
		return false
	}
	if h.incarnation == 0 {
		delete(a.holds, boxID)
		return false
	}
	return true
}

// leave takes one user off; with the last the row goes, at once or when lingerFor has passed.
func (a *Access) leave(boxID uuid.UUID, h *hold, linger bool) {
	if a.quit(boxID, h) && (!linger || a.running.Err() != nil) {
		a.release(boxID, h)
	}
}

// Release gives up at once what lingers of a box that nobody is in: somebody wants it suspended.
func (a *Access) Release(boxID uuid.UUID) {
	a.mu.Lock()
	h := a.holds[boxID]
	a.mu.Unlock()
	if h != nil {
		a.release(boxID, h)
	}
}

// release removes the row of a hold that nobody uses, and wakes the settler where a suspend waited for that. Whoever joins
// meanwhile waits, and makes the row anew.
func (a *Access) release(boxID uuid.UUID, h *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.mu.Lock()
	done := h.users > 0 || a.holds[boxID] != h || h.incarnation == 0
	leftAt := h.leftAt
	a.mu.Unlock()
	if done {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordWithin)
	defer cancel()
	waiting, err := a.Store.Detach(ctx, boxID, a.process, h.incarnation, leftAt)
	if err != nil { // tried again like one that lingers for too long
		a.Log.WarnContext(ctx, "attachment not removed yet", "workspace_id", boxID, "error", err)
		return
	}
	if waiting != nil {
		a.Wake(*waiting)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.incarnation = 0
	if h.users == 0 && a.holds[boxID] == h {
		delete(a.holds, boxID)
	}
}

// keep renews the rows of this process and removes those that nobody came back for, until Close.
func (a *Access) keep() {
	ticks := time.NewTicker(keepEvery)
	defer ticks.Stop()
	renewed := time.Now()
	for {
		select {
		case <-a.running.Done():
			return
		case <-ticks.C:
		}
		used, unused := a.held()
		if len(used) == 0 || time.Since(renewed) >= attachRenew && a.renew(used) == nil {
			renewed = time.Now()
		}
		for boxID, h := range unused {
			a.release(boxID, h)
		}
	}
}

// held returns the boxes that are held, and the holds that linger for too long.
func (a *Access) held() (used []uuid.UUID, unused map[uuid.UUID]*hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	unused = map[uuid.UUID]*hold{}
	for boxID, h := range a.holds {
		if h.users == 0 && time.Since(h.left) >= lingerFor {
			unused[boxID] = h
		} else {
			used = append(used, boxID)
		}
	}
	return used, unused
}

func (a *Access) renew(boxes []uuid.UUID) error {
	ctx, cancel := context.WithTimeout(a.running, recordWithin)
	defer cancel()
	err := a.Store.RenewAttachments(ctx, a.process, boxes, a.Store.Now().Add(attachFor))
	if err != nil && !errors.Is(err, context.Canceled) {
		a.Log.WarnContext(ctx, "attachments not renewed", "error", err)
	}
	return err
}
