package sandboxtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/sandbox"
)

// ErrLostAnswer is what a call returns whose effect took place but whose answer was lost.
var ErrLostAnswer = errors.New("connection reset by peer")

// Call is one call that a Fake took.
type Call struct {
	Method    string // Create, Inspect, Suspend, Resume, Delete, List
	Workspace uuid.UUID
	IDs       []string // of the identities that were asked about
}

// calls is the fault machinery of a Fake: the log, delays, failures and holds. Methods are named by their Go name.
type calls struct {
	faultMu sync.Mutex
	log     []Call
	delay   map[string]time.Duration
	once    map[string][]error
	always  map[string]error
	perBox  map[string]map[uuid.UUID]error
	lost    map[string]int
	before  map[string][]*Hold
	after   map[string][]*Hold
	watch   func(Call)
}

// Calls returns the log so far.
func (c *calls) Calls() []Call {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	return append([]Call(nil), c.log...)
}

// Count returns how often a method was called.
func (c *calls) Count(method string) int {
	return c.count(func(l Call) bool { return l.Method == method })
}

// CountFor returns how often a method was called for a box.
func (c *calls) CountFor(method string, workspace uuid.UUID) int {
	return c.count(func(l Call) bool { return l.Method == method && l.Workspace == workspace })
}

func (c *calls) count(match func(Call) bool) int {
	n := 0
	for _, call := range c.Calls() {
		if match(call) {
			n++
		}
	}
	return n
}

// Methods returns the names of the methods called for a box, in order.
func (c *calls) Methods(workspace uuid.UUID) []string {
	var names []string
	for _, call := range c.Calls() {
		if call.Workspace == workspace {
			names = append(names, call.Method)
		}
	}
	return names
}

// Watch calls seen at the start of every call, before its effect; nil ends it.
func (c *calls) Watch(seen func(Call)) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	c.watch = seen
}

// Delay lets every call of a method take d, or until its context ends.
func (c *calls) Delay(method string, d time.Duration) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	put(&c.delay, method, d)
}

// Fail lets the next calls of a method fail with errs, one each, without effect.
func (c *calls) Fail(method string, errs ...error) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	put(&c.once, method, append(c.once[method], errs...))
}

// Forgive takes back what Fail has set for a method and no call has met yet.
func (c *calls) Forgive(method string) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	put(&c.once, method, nil)
}

// FailAlways lets every call of a method fail without effect; a nil err ends it.
func (c *calls) FailAlways(method string, err error) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	put(&c.always, method, err)
}

// FailFor lets every call of a method for one box fail without effect; a nil err ends it.
func (c *calls) FailFor(method string, workspace uuid.UUID, err error) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	if c.perBox[method] == nil {
		put(&c.perBox, method, map[uuid.UUID]error{})
	}
	c.perBox[method][workspace] = err
}

// LoseAnswer lets the next n calls of a method take effect and yet return ErrLostAnswer.
func (c *calls) LoseAnswer(method string, n int) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	put(&c.lost, method, n)
}

// Hold stops one call until it is released.
type Hold struct {
	Entered chan Call // the call, once it waits
	release chan struct{}
	once    sync.Once
}

// Release lets the held call go on.
func (h *Hold) Release() { h.once.Do(func() { close(h.release) }) }

// Hold stops the next call of a method before its effect.
func (c *calls) Hold(method string) *Hold {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	return addHold(&c.before, method)
}

// HoldAnswer stops the next call of a method after its effect, before its answer.
func (c *calls) HoldAnswer(method string) *Hold {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	return addHold(&c.after, method)
}

func addHold(to *map[string][]*Hold, method string) *Hold {
	h := &Hold{Entered: make(chan Call, 1), release: make(chan struct{})}
	put(to, method, append((*to)[method], h))
	return h
}

func put[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// call records a call and runs its effect between the faults that are set for it.
func (c *calls) call(ctx context.Context, method string, workspace uuid.UUID, ids []sandbox.Identity, effect func() error) error {
	call := Call{Method: method, Workspace: workspace}
	for _, i := range ids {
		call.IDs = append(call.IDs, i.ProviderID)
	}
	if err := c.enter(ctx, call); err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	return c.leave(ctx, call)
}

func (c *calls) enter(ctx context.Context, call Call) error {
	c.faultMu.Lock()
	c.log = append(c.log, call)
	watch, delay := c.watch, c.delay[call.Method]
	hold := takeHold(c.before, call.Method)
	err := c.always[call.Method]
	if own := c.perBox[call.Method][call.Workspace]; own != nil {
		err = own
	}
	if queued := c.once[call.Method]; len(queued) > 0 {
		err, c.once[call.Method] = queued[0], queued[1:]
	}
	c.faultMu.Unlock()
	if watch != nil {
		watch(call)
	}
	if waitErr := hold.wait(ctx, call); waitErr != nil {
		return waitErr
	}
	if delay > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c *calls) leave(ctx context.Context, call Call) error {
	c.faultMu.Lock()
	hold := takeHold(c.after, call.Method)
	lost := c.lost[call.Method] > 0
	if lost {
		c.lost[call.Method]--
	}
	c.faultMu.Unlock()
	if err := hold.wait(ctx, call); err != nil {
		return err
	}
	if lost {
		return ErrLostAnswer
	}
	return nil
}

func takeHold(from map[string][]*Hold, method string) *Hold {
	if len(from[method]) == 0 {
		return nil
	}
	h := from[method][0]
	from[method] = from[method][1:]
	return h
}

func (h *Hold) wait(ctx context.Context, call Call) error {
	if h == nil {
		return nil
	}
	h.Entered <- call
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.release:
		return nil
	}
}
