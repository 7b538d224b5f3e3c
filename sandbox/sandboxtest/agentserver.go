package sandboxtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"automation/sandbox"
)

// AgentServer plays the agent servers of all boxes of a Fake on one listener. A box that does not run breaks every
// connection, as an address without a server does.
type AgentServer struct {
	server *httptest.Server

	mu    sync.Mutex
	boxes map[string]*AgentBox
	paths map[string]*AgentBox
	talks []Conversation // of boxes that are still to be made
}

// NewAgentServer starts one; it is closed with the test.
func NewAgentServer(tb testing.TB) *AgentServer {
	tb.Helper()
	s := &AgentServer{boxes: map[string]*AgentBox{}, paths: map[string]*AgentBox{}}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(s.server.Close)
	return s
}

// Client is for sandbox.Agent; its connections end with the server.
func (s *AgentServer) Client() *http.Client { return s.server.Client() }

// Direct is Client without connections, for tests in a testing/synctest bubble, whose time stands still while one is waited for.
func (s *AgentServer) Direct() *http.Client { return &http.Client{Transport: direct{s}} }

type direct struct{ *AgentServer }

// RoundTrip serves the request at once; a handler that breaks the connection is an error, as it is over a network.
func (d direct) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			answer, err = nil, fmt.Errorf("%s %s: %v", r.Method, r.URL.Path, p)
		}
	}()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.serve(w, r)
	return w.Result(), nil
}

// Box returns the agent server in the box with a provider id.
func (s *AgentServer) Box(providerID string) *AgentBox {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.boxes[providerID]
	if box == nil {
		box = &AgentBox{owner: s, features: []string{sandbox.FeatureProcessOutput, sandbox.FeatureStorageReclaim, sandbox.FeatureStorageStatus}}
		for _, c := range s.talks {
			box.history = append(box.history, &c)
		}
		s.boxes[providerID] = box
	}
	return box
}

func (s *AgentServer) serve(w http.ResponseWriter, r *http.Request) {
	name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	box := s.paths[name]
	s.mu.Unlock()
	if box == nil {
		panic(http.ErrAbortHandler)
	}
	box.serve(w, r, "/"+rest)
}

// Command is a command of a box.
type Command struct {
	ID, Text       string
	Stdout, Stderr string
	Exit           *int // nil: running
	Stopped        bool
}

// AgentBox is the agent server in one box.
type AgentBox struct {
	owner *AgentServer

	mu       sync.Mutex
	path     string
	key      string
	running  bool
	notReady int // /ready answers that are still 503
	features []string
	idle     time.Duration
	commands []*Command
	requests []string
	frees    int64
	fail     map[string]int // path → status
	finish   json.RawMessage
	onCall   func(string)
	uploads  map[string]string // path → content
	onStart  func(*Command)
	mute     bool // answers to starts are lost
	history  []*Conversation
	reclaims strings.Builder // the bodies of reclaims
}

func (b *AgentBox) open(key string) string {
	b.owner.mu.Lock()
	defer b.owner.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.key, b.path = key, uuid.NewString()
	b.owner.paths[b.path] = b
	return b.owner.server.URL + "/" + b.path
}

func (b *AgentBox) up(running bool) { b.locked(func() { b.running = running }) }

