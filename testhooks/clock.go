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
	path       string
	host, rows atomic.Int64 // time.Duration
}

// NewClock reads the file for the first time.
func NewClock() (*Clock, error) {
	c := &Clock{path: os.Getenv("AUTOMATION_TEST_CLOCK")}
	_, err := c.Read()
	return c, err
}

// Host is the machine's clock as the file shifts it.
func (c *Clock) Host() time.Time { return time.Now().Add(time.Duration(c.host.Load())) }

// Rows is by how much the clock of rows is shifted.
func (c *Clock) Rows() time.Duration { return time.Duration(c.rows.Load()) }

// Read reads the file anew and reports whether it says something else than before. Tests replace it in one step.
func (c *Clock) Read() (changed bool, err error) {
	if c.path == "" {
		return false, nil
	}
	text, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the test clock: %w", err)
	}
	shift := map[string]time.Duration{"host": 0, "rows": 0}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "" {
			continue
		}
		d, err := time.ParseDuration(value)
		if _, known := shift[name]; !known || err != nil {
			return false, fmt.Errorf("test clock: %q is not host=<duration> or rows=<duration>", strings.TrimSpace(line))
		}
		shift[name] = d
	}
	host, rows := int64(shift["host"]), int64(shift["rows"])
	return c.host.Swap(host) != host || c.rows.Swap(rows) != rows, nil
}
