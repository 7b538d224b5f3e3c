package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// repeatsEvery is how often a failure that goes on is told of.
	repeatsEvery = time.Minute
	// repeatsMost bounds how many different failures are remembered; more are written as they come.
	repeatsMost = 1000
)

// varying are keys whose values may differ between lines about the same failure.
var varying = []string{"in_a_row", "retry_in_seconds", "attempt", "duration_ms", "bytes", "request_id", "trace_id", "stack"}

// repeats collapses identical failures: the first is written at once, and for as long as others follow, one line each interval
// that is the last of them and says how many there were.
type repeats struct {
	next slog.Handler
	mu   sync.Mutex
	seen map[string]*repeated
}

// repeated is one failure since it was last written.
type repeated struct {
	last  slog.Record
	n     int
	timer *time.Timer
}

func newRepeats(next slog.Handler) *repeats {
	return &repeats{next: next, seen: map[string]*repeated{}}
}

// count reports whether a line was counted instead of being written.
func (c *repeats) count(line slog.Record) bool {
	id := identity(line)
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.seen[id]; ok {
		was.last, was.n = line, was.n+1
		return true
	}
	if len(c.seen) < repeatsMost {
		c.seen[id] = &repeated{timer: time.AfterFunc(repeatsEvery, func() { c.tell(id, false) })}
	}
	return false
}

// ofTheMachine are kinds of errors that are about the service as a whole, whatever it was doing: their texts differ (a port, a
// run), and are no other failure for that.
var ofTheMachine = []string{kindDatabaseGone, kindDiskFull, kindTooManyFiles}

// identity is the same for lines that tell of the same failure.
func identity(line slog.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", line.Level, line.Message)
	general := false
	line.Attrs(func(a slog.Attr) bool {
		general = a.Key == errorKindKey && slices.Contains(ofTheMachine, a.Value.String())
		return !general
	})
	line.Attrs(func(a slog.Attr) bool {
		if !slices.Contains(varying, a.Key) && !(general && a.Key == "error") {
			fmt.Fprintf(&b, "\x00%s\x00%s", a.Key, a.Value)
		}
		return true
	})
	return b.String()
}

// tell writes what was counted of a failure, and forgets one that has not come again.
func (c *repeats) tell(id string, ends bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, ok := c.seen[id]
	if !ok {
		return
	}
	if was.n > 0 {
		line := was.last.Clone()
		line.AddAttrs(slog.Int("repeated", was.n))
		_ = c.next.Handle(context.Background(), line) // nobody can be told that a line was not written
	}
	if was.n == 0 || ends {
		was.timer.Stop()
		delete(c.seen, id)
		return
	}
	was.n = 0
	was.timer.Reset(repeatsEvery)
}

// flushLog writes what a log that newLog made has counted, and stops its timers.
func flushLog(log *slog.Logger) {
	h, ok := log.Handler().(*logHandler)
	if !ok {
		return
	}
	h.repeats.mu.Lock()
	var ids []string
	for id := range h.repeats.seen {
		ids = append(ids, id)
	}
	h.repeats.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		h.repeats.tell(id, true)
	}
}
