package models

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// clock is the one clock of rows (design section 4). It remembers one reading and goes on from it monotonically.
type clock struct {
	replaced func() time.Time     // WithClock: the only source when set
	shift    func() time.Duration // WithShift: what now is off by; nil: nothing
	wall     func() time.Time     // the machine's clock on the wall, which may be set
	mono     func() time.Duration // the machine's monotonic clock

	mu      sync.Mutex
	reading time.Time     // what the rows' clock showed …
	at      time.Duration // … at this moment of mono
	follow  bool          // the wall clock is the source, so its steps forward count (SQLite)
	last    time.Time     // what now returned last
}

// smallStep is how far a new reading of PostgreSQL's clock may lie back before it is believed: less is the noise of the round
// trip.
const smallStep = time.Second

func newClock(o options, follow bool) *clock {
	start := time.Now()
	c := &clock{
		replaced: o.clock, shift: o.shift, wall: o.host, mono: func() time.Duration { return time.Since(start) }, follow: follow,
	}
	if c.wall == nil {
		c.wall = time.Now
	}
	c.reading, c.at = c.wall().Round(0), c.mono()
	return c
}

// now returns the time of rows, shifted where a test says so.
func (c *clock) now() time.Time {
	if c.shift == nil {
		return c.straight()
	}
	return rowTime(c.straight().Add(c.shift()))
}

// straight is the time of rows. On SQLite a step of the wall clock forward is taken at once (a machine that slept), a step
// backward never: the clock goes on from what it showed, so nothing is late and nothing happens twice.
func (c *clock) straight() time.Time {
	if c.replaced != nil {
		return rowTime(c.replaced())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.mono()
	now := c.reading.Add(mono - c.at)
	if wall := c.wall().Round(0); c.follow && wall.After(now) {
		c.reading, c.at, now = wall, mono, wall
	}
	now = rowTime(now)
	if now.Before(c.last) {
		return c.last
	}
	c.last = now
	return now
}

// set takes a reading of the database's clock that was asked for at the moment asked of mono, and returns by how much the
// machine's clock is ahead. Half of the round trip is taken for the way of the answer.
func (c *clock) set(reading time.Time, asked time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	answered := c.mono()
	c.reading, c.at = reading, asked+(answered-asked)/2
	if c.last.Sub(reading) > smallStep {
		c.last = time.Time{} // the database's clock was set back; every replica follows it, or leases would disagree
	}
	return c.wall().Sub(reading.Add(answered - c.at))
}

// rowTime is t as rows keep it.
func rowTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Now is the only clock of rows, UTC, cut to microseconds: PostgreSQL's own (read at start and every minute by Sync, advanced
// monotonically between), the host's on SQLite, where a backward step only waits (design section 4).
func (s *Store) Now() time.Time { return s.clock.now() }

// Sync reads the database's clock anew and returns the host's skew against it, positive when the host is ahead (zero on
// SQLite and where WithClock is the clock).
func (s *Store) Sync(ctx context.Context) (skew time.Duration, err error) {
	if s.dialect == SQLite || s.clock.replaced != nil {
		return 0, s.Ping(ctx)
	}
	asked := s.clock.mono()
	var now time.Time
	if err := s.db.NewRaw("SELECT clock_timestamp()").Scan(ctx, &now); err != nil {
		return 0, fmt.Errorf("read the database's clock: %w", err)
	}
	return s.clock.set(now, asked), nil
}
