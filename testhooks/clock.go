//go:build testhooks

package testhooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Clock is the test clock: what the file of AUTOMATION_TEST_CLOCK says, a line name=duration each. "host" shifts the machine's
// clock, "rows" the clock of rows after the database has corrected it. A file that is not there shifts nothing.
type Clock struct {
	path string
	now  atomic.Pointer[shifts]
}

// shifts are what the file says.
type shifts struct{ host, rows time.Duration }

// NewClock reads the file for the first time.
func NewClock() (*Clock, error) {
	c := &Clock{path: os.Getenv("AUTOMATION_TEST_CLOCK")}
	c.now.Store(&shifts{})
	_, err := c.Read(func() bool { return true })
	return c, err
}

// Host is the machine's clock as the file shifts it.
func (c *Clock) Host() time.Time { return time.Now().Add(c.now.Load().host) }

// Rows is by how much the clock of rows is shifted.
func (c *Clock) Rows() time.Duration { return c.now.Load().rows }

// String is what the clock is shifted by, in the order of the names.
func (c *Clock) String() string {
	now := c.now.Load()
	return fmt.Sprintf("host=%s rows=%s", now.host, now.rows)
}

// Read reads the file anew. Where it says something else than before, and may agrees, the clock is moved: changed. Tests
// replace the file in one step.
func (c *Clock) Read(may func() bool) (changed bool, err error) {
	if c.path == "" {
		return false, nil
	}
	text, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the test clock: %w", err)
	}
	var next shifts
	fields := map[string]*time.Duration{"host": &next.host, "rows": &next.rows}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "" {
			continue
		}
		d, err := time.ParseDuration(value)
		if fields[name] == nil || err != nil {
			return false, fmt.Errorf("test clock: %q is not host=<duration> or rows=<duration>", strings.TrimSpace(line))
		}
		*fields[name] = d
	}
	if next == *c.now.Load() || !may() {
		return false, nil
	}
	c.now.Store(&next)
	return true, nil
}
