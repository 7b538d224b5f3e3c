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
	askEvery       = 5 * time.Second  // for how long an answer of the agent server counts
	leaveWithin    = 5 * time.Second  // for who is inside when the service stops
)

var errStopping = fmt.Errorf("%w: the service is stopping", ErrNotReady)

// AccessConfig is what Access works with.
type AccessConfig struct {
	Store *models.Store
	HTTP  *http.Client       // for the agent servers; nil: a shared one
	Log   *slog.Logger       // nil: silent
	Wake  func(models.Place) // wakes the settler's workers; nil: nobody
}

// Access lets requests into boxes: it resumes a suspended one, once however many callers come, records the access, and holds
// the box while somebody is inside. What it does is about one start of a box; see hold. Close it before the Store.
type Access struct {
	AccessConfig
	process uuid.UUID
	running context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	waking map[uuid.UUID]*waking
	holds  map[uuid.UUID]*hold // of the newest start that somebody here came in at
	users  int                 // of all holds
	empty  chan struct{}       // closed when the last has left after Close
}

// waking is one wake-up that all callers of this process share.
type waking struct {
	done    chan struct{}
	changed chan struct{} // the row may be another now
	box     *models.Sandbox
	err     error
}

// NewAccess returns an Access of this process.
func NewAccess(c AccessConfig) *Access {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Wake == nil {
		c.Wake = func(models.Place) {}
	}
	a := &Access{
		AccessConfig: c, process: uuid.New(), waking: map[uuid.UUID]*waking{}, holds: map[uuid.UUID]*hold{}, empty: make(chan struct{}),
	}
	a.running, a.stop = context.WithCancel(context.Background())
	a.tasks.Go(a.keep)
	return a
}

// OnClose has f called when Close begins, so that whoever is inside leaves, unless it is forgotten before.
func (a *Access) OnClose(f func()) (forget func() bool) { return context.AfterFunc(a.running, f) }