func (b *AgentBox) locked(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// Features replaces what server_info announces.
func (b *AgentBox) Features(features ...string) { b.locked(func() { b.features = features }) }

// Idle sets idle_time of server_info.
func (b *AgentBox) Idle(d time.Duration) { b.locked(func() { b.idle = d }) }

// Down makes the server break every connection although its box runs.
func (b *AgentBox) Down() { b.up(false) }

// NotReady lets the next n probes of /ready say that the server is starting.
func (b *AgentBox) NotReady(n int) { b.locked(func() { b.notReady = n }) }

// Frees sets what a reclaim frees, in bytes.
func (b *AgentBox) Frees(n int64) { b.locked(func() { b.frees = n }) }

// Fail lets a path answer with a status; 0 ends it.
func (b *AgentBox) Fail(path string, status int) {
	b.locked(func() { put(&b.fail, path, status) })
}

// Finish sets the arguments of the conversation's finish call.
func (b *AgentBox) Finish(arguments string) {
	b.locked(func() { b.finish = json.RawMessage(arguments) })
}

// Watch calls seen with "METHOD path" at the start of every request.
func (b *AgentBox) Watch(seen func(string)) { b.locked(func() { b.onCall = seen }) }

// Run adds a running command and returns its id.
func (b *AgentBox) Run(text string) string {
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	b.locked(func() { b.commands = append(b.commands, &Command{ID: id, Text: text}) })
	return id
}

// Print appends to a command's stdout.
func (b *AgentBox) Print(id, text string) { b.locked(func() { b.command(id).Stdout += text }) }

// Exit ends a command.
func (b *AgentBox) Exit(id string, code int) { b.locked(func() { b.command(id).Exit = &code }) }

// Command returns a copy of a command.
func (b *AgentBox) Command(id string) (c Command) {
	b.locked(func() { c = *b.command(id) })
	return c
}

// Requests returns "METHOD path" of every request so far.
func (b *AgentBox) Requests() (all []string) {
	b.locked(func() { all = append(all, b.requests...) })
	return all
}

func (b *AgentBox) command(id string) *Command {
	for _, c := range b.commands {
		if c.ID == id {
			return c
		}
	}
	return &Command{}
}

func (b *AgentBox) serve(w http.ResponseWriter, r *http.Request, path string) {
	b.mu.Lock()
	watch := b.onCall
	b.mu.Unlock()
	if watch != nil {
		watch(r.Method + " " + path)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r.Method+" "+path)
	if !b.running {
		panic(http.ErrAbortHandler)
	}
	if status := b.fail[path]; status != 0 {
		answer(w, status, map[string]any{"detail": "Internal Server Error", "exception": fmt.Sprintf("%d: played", status)})
		return
	}
	if strings.HasPrefix(path, "/api/") && r.Header.Get("X-Session-API-Key") != b.key {
		answer(w, http.StatusUnauthorized, map[string]any{"detail": "Unauthorized"})
		return
	}
	b.route(w, r, path)
}

func (b *AgentBox) route(w http.ResponseWriter, r *http.Request, path string) {
	switch {
	case path == "/server_info":
		answer(w, 200, map[string]any{"version": "1.58.2", "uptime": 25.0, "idle_time": b.idle.Seconds(), "capabilities": b.features})
	case path == "/ready" && b.notReady > 0:
		b.notReady--
		answer(w, 503, map[string]any{"status": "initializing"})
	case path == "/ready":
		answer(w, 200, map[string]any{"status": "ready"})
	case path == "/api/file/home":
		answer(w, 200, map[string]any{"home": "/home/box"})
	case path == "/api/file/upload":
		b.upload(w, r)
	case path == "/api/bash/start_bash_command":
		b.start(w, r)
	case path == "/api/bash/bash_events/search":
		b.search(w, r)
	case strings.HasPrefix(path, "/api/bash/bash_commands/"):
		b.stop(w, strings.TrimSuffix(strings.TrimPrefix(path, "/api/bash/bash_commands/"), "/stop"))
	case strings.HasPrefix(path, "/api/processes/"):
		b.stream(w, strings.TrimSuffix(strings.TrimPrefix(path, "/api/processes/"), "/output"))
	case path == "/api/storage/reclaim":
		_, _ = io.Copy(&b.reclaims, r.Body)
		answer(w, 200, map[string]any{"plan_id": uuid.NewString(), "freed_bytes": b.frees, "items": []any{}})
	case path == "/api/storage":
		answer(w, 200, map[string]any{"root": "/home/box", "conversations": []any{}})
	case path == "/api/conversations/search":
		b.conversations(w, r.URL.Query().Get("status"))
	case strings.HasSuffix(path, "/events/count"):
		b.events(w, strings.TrimSuffix(strings.TrimPrefix(path, "/api/conversations/"), "/events/count"))
	case strings.HasPrefix(path, "/api/file/download-trajectory/"):
		b.trajectory(w, strings.TrimPrefix(path, "/api/file/download-trajectory/"))
	case strings.HasSuffix(path, "/events/search"):
		items := []any{}
		if b.finish != nil {
			items = append(items, map[string]any{"tool_name": "finish", "tool_call": map[string]any{"arguments": string(b.finish)}})
		}
		answer(w, 200, map[string]any{"items": items})
	default:
		answer(w, 404, map[string]any{"detail": "Not Found"})
	}
}

func (b *AgentBox) search(w http.ResponseWriter, r *http.Request) {
	items := []any{}
	if r.URL.Query().Get("kind__eq") == "BashCommand" {
		for _, c := range b.commands {
			items = append(items, map[string]any{"id": c.ID, "command": c.Text, "kind": "BashCommand"})
		}
	} else if c := b.command(r.URL.Query().Get("command_id__eq")); c.Exit != nil {
		items = append(items, map[string]any{
			"id": uuid.NewString(), "command_id": c.ID, "order": 0, "exit_code": c.Exit,
			"stdout": c.Stdout, "stderr": c.Stderr, "kind": "BashOutput",
		})
	}
	answer(w, 200, map[string]any{"items": items, "next_page_id": nil})
}

func (b *AgentBox) stop(w http.ResponseWriter, id string) {
	c := b.command(id)
	if c.ID == "" {
		answer(w, 404, map[string]any{"detail": "Not Found"})
		return
	}
	c.Stopped = true
	if c.Exit == nil {
		code := -15
		c.Exit = &code
	}
	answer(w, 200, map[string]any{"success": true})
}

func (b *AgentBox) stream(w http.ResponseWriter, id string) {
	c := b.command(id)
	if c.ID == "" {
		answer(w, 404, map[string]any{"detail": "Not Found"})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, seq := json.NewEncoder(w), int64(0)
	emit := func(kind, text string) {
		for len(text) > 0 {
			n := min(len(text), 32<<10)
			seq++
			_ = lines.Encode(sandbox.Frame{Type: kind, Seq: seq, Data: []byte(text[:n])})
			text = text[n:]
		}
	}
	emit(sandbox.FrameStdout, c.Stdout)
	emit(sandbox.FrameStderr, c.Stderr)
	if c.Exit != nil {
		_ = lines.Encode(sandbox.Frame{Type: sandbox.FrameExit, Seq: seq + 1, ExitCode: c.Exit, Reason: "exited"})
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	text, _ := json.Marshal(body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
