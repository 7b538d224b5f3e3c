// Package session runs the servers that customers start in boxes, outside of any run: it starts and stops them through the
// agent server of the box, collects what they print into the store while they run, and lets any number of readers follow it.
// One replica collects a session at a time, under a lease; readers read from the store, wherever they are.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/loop"
	"automation/models"
	"automation/models/customer"
	"automation/sandbox"
)

// Errors that callers decide on.
var (
	// ErrNoAgent means that the box has no server that could be started: it announces no process_output_v1, or the command does
	// not exist in it.
	ErrNoAgent = errors.New("the box has no such agent")
	// ErrNotRunning means that nothing can be started in the box now: it does not run, or its agent server does not answer.
	ErrNotRunning = errors.New("the box does not run")
	// ErrTooManyReaders means that a session has as many readers in this process as it may.
	ErrTooManyReaders = errors.New("the session has too many readers")
	// ErrAhead means that a reader asks for lines after one that does not exist yet (S2-059).
	ErrAhead = errors.New("the position is beyond the newest line")
)

// Timing of collecting.
const (
	leaseFor    = 15 * time.Second
	renewEvery  = 3 * time.Second
	claimEvery  = 2 * time.Second
	claimBatch  = 16
	purgeEvery  = 10 * time.Minute
	purgeBatch  = 8 // sessions, of up to some 11 MiB of lines each, in one transaction
	rowsEvery   = time.Hour
	rowsBatch   = 500
	keptFor     = 24*time.Hour - purgeEvery // so that it is gone 24 h after the end at the latest (S2-055)
	stopGrace   = 10 * time.Second          // between SIGTERM and SIGKILL (S2-035)
	stopWithin  = 15 * time.Second          // for the answer to a stop
	checkWithin = 10 * time.Second          // for looking whether the command exists in a box
	giveUpAfter = 10 * time.Minute          // of a box that should run and does not answer
)

// Config is what Sessions works with.
type Config struct {
	Store  *models.Store   // of the boxes
	Agents *customer.Store // of the sessions
	// Command starts the server in a box.
	Command string
	// Places are where this process reaches boxes; sessions in others are left to other replicas.
	Places []models.Place
	// Capabilities returns what a backend can do.
	Capabilities func(backend string) sandbox.Capabilities
	HTTP         *http.Client // for the agent servers; nil: a shared one
	Log          *slog.Logger // nil: silent
	// Retention is how long the rows of sessions that ended, and of keys that are valid no more, are kept.
	Retention time.Duration
	// Collected is told of what was stored: bytes of each stream, and those that the box had lost; nil: nobody.
	Collected func(stdout, stderr, lost int64)
	// Reads is told of each reader, and what it returns of why it left (see the Left constants); nil: nobody.
	Reads func() (left func(why string))
}

// Why a reader left.
const (
	LeftRotated  = "rotated"  // it was sent away, to come back
	LeftExited   = "exited"   // it has read the exit line
	LeftClient   = "client"   // by itself, or its connection broke
	LeftShutdown = "shutdown" // the service stops
)

// Sessions are the customers' servers as this process sees them. Close it before the Store.
type Sessions struct {
	Config
	nudge   loop.Nudge
	running context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	collectors map[string]*collector // by session
	tails      map[string]*tail      // of sessions with readers here
	checked    map[uuid.UUID]int64   // boxes in which the command exists, and the start in which it was seen
}

// New returns Sessions; what they do in the background begins with their Loops.
func New(c Config) *Sessions {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Collected == nil {
		c.Collected = func(int64, int64, int64) {}
	}
	if c.Reads == nil {
		c.Reads = func() func(string) { return func(string) {} }
	}
	s := &Sessions{
		Config: c, nudge: loop.NewNudge(),
		collectors: map[string]*collector{}, tails: map[string]*tail{}, checked: map[uuid.UUID]int64{},
	}
	s.running, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends the readers as a rotation does (S2-072), gives the sessions up for others to collect, and waits for both.
func (s *Sessions) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.tasks.Wait()
}

// Loops are the duties: claiming sessions that nobody collects, and dropping what was printed long ago, and later the rows.
func (s *Sessions) Loops() []loop.Loop {
	return []loop.Loop{
		{Name: "agents", Every: claimEvery, Batch: claimBatch, Nudge: s.nudge, Pass: s.claim},
		{Name: "agent output", Every: purgeEvery, Batch: purgeBatch, Pass: func(ctx context.Context) (int, error) {
			return s.Agents.PurgeOutput(ctx, s.Store.Now().Add(-keptFor), purgeBatch)
		}},
		{Name: "agent rows", Every: rowsEvery, Batch: rowsBatch, Pass: s.purgeRows},
	}
}

// purgeRows removes a batch of each kind of row that nobody needs any more, and returns the size of the largest.
func (s *Sessions) purgeRows(ctx context.Context) (int, error) {
	now, most := s.Store.Now(), 0
	for _, purge := range []struct {
		rows   func(ctx context.Context, before time.Time, limit int) (int, error)
		before time.Time
	}{
		{s.Agents.PurgeSessions, now.Add(-s.Retention)},
		{s.Agents.PurgeKeys, now.Add(-s.Retention)},
		{s.Agents.PurgeTickets, now.Add(-customer.TicketLife)},
	} {
		n, err := purge.rows(ctx, purge.before, rowsBatch)
		if err != nil {
			return most, err
		}
		most = max(most, n)
	}
	return most, nil
}

