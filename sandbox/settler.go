package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/testhooks"
)

// Timing are the settler's durations. Zero fields take the defaults.
type Timing struct {
	Lease time.Duration // how long a claim holds a row without renewal; 60 s
	Renew time.Duration // 15 s
	Call  time.Duration // deadline of one call to a provider; 30 s
	Shows time.Duration // how long a claim waits for an accepted suspend or resume to show; 30 s
	Poll  time.Duration // first wait between two looks, doubled up to 2 s; 100 ms
}

func (t Timing) orDefault() Timing {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&t.Lease, 60*time.Second)
	set(&t.Renew, t.Lease/4)
	set(&t.Call, 30*time.Second)
	set(&t.Shows, 30*time.Second)
	set(&t.Poll, 100*time.Millisecond)
	return t
}

// Blobs is where run output goes.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
}

// Exports takes the history out of a box that runs; *Exporter does.
type Exports interface {
	// Export stores it, and returns nil where the box has none.
	Export(ctx context.Context, b *models.Sandbox, conversation string) (*models.Export, error)
}

// SettlerConfig is what a Settler works with.
type SettlerConfig struct {
	Store      *models.Store
	Backends   map[string]*Decorated // by name: the configured ones
	Deployment uuid.UUID
	Settings   Settings
	Blobs      Blobs
	Exports    Exports            // nil: no history is exported
	HTTP       *http.Client       // for the agent servers; nil: a shared one
	Log        *slog.Logger       // nil: silent
	Wake       func(models.Place) // wakes a worker of the place: more may be due; nil: nobody
	Timing     Timing
	// Recorded is told of every box of which a step was recorded, for whoever waits for it; nil: nobody.
	Recorded func(boxID uuid.UUID)
	// Deletes is told how each delete went: nil, ErrGone (it was gone already), or why the provider did not; nil: nobody.
	Deletes func(box *models.Sandbox, err error)
	// Prepared is told how each step in a box went before its pause or deletion: ok, skipped, failed; what it freed or stored, in
	// bytes; nil: nobody.
	Prepared func(step Step, outcome string, bytes int64, took time.Duration)
}

// Settler takes ordered boxes to rest, one repeatable step at a time, under a lease. After dispatch it alone talks to
// providers. It may run in any number of processes.
type Settler struct {
	SettlerConfig
	probing sync.Map // backend name → *sync.Mutex, held by the one pass that tries a provider whose breaker was open
}

// NewSettler returns a Settler; its work is done by Pass.
func NewSettler(c SettlerConfig) *Settler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Wake == nil {
		c.Wake = func(models.Place) {}
	}
	if c.Recorded == nil {
		c.Recorded = func(uuid.UUID) {}
	}
	if c.Deletes == nil {
		c.Deletes = func(*models.Sandbox, error) {}
	}
	if c.Prepared == nil {
		c.Prepared = func(Step, string, int64, time.Duration) {}
	}
	c.Timing = c.Timing.orDefault()
	return &Settler{SettlerConfig: c}
}

// Pass claims one box of the place that is due and takes it as far as it gets now; done is 1 when there was one. A place has
// as many workers as boxes may be worked on side by side. ctx bounds the whole: when it ends, calls on the wire are cut.
func (s *Settler) Pass(ctx context.Context, p models.Place) (done int, err error) {
	backend := s.Backends[p.Backend]
	if backend == nil {
		return 0, fmt.Errorf("settle: backend %q is not configured", p.Backend)
	}
	wait, probe := backend.ClosedIn()
	if wait > 0 {
		return 0, nil // rows keep their time
	}
	if probe {
		mutex := s.probe(p.Backend)
		if !mutex.TryLock() {
			return 0, nil
		}
		defer mutex.Unlock()
	}
	claims, err := s.Store.ClaimBoxes(ctx, p, 1, s.Timing.Lease, PrepareBudget)
	if err != nil || len(claims) == 0 {
		return 0, err
	}
	testhooks.Reached(testhooks.SettleClaimed)
	s.Wake(p)
	return 1, s.settle(ctx, backend, claims[0])
}

// probe is held by the one worker whose call shows whether a backend is back.
func (s *Settler) probe(backend string) *sync.Mutex {
	one, _ := s.probing.LoadOrStore(backend, new(sync.Mutex))
	return one.(*sync.Mutex) //nolint:forcetypeassert // stored one line above
}

func (s *Settler) isProbing(backend string) bool {
	mutex := s.probe(backend)
	if !mutex.TryLock() {
		return true
	}
	mutex.Unlock()
	return false
}

// NextAt returns when Pass has work for the place at the earliest, or nil: not before an open breaker lets a call through.
func (s *Settler) NextAt(ctx context.Context, p models.Place) (*time.Time, error) {
	next, err := s.Store.NextStepAt(ctx, p)
	backend := s.Backends[p.Backend]
	if err != nil || next == nil || backend == nil {
		return next, err
	}
	wait, probe := backend.ClosedIn()
	if wait == 0 && probe && s.isProbing(p.Backend) {
		wait = s.Timing.Call // one worker's call is let through, and it is on its way; where it is answered that one wakes the next
	}
	if opens := s.Store.Now().Add(wait); wait > 0 && opens.After(*next) {
		return &opens, nil
	}
	return next, nil
}

// stepsMost ends a chain that does not come to rest by itself; the row stays due.
const stepsMost = 24

// recordWithin bounds a write that must be made although its caller is stopping.
const recordWithin = 10 * time.Second

// errReleased ends a chain whose row another order or another process has now.
var errReleased = errors.New("the box is no longer this claim's")