// Close lets nobody in any more, ends the waits for boxes to wake, waits a moment for those inside to leave, and gives up what
// this process holds. It may be called again.
func (a *Access) Close() {
	a.mu.Lock()
	first, inside := !a.closed, a.users > 0
	a.closed = true
	a.mu.Unlock()
	a.stop()
	a.tasks.Wait()
	if !first {
		return
	}
	if inside {
		select {
		case <-a.empty:
		case <-time.After(leaveWithin):
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordWithin)
	defer cancel()
	if err := a.Store.DetachAll(ctx, a.process); err != nil {
		a.Log.WarnContext(ctx, "attachments not removed; they run out by themselves", "error", err)
	}
}

// Enter lets a caller into a box that it has just read: it holds the box, resumes it where needed in the name of who
// ("user:<id>"), and returns it as it runs, with an agent server that takes requests. leave is called once, when the caller has
// left. Errors: models.ErrNotFound, models.ErrDeletionOrdered, ErrGone, ErrNotReady.
func (a *Access) Enter(ctx context.Context, read *models.Sandbox, who string) (box *models.Sandbox, leave func(), err error) {
	h, fresh, err := a.join(ctx, read.ID)
	if err != nil {
		return nil, nil, err
	}
	entered := time.Now()
	if box = read; fresh { // what was read may be older than the attachment
		box, err = a.Store.Sandbox(ctx, read.OrgID, read.ID)
	}
	if err == nil {
		box, err = a.ready(ctx, box, h, who)
	}
	if err == nil {
		h, err = a.follow(ctx, box, h)
	}
	if err != nil {
		a.leave(read.ID, h, false)
		return nil, nil, err
	}
	return box, sync.OnceFunc(func() {
		now := a.Store.Now()
		dueSoon := box.DueAt != nil && !box.DueAt.After(now.Add(lingerFor))
		a.leave(box.ID, h, !dueSoon && time.Since(entered) < lingerFor)
	}), nil
}

// ready returns the box once it runs and its agent server answers. One that did so lately is not asked again.
func (a *Access) ready(ctx context.Context, box *models.Sandbox, h *hold, who string) (*models.Sandbox, error) {
	now := a.Store.Now()
	switch refused := a.takeRefusal(h); {
	case !inside(box, time.Time{}):
		return a.woken(ctx, box, h, who, time.Time{})
	case refused: // whoever started it anew has given it another key
	case a.answered(h):
		return box, nil
	case now.Sub(*box.ObservedAt) <= readyAfterWake && !a.was(h): // it may still be starting
		return a.woken(ctx, box, h, who, time.Time{})
	case a.answers(ctx, box, h):
		return box, nil
	}
	// The provider may have suspended it by itself, or it died: the settler looks, and what it sees is adopted before we order.
	if err := a.look(ctx, box); err != nil {
		return nil, err
	}
	return a.woken(ctx, box, h, who, now)
}

// look has the settler ask the provider what the box is.
func (a *Access) look(ctx context.Context, box *models.Sandbox) error {
	if err := a.Store.NudgeBox(ctx, box.ID); err != nil {
		return err
	}
	a.Wake(models.Place{Backend: box.Backend, Location: box.Location})
	return nil
}

// Doubt has the next Enter ask the box's agent server again: it took no connection.
func (a *Access) Doubt(boxID uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.holds[boxID]; h != nil && !h.answered.IsZero() {
		h.answered = time.Now().Add(-askEvery)
	}
}

// Refused has the next Enter look at the box anew: it did not know its key.
func (a *Access) Refused(boxID uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.holds[boxID]; h != nil {
		h.refused = true
	}
}

func (a *Access) takeRefusal(h *hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	refused := h.refused
	h.refused = false
	return refused
}

// answered reports whether the agent server did so lately.
func (a *Access) answered(h *hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !h.answered.IsZero() && time.Since(h.answered) < askEvery
}

// was reports whether the agent server has answered at all in this start of the box.
func (a *Access) was(h *hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !h.answered.IsZero()
}

// answers asks the box's agent server whether it is there. One that says it is not ready yet is there.
func (a *Access) answers(ctx context.Context, box *models.Sandbox, h *hold) bool {
	probe, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := AgentOf(box, a.HTTP).Ready(probe)
	if errors.Is(err, ErrUnreachable) || probe.Err() != nil {
		return false
	}
	a.mark(h)
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
func (a *Access) woken(ctx context.Context, box *models.Sandbox, h *hold, who string, after time.Time) (*models.Sandbox, error) {
	w := a.share(box.ID, who, after)
	if w == nil {
		return nil, errStopping
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
	}
	if w.err == nil {
		a.mark(h)
	}
	return w.box, w.err
}

// mark remembers that the agent server has just answered.
func (a *Access) mark(h *hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.answered = time.Now()
}

// share joins the wake-up that is under way, or starts one; nil after Close.
func (a *Access) share(boxID uuid.UUID, who string, after time.Time) *waking {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.waking[boxID]
	if w != nil || a.closed {
		return w
	}
	w = &waking{done: make(chan struct{}), changed: make(chan struct{}, 1)}
	a.waking[boxID] = w
	a.tasks.Go(func() {
		w.box, w.err = a.wake(a.running, boxID, who, after, w.changed)
		a.mu.Lock()
		delete(a.waking, boxID)
		a.mu.Unlock()
		close(w.done)
	})
	return w
}

// wake orders the box running where it is not wanted so, and waits until it is seen so after a given time and its agent server
// answers.
func (a *Access) wake(ctx context.Context, boxID uuid.UUID, who string, after time.Time, changed <-chan struct{}) (*models.Sandbox, error) {
	box, err := a.awaitRunning(ctx, boxID, who, after, changed)
	if err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, readyAfterWake)
	defer cancel()
	if err := AgentOf(box, a.HTTP).WaitReady(ready); err != nil {
		err = errors.Join(err, a.look(ctx, box)) // what the row says may not be so any more
		return nil, fmt.Errorf("%w: its agent server does not answer within %v of the wake: %w", ErrNotReady, readyAfterWake, err)
	}
	return box, nil
}

// Changed tells the wake-up of a box that the settler of this process has recorded something: it looks at once.
func (a *Access) Changed(boxID uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.waking[boxID]; w != nil {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// lookEvery is how often a row is looked at that another process may work on.
const lookEvery = 200 * time.Millisecond

func (a *Access) awaitRunning(ctx context.Context, boxID uuid.UUID, who string, after time.Time, changed <-chan struct{}) (*models.Sandbox, error) {
	limit, cancel := context.WithTimeout(ctx, wakeWithin)
	defer cancel()
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	for ordered := false; ; {
		box, err := a.Store.Sandbox(limit, uuid.Nil, boxID)
		switch {
		case limit.Err() != nil:
		case err != nil:
			return nil, err
		case inside(box, after):
			return box, nil
		default:
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
		}
		select {
		case <-changed:
		case <-looks.C:
		case <-limit.Done():
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
	case b.Observed == models.SeenProvisioning && !ordered && b.Desired == models.WantRunning && b.CreatedBy != models.CreatedByRuntime:
		return fmt.Errorf("%w: it is being made", ErrNotReady)
	case b.Desired == models.WantRunning && b.NextStepAt == nil && b.Observed == models.SeenSuspended && fresh:
		return fmt.Errorf("%w: it could not be resumed", ErrNotReady)
	}
	return nil
}
