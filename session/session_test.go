package session_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"automation/agentserver"
	"automation/loop"
	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one box with a real agent server, and its row.
type rig struct {
	testing.TB
	db     *modelstest.DB
	store  *models.Store
	agents *customer.Store
	clock  *clock
	home   string
	box    *models.Sandbox
	can    sandbox.Capabilities
	web    *httptest.Server
}

// clock is real time, shifted.
type clock struct {
	mu    sync.Mutex
	shift time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().UTC().Add(c.shift).Truncate(time.Microsecond)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift += d
}

const key = "session-key"

// each runs test on both dialects.
func each(t *testing.T, test func(r *rig)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) { test(newRig(t, db)) })
}

func newRig(tb testing.TB, db *modelstest.DB) *rig {
	tb.Helper()
	c := &clock{}
	r := &rig{TB: tb, db: db, clock: c, store: db.Open(tb, models.WithClock(c.now)), can: sandbox.Capabilities{Suspend: sandbox.SuspendMemory}}
	r.agents = customer.New(r.store)
	r.serve()
	r.box = modelstest.NewBox(r.store)
	r.box.Identities[0].URL = r.web.URL
	modelstest.Box(tb, r.store, r.box)
	identity := *r.box.Identities[0]
	identity.SessionKey = key
	require.NoError(tb, r.store.RecordIdentity(tb.Context(), identity))
	return r
}

// serve starts the agent server of the box.
func (r *rig) serve() {
	home, err := filepath.EvalSymlinks(r.TempDir())
	require.NoError(r, err)
	r.home = home
	kept := filepath.Join(home, ".openhands")
	agent, err := agentserver.New(agentserver.Config{
		SessionKeys: []string{key}, Home: home, PersistenceDir: kept, BashEventsDir: filepath.Join(kept, "bash_events"),
		ConversationsPath: filepath.Join(kept, "conversations"), WorkspacePath: filepath.Join(home, "project"),
	}, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}, slog.New(slog.DiscardHandler))
	require.NoError(r, err)
	r.web = httptest.NewServer(agent.Handler())
	r.Cleanup(func() {
		agent.Stop()
		r.web.CloseClientConnections()
		r.web.Close()
		agent.Close()
	})
}

// replica runs the duties of one process on a store of its own until stop.
func (r *rig) replica(command string) (s *session.Sessions, stop func()) {
	r.Helper()
	store := r.store
	if r.db.Dialect == models.Postgres {
		store = r.db.Open(r.TB, models.WithClock(r.clock.now))
	}
	s = session.New(session.Config{
		Store: store, Agents: customer.New(store), Command: command, Places: []models.Place{{Backend: modelstest.Backend}},
		Capabilities: func(string) sandbox.Capabilities { return r.can }, HTTP: r.web.Client(),
	})
	duties, err := loop.New(slog.New(slog.DiscardHandler), s.Loops()...)
	require.NoError(r, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		duties.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		s.Close()
		cancel()
		<-done
	})
	r.Cleanup(stop)
	return s, stop
}

func (r *rig) start(s *session.Sessions) *customer.Session {
	r.Helper()
	started, err := s.Start(r.Context(), r.row(), "key:test")
	require.NoError(r, err)
	return started
}

func (r *rig) row() *models.Sandbox {
	r.Helper()
	b, err := r.store.Sandbox(r.Context(), modelstest.Org, r.box.ID)
	require.NoError(r, err)
	return b
}

func (r *rig) session(id string) *customer.Session {
	r.Helper()
	s, err := r.agents.Session(r.Context(), id)
	require.NoError(r, err)
	return s
}

// eventually waits until what is stored of a session is as wanted.
func (r *rig) eventually(id string, is func(*customer.Session) bool) *customer.Session {
	r.Helper()
	var last *customer.Session
	require.Eventually(r, func() bool {
		last = r.session(id)
		return is(last)
	}, 3*time.Minute, 20*time.Millisecond) // with the race detector, on a machine that does much else
	return last
}

func ended(s *customer.Session) bool { return s.Closed() }

// line is one line as a client reads it.
type line struct {
	Type      string `json:"type"`
	Seq       int64  `json:"seq"`
	Data      []byte `json:"data"`
	From      int64  `json:"from_seq"`
	To        int64  `json:"to_seq"`
	Bytes     int64  `json:"bytes"`
	ExitCode  *int   `json:"exit_code"`
	Reason    string `json:"reason"`
	Truncated bool   `json:"output_truncated"`
}