// work is one claim while it is worked on.
type work struct {
	*Settler
	backend Backend
	lease   *Lease
	claim   models.Claim
	facts   Facts
	info    *ServerInfo // of the box, once asked
	command string      // the entrypoint's id in the box, once known
	held    bool
}

func (s *Settler) settle(ctx context.Context, backend Backend, c models.Claim) (err error) {
	ctx, end := traced(ctx, c.Box)
	defer func() { end(err) }()
	w := &work{Settler: s, backend: backend, claim: c, held: true, lease: HoldLease(ctx, s.Store, c, s.Timing)}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("settle box %s: panic: %v\n%s", c.Box.ID, p, debug.Stack())
		}
		w.lease.End()
		err = errors.Join(err, w.release(ctx))
	}()
	err = w.chain(ctx)
	if err == nil || errors.Is(err, errReleased) || errors.Is(err, ErrBreakerOpen) { // the row keeps its time
		return nil
	}
	return fmt.Errorf("settle box %s: %w", c.Box.ID, err)
}

// chain makes steps until one ends it. Each is recorded before the next is decided on.
func (w *work) chain(ctx context.Context) error {
	for range stepsMost {
		next := NextStep(w.claim.Box, w.factsNow())
		step, ends, err := w.do(ctx, next)
		if err != nil {
			return err
		}
		step.Release = ends
		changed, err := w.record(ctx, step)
		switch {
		case errors.Is(err, models.ErrLeaseLost):
			w.held = false
			return errReleased
		case err != nil:
			return err
		case ends:
			w.held = false
		}
		if changed {
			w.Wake(w.place())
		}
		if changed || ends {
			return nil
		}
		if err := w.reload(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no rest after %d steps", stepsMost)
}

// do makes one step and says what to record of it, and whether that ends the chain. Its error means that nothing is to be
// recorded: the row keeps its time.
func (w *work) do(ctx context.Context, n Next) (step models.Step, ends bool, err error) {
	switch n.Step {
	case StepRest:
		return w.rest(n), true, nil
	case StepWait:
		step = w.blank(n.Step)
		step.Next, step.Waited = &n.At, true
		return step, true, nil
	case StepGiveWay:
		return w.giveWay(n), true, nil
	case StepOrder:
		return w.orderDeleted(n)
	case StepClose:
		return w.close(n), true, nil
	case StepInspect:
		return w.inspect()
	case StepCreate:
		return w.create(ctx)
	case StepSearch:
		return w.search()
	case StepUnaccounted:
		return w.unaccounted()
	case StepAccount:
		return w.account()
	case StepQuiesce, StepOutput, StepReclaim:
		step, err = w.prepare(n.Step)
		return step, false, err
	case StepExport:
		return w.export()
	case StepWake:
		return w.wakeToExport()
	case StepLost:
		return w.lost(n), false, nil
	case StepAwait:
		return w.await()
	case StepSuspend:
		return w.suspend(ctx)
	case StepResume:
		return w.resume()
	case StepDelete:
		return w.delete()
	case markUnreachable, markSuspendSent: // no steps
	}
	return step, false, fmt.Errorf("no such step: %s", n.Step)
}

func (w *work) factsNow() Facts {
	f := w.facts
	f.Now = w.Store.Now()
	f.Capabilities = w.backend.Capabilities()
	f.Settings = w.Settings
	if w.Exports == nil {
		f.Settings.Export = ExportOff
	}
	f.Run, f.Newest = w.claim.Run, w.claim.Newest
	f.KeepAlive = w.claim.KeepAlive
	f.Attached = w.claim.AttachedAt
	return f
}

// blank is the record of a step that changes nothing: what decisions hold now.
func (w *work) blank(name Step) models.Step {
	b := w.claim.Box
	return models.Step{
		BoxID: b.ID, Token: w.claim.Token, Generation: w.claim.Generation, Name: string(name),
		Next: b.NextStepAt, Attempts: b.Attempts, LastError: b.LastError, NeedsAttention: b.NeedsAttention, Searches: b.Searches,
	}
}

// event is an event of this box for a step's record.
func (w *work) event(what, outcome, reason string) models.Event {
	return models.Event{What: what, Actor: "settler", Outcome: outcome, Reason: reason}
}

// record writes a step, also while the service stops: else the step would be made again.
func (w *work) record(ctx context.Context, step models.Step) (changed bool, err error) {
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	changed, err = w.Store.RecordStep(write, step)
	if err != nil {
		return changed, fmt.Errorf("record %s: %w", step.Name, err)
	}
	testhooks.Reached(testhooks.SettleRecorded)
	w.Recorded(step.BoxID)
	return changed, nil
}

func (w *work) reload() error {
	c, err := w.Store.Reload(w.lease.Wire, w.claim.Box.ID, w.claim.Token)
	switch {
	case errors.Is(err, models.ErrLeaseLost):
		w.held = false
		return errReleased
	case err != nil:
		return err
	case c.Generation != w.claim.Generation: // the lease is given back, and the order found by the next claim
		w.Wake(w.place())
		return errReleased
	}
	w.claim = c
	return nil
}

// release gives the lease back where no record has; next_step_at stays.
func (w *work) release(ctx context.Context) error {
	if !w.held {
		return nil
	}
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	if err := w.Store.Release(write, w.claim.Box.ID, w.claim.Token); err != nil {
		return fmt.Errorf("release box %s: %w", w.claim.Box.ID, err)
	}
	return nil
}

func (w *work) place() models.Place {
	return models.Place{Backend: w.claim.Box.Backend, Location: w.claim.Box.Location}
}
