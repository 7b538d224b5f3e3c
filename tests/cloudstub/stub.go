// Package cloudstub plays OpenHands Cloud and the Python agent servers of its sandboxes over HTTP, as far as an orchestrator
// calls them: with the traps of the real ones, with faults on any call, and with a record of every call. Tests of the
// backend, of the login and of the built program use the same one; it imports nothing of ours.
package cloudstub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// ServiceKey is the service key that mints keys.
const ServiceKey = "service-key-of-the-stub"

// Person is a user of Cloud, with the bearer token and cookie of the same value.
type Person struct {
	Token, Name, UserID, OrgID string
	Permissions                []string
	Profiles                   json.RawMessage // llm_profiles; nil: null
}

// The organizations of the recorded scenarios, and their people. Eve is the admin of the other one.
const (
	Org      = "0a000000-0000-4000-8000-000000000001"
	OtherOrg = "0a000000-0000-4000-8000-000000000002"
	Alice    = "0b000000-0000-4000-8000-000000000001"
	// AgentProfile is the only agent profile of Org.
	AgentProfile = "0c000000-0000-4000-8000-000000000001"
)

var both = []string{"view_automations", "manage_automations"}

// People are who the stub knows.
var People = []Person{
	{Token: "tok-alice", Name: "alice", UserID: Alice, OrgID: Org, Permissions: both},
	{Token: "tok-bob", Name: "bob", UserID: "0b000000-0000-4000-8000-000000000002", OrgID: Org, Permissions: both[:1]},
	{
		Token: "tok-carol", Name: "carol", UserID: "0b000000-0000-4000-8000-000000000003", OrgID: Org, Permissions: both[:1],
		Profiles: json.RawMessage(`{"profiles":{"fast":{},"deep":{}},"active":"deep"}`),
	},
	{Token: "tok-nobody", Name: "nobody", UserID: "0b000000-0000-4000-8000-000000000004", OrgID: Org},
	{Token: "tok-eve", Name: "eve", UserID: "0b000000-0000-4000-8000-000000000009", OrgID: OtherOrg, Permissions: both},
}

// Call is one request that the stub got. Op is its short name: users_me, agent_profiles, mint, create, get, search, pause, resume, delete,
// bash_start, bash_search, bash_stop, upload, events, conversation_count, server_info, other.
type Call struct {
	Op, Method, URL, Auth, Body string
	Sandbox                     string
	Status                      int // 0: no answer
	At                          time.Time
}

// Fault is what a call answers instead of doing its work. Done says that the work is done first, and only the answer is lost.
type Fault struct {
	Status int // 0: 200
	Body   string
	Header map[string]string
	Hang   bool // no answer until the caller gives up
	Reset  bool // the connection breaks
	Slow   bool // half a body, then nothing until the caller gives up
	Done   bool
}

// Sandbox is a box as the stub sees it. Times are zero until they happen.
type Sandbox struct {
	ID, Owner, Status, Key, Detail string
	CreatedAt, PausedAt, DeletedAt time.Time
	DeleteCalls, PauseCalls        int

	starts   int // gets that still show it STARTING
	commands []*Command
	uploads  map[string][]byte
	turns    []json.RawMessage // actions of its conversations, newest first

	conversations int
}

// Command is a command of a box's agent server.
type Command struct {
	ID, Text, Sandbox string
	Timeout           float64
	Exit              *int // nil: running
	Stdout, Stderr    string
	Env               map[string]string // of the environment file that it sources
	Stopped           bool
}

// Stub is the server. Its settings may be changed at any time by its methods.
type Stub struct {
	URL string

	server *httptest.Server
	stop   chan struct{}

	mu       sync.Mutex
	change   chan struct{}     // closed at every call
	keys     map[string]string // minted key → user id
	minted   int
	boxes    []*Sandbox
	byID     map[string]*Sandbox
	latency  time.Duration
	local    *Sandbox // the one agent server of local mode
	calls    []Call
	faults   map[string][]Fault
	always   map[string]Fault
	left     map[string]bool // users who left
	starting int
	detail   string // of new sandboxes, which are in ERROR
	never    bool   // new sandboxes never leave STARTING, whatever their detail
	curl     Command
}