// read reads as a client does that is sent away after within, and comes back until the exit line.
func (r *rig) read(s *session.Sessions, id string, within time.Duration) (lines []line) {
	r.Helper()
	for after := int64(0); ; {
		got := r.once(s, session.Reading{SessionID: id, After: after, Follow: true, Until: time.Now().Add(within)})
		lines = append(lines, got...)
		if n := len(lines); n > 0 {
			if after = lines[n-1].Seq; lines[n-1].Type == "exit" {
				return lines
			}
		}
	}
}

func (r *rig) once(s *session.Sessions, what session.Reading) (lines []line) {
	r.Helper()
	var all bytes.Buffer
	require.NoError(r, s.Read(r.Context(), what, func(lines []byte) error {
		_, err := all.Write(lines)
		return err
	}))
	require.True(r, all.Len() == 0 || bytes.HasSuffix(all.Bytes(), []byte("\n")), "it ends on a line")
	scan := bufio.NewScanner(&all)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var l line
		require.NoError(r, json.Unmarshal(scan.Bytes(), &l))
		if l.Type != "keepalive" {
			lines = append(lines, l)
		}
	}
	return lines
}

// whole checks the numbers of a complete read and joins the data of each stream.
func (r *rig) whole(lines []line) (stdout, stderr []byte, exit line) {
	r.Helper()
	next := int64(1)
	for i, l := range lines {
		switch l.Type {
		case "gap":
			require.Equal(r, next, l.From)
			require.Equal(r, l.To, l.Seq)
		default:
			require.Equal(r, next, l.Seq)
		}
		next = l.Seq + 1
		require.LessOrEqual(r, len(l.Data), 32<<10)
		switch l.Type {
		case "stdout":
			stdout = append(stdout, l.Data...)
		case "stderr":
			stderr = append(stderr, l.Data...)
		}
		require.Equal(r, i == len(lines)-1, l.Type == "exit", "the exit line is the last, and the only one")
	}
	return stdout, stderr, lines[len(lines)-1]
}

// data writes n bytes of noise, NULs and broken UTF-8 among them, into the box, and returns them.
func (r *rig) data(n int) []byte {
	r.Helper()
	noise := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(noise)
	require.NoError(r, os.WriteFile(filepath.Join(r.home, "data"), noise, 0o600))
	return noise
}

func TestS2_052_S2_053_S2_057_S2_058_S2_059_S2_074_EveryByteIsReadOnceAcrossRotations(t *testing.T) {
	each(t, func(r *rig) {
		noise := r.data(1 << 20)
		s, _ := r.replica(`cat "$HOME/data"; echo done >&2; exit 3`)
		started := r.start(s)
		stdout, stderr, exit := r.whole(r.read(s, started.ID, 20*time.Millisecond))
		require.True(r, bytes.Equal(noise, stdout))
		require.Equal(r, "done\n", string(stderr))
		require.Equal(r, 3, *exit.ExitCode)
		require.Equal(r, "exited", exit.Reason)
		require.False(r, exit.Truncated)
		last := r.session(started.ID)
		require.Equal(r, customer.Failed, last.State, "S2-046: an exit code other than 0 that nobody asked for")
		require.Equal(r, exit.Seq, last.LastSeq)
		require.Empty(r, r.once(s, session.Reading{SessionID: started.ID, After: exit.Seq, Follow: true, Until: time.Now().Add(time.Minute)}), "S2-059")
		err := s.Read(r.Context(), session.Reading{SessionID: started.ID, After: exit.Seq + 1, Until: time.Now().Add(time.Minute)}, func([]byte) error { return nil })
		require.ErrorIs(r, err, session.ErrAhead)
	})
}

