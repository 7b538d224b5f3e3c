package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"automation/config"
	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The people of the tests. alice, bob and carol share an organization; eve is the admin of another.
var (
	org, otherOrg = uuid.MustParse("0a000000-0000-4000-8000-000000000001"), uuid.MustParse("0a000000-0000-4000-8000-000000000002")
	alice         = uuid.MustParse("0b000000-0000-4000-8000-000000000001")
	bob           = uuid.MustParse("0b000000-0000-4000-8000-000000000002")
	carol         = uuid.MustParse("0b000000-0000-4000-8000-000000000003")
	eve           = uuid.MustParse("0b000000-0000-4000-8000-000000000009")
)

const localKey = "local-secret"

// people stands in for the Cloud check.
type people struct{}

func (people) Verify(_ context.Context, c router.Credential) (router.Caller, error) {
	view, both := []string{"view_automations"}, []string{"view_automations", "manage_automations"}
	if c.OrgID != "" {
		if id, err := uuid.Parse(c.OrgID); err != nil {
			return router.Caller{}, router.Refuse(http.StatusBadRequest, "Invalid X-Org-Id header (must be a UUID)")
		} else if id != org {
			return router.Caller{}, router.Refuse(http.StatusBadGateway, "Unexpected response from OpenHands API")
		}
	}
	switch c.Key {
	case "tok-alice":
		return router.Caller{UserID: alice, OrgID: org, Permissions: both}, nil
	case "tok-bob":
		return router.Caller{UserID: bob, OrgID: org, Permissions: view}, nil
	case "tok-carol":
		return router.Caller{
			UserID: carol, OrgID: org, Permissions: view,
			Models: &router.Profiles{Names: []string{"fast", "deep"}, Active: "deep"},
		}, nil
	case "tok-eve":
		return router.Caller{UserID: eve, OrgID: otherOrg, Permissions: both}, nil
	case "tok-nobody":
		return router.Caller{UserID: uuid.New(), OrgID: org}, nil
	}
	if c.Cookie != "" {
		return router.Caller{}, router.Refuse(http.StatusUnauthorized, "Invalid or expired session cookie")
	}
	return router.Caller{}, router.Refuse(http.StatusUnauthorized, "Invalid or expired API key")
}

// agentProfile is the one that the people's organization has.
var agentProfile = uuid.MustParse("0c000000-0000-4000-8000-000000000001")

func (people) HasAgentProfile(_ context.Context, _ router.Credential, id uuid.UUID) (bool, error) {
	return id == agentProfile, nil
}

// memory is a Blob.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
	fail  bool // Put does
}

func (m *memory) Put(_ context.Context, key string, r io.Reader) (int64, error) {
	if m.fail {
		return 0, errBroken
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[key] = content
	return int64(len(content)), nil
}

func (m *memory) Open(_ context.Context, key string) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, there := m.files[key]
	if !there {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, key)
	return nil
}

// door is an Access into one box server.
type door struct {
	store    *models.Store
	url, key string
	err      error
	wait     bool // never answers
	entered  atomic.Int64
	left     atomic.Int64
	doubts   atomic.Int64
	onDoubt  func()

	onRefused func()
	closing   context.Context
	mu        sync.Mutex
	who       string
	box, org  uuid.UUID
}

func (d *door) Enter(ctx context.Context, read *models.Sandbox, who string) (*models.Sandbox, func(), error) {
	d.entered.Add(1)
	b, err := d.enter(ctx, read, who)
	if err != nil {
		d.left.Add(1)
		return nil, nil, err
	}
	return b, func() { d.left.Add(1) }, nil
}