// New starts a stub that ends with the test.
func New(tb testing.TB) *Stub {
	tb.Helper()
	s := &Stub{
		stop: make(chan struct{}), change: make(chan struct{}), keys: map[string]string{}, byID: map[string]*Sandbox{}, faults: map[string][]Fault{},
		always: map[string]Fault{}, left: map[string]bool{},
	}
	s.local = &Sandbox{ID: "local", Status: "RUNNING", Key: "agent-secret", uploads: map[string][]byte{}}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.server.URL
	tb.Cleanup(func() {
		close(s.stop)
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// LocalURL and LocalKey are those of the agent server that runs of local mode share.
func (s *Stub) LocalURL() string { return s.URL + "/sb/local" }

// LocalKey is the session key of LocalURL.
func (s *Stub) LocalKey() string { return s.local.Key }

// Client keeps its connections to this stub.
func (s *Stub) Client() *http.Client { return s.server.Client() }

func (s *Stub) locked(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Fail lets the next calls of op fail, one by one.
func (s *Stub) Fail(op string, faults ...Fault) {
	s.locked(func() { s.faults[op] = append(s.faults[op], faults...) })
}

// FailAlways lets every call of op fail until Heal.
func (s *Stub) FailAlways(op string, f Fault) { s.locked(func() { s.always[op] = f }) }

// Heal ends the faults of all calls.
func (s *Stub) Heal() {
	s.locked(func() { s.faults, s.always = map[string][]Fault{}, map[string]Fault{} })
}

// Starting lets new sandboxes show STARTING for n looks.
func (s *Stub) Starting(n int) { s.locked(func() { s.starting = n }) }

// NeverReady keeps new sandboxes STARTING.
func (s *Stub) NeverReady(never bool) { s.locked(func() { s.never = never }) }

// Broken puts new sandboxes into ERROR with a detail; "" ends that.
func (s *Stub) Broken(detail string) { s.locked(func() { s.detail = detail }) }

// Curl sets how downloads in boxes end.
func (s *Stub) Curl(exit int, stderr string) {
	s.locked(func() { s.curl = Command{Exit: &exit, Stderr: stderr} })
}

// Leave takes a user out of every organization: keys are refused, and none is minted any more.
func (s *Stub) Leave(userID string) {
	s.locked(func() {
		s.left[userID] = true
		s.revoke(userID)
	})
}

// Revoke makes all minted keys of a user invalid.
func (s *Stub) Revoke(userID string) { s.locked(func() { s.revoke(userID) }) }

func (s *Stub) revoke(userID string) {
	for key, user := range s.keys {
		if user == userID {
			delete(s.keys, key)
		}
	}
}

// Set changes a sandbox from outside: a person at the web UI, the provider's own timer.
func (s *Stub) Set(id, status string) {
	s.locked(func() {
		if b := s.box(id); b != nil {
			s.become(b, status)
		}
	})
}

// Plant makes a running sandbox of a user's, at a time, as a create whose answer was lost or a person at the web UI does.
func (s *Stub) Plant(userID string, at time.Time, conversations int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.add(userID)
	b.CreatedAt, b.conversations = at, conversations
	s.become(b, "RUNNING")
	return b.ID
}

// Vanish removes a sandbox without a call.
func (s *Stub) Vanish(id string) {
	s.locked(func() {
		if b := s.box(id); b != nil {
			b.DeletedAt = time.Now()
		}
	})
}

// become moves a sandbox; a new key comes with every start.
func (s *Stub) become(b *Sandbox, status string) {
	if status == "RUNNING" && b.Status != "RUNNING" {
		b.Key = fmt.Sprintf("sess-%s-%d", b.ID, time.Now().UnixNano())
	}
	if status == "PAUSED" {
		b.PausedAt = time.Now()
	}
	b.Status = status
}

// Finish puts a finish call with these arguments into the conversations of a sandbox.
func (s *Stub) Finish(id string, arguments json.RawMessage) {
	s.locked(func() {
		if b := s.box(id); b != nil {
			b.turns = append(b.turns, arguments)
		}
	})
}

// Box returns a sandbox as it is now, deleted ones too; false when there never was one.
func (s *Stub) Box(id string) (Sandbox, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.box(id); b != nil {
		return *b, true
	}
	return Sandbox{}, false
}

func (s *Stub) box(id string) *Sandbox {
	if id == "local" {
		return s.local
	}
	return s.byID[id]
}

// keep remembers a new sandbox.
func (s *Stub) keep(b *Sandbox) {
	s.boxes = append(s.boxes, b)
	s.byID[b.ID] = b
}

// Put makes a sandbox of a user under an id, in a state, that nobody asked for.
func (s *Stub) Put(id, owner, status string) {
	s.locked(func() {
		s.keep(&Sandbox{ID: id, Owner: owner, Status: status, CreatedAt: time.Now(), uploads: map[string][]byte{}})
	})
}

// Latency lets every answer take that long.
func (s *Stub) Latency(d time.Duration) { s.locked(func() { s.latency = d }) }

// Alive lists the sandboxes that exist.
func (s *Stub) Alive() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := []string{}
	for _, b := range s.boxes {
		if b.DeletedAt.IsZero() {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// Boxes lists all sandboxes there ever were, oldest first.
func (s *Stub) Boxes() []Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Sandbox
	for _, b := range s.boxes {
		all = append(all, *b)
	}
	return all
}

// Calls returns the calls so far, of the named ops, or all.
func (s *Stub) Calls(ops ...string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []Call
	for _, c := range s.calls {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			calls = append(calls, c)
		}
	}
	return calls
}

// Wait returns when a condition holds that is looked at after every call; false after the time is over.
func (s *Stub) Wait(within time.Duration, holds func() bool) bool {
	over := time.After(within)
	for {
		s.mu.Lock()
		changed := s.change
		s.mu.Unlock()
		if holds() {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		}
	}
}
