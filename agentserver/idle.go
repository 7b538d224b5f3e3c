package agentserver

import (
	"math"
	"strconv"
	"sync"
	"time"
)

// idleClock tells for how long the box has done no real work (S0-070). It runs on the monotonic clock, so that a step of
// the wall clock never makes a box look idle, and stands at zero while work is under way: a long command is activity for
// as long as it runs. Only bash and file operations move it; maintenance, probes and reads do not (S0-075, S0-076, S0-129).
type idleClock struct {
	now func() time.Time // with a monotonic reading

	mu      sync.Mutex
	last    time.Time
	running int
}

func newIdleClock(now func() time.Time) *idleClock { return &idleClock{now: now, last: now()} }

// touch notes that real work was done at this moment.
func (c *idleClock) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.now()
}

// begin notes that work has started that goes on until end.
func (c *idleClock) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	c.last = c.now()
}

// end notes that work told by begin has ended.
func (c *idleClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.last = c.now()
}

// idle is the time since the last real work, zero while some is under way.
func (c *idleClock) idle() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 {
		return 0
	}
	return max(0, c.now().Sub(c.last))
}

// lastWork is the moment of the last real work: the same one at each call until there is more.
func (c *idleClock) lastWork() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 {
		return c.now()
	}
	return c.last
}

// wholeSeconds is a duration as the contract writes it: whole seconds in the form of a float, 25.0.
type wholeSeconds time.Duration

// MarshalJSON writes the seconds.
func (s wholeSeconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, math.Floor(time.Duration(s).Seconds()), 'f', 1, 64), nil
}
