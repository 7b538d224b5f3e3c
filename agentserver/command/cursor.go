package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Cursor reads the lines of one command's output from a position on. It belongs to one reader. Close it.
type Cursor struct {
	output *output
	after  int64 // seq of the last line given out
	offset int64 // raw bytes up to after; -1: not known
	ended  bool  // the exit line was given out

	segment segment // the one that file reads
	file    *os.File
	lines   *bufio.Reader
}

// frame is a stored line, as far as reading it needs.
type frame struct {
	Type  string `json:"type"`
	Seq   int64  `json:"seq"`
	Data  []byte `json:"data"`
	Bytes int64  `json:"bytes"` // of a gap
}

func newCursor(o *output, after int64) *Cursor {
	c := &Cursor{output: o, after: after, offset: -1}
	if after == 0 {
		c.offset = 0
	}
	return c
}

// Close lets go of the files.
func (c *Cursor) Close() {
	if c.file != nil {
		_ = c.file.Close() // only read from
		c.file = nil
	}
}

// Read gives every line that is there now to emit, each as it goes over the wire, a gap line first where lines are
// missing. done says that the exit line was among them or before; otherwise changed is closed once there is more.
func (c *Cursor) Read(emit func(line []byte) error) (done bool, changed <-chan struct{}, err error) {
	return c.read(func(_ frame, line []byte) error { return emit(line) })
}

func (c *Cursor) read(emit func(f frame, line []byte) error) (done bool, changed <-chan struct{}, err error) {
	for {
		now := c.output.view()
		if c.after >= now.last {
			if now.end != nil && !c.ended && c.after < now.end.Seq {
				line := fmt.Appendf(nil, "{\"type\":\"exit\",\"seq\":%d,\"exit_code\":%d,\"reason\":%q}\n", now.end.Seq, now.end.ExitCode, now.end.Reason)
				if err := emit(frame{Type: "exit", Seq: now.end.Seq}, line); err != nil {
					return false, nil, err
				}
			}
			c.ended = now.end != nil
			return c.ended, now.changed, nil
		}
		if err := c.advance(now, emit); err != nil {
			return false, nil, err
		}
	}
}

// advance gives out the rest of one segment, or the gap that stands where no segment is.
func (c *Cursor) advance(now view, emit func(frame, []byte) error) error {
	i := slices.IndexFunc(now.segments, func(s segment) bool { return s.last > c.after })
	if i < 0 { // the newest lines could not be stored
		return c.skip(now, now.last, now.offset, emit)
	}
	wanted := now.segments[i]
	if wanted.first > c.after+1 {
		if err := c.skip(now, wanted.first-1, wanted.offset, emit); err != nil {
			return err
		}
	}
	if c.file == nil || c.segment.first != wanted.first {
		c.Close()
		file, err := c.output.dir.open(wanted.name())
		if errors.Is(err, fs.ErrNotExist) {
			return c.vanished(now, wanted, emit)
		}
		if err != nil {
			return fmt.Errorf("read output: %w", err)
		}
		c.file, c.segment, c.lines = file, wanted, bufio.NewReaderSize(file, 64<<10)
		c.offset = wanted.offset
	}
	return c.copy(wanted.last, emit)
}

// vanished tells a segment that was dropped since the view was taken from one that somebody removed, which is a gap.
func (c *Cursor) vanished(now view, gone segment, emit func(frame, []byte) error) error {
	if c.output.firstKept() > gone.first {
		return nil
	}
	return c.skip(now, gone.last, gone.offset+gone.raw, emit)
}

// copy gives out the lines up to last; those up to after have been given out before.
func (c *Cursor) copy(last int64, emit func(frame, []byte) error) error {
	for c.after < last {
		line, err := c.lines.ReadBytes('\n')
		if err == nil {
			var f frame
			if err = json.Unmarshal(line, &f); err == nil {
				c.offset += int64(len(f.Data)) + f.Bytes
				if f.Seq <= c.after {
					continue
				}
				if err := emit(f, line); err != nil {
					return err
				}
				c.after = f.Seq
				continue
			}
		}
		if errors.Is(err, io.EOF) || len(line) > 0 { // cut short or overwritten by somebody: the rest of it is a gap
			c.Close()
			return c.skip(view{}, last, -1, emit)
		}
		return fmt.Errorf("read output: %w", err)
	}
	return nil
}

// skip gives out a gap line for the lines after the position up to to; offset is the raw bytes printed up to there. Where
// the position's own offset is no longer known, the bytes are counted from the nearest one before it: never too few.
func (c *Cursor) skip(now view, to, offset int64, emit func(frame, []byte) error) error {
	from := c.offset
	if from < 0 {
		from = 0
		for _, m := range now.dropped {
			if m.seq <= c.after+1 {
				from = m.offset
			}
		}
	}
	missing := gap{from: c.after + 1, to: to, bytes: max(0, offset-from)}
	if err := emit(frame{Type: "gap", Seq: to}, missing.line()); err != nil {
		return err
	}
	c.after, c.offset = to, offset
	return nil
}

// text joins what is kept of the lines from…to, each stream for itself. nil: that stream printed nothing there.
func (o *output) text(from, to int64) (stdout, stderr *string, err error) {
	if to < from {
		return nil, nil, nil
	}
	streams := map[string][]byte{}
	cursor := newCursor(o, from-1)
	defer cursor.Close()
	_, _, err = cursor.read(func(f frame, _ []byte) error {
		if f.Seq > to {
			return errPast
		}
		if f.Type == Stdout || f.Type == Stderr {
			streams[f.Type] = append(streams[f.Type], f.Data...)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errPast) {
		return nil, nil, err
	}
	joined := func(stream string) *string {
		data, ok := streams[stream]
		if !ok {
			return nil
		}
		text := string(data)
		return &text
	}
	return joined(Stdout), joined(Stderr), nil
}

// errPast ends a read behind the last wanted line.
var errPast = errors.New("past the last wanted line")