func (d *door) enter(ctx context.Context, read *models.Sandbox, who string) (*models.Sandbox, error) {
	d.mu.Lock()
	d.box, d.org, d.who = read.ID, read.OrgID, who
	d.mu.Unlock()
	if d.wait {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if d.err != nil {
		return nil, d.err
	}
	b, err := d.store.Sandbox(ctx, read.OrgID, read.ID)
	if err == nil {
		b.URL, b.SessionKey = d.url, d.key
	}
	return b, err
}

func (d *door) Refused(uuid.UUID) {
	if d.onRefused != nil {
		d.onRefused()
	}
}

func (d *door) Doubt(uuid.UUID) {
	d.doubts.Add(1)
	if d.onDoubt != nil {
		d.onDoubt()
	}
}

func (d *door) Release(uuid.UUID) {}

func (d *door) OnClose(f func()) func() bool { return context.AfterFunc(d.closing, f) }

var _ router.Access = (*sandbox.Access)(nil)

// world is a router over a real store.
type world struct {
	t       *testing.T
	store   *models.Store
	clock   *modelstest.Clock
	blob    *memory
	door    *door
	handler http.Handler
	deps    router.Deps
	logs    *bytes.Buffer
	log     *locked // writes logs

	dispatches, schedules, settles, janitors atomic.Int64
}

const delay = time.Hour

// each runs test on both dialects. edit changes what the router is made from.
func each(t *testing.T, test func(t *testing.T, w *world), edit ...func(*router.Deps)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		test(t, newWorld(t, db.Open(t, models.WithClock(clock.Now)), clock, edit...))
	})
}

// once runs test on SQLite alone, for what no statement of the database decides.
func once(t *testing.T, test func(t *testing.T, w *world), edit ...func(*router.Deps)) {
	t.Helper()
	clock := modelstest.NewClock()
	test(t, newWorld(t, modelstest.NewSQLite(t).Open(t, models.WithClock(clock.Now)), clock, edit...))
}

