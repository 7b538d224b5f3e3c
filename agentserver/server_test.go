package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock stands still until it is told to move.
type fakeClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// box is a server over a home directory of its own, on a clock that stands still.
type box struct {
	*Server
	t     *testing.T
	home  string
	clock *fakeClock
	web   http.Handler
}

func newBox(t *testing.T, change ...func(*Config)) *box {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	b := openBox(t, home, change...)
	t.Cleanup(b.Close)
	return b
}

// openBox opens a server that the caller closes.
func openBox(t *testing.T, home string, change ...func(*Config)) *box {
	t.Helper()
	config, err := configure(nil, []string{"HOME=" + home, "OH_SESSION_API_KEYS_0=key-one", "OH_SESSION_API_KEYS_1=key-two"}, io.Discard)
	require.NoError(t, err)
	for _, f := range change {
		f(&config)
	}
	clock := &fakeClock{at: time.Now()}
	server, err := newServer(config, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, slog.New(slog.DiscardHandler), clock.now)
	require.NoError(t, err)
	return &box{Server: server, t: t, home: home, clock: clock, web: server.Handler()}
}

// send makes a request with the session key; a body is JSON.
func (b *box) send(method, target string, body string) *httptest.ResponseRecorder {
	b.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("X-Session-API-Key", "key-one")
	return b.serve(r)
}

func (b *box) serve(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	b.web.ServeHTTP(answer, r)
	return answer
}

// upload makes the multipart request of an upload.
func uploadRequest(t *testing.T, target, content string) *http.Request {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "up.txt")
	require.NoError(t, err)
	_, err = io.WriteString(part, content)
	require.NoError(t, err)
	require.NoError(t, form.Close())
	r := httptest.NewRequest(http.MethodPost, target, &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("X-Session-API-Key", "key-one")
	return r
}

func decode[T any](t *testing.T, answer *httptest.ResponseRecorder) T {
	t.Helper()
	var value T
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &value), answer.Body.String())
	return value
}

// idleSeconds is the idle time as the server gives it: whole seconds.
func (b *box) idleSeconds() int {
	b.t.Helper()
	seconds := decode[struct {
		IdleTime float64 `json:"idle_time"`
	}](b.t, b.send("GET", "/server_info", "")).IdleTime
	require.Zero(b.t, math.Mod(seconds, 1))
	return int(seconds)
}

// run executes a command to its end and returns the answer.
func (b *box) run(command string) map[string]any {
	b.t.Helper()
	body, err := json.Marshal(map[string]any{"command": command})
	require.NoError(b.t, err)
	answer := b.send("POST", "/api/bash/execute_bash_command", string(body))
	require.Equal(b.t, 200, answer.Code, answer.Body.String())
	return decode[map[string]any](b.t, answer)
}

func TestAuthTable(t *testing.T) {
	b := newBox(t)
	open := map[string]bool{"/": true, "/alive": true, "/health": true, "/ready": true, "/server_info": true}
	for _, target := range []string{
		"/", "/alive", "/health", "/ready", "/server_info", "/api/bash/bash_events/search", "/api/file/home",
		"/api/file/download?path=/x", "/api/storage", "/api/processes/00000000000000000000000000000000/output",
		"/api/file/search_subdirs",
	} {
		for _, c := range []struct {
			name, header, value string
			valid               bool
		}{
			{"none", "", "", false},
			{"first", "X-Session-API-Key", "key-one", true},
			{"second", "x-session-api-key", "key-two", true},
			{"wrong", "X-Session-API-Key", "key-thr", false},
			{"prefix", "X-Session-API-Key", "key-on", false},
			{"empty", "X-Session-API-Key", "", false},
			{"bearer", "Authorization", "Bearer key-one", false},
		} {
			t.Run(target+" "+c.name, func(t *testing.T) {
				r := httptest.NewRequest(http.MethodGet, target, nil)
				if c.header != "" {
					r.Header.Set(c.header, c.value)
				}
				answer := b.serve(r)
				if c.valid || open[target] {
					require.NotEqual(t, 401, answer.Code)
				} else {
					require.Equal(t, 401, answer.Code)
					require.JSONEq(t, `{"detail":"Unauthorized"}`, answer.Body.String())
				}
			})
		}
	}
}

func TestAKeylessServerAnswersItsOwnMachineOnly(t *testing.T) {
	b := newBox(t, func(c *Config) { c.SessionKeys = nil })
	for host, status := range map[string]int{
		"127.0.0.1:8000": 200, "localhost": 200, "[::1]:8000": 200, "evil.example:8000": 403, "10.0.0.1": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/api/file/home", nil)
		r.Host = host
		require.Equal(t, status, b.serve(r).Code, host)
	}
}

