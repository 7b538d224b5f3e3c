package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/models"
)

// ErrNotReady means that a box cannot be entered now, but may be later: it is starting, failed, or did not wake in time.
var ErrNotReady = errors.New("box is not ready")

// Bounds of access (S0-087, design section 4).
const (
	readyAfterWake = 20 * time.Second // for the agent server to answer once its box runs
	wakeWithin     = 90 * time.Second // for a suspended box to run
	touchEvery     = 5 * time.Second
	attachFor      = 90 * time.Second
	attachRenew    = 30 * time.Second
)

// AccessConfig is what Access works with.
type AccessConfig struct {
	Store *models.Store
	HTTP  *http.Client       // for the agent servers; nil: a shared one
	Log   *slog.Logger       // nil: silent
	Wake  func(models.Place) // wakes the settler's workers; nil: nobody
}

// Access lets requests into boxes: it resumes a suspended one, once however many callers come, records the access, and holds
// the box while something is attached. Close it after the last caller.
type Access struct {
	AccessConfig
	process uuid.UUID
	running context.Context
	stop    context.CancelFunc
	wakes   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	waking   map[uuid.UUID]*waking
	attached map[uuid.UUID]*attachment
}

// waking is one wake-up that all callers of this process share.
type waking struct {
	done chan struct{}
	box  *models.Sandbox
	err  error
}

// NewAccess returns an Access of this process.
func NewAccess(c AccessConfig) *Access {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Wake == nil {
		c.Wake = func(models.Place) {}
	}
	a := &Access{AccessConfig: c, process: uuid.New(), waking: map[uuid.UUID]*waking{}, attached: map[uuid.UUID]*attachment{}}
	a.running, a.stop = context.WithCancel(context.Background())
	return a
}

// Close ends waits for boxes to wake, and waits for what it started. Attachments are ended by their owners before.
func (a *Access) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.stop()
	a.wakes.Wait()
}

// Enter returns a box that runs and whose agent server takes requests, resuming it where needed; who is "user:<id>". Errors:
// models.ErrNotFound, models.ErrDeletionOrdered, ErrGone, ErrNotReady.
func (a *Access) Enter(ctx context.Context, orgID, boxID uuid.UUID, who string) (*models.Sandbox, error) {
	box, err := a.Store.Sandbox(ctx, orgID, boxID)
	if err != nil {
		return nil, err
	}
	now := a.Store.Now()
	if box.Desired != models.WantDeleted && (box.LastAccessAt == nil || now.Sub(*box.LastAccessAt) > touchEvery) {
		if err := a.Store.Touch(ctx, boxID, now); err != nil {
			return nil, err
		}
	}
	if !inside(box, time.Time{}) || now.Sub(*box.ObservedAt) <= readyAfterWake {
		return a.woken(ctx, box, who, time.Time{})
	}
	if a.answers(ctx, box, now) {
		return box, nil
	}
	// The provider may have suspended it by itself: the settler looks, and what it sees is adopted before we order.
	if err := a.Store.NudgeBox(ctx, boxID); err != nil {
		return nil, err
	}
	a.Wake(models.Place{Backend: box.Backend, Location: box.Location})
	return a.woken(ctx, box, who, now)
}

// answers reports whether the box's agent server does, asking it at most every few seconds while something is attached.
func (a *Access) answers(ctx context.Context, box *models.Sandbox, now time.Time) bool {
	a.mu.Lock()
	at := a.attached[box.ID]
	known := at != nil && now.Sub(at.answered) < touchEvery
	a.mu.Unlock()
	if known {
		return true
	}
	probe, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := AgentOf(box, a.HTTP).Ready(probe)
	if errors.Is(err, ErrUnreachable) || probe.Err() != nil {
		return false
	}
	if at != nil {
		a.mu.Lock()
		at.answered = now
		a.mu.Unlock()
	}
	return true
}

// inside reports whether a box is wanted running and was seen so since, and after a given time.
func inside(b *models.Sandbox, after time.Time) bool {
	return b.Desired == models.WantRunning && b.Observed == models.SeenRunning && b.ObservedAt != nil &&
		!b.ObservedAt.Before(b.OrderedAt) && b.ObservedAt.After(after)
}

// AgentOf is the client of a box's agent server.
func AgentOf(b *models.Sandbox, client *http.Client) Agent {
	return Agent{URL: b.URL, Key: b.SessionKey, HTTP: client}
}

// woken waits for the one wake-up of the box; a caller that gives up does not end it for the others.
func (a *Access) woken(ctx context.Context, box *models.Sandbox, who string, after time.Time) (*models.Sandbox, error) {
	w := a.share(box.ID, who, after)
	if w == nil {
		return nil, fmt.Errorf("%w: the service is stopping", ErrNotReady)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return w.box, w.err
	}
}

// share joins the wake-up that is under way, or starts one; nil after Close.
func (a *Access) share(boxID uuid.UUID, who string, after time.Time) *waking {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.waking[boxID]
	if w != nil || a.closed {
		return w
	}
	w = &waking{done: make(chan struct{})}
	a.waking[boxID] = w
	a.wakes.Go(func() {
		w.box, w.err = a.wake(a.running, boxID, who, after)
		a.mu.Lock()
		delete(a.waking, boxID)
		a.mu.Unlock()
		close(w.done)
	})
	return w
}

// wake orders the box running where it is not wanted so, and waits until it is seen so after a given time and its agent server
// answers.
func (a *Access) wake(ctx context.Context, boxID uuid.UUID, who string, after time.Time) (*models.Sandbox, error) {
	box, err := a.awaitRunning(ctx, boxID, who, after)
	if err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, readyAfterWake)
	defer cancel()
	if err := AgentOf(box, a.HTTP).WaitReady(ready); err != nil {
		return nil, fmt.Errorf("%w: its agent server does not answer within %v of the wake: %w", ErrNotReady, readyAfterWake, err)
	}
	return box, nil
}

