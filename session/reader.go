package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"automation/models/customer"
	"automation/sandbox"
)

// Bounds of readers.
const (
	mostReaders    = 256              // of one session in one process (S2-071)
	keepaliveEvery = 15 * time.Second // of silence (S2-069)
	pollEvery      = 250 * time.Millisecond
	tailBytes      = 2 << 20 // of lines that the readers of a session share
)

var keepalive = []byte(`{"type":"keepalive"}` + "\n")

// Reading is what a reader asks for.
type Reading struct {
	SessionID string
	After     int64     // seq of the last line that the reader has; 0: from the beginning
	Follow    bool      // wait for more; else end with what is stored
	Until     time.Time // the reader is sent away then, to come back (S2-056)
}

// Read gives lines to write, whole ones, until the exit line, the end of Reading, the end of ctx or Close. An error after the
// first write means that the reader must not take what it has for an orderly end. Errors before it: ErrAhead,
// ErrTooManyReaders, models.ErrNotFound.
func (s *Sessions) Read(ctx context.Context, what Reading, write func(lines []byte) error) error {
	t, err := s.watch(ctx, what.SessionID, mostReaders)
	if err != nil {
		return err
	}
	defer s.unwatch(t)
	session, err := s.Agents.Session(ctx, what.SessionID)
	if err != nil {
		return err
	}
	if what.After > session.LastSeq {
		return fmt.Errorf("%w: %d, after %d", ErrAhead, session.LastSeq, what.After)
	}
	r := &reader{s: s, tail: t, seq: what.After, write: write}
	if r.at, err = s.Agents.ByteAt(ctx, what.SessionID, what.After); err != nil {
		return err
	}
	if err := write(nil); err != nil { // the answer begins, even when there is nothing yet
		return err
	}
	left := s.Reads()
	err = r.run(ctx, what)
	left(r.why(err))
	return err
}

// why says why a reader that has read so far leaves.
func (r *reader) why(err error) string {
	switch {
	case err != nil:
		return LeftClient
	case r.over:
		return LeftExited
	case r.s.running.Err() != nil:
		return LeftShutdown
	}
	return LeftRotated
}

// reader is one reader on its way through the output.
type reader struct {
	s     *Sessions
	tail  *tail
	seq   int64 // of the last line that was written
	at    int64 // bytes printed up to it
	over  bool  // it was the exit line
	write func([]byte) error
}

func (r *reader) run(ctx context.Context, what Reading) error {
	rotate := time.NewTimer(time.Until(what.Until))
	defer rotate.Stop()
	quiet := time.NewTicker(keepaliveEvery)
	defer quiet.Stop()
	for time.Now().Before(what.Until) && r.s.running.Err() == nil {
		session, changed := r.tail.now()
		wrote, done, err := r.forward(ctx, session)
		if err != nil || done {
			r.over = done
			return err
		}
		if wrote {
			quiet.Reset(keepaliveEvery)
			continue
		}
		if !what.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-quiet.C:
			if err := r.write(keepalive); err != nil {
				return err
			}
		case <-rotate.C:
		case <-r.s.running.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// forward writes the next chunk, or the end; done after the exit line.
func (r *reader) forward(ctx context.Context, session *customer.Session) (wrote, done bool, err error) {
	last := session.LastSeq
	if session.Closed() {
		last-- // the newest is the exit line
	}
	if r.seq >= last {
		if !session.Closed() {
			return false, false, nil
		}
		if r.seq < session.LastSeq {
			err = r.write(exitLine(session))
		}
		return false, true, err
	}
	c, ok := r.tail.after(r.seq)
	if !ok {
		if c, err = r.s.Agents.Output(ctx, session.ID, r.seq); err != nil {
			return false, false, err
		}
	}
	if c == nil { // what was between is dropped or purged
		c = &customer.Chunk{FirstSeq: last + 1, LastSeq: last, AtByte: session.Bytes}
	}
	var lines []byte
	if c.FirstSeq > r.seq+1 {
		lines = gapLine(r.seq+1, c.FirstSeq-1, max(c.AtByte-r.at, 0))
		lines = append(lines, c.Lines...)
	} else {
		lines = linesAfter(c, r.seq)
	}
	if err := r.write(lines); err != nil {
		return false, false, err
	}
	r.seq, r.at = c.LastSeq, c.AtByte+c.Span
	return true, false, nil
}

// linesAfter cuts a chunk to the lines after seq.
func linesAfter(c *customer.Chunk, seq int64) []byte {
	rest := c.Lines
	for c.FirstSeq <= seq && len(rest) > 0 {
		var head struct {
			Seq int64 `json:"seq"`
		}
		end := bytes.IndexByte(rest, '\n') + 1
		if json.Unmarshal(rest[:end], &head) != nil || head.Seq > seq {
			break
		}
		rest = rest[end:]
	}
	return rest
}

func gapLine(from, to, lost int64) []byte {
	return fmt.Appendf(nil, `{"type":"gap","seq":%d,"from_seq":%d,"to_seq":%d,"bytes":%d}`+"\n", to, from, to, lost)
}

// exitLine is the last line of a session that ended (S2-053).
func exitLine(session *customer.Session) []byte {
	code := "null"
	if session.ExitCode != nil {
		code = strconv.Itoa(*session.ExitCode)
	}
	return fmt.Appendf(nil, `{"type":%q,"seq":%d,"exit_code":%s,"reason":%q,"output_truncated":%t}`+"\n",
		sandbox.FrameExit, session.LastSeq, code, session.Reason, session.Truncated())
}
