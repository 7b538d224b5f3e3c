package models

import (
	"context"
	"sync"
	"time"
)

// clock is the one clock of rows (design section 4). It remembers one reading and goes on from it monotonically.
type clock struct {
	replaced func() time.Time // WithClock: the only source when set
	host     func() time.Time // the machine's clock, with its monotonic reading

	mu      sync.Mutex
	reading time.Time // what the rows' clock showed …
	at      time.Time // … at this moment of the host's monotonic clock
	follow  bool      // the host's wall clock is the source, so its steps forward count (SQLite)
	last    time.Time // what now returned last
}

// smallStep is how far a new reading may lie back before it is believed: less is the noise of the round trip.
const smallStep = time.Second

func newClock(o options, follow bool) *clock {
	host := o.host
	if host == nil {
		host = time.Now
	}
	now := host()
	return &clock{replaced: o.clock, host: host, follow: follow, reading: now.Round(0), at: now}
}

// now returns the time of rows. On SQLite a step of the wall clock forward is taken at once (a machine that slept), a step
// backward never: the clock goes on from what it showed, so nothing is late and nothing happens twice.
func (c *clock) now() time.Time {
	if c.replaced != nil {
		return rowTime(c.replaced())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	host := c.host()
	now := c.reading.Add(host.Sub(c.at))
	if wall := host.Round(0); c.follow && wall.After(now) {
		c.reading, c.at, now = wall, host, wall
	}
	now = rowTime(now)
	if now.Before(c.last) {
		return c.last
	}
	c.last = now
	return now
}

// set takes a new reading of the database's clock, made between before and after, and returns by how much the host is ahead.
func (c *clock) set(reading, before, after time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	middle := before.Add(after.Sub(before) / 2)
	c.reading, c.at = reading, middle
	if c.last.Sub(reading) > smallStep {
		c.last = time.Time{} // the database's clock was set back; every replica follows it, or leases would disagree
	}
	return middle.Round(0).Sub(reading)
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
	before := s.clock.host()
	var now time.Time
	if err := s.db.NewRaw("SELECT clock_timestamp()").Scan(ctx, &now); err != nil {
		return 0, err
	}
	return s.clock.set(now, before, s.clock.host()), nil
}
