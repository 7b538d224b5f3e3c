package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"automation/models/customer"
)

// tail is the newest part of one session's output, which all its readers in this process share. It is read from the store, so
// that it does not matter which replica collects.
type tail struct {
	id     string
	nudge  chan struct{}
	cancel context.CancelFunc

	mu      sync.Mutex
	readers int
	session *customer.Session
	changed chan struct{} // closed at the next change
	chunks  []*customer.Chunk
	bytes   int
}

// watch returns the tail of a session, for unwatch; ErrTooManyReaders where most have it already.
func (s *Sessions) watch(ctx context.Context, id string, most int) (*tail, error) {
	session, err := s.Agents.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tails[id]
	if t == nil {
		feeding, cancel := context.WithCancel(s.running)
		t = &tail{id: id, nudge: make(chan struct{}, 1), cancel: cancel, session: session, changed: make(chan struct{})}
		s.tails[id] = t
		if !s.closed {
			s.tasks.Go(func() { s.feed(feeding, t) })
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers >= most {
		return nil, ErrTooManyReaders
	}
	t.readers++
	return t, nil
}

// unwatch lets a tail go; the last one to do so ends it.
func (s *Sessions) unwatch(t *tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers--; t.readers == 0 {
		t.cancel()
		delete(s.tails, t.id)
	}
}

// announce has the readers here look at once: the session has changed.
func (s *Sessions) announce(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tails[id]; t != nil {
		select {
		case t.nudge <- struct{}{}:
		default:
		}
	}
}

// feed keeps a tail up to date until the session has ended or nobody reads it.
func (s *Sessions) feed(ctx context.Context, t *tail) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		session, err := s.Agents.Session(ctx, t.id)
		if err == nil {
			err = s.extend(ctx, t, session)
		}
		if ctx.Err() != nil || err == nil && session.Closed() {
			return
		}
		if err != nil {
			s.Log.WarnContext(ctx, "output of an agent cannot be read now", "session_id", t.id, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.nudge:
		case <-poll.C:
		}
	}
}

// extend takes in what was stored since, and tells the readers when anything has changed.
func (s *Sessions) extend(ctx context.Context, t *tail, session *customer.Session) error {
	old, _ := t.now()
	if session.UpdatedAt.Equal(old.UpdatedAt) && session.LastSeq == old.LastSeq && session.Closed() == old.Closed() {
		return nil
	}
	var fresh []*customer.Chunk
	for seq, bytes := old.LastSeq, 0; seq < session.LastSeq && bytes < tailBytes; {
		c, err := s.Agents.Output(ctx, t.id, seq)
		if err != nil {
			return err
		}
		if c == nil {
			break
		}
		fresh = append(fresh, c)
		seq, bytes = c.LastSeq, bytes+len(c.Lines)
	}
	t.set(session, fresh)
	return nil
}

func (t *tail) set(session *customer.Session, fresh []*customer.Chunk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range fresh {
		if n := len(t.chunks); n > 0 && c.FirstSeq != t.chunks[n-1].LastSeq+1 { // there is a hole: what is older is read from the store
			t.chunks, t.bytes = nil, 0
		}
		t.chunks = append(t.chunks, c)
		t.bytes += len(c.Lines)
	}
	drop := 0
	for t.bytes > tailBytes {
		t.bytes -= len(t.chunks[drop].Lines)
		drop++
	}
	t.chunks = append([]*customer.Chunk(nil), t.chunks[drop:]...)
	t.session = session
	close(t.changed)
	t.changed = make(chan struct{})
}

// now returns the session as it was last seen, and what is closed at the next change.
func (t *tail) now() (*customer.Session, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session, t.changed
}

// after returns the chunk with the line after seq, where the tail has it.
func (t *tail) after(seq int64) (*customer.Chunk, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range slices.Backward(t.chunks) {
		if c.FirstSeq <= seq+1 {
			return c, c.LastSeq > seq
		}
	}
	return nil, false
}