func newWorld(t *testing.T, s *models.Store, clock *modelstest.Clock, edit ...func(*router.Deps)) *world {
	t.Helper()
	w := &world{t: t, store: s, clock: clock, blob: &memory{files: map[string][]byte{}}, door: &door{store: s, closing: t.Context()}, logs: &bytes.Buffer{}}
	w.log = &locked{w: w.logs}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	settings := config.Default(t.TempDir())
	settings.HTTP.Listen = "0.0.0.0:8000"
	w.deps = router.Deps{
		Store: s, Config: settings, Blob: w.blob, Access: w.door, Cloud: people{},
		Nudge: router.Nudges{
			Dispatch: func() { w.dispatches.Add(1) }, Schedule: func() { w.schedules.Add(1) },
			Settle: func() { w.settles.Add(1) }, Janitor: func() { w.janitors.Add(1) },
		},
		Customers: router.Customers{Store: customer.New(s), Agents: &crew{store: customer.New(s)}},
		Settings:  sandbox.Settings{CleanupDelay: delay},
		Runtimes: router.Runtimes{
			Place: models.Place{Backend: modelstest.Backend}, Workspace: func(path string) (string, error) { return path, nil },
		},
		Capabilities: func(backend string) sandbox.Capabilities {
			if backend == "cannot-suspend" {
				return sandbox.Capabilities{Suspend: sandbox.SuspendNone}
			}
			return sandbox.Capabilities{Suspend: sandbox.SuspendMemory, SuspendedCost: "0.05 $/GB a month"}
		},
		ValidateSchedule: validateSchedule, NextFire: nextFire,
		Ready:   func(context.Context) []router.Check { return nil },
		Version: "1.26.0", SDKVersion: "1.58.1", Transport: transport,
		Log: slog.New(slog.NewJSONHandler(w.log, nil)),
	}
	for _, change := range edit {
		change(&w.deps)
	}
	w.handler = router.New(w.deps)
	return w
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

// logged is what was logged so far, while requests may still be served.
func (w *world) logged() string {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return w.logs.String()
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func parseCron(schedule string) (cron.Schedule, error) {
	words := strings.Fields(schedule)
	if len(words) == 6 {
		words = words[:5] // the contract's seconds come last
	}
	return cron.ParseStandard(strings.Join(words, " "))
}

func validateSchedule(schedule, timezone string) (string, string, string) {
	if _, err := time.LoadLocation(timezone); err != nil {
		return "timezone", "Invalid timezone: " + timezone, ""
	}
	s, err := parseCron(schedule)
	if err != nil {
		return "schedule", "Invalid cron expression: " + schedule, err.Error()
	}
	if s.Next(modelstest.Start).IsZero() {
		return "schedule", "Cron expression cannot produce any future fire times: " + schedule, ""
	}
	return "", "", ""
}

func nextFire(schedule, _ string, after time.Time) (time.Time, bool) {
	s, err := parseCron(schedule)
	if err != nil {
		return time.Time{}, false
	}
	return s.Next(after), true
}

const base = "/api/automation"

// answer is what came back.
type answer struct {
	*httptest.ResponseRecorder
	t *testing.T
}

// json is the body as an object.
func (a answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	require.NoError(a.t, json.Unmarshal(a.Body.Bytes(), &v), "%d %s", a.Code, a.Body)
	return v
}

// is checks the status and returns the body.
func (a answer) is(status int) map[string]any {
	a.t.Helper()
	require.Equal(a.t, status, a.Code, a.Body.String())
	if a.Body.Len() == 0 {
		return nil
	}
	return a.json()
}

// call sends a request as a person ("" for nobody); body is a string as it is, nil for none, or anything as JSON.
func (w *world) call(as, method, path string, body any, headers ...string) answer {
	w.t.Helper()
	var in io.Reader = http.NoBody
	isJSON := false
	switch b := body.(type) {
	case nil:
	case io.Reader:
		in = b
	case string:
		in, isJSON = strings.NewReader(b), true
	default:
		text, err := json.Marshal(b)
		require.NoError(w.t, err)
		in, isJSON = bytes.NewReader(text), true
	}
	if !strings.HasPrefix(path, "/") {
		path = base + "/v1/" + path
	}
	r := httptest.NewRequestWithContext(w.t.Context(), method, path, in)
	if isJSON {
		r.Header.Set("Content-Type", "application/json")
	}
	if as != "" {
		r.Header.Set("Authorization", "Bearer "+as)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return answer{rec, w.t}
}

// automation makes one of alice's.
func (w *world) automation(edit ...func(*models.Automation)) *models.Automation {
	w.t.Helper()
	return modelstest.Automation(w.t, w.store, append([]func(*models.Automation){func(a *models.Automation) {
		a.OrgID, a.UserID = org, alice
	}}, edit...)...)
}

// running makes a RUNNING run of a with its box.
func (w *world) running(a *models.Automation, edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	w.t.Helper()
	return modelstest.Running(w.t, w.store, a, edit...)
}

func (w *world) run(id uuid.UUID) *models.Run {
	w.t.Helper()
	r, err := w.store.Run(w.t.Context(), uuid.Nil, id)
	require.NoError(w.t, err)
	return r
}

func (w *world) box(id uuid.UUID) *models.Sandbox {
	w.t.Helper()
	b, err := w.store.Sandbox(w.t.Context(), uuid.Nil, id)
	require.NoError(w.t, err)
	return b
}

func keepAlive(a *models.Automation) { yes := true; a.KeepAlive = &yes }

var errBroken = errors.New("broken")

// request makes one that the test changes before it is served.
func request(t *testing.T, method, path, as string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	if as != "" {
		r.Header.Set("Authorization", "Bearer "+as)
	}
	return r
}

func (w *world) serve(r *http.Request) answer {
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return answer{rec, w.t}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// newAutomation is a body that is fine.
func newAutomation(edit ...any) map[string]any {
	body := map[string]any{
		"name": "nightly", "trigger": map[string]any{"type": "cron", "schedule": "0 3 * * *"},
		"tarball_path": "https://example.test/code.tar.gz", "entrypoint": "python main.py",
	}
	for i := 0; i < len(edit); i += 2 {
		body[edit[i].(string)] = edit[i+1]
	}
	return body
}
