package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"automation/models/customer"
	"automation/sandbox"
)

// Bounds of a chunk: it is stored when it has so many raw bytes, or so long after its first line. Readers hold chunks one by
// one, so its size is also what each of them takes of memory.
const (
	chunkBytes = 64 << 10
	chunkAge   = 30 * time.Millisecond
	// silentFor is how long a stream may bring nothing, which has a line every 15 seconds, before it is followed anew.
	silentFor = 45 * time.Second
)

// received is one frame of a box, or how its stream ended.
type received struct {
	frame sandbox.Frame
	err   error
}

var errBrokenOff = errors.New("the box broke the output off")

// store stores the output of the command from the newest stored line on, and returns its exit frame.
func (c *collector) store(ctx context.Context, agent sandbox.Agent) (exit sandbox.Frame, err error) {
	reading, cancel := context.WithCancel(ctx)
	frames := make(chan received, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.receive(reading, agent, frames)
	}()
	defer func() {
		cancel()
		<-done
	}()
	var next chunk
	age, silent := time.NewTimer(chunkAge), time.NewTimer(silentFor)
	defer age.Stop()
	defer silent.Stop()
	for {
		var due <-chan time.Time
		if next.first > 0 {
			due = age.C
		}
		select {
		case got := <-frames:
			if got.err != nil || got.frame.Type == sandbox.FrameExit {
				return got.frame, errors.Join(c.append(ctx, &next), got.err)
			}
			silent.Reset(silentFor)
			c.silent = time.Time{}
			if next.first == 0 {
				age.Reset(chunkAge)
			}
			if err := next.add(got.frame, c.session.LastSeq); err != nil {
				return sandbox.Frame{}, err
			}
			if next.bytes >= chunkBytes {
				err = c.append(ctx, &next)
			}
		case <-due:
			err = c.append(ctx, &next)
		case <-silent.C:
			err = errBrokenOff
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return sandbox.Frame{}, err
		}
	}
}

// receive reads the stream of the box until its end.
func (c *collector) receive(ctx context.Context, agent sandbox.Agent, to chan<- received) {
	send := func(r received) bool {
		select {
		case to <- r:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for frame, err := range agent.FollowOutput(ctx, *c.session.CommandID, c.session.LastSeq) {
		if !send(received{frame, err}) || err != nil || frame.Type == sandbox.FrameExit {
			return
		}
	}
	send(received{err: errBrokenOff})
}

// append stores the chunk that is being made, and begins the next.
func (c *collector) append(ctx context.Context, next *chunk) error {
	if next.first == 0 {
		return nil
	}
	stderr := next.stderr
	row := &customer.Chunk{
		SessionID: c.session.ID, FirstSeq: next.first, LastSeq: next.last, Bytes: next.bytes, Span: next.span, Lines: next.lines,
	}
	*next = chunk{}
	if err := c.s.Agents.AppendOutput(ctx, c.token, c.s.Store.Now().Add(leaseFor), row); err != nil {
		return err
	}
	c.session.LastSeq = row.LastSeq
	c.s.Collected(row.Bytes-stderr, stderr, row.Span-row.Bytes)
	c.s.announce(c.session.ID)
	return nil
}

// chunk is lines on their way into the store. Its zero value is empty.
type chunk struct {
	first, last int64
	bytes, span int64
	stderr      int64 // of bytes
	lines       []byte
}

// add appends a frame. The seq is the box's own; frames up to stored are not taken twice.
func (n *chunk) add(f sandbox.Frame, stored int64) error {
	if f.Type == sandbox.FrameGap {
		f.Seq = f.ToSeq
	}
	if f.Type == sandbox.FrameKeepalive || f.Seq <= max(stored, n.last) {
		return nil
	}
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	n.lines = append(append(n.lines, line...), '\n')
	if n.first == 0 {
		n.first = f.Seq
		if f.Type == sandbox.FrameGap {
			n.first = f.FromSeq
		}
	}
	n.last = f.Seq
	n.bytes += int64(len(f.Data))
	if f.Type == sandbox.FrameStderr {
		n.stderr += int64(len(f.Data))
	}
	n.span += int64(len(f.Data)) + f.Bytes
	return nil
}
