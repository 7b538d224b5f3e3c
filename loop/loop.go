// Package loop runs background duties, and is the only place where they get their goroutines. A duty is a Loop: one bounded,
// repeatable pass, and when to make the next. It reads no clock but the store's and starts nothing itself.
package loop

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Unbounded is the Timeout of a loop whose passes bound themselves.
const Unbounded time.Duration = -1

// defaultTimeout ends a pass whose loop says nothing.
const defaultTimeout = time.Minute

// Loop is one duty.
type Loop struct {
	// Name is what log lines and Status call it.
	Name string
	// Every is the longest wait between two passes.
	Every time.Duration
	// Batch is the size of a full pass: as long as a pass does so many or more, the next follows at once. 0: never.
	Batch int
	// Workers make passes side by side; 0 is one. A wake reaches one of them, so a pass that has claimed its work wakes the
	// next before it starts on it, and idle workers join in as long as there is something to claim.
	Workers int
	// Timeout ends the context of a pass; 0 is a minute. See Unbounded.
	Timeout time.Duration
	// Grace is how long the context of a running pass outlives that of Run; no pass starts in it.
	Grace time.Duration
	// Pass does one bounded batch and returns how much it did. Its errors are logged and lengthen the wait; a panic counts as
	// an error.
	Pass func(ctx context.Context) (done int, err error)
	// Until, where given, returns the earliest time at which there is something to do, or nil: the wait ends then.
	Until func(ctx context.Context) (*time.Time, error)
	// Now is the clock that Until's times belong to.
	Now func() time.Time
	// Nudge, where given, ends the wait.
	Nudge Nudge
}

// Nudge ends a loop's wait: a hint that there is work, never the only way to find it. Several before the next pass count as
// one. A nil Nudge does nothing.
type Nudge chan struct{}

// NewNudge makes a Nudge for one Loop and those that wake it.
func NewNudge() Nudge { return make(Nudge, 1) }

// Wake never blocks.
func (n Nudge) Wake() {
	select {
	case n <- struct{}{}:
	default:
	}
}

func (l Loop) validate() error {
	switch {
	case l.Name == "":
		return errors.New("loop without a name")
	case l.Pass == nil:
		return fmt.Errorf("loop %s: no pass", l.Name)
	case l.Every <= 0:
		return fmt.Errorf("loop %s: interval %v is not positive", l.Name, l.Every)
	case l.Until != nil && l.Now == nil:
		return fmt.Errorf("loop %s: Until without the clock of its times", l.Name)
	}
	return nil
}

// context bounds one pass by Timeout, and lets it outlive ctx by Grace.
func (l Loop) context(ctx context.Context) (context.Context, context.CancelFunc) {
	pass, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unbind := context.AfterFunc(ctx, func() {
		if l.Grace <= 0 {
			cancel()
			return
		}
		select {
		case <-time.After(l.Grace):
			cancel()
		case <-pass.Done():
		}
	})
	release := func() { unbind(); cancel() }
	if l.Timeout == Unbounded {
		return pass, release
	}
	limit := l.Timeout
	if limit == 0 {
		limit = defaultTimeout
	}
	bounded, end := context.WithTimeout(pass, limit)
	return bounded, func() { end(); release() }
}