func TestConfiguration(t *testing.T) {
	for _, c := range []struct {
		name    string
		args    []string
		environ []string
		keys    []string
		refused string
	}{
		{"defaults to loopback", nil, nil, nil, ""},
		{"no key on an outside address is refused", []string{"--host", "0.0.0.0"}, nil, nil, "session key"},
		{"an empty key is none", []string{"--host", "0.0.0.0"}, []string{"OH_SESSION_API_KEYS_0="}, nil, "session key"},
		{"a key opens an outside address", []string{"--host", "0.0.0.0"}, []string{"OH_SESSION_API_KEYS_0=a"}, []string{"a"}, ""},
		{"keys in their order, empty ones dropped", nil, []string{"OH_SESSION_API_KEYS_10=c", "OH_SESSION_API_KEYS_2=b", "OH_SESSION_API_KEYS_0="}, []string{"b", "c"}, ""},
		{"a JSON list", nil, []string{`OH_SESSION_API_KEYS=["a","","b"]`}, []string{"a", "b"}, ""},
		{"an explicit null", nil, []string{"OH_SESSION_API_KEYS_IS_NONE=1", "SESSION_API_KEY=a"}, nil, ""},
		{"the old name", nil, []string{"SESSION_API_KEY=a"}, []string{"a"}, ""},
		{"a broken list", nil, []string{`OH_SESSION_API_KEYS=[`}, nil, "no JSON list"},
		{"an unknown flag", []string{"--nope"}, nil, nil, "usage"},
		{"an argument", []string{"nope"}, nil, nil, "usage"},
		{"a port out of range", []string{"--port", "70000"}, nil, nil, "no port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := configure(c.args, append([]string{"HOME=/h"}, c.environ...), io.Discard)
			if c.refused != "" {
				require.ErrorContains(t, err, c.refused)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.keys, append([]string(nil), config.SessionKeys...))
			require.Equal(t, "/h/.openhands/bash_events", config.BashEventsDir)
		})
	}
}

func TestCommandsGetNoSecretOfTheServer(t *testing.T) {
	kept := commandEnvironment([]string{
		"PATH=/bin", "OH_SESSION_API_KEYS_0=a", "OH_SESSION_API_KEYS=[]", "SESSION_API_KEY=a", "OH_SECRET_KEY=b", "OH_INIT_API_KEY=c", "HOME=/h",
	})
	require.Equal(t, []string{"PATH=/bin", "HOME=/h"}, kept)
}

func TestErrorsAreShapedLikeTheContract(t *testing.T) {
	b := newBox(t)
	t.Run("405 names the methods", func(t *testing.T) {
		answer := b.send("DELETE", "/api/file/home", "")
		require.Equal(t, 405, answer.Code)
		require.Equal(t, "GET", answer.Header().Get("Allow"))
	})
	t.Run("500 has its text in exception", func(t *testing.T) {
		answer := httptest.NewRecorder()
		recovered(slog.New(slog.DiscardHandler), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("x") })).
			ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, 500, answer.Code)
		require.JSONEq(t, `{"detail":"Internal Server Error","exception":"500: unexpected error"}`, answer.Body.String())
	})
	for _, c := range []struct{ method, target, body, kind string }{
		{"POST", "/api/bash/start_bash_command", ``, "missing"},
		{"POST", "/api/bash/start_bash_command", `[]`, "model_attributes_type"},
		{"POST", "/api/bash/start_bash_command", `{"command":1}`, "string_type"},
		{"POST", "/api/bash/start_bash_command", `{"command":null}`, "string_type"},
		{"POST", "/api/bash/start_bash_command", `{"command":"a","timeout":"x"}`, "int_parsing"},
		{"POST", "/api/bash/start_bash_command", `{"command":"a","timeout":1.5}`, "int_from_float"},
		{"POST", "/api/bash/start_bash_command", `{"command":"a","timeout":null}`, "int_type"},
		{"POST", "/api/bash/start_bash_command", `{"command":"a","cwd":1}`, "string_type"},
		{"POST", "/api/bash/start_bash_command", `{"command":"a"} x`, "json_invalid"},
		{"POST", "/api/bash/bash_commands/nope/stop", ``, "uuid_parsing"},
		{"GET", "/api/bash/bash_events/search?command_id__eq=12", ``, "uuid_parsing"},
		{"GET", "/api/bash/bash_events/search?timestamp__gte=soon", ``, "datetime_from_date_parsing"},
		{"GET", "/api/bash/bash_events/search?sort_order=UP", ``, "enum"},
		{"GET", "/api/bash/bash_events/search?order__gt=x", ``, "int_parsing"},
		{"GET", "/api/bash/bash_events/search?limit=0", ``, "greater_than"},
		{"GET", "/api/processes/x/output", ``, "uuid_parsing"},
		{"GET", "/api/processes/00000000000000000000000000000000/output?after=-1", ``, "greater_than_equal"},
		{"GET", "/api/processes/00000000000000000000000000000000/output?follow=maybe", ``, "bool_parsing"},
		{"POST", "/api/storage/reclaim", `{"tier":"all"}`, "literal_error"},
		{"POST", "/api/storage/reclaim", `{"dry_run":"yes"}`, "bool_type"},
		{"POST", "/api/storage/reclaim", `{"conversation_ids":"a"}`, "list_type"},
		{"POST", "/api/storage/reclaim", `{"conversation_ids":[1]}`, "string_type"},
		{"POST", "/api/file/create_directory", ``, "missing"},
	} {
		t.Run("422 "+c.target+" "+c.body, func(t *testing.T) {
			answer := b.send(c.method, c.target, c.body)
			require.Equal(t, 422, answer.Code, answer.Body.String())
			problems := decode[struct {
				Detail []invalid `json:"detail"`
			}](t, answer).Detail
			require.Len(t, problems, 1)
			require.Equal(t, c.kind, problems[0].Type)
		})
	}
	require.Equal(t, 413, b.send("POST", "/api/bash/start_bash_command", strings.Repeat(" ", bodyLimit+1)).Code)
	require.Zero(t, b.commands.Running())
}