func TestS2_054_S2_068_VolumeTheNewestBytesAreKeptAndTheGapIsTold(t *testing.T) {
	each(t, func(r *rig) {
		noise := r.data(max(modelstest.Volume(20<<20), 9<<20))
		s, _ := r.replica(`cat "$HOME/data"`)
		started := r.start(s)
		r.eventually(started.ID, ended)
		lines := r.read(s, started.ID, time.Minute)
		stdout, _, exit := r.whole(lines)
		require.True(r, exit.Truncated)
		require.LessOrEqual(r, len(stdout), 8<<20)
		require.Greater(r, len(stdout), 7<<20)
		var lost int64
		for _, l := range lines {
			lost += l.Bytes
		}
		require.EqualValues(r, len(noise), lost+int64(len(stdout)))
		require.Equal(r, "gap", lines[0].Type)
		require.True(r, bytes.HasSuffix(noise, stdout[len(stdout)-4<<20:]))
	})
}

func TestS2_069_SilenceIsFilledWithKeepalives(t *testing.T) {
	r := newRig(t, modelstest.NewSQLite(t))
	s, _ := r.replica("sleep 600")
	started := r.start(s)
	silent := false
	began := time.Now()
	leaving, leave := context.WithCancel(r.Context())
	err := s.Read(leaving, session.Reading{SessionID: started.ID, Follow: true, Until: began.Add(time.Minute)}, func(lines []byte) error {
		if string(lines) == "{\"type\":\"keepalive\"}\n" {
			silent = true
			leave()
		}
		return nil
	})
	require.ErrorIs(r, err, context.Canceled)
	require.True(r, silent)
	require.InDelta(r, 15, time.Since(began).Seconds(), 5)
	_, err = s.Stop(r.Context(), r.row())
	require.NoError(r, err)
}

func TestS2_060_WhoLeavesDoesNotStopTheServer(t *testing.T) {
	each(t, func(r *rig) {
		s, _ := r.replica(`echo one; while [ ! -e "$HOME/go" ]; do sleep 0.02; done; echo two`)
		started := r.start(s)
		leaving, leave := context.WithCancel(r.Context())
		err := s.Read(leaving, session.Reading{SessionID: started.ID, Follow: true, Until: time.Now().Add(time.Minute)}, func(lines []byte) error {
			if len(lines) > 0 {
				leave()
			}
			return nil
		})
		require.ErrorIs(r, err, context.Canceled)
		require.Equal(r, customer.Active, r.session(started.ID).State)
		require.NoError(r, os.WriteFile(filepath.Join(r.home, "go"), nil, 0o600))
		stdout, _, _ := r.whole(r.read(s, started.ID, time.Minute))
		require.Equal(r, "one\ntwo\n", string(stdout))
		require.Equal(r, customer.Stopped, r.session(started.ID).State)
	})
}

func TestS2_035_S2_041_AStopEndsTheServerAndItsExitIsRecorded(t *testing.T) {
	each(t, func(r *rig) {
		s, _ := r.replica(`echo up; sleep 600`)
		started := r.start(s)
		r.eventually(started.ID, func(s *customer.Session) bool { return s.LastSeq > 0 })
		stopped, err := s.Stop(r.Context(), r.row())
		require.NoError(r, err)
		require.True(r, stopped.Closed())
		require.Equal(r, customer.Stopped, stopped.State)
		require.Equal(r, customer.ReasonStopped, stopped.Reason)
		require.Equal(r, 143, *stopped.ExitCode)
		_, _, exit := r.whole(r.read(s, started.ID, time.Minute))
		require.Equal(r, 143, *exit.ExitCode)
		require.NotEqual(r, started.ID, r.start(s).ID, "S2-027: then a new one can start")
	})
}

func TestS2_034_AStopWhileItStartsLeavesNothingRunning(t *testing.T) {
	each(t, func(r *rig) {
		s, _ := r.replica(`sleep 600`)
		for range 10 {
			started := r.start(s)
			_, err := s.Stop(r.Context(), r.row())
			require.NoError(r, err)
			last := r.eventually(started.ID, ended)
			require.Equal(r, customer.Stopped, last.State)
			if last.CommandID == nil {
				continue
			}
			output, err := sandbox.Agent{URL: r.web.URL, Key: key, HTTP: r.web.Client()}.LastOutput(r.Context(), *last.CommandID)
			require.NoError(r, err)
			require.NotNil(r, output.ExitCode, "what had started has ended")
		}
	})
}

