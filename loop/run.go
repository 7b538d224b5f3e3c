package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// mostStagger bounds the random wait before a first pass, which keeps replicas from marching together.
	mostStagger = 2 * time.Second
	// firstBackoff is the wait after an error; it doubles with each in a row, up to Every and to mostBackoff: a duty of every
	// hour is not to keep a service from being ready for an hour after its database is back.
	firstBackoff = time.Second
	mostBackoff  = 30 * time.Second
	// firstIdle is the wait after a pass that did nothing although something was due (it belongs to others, or the clocks
	// differ by a hair); it doubles up to mostIdle.
	firstIdle = 10 * time.Millisecond
	mostIdle  = time.Second
	// idleGap is the least time from a pass that found nothing to the next that a nudge asks for, over all workers of a loop:
	// what nudges in thousands costs a few looks.
	idleGap = 50 * time.Millisecond
	// failingFrom failures in a row make a Problem, for one alone happens.
	failingFrom = 3
	// stalledAfter intervals without a success do too, but not less than stalledLeast.
	stalledAfter = 5
	stalledLeast = 2 * time.Minute
)

// Runner runs loops and knows how they are.
type Runner struct {
	log   *slog.Logger
	loops []*tracked
}

// tracked is a loop with its figures.
type tracked struct {
	Loop
	mu      sync.Mutex
	status  Status
	idleAt  time.Time // when a pass last found nothing
	waiting bool      // a worker waits out idleGap for all who were nudged
}

// Status is how one loop is, over all its workers.
type Status struct {
	Name          string
	Every         time.Duration
	Passes        int64     // finished ones, failed ones too
	Failures      int64     // of them failed
	FailuresInRow int64     // since the last success
	Done          int64     // what passes did, summed
	Running       int       // passes at this moment
	Busy          bool      // every worker is in a pass that bounds itself
	Began         time.Time // when the loop began to run; zero: it has not
	LastSuccess   time.Time // zero: none yet
	LastError     string    // of the last failed pass; "" after a success
}

// New prepares loops. Its error names a loop that cannot run.
func New(log *slog.Logger, loops ...Loop) (*Runner, error) {
	r := &Runner{log: log}
	for _, l := range loops {
		if err := l.validate(); err != nil {
			return nil, err
		}
		r.loops = append(r.loops, &tracked{Loop: l, status: Status{Name: l.Name, Every: l.Every}})
	}
	return r, nil
}

// Run runs loops until ctx ends, and returns when the last pass has.
func Run(ctx context.Context, log *slog.Logger, loops ...Loop) error {
	r, err := New(log, loops...)
	if err != nil {
		return err
	}
	r.Run(ctx)
	return nil
}

// Run runs the loops until ctx ends, and returns when the last pass has.
func (r *Runner) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, t := range r.loops {
		t.count(func(s *Status) { s.Began = time.Now() })
		for range max(t.Workers, 1) {
			workers.Go(func() { t.work(ctx, r.log.With("loop", t.Name)) })
		}
	}
	workers.Wait()
}

// Status returns how each loop is, in the order given to New.
func (r *Runner) Status() []Status {
	all := make([]Status, len(r.loops))
	for i, t := range r.loops {
		t.mu.Lock()
		all[i] = t.status
		all[i].Busy = t.Timeout == Unbounded && t.status.Running >= max(t.Workers, 1)
		t.mu.Unlock()
	}
	return all
}