func TestMainServesUntilItIsStopped(t *testing.T) {
	home := t.TempDir()
	portFile := filepath.Join(home, "port")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, []string{"--port", "0", "--port-file", portFile}, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "OH_SESSION_API_KEYS_0=k"}, &log)
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(portFile); return err == nil }, 20*time.Second, 5*time.Millisecond)
	port, err := os.ReadFile(portFile)
	require.NoError(t, err)
	base := "http://127.0.0.1:" + strings.TrimSpace(string(port))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(base + "/ready")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 200, answer.StatusCode)

	request := func(method, path, body string) *http.Response {
		r, err := http.NewRequest(method, base+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("X-Session-API-Key", "k")
		answer, err := client.Do(r)
		require.NoError(t, err)
		return answer
	}
	started := request("POST", "/api/bash/start_bash_command", `{"command":"echo up; sleep 100"}`)
	var command struct{ ID string }
	require.NoError(t, json.NewDecoder(started.Body).Decode(&command))
	require.NoError(t, started.Body.Close())
	reader := request("GET", "/api/processes/"+command.ID+"/output", "")
	first := make([]byte, 20)
	_, err = io.ReadFull(reader.Body, first)
	require.NoError(t, err)

	stop()
	rest, err := io.ReadAll(reader.Body)
	require.NoError(t, err, "a reader ends cleanly when the server stops")
	require.NoError(t, reader.Body.Close())
	require.NotContains(t, string(rest), `"exit"`)
	require.Equal(t, 0, <-code, log.String())
}

func TestMainExitCodes(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"help", []string{"--help"}, exitOK},
		{"usage", []string{"--nope"}, exitUsage},
		{"configuration", []string{"--host", "0.0.0.0"}, exitConfiguration},
		{"nowhere to write the port", []string{"--port", "0", "--port-file", "/nonexistent/dir/port"}, exitFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.code, Main(t.Context(), c.args, []string{"HOME=" + t.TempDir()}, io.Discard))
		})
	}
}

func TestARestartedServerStillKnowsFinishedCommands(t *testing.T) {
	home := t.TempDir()
	b := openBox(t, home)
	answer := b.run("echo out; exit 3")
	b.Close()
	b = openBox(t, home)
	defer b.Close()
	page := decode[struct{ Items []map[string]any }](t, b.send("GET", "/api/bash/bash_events/search?kind__eq=BashOutput&sort_order=TIMESTAMP_DESC&limit=1&command_id__eq="+answer["command_id"].(string), ""))
	require.Len(t, page.Items, 1)
	require.EqualValues(t, 3, page.Items[0]["exit_code"])
	require.Equal(t, "out\n", page.Items[0]["stdout"])
	lines := b.send("GET", "/api/processes/"+answer["command_id"].(string)+"/output", "").Body.String()
	require.Equal(t, []string{`{"type":"stdout","seq":1,"data":"b3V0Cg=="}`, `{"type":"exit","seq":2,"exit_code":3,"reason":"exited"}`, ""}, strings.Split(lines, "\n"))
}

func TestProcessOutput(t *testing.T) {
	b := newBox(t)
	id := b.run("echo one; sleep 0.1; echo two")["command_id"].(string)
	base := "/api/processes/" + id + "/output"
	whole := b.send("GET", base, "")
	require.Equal(t, "application/x-ndjson", whole.Header().Get("Content-Type"))
	lines := strings.SplitAfter(whole.Body.String(), "\n")
	require.Len(t, lines, 4) // the last is empty
	require.Equal(t, lines[1]+lines[2], b.send("GET", base+"?after=1", "").Body.String())
	require.Empty(t, b.send("GET", base+"?after=3", "").Body.String())
	require.Equal(t, 400, b.send("GET", base+"?after=4", "").Code)
	require.Equal(t, 404, b.send("GET", "/api/processes/"+strings.Repeat("0", 32)+"/output", "").Code)

	started := decode[map[string]any](t, b.send("POST", "/api/bash/start_bash_command", `{"command":"sleep 100"}`))
	answer := b.send("GET", "/api/processes/"+started["id"].(string)+"/output?follow=false", "")
	require.Equal(t, 200, answer.Code)
	require.Empty(t, answer.Body.String(), "it runs: nothing yet and no exit line")
}
