package modelstest

import (
	"sync"
	"time"
)

// Start is where a Clock begins.
var Start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// Clock is a clock that moves only when a test says so: models.WithClock(clock.Now). It can be used from any goroutine.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows Start.
func NewClock() *Clock { return &Clock{now: Start} }

// Now returns what the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d, backward too.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