func (a *Access) awaitRunning(ctx context.Context, boxID uuid.UUID, who string, after time.Time) (*models.Sandbox, error) {
	limit, cancel := context.WithTimeout(ctx, wakeWithin)
	defer cancel()
	ordered := false
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 500*time.Millisecond) {
		box, err := a.Store.Sandbox(limit, uuid.Nil, boxID)
		switch {
		case limit.Err() != nil:
			return nil, fmt.Errorf("%w: it does not run within %v", ErrNotReady, wakeWithin)
		case err != nil:
			return nil, err
		case inside(box, after):
			return box, nil
		}
		if err := enterable(box, ordered); err != nil {
			return nil, err
		}
		if box.Desired != models.WantRunning {
			if err := a.Store.Order(limit, boxID, models.WantRunning, who, "access"); err != nil {
				return nil, err
			}
			a.Wake(models.Place{Backend: box.Backend, Location: box.Location})
			ordered = true
		}
		if pause(limit, wait) != nil {
			return nil, fmt.Errorf("%w: it does not run within %v", ErrNotReady, wakeWithin)
		}
	}
}

// enterable says why waiting for a box is no use, or nil.
func enterable(b *models.Sandbox, ordered bool) error {
	fresh := b.ObservedAt != nil && !b.ObservedAt.Before(b.OrderedAt)
	switch {
	case b.Desired == models.WantDeleted:
		return models.ErrDeletionOrdered
	case b.Observed == models.SeenDeleted, b.Observed == models.SeenMissing && (fresh || !ordered):
		return ErrGone
	case b.Observed == models.SeenFailed && fresh:
		return fmt.Errorf("%w: the provider shows it failed", ErrNotReady)
	case b.Observed == models.SeenProvisioning && !ordered && b.Desired == models.WantRunning:
		return fmt.Errorf("%w: it is being made", ErrNotReady)
	case b.Desired == models.WantRunning && b.NextStepAt == nil && b.Observed == models.SeenSuspended && fresh:
		return fmt.Errorf("%w: it could not be resumed", ErrNotReady)
	}
	return nil
}

// attachment is what this process holds a box with: one row, however many requests.
type attachment struct {
	mu       sync.Mutex // held while the row is made or removed
	live     bool
	end      func()
	users    int       // under Access.mu
	answered time.Time // when the agent server last did; under Access.mu
}

// Attach holds a box for one request, stream or relay until detach is called: suspends and sweeps wait. It is
// models.ErrDeletionOrdered where the box is ordered deleted.
func (a *Access) Attach(ctx context.Context, boxID uuid.UUID) (detach func(), err error) {
	a.mu.Lock()
	at := a.attached[boxID]
	if at == nil {
		at = &attachment{}
		a.attached[boxID] = at
	}
	at.users++
	a.mu.Unlock()

	at.mu.Lock()
	defer at.mu.Unlock()
	if !at.live {
		if err := a.Store.Attach(ctx, boxID, a.process, a.Store.Now().Add(attachFor)); err != nil {
			a.leave(boxID, at)
			return nil, fmt.Errorf("attach: %w", err)
		}
		at.live, at.end = true, a.renewing(boxID)
	}
	return sync.OnceFunc(func() { a.detach(boxID, at) }), nil
}

// leave takes one user off, and forgets the attachment with the last.
func (a *Access) leave(boxID uuid.UUID, at *attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at.users--
	if at.users == 0 {
		delete(a.attached, boxID)
	}
}

func (a *Access) detach(boxID uuid.UUID, at *attachment) {
	at.mu.Lock()
	defer at.mu.Unlock()
	a.mu.Lock()
	last := at.users == 1
	a.mu.Unlock()
	if last {
		at.end()
		at.live = false
		ctx, cancel := context.WithTimeout(context.Background(), recordWithin)
		defer cancel()
		if err := a.release(ctx, boxID); err != nil {
			a.Log.WarnContext(ctx, "attachment not removed; it runs out by itself", "workspace_id", boxID, "error", err)
		}
	}
	a.leave(boxID, at)
}

// release removes the row, and lets a suspend that waited for it go on.
func (a *Access) release(ctx context.Context, boxID uuid.UUID) error {
	if err := a.Store.Detach(ctx, boxID, a.process); err != nil {
		return err
	}
	box, err := a.Store.Sandbox(ctx, uuid.Nil, boxID)
	if err != nil || box.Desired != models.WantSuspended || box.NextStepAt == nil {
		return err
	}
	if err := a.Store.NudgeBox(ctx, boxID); err != nil {
		return err
	}
	a.Wake(models.Place{Backend: box.Backend, Location: box.Location})
	return nil
}

// renewing prolongs the row until the returned func is called, which waits for the end of it.
func (a *Access) renewing(boxID uuid.UUID) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var renewer sync.WaitGroup
	renewer.Go(func() {
		for pause(ctx, attachRenew) == nil {
			err := a.Store.Attach(ctx, boxID, a.process, a.Store.Now().Add(attachFor))
			if errors.Is(err, models.ErrDeletionOrdered) {
				return // deletes by hand do not wait
			}
			if err != nil && ctx.Err() == nil {
				a.Log.WarnContext(ctx, "attachment not renewed", "workspace_id", boxID, "error", err)
			}
		}
	})
	return func() {
		cancel()
		renewer.Wait()
	}
}