func (s *Sessions) stopping() bool { return s.running.Err() != nil }

// claim takes sessions that nobody collects, each into a collector of its own.
func (s *Sessions) claim(ctx context.Context) (int, error) {
	if s.stopping() {
		return 0, nil
	}
	token := uuid.New()
	claimed, err := s.Agents.ClaimSessions(ctx, s.Places, token, s.Store.Now().Add(leaseFor), claimBatch)
	if err != nil {
		return 0, err
	}
	for _, session := range claimed {
		s.begin(session, token)
	}
	return len(claimed), nil
}

// begin starts the collector of a session that was claimed.
func (s *Sessions) begin(session *customer.Session, token uuid.UUID) {
	c := &collector{
		s: s, id: session.ID, boxID: session.SandboxID, session: session, token: token, poked: make(chan struct{}, 1),
	}
	c.log = s.Log.With("session_id", session.ID, "workspace_id", session.SandboxID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // the lease runs out
	}
	s.collectors[session.ID] = c
	s.tasks.Go(func() {
		c.collect(s.running)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.collectors[session.ID] == c {
			delete(s.collectors, session.ID)
		}
	})
}

// Start returns the open session in a box, or a new one (S2-021, S2-022). Errors: ErrNoAgent, ErrNotRunning,
// customer.ErrStopping.
func (s *Sessions) Start(ctx context.Context, box *models.Sandbox, who string) (*customer.Session, error) {
	present, err := s.Agents.NewestSession(ctx, box.ID)
	switch {
	case err != nil && !errors.Is(err, models.ErrNotFound):
		return nil, err
	case err == nil && !present.Closed() && present.StopAskedAt == nil:
		return present, nil
	case err == nil && !present.Closed():
		if present, err = s.ended(ctx, present.ID); err != nil {
			return nil, err
		}
		if !present.Closed() {
			return nil, customer.ErrStopping
		}
	}
	if err := s.startable(ctx, box); err != nil {
		return nil, err
	}
	session, err := s.Agents.StartSession(ctx, box.OrgID, box.ID, who)
	if err != nil {
		return nil, err
	}
	if err := s.Store.Touch(ctx, box.ID, s.Store.Now()); err != nil {
		s.Log.WarnContext(ctx, "access not recorded", "workspace_id", box.ID, "error", err)
	}
	s.nudge.Wake()
	return session, nil
}

// Stop asks the session in a box to end and waits a while for it (S2-035). models.ErrNotFound where none was ever started.
func (s *Sessions) Stop(ctx context.Context, box *models.Sandbox) (*customer.Session, error) {
	session, err := s.Agents.StopSession(ctx, box.ID)
	if err != nil || session.Closed() {
		return session, err
	}
	s.mu.Lock()
	c := s.collectors[session.ID]
	s.mu.Unlock()
	if c != nil {
		c.poke()
	}
	if !s.reachable(box) {
		return session, nil // stopped once the box runs again, or with it
	}
	return s.ended(ctx, session.ID)
}

// ended waits for a session to end, within the time for the answer to a stop, and returns it as it is then.
func (s *Sessions) ended(ctx context.Context, id string) (*customer.Session, error) {
	waiting, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	t, err := s.watch(waiting, id, math.MaxInt)
	if err != nil {
		return nil, err
	}
	defer s.unwatch(t)
	for {
		session, changed := t.now()
		if session.Closed() {
			return session, nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
			return session, ctx.Err()
		case <-s.running.Done():
			return session, nil
		}
	}
}

// reachable reports whether commands can be sent to the box, by what is known of it.
func (s *Sessions) reachable(box *models.Sandbox) bool {
	return box.Observed == models.SeenRunning && box.Desired == models.WantRunning && box.URL != ""
}

// agent is the client of the agent server in a box.
func (s *Sessions) agent(box *models.Sandbox) sandbox.Agent {
	return sandbox.Agent{URL: box.URL, Key: box.SessionKey, HTTP: s.HTTP}
}

// startable looks whether the server can be started in a box: one that runs, has process_output_v1, and has the command.
func (s *Sessions) startable(ctx context.Context, box *models.Sandbox) error {
	if !s.reachable(box) {
		return fmt.Errorf("%w: it is %s", ErrNotRunning, box.Observed)
	}
	s.mu.Lock()
	known := s.checked[box.ID] == box.AwakeEpoch
	s.mu.Unlock()
	if known {
		return nil
	}
	checking, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	agent := s.agent(box)
	info, err := agent.ServerInfo(checking)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	case !info.Has(sandbox.FeatureProcessOutput):
		return fmt.Errorf("%w: it does not announce %s", ErrNoAgent, sandbox.FeatureProcessOutput)
	}
	exists, err := succeeds(checking, agent, existence(s.Command))
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	case !exists:
		return fmt.Errorf("%w: %s is not in it", ErrNoAgent, s.Command)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.checked) > 10_000 {
		clear(s.checked) // they are looked at again
	}
	s.checked[box.ID] = box.AwakeEpoch
	return nil
}