// work makes passes until ctx ends.
func (t *tracked) work(ctx context.Context, log *slog.Logger) {
	failed, idle := 0, 0
	wake := t.Nudge
	wait := rand.N(min(t.Every/10, mostStagger) + 1)
	for t.sleep(ctx, wait, wake) {
		done, err := t.pass(ctx, log)
		if err == nil && t.Batch > 0 && done >= t.Batch {
			failed, idle, wait = 0, 0, 0
			continue
		}
		var due time.Duration
		if err == nil {
			due, err = t.untilDue(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failed++
			wait, wake = min(doubled(firstBackoff, failed), mostBackoff, t.Every), nil // a nudge must not turn a failing pass into a spin
			log.Error("pass failed", "error", err, "in_a_row", failed, "retry_in", wait)
		case due <= 0 && done == 0:
			idle++
			failed, wait, wake = 0, min(doubled(firstIdle, idle), mostIdle, t.Every), t.Nudge
		default:
			failed, idle, wait, wake = 0, 0, due, t.Nudge
		}
	}
}

// untilDue is how long to wait for the next piece of work, at most Every.
func (t *tracked) untilDue(ctx context.Context) (time.Duration, error) {
	if t.Until == nil {
		return t.Every, nil
	}
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	at, err := t.Until(ctx)
	if err != nil {
		return 0, fmt.Errorf("earliest time of work: %w", err)
	}
	if at == nil {
		return t.Every, nil
	}
	return min(at.Sub(t.Now()), t.Every), nil
}

// pass makes one and keeps the figures.
func (t *tracked) pass(ctx context.Context, log *slog.Logger) (done int, err error) {
	t.count(func(s *Status) { s.Running++ })
	defer func() {
		t.count(func(s *Status) {
			s.Running--
			s.Passes++
			s.Done += int64(done)
			if err != nil {
				s.Failures++
				s.FailuresInRow++
				s.LastError = err.Error()
				return
			}
			s.FailuresInRow, s.LastError, s.LastSuccess = 0, "", time.Now()
			if done == 0 {
				t.idleAt = s.LastSuccess
			}
		})
	}()
	bounded, release := t.context(ctx)
	defer release()
	done, err = t.recovered(bounded, log)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // we are stopping: the pass did what it could
	}
	return done, err
}

// recovered turns a panic of a pass into an error; its stack goes to the log only.
func (t *tracked) recovered(ctx context.Context, log *slog.Logger) (done int, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("pass panicked", "error", p, "stack", string(debug.Stack()))
			done, err = 0, fmt.Errorf("panic: %v", p)
		}
	}()
	return t.Pass(ctx)
}

func (t *tracked) count(change func(*Status)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.status)
}

// doubled is first, doubled with each of n after the first, without overflow.
func doubled(first time.Duration, n int) time.Duration { return first << min(n-1, 16) }

// sleep waits for d or a wake, and reports whether to go on.
func (t *tracked) sleep(ctx context.Context, d time.Duration, wake Nudge) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-wake:
		}
		if gap, mine := t.gap(); mine {
			return t.rest(ctx, gap, timer.C)
		}
	}
}

// gap is how long a nudge has to wait since the last pass that found nothing; not mine where another worker waits already, for
// its pass sees what this nudge is about too.
func (t *tracked) gap() (d time.Duration, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d = idleGap - time.Since(t.idleAt)
	if d <= 0 {
		return 0, true
	}
	mine = !t.waiting
	t.waiting = true
	return d, mine
}

// rest waits out a gap, but not beyond what sleep waits for.
func (t *tracked) rest(ctx context.Context, gap time.Duration, due <-chan time.Time) bool {
	if gap <= 0 {
		return true
	}
	timer := time.NewTimer(gap)
	defer timer.Stop()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waiting = false
	}()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-due:
	}
	return true
}

// Problem says in a word or two what is wrong with a loop at now, or "" for nothing: it fails again and again, or no pass has
// succeeded for five of its intervals and two minutes. One all of whose workers are in passes that bound themselves is busy,
// not stalled.
func (s Status) Problem(now time.Time) string {
	last := s.LastSuccess
	if last.IsZero() {
		last = s.Began
	}
	switch {
	case last.IsZero():
		return "not begun"
	case s.FailuresInRow >= failingFrom:
		return "failing"
	case !s.Busy && now.Sub(last) > max(stalledAfter*s.Every, stalledLeast):
		return "stalled"
	}
	return ""
}