func TestS2_022_S2_024_WhatABoxMustHave(t *testing.T) {
	each(t, func(r *rig) {
		for _, absent := range []string{"no-such-program --port 1", "python3 -m no_such_module_anywhere"} {
			s, _ := r.replica(absent)
			_, err := s.Start(r.Context(), r.row(), "key:test")
			require.ErrorIs(r, err, session.ErrNoAgent, absent)
		}
		s, _ := r.replica("A=1 sh -c true")
		_, err := s.Start(r.Context(), r.row(), "key:test")
		require.NoError(r, err)
		_, err = r.agents.StopSession(r.Context(), r.box.ID)
		require.NoError(r, err)
	})
	each(t, func(r *rig) {
		s, _ := r.replica("sh")
		asleep := r.row()
		asleep.Observed = models.SeenSuspended
		_, err := s.Start(r.Context(), asleep, "key:test")
		require.ErrorIs(r, err, session.ErrNotRunning)
		away := r.row()
		away.URL = "http://127.0.0.1:1"
		_, err = s.Start(r.Context(), away, "key:test")
		require.ErrorIs(r, err, session.ErrNotRunning)
		_, err = r.agents.NewestSession(r.Context(), r.box.ID)
		require.ErrorIs(r, err, models.ErrNotFound, "S2-025: nothing stays queued")
	})
}

func TestS2_047_S2_072_AnotherProcessCollectsOnWhereOneStopped(t *testing.T) {
	each(t, func(r *rig) {
		const command = `i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.01; done`
		first, stop := r.replica(command)
		started := r.start(first)
		r.eventually(started.ID, func(s *customer.Session) bool { return s.LastSeq > 20 })
		read := make(chan []line)
		go func() {
			read <- r.once(first, session.Reading{SessionID: started.ID, Follow: true, Until: time.Now().Add(time.Minute)})
		}()
		stop()
		for _, l := range <-read {
			require.NotEqual(r, "exit", l.Type, "a reader is sent away without an exit line")
		}
		second, _ := r.replica(command)
		stdout, _, exit := r.whole(r.read(second, started.ID, time.Minute))
		require.Equal(r, 200, strings.Count(string(stdout), "\n"))
		require.Equal(r, 0, *exit.ExitCode)
	})
}

func TestS2_047_APausedOrDeletedBoxEndsTheSession(t *testing.T) {
	for _, row := range []struct {
		name     string
		suspend  sandbox.SuspendKind
		observed models.Observed
		reason   string
	}{
		{"disk only", sandbox.SuspendDisk, models.SeenSuspended, customer.ReasonPaused},
		{"deleted", sandbox.SuspendMemory, models.SeenDeleted, customer.ReasonDeleted},
	} {
		t.Run(row.name, func(t *testing.T) {
			each(t, func(r *rig) {
				r.can = sandbox.Capabilities{Suspend: row.suspend}
				s, _ := r.replica(`echo up; sleep 600`)
				started := r.start(s)
				r.eventually(started.ID, func(s *customer.Session) bool { return s.LastSeq > 0 })
				modelstest.Set(r.TB, r.store, r.box, "observed = ?", row.observed)
				r.web.CloseClientConnections() // as its end does
				last := r.eventually(started.ID, ended)
				require.Equal(r, customer.Stopped, last.State)
				require.Equal(r, row.reason, last.Reason)
				stdout, _, exit := r.whole(r.read(s, started.ID, time.Minute))
				require.Equal(r, "up\n", string(stdout), "S2-061")
				require.Equal(r, row.reason, exit.Reason)
			})
		})
	}
}

func TestS2_055_S2_066_OutputGoesADayAfterItsEndAndTheEndStays(t *testing.T) {
	each(t, func(r *rig) {
		s, _ := r.replica(`echo one; echo two`)
		started := r.start(s)
		r.eventually(started.ID, ended)
		purge := func() {
			_, err := s.Loops()[1].Pass(r.Context())
			require.NoError(r, err)
		}
		r.clock.advance(23*time.Hour + 45*time.Minute)
		purge()
		require.Nil(r, r.session(started.ID).PurgedAt)
		r.clock.advance(15 * time.Minute)
		purge()
		lines := r.read(s, started.ID, time.Minute)
		require.Len(r, lines, 2)
		require.Equal(r, "gap", lines[0].Type)
		require.EqualValues(r, 8, lines[0].Bytes)
		require.Equal(r, "exit", lines[1].Type)
		require.Equal(r, 0, *lines[1].ExitCode)
	})
}
