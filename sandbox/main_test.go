package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is real time, shifted: rows that are written one after the other get different times.
type clock struct {
	mu    sync.Mutex
	shift time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().UTC().Add(c.shift).Truncate(time.Microsecond)
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift += d
}

// blobs keeps outputs in memory.
type blobs struct {
	mu   sync.Mutex
	data map[string][]byte
	err  error
	put  func()
	// change is what becomes of what is stored, where given.
	change func([]byte) []byte
}

func (b *blobs) Put(_ context.Context, key string, r io.Reader) (int64, error) {
	if b.put != nil {
		b.put()
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	b.data[key] = bytes.Clone(text)
	if b.change != nil {
		b.data[key] = b.change(text)
	}
	return int64(len(text)), nil
}

func (b *blobs) Open(_ context.Context, key string) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, there := b.data[key]
	if !there {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(text)), nil
}

func (b *blobs) Delete(_ context.Context, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.data, key)
	return nil
}

func (b *blobs) get(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data[key])
}

// rig is a settler over one store and one provider in memory.
type rig struct {
	*testing.T
	store    *models.Store
	clock    *clock
	fake     *sandboxtest.Fake
	agents   *sandboxtest.AgentServer
	blobs    *blobs
	config   sandbox.SettlerConfig
	settler  *sandbox.Settler
	settings sandbox.Settings
	deploy   uuid.UUID
	auto     *models.Automation
}

var place = models.Place{Backend: modelstest.Backend}

// fast are durations of calls and looks for tests; those of rows follow the store's clock.
var fast = sandbox.Timing{Call: 2 * time.Second, Shows: 2 * time.Second, Poll: time.Millisecond}

// withDelay are settings that keep a finished box for an hour.
var withDelay = sandbox.Settings{CleanupDelay: time.Hour}

// each runs test on both dialects.
func each(t *testing.T, quirks sandboxtest.Quirks, settings sandbox.Settings, test func(*rig)) {
	t.Helper()
	c := &clock{}
	modelstest.Each(t, func(t *testing.T, s *models.Store) { test(newRig(t, s, c, quirks, settings)) }, models.WithClock(c.Now))
}

// one runs test on SQLite only: for what does not depend on the engine.
func one(t *testing.T, quirks sandboxtest.Quirks, settings sandbox.Settings, test func(*rig)) {
	t.Helper()
	c := &clock{}
	test(newRig(t, modelstest.NewSQLite(t).Open(t, models.WithClock(c.Now)), c, quirks, settings))
}

func newRig(t *testing.T, s *models.Store, c *clock, quirks sandboxtest.Quirks, settings sandbox.Settings) *rig {
	deploy, err := s.Deployment(t.Context())
	require.NoError(t, err)
	r := &rig{
		T: t, store: s, clock: c, fake: sandboxtest.NewFake(quirks), agents: sandboxtest.NewAgentServer(t),
		blobs: &blobs{data: map[string][]byte{}}, settings: settings, deploy: deploy,
	}
	r.fake.Agents = r.agents
	r.auto = modelstest.Automation(t, s)
	exports, err := sandbox.NewExporter(sandbox.ExporterConfig{
		Store: s, Blobs: r.blobs, Staging: t.TempDir(), HTTP: r.agents.Client(), Free: func() (int64, error) { return 1 << 40, nil },
	})
	require.NoError(t, err)
	r.config = sandbox.SettlerConfig{
		Exports: exports,
		Store:   s, Deployment: deploy, Settings: settings, Blobs: r.blobs, HTTP: r.agents.Client(), Timing: fast,
		Backends: map[string]*sandbox.Decorated{modelstest.Backend: sandbox.Decorate(r.fake, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 1000})},
	}
	r.settler = sandbox.NewSettler(r.config)
	return r
}

// running makes a box at the provider, and its rows as they are when the command was started.
func (r *rig) running(edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	return r.runningOf(r.auto, edit...)
}

func (r *rig) runningOf(a *models.Automation, edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	r.Helper()
	var named sandbox.Identity
	create := func(run *models.Run, b *models.Sandbox) {
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: b.ID}}
		require.NoError(r, r.fake.Create(r.Context(), spec, func(i sandbox.Identity) error { named = i; return nil }))
		b.Identities[0].ProviderID = named.ProviderID
		if run.StartingAt != nil {
			id := r.agents.Box(named.ProviderID).Run("start '" + sandbox.StartMarker(run.ID) + "'")
			run.BashCommandID = &id
		}
	}
	run, box := modelstest.Running(r.T, r.store, a, append([]func(*models.Run, *models.Sandbox){create}, edit...)...)
	require.NoError(r, r.store.RecordIdentity(r.Context(), models.Identity{
		SandboxID: box.ID, Kind: named.Kind, ProviderID: named.ProviderID, URL: named.URL, SessionKey: named.Key,
	}))
	return run, r.box(box.ID)
}

// agent is the agent server in a box as it is now.
func (r *rig) agent(boxID uuid.UUID) *sandboxtest.AgentBox {
	return r.agents.Box(r.fake.Identity(boxID).ProviderID)
}

// exit ends the run's command in its box.
func (r *rig) exit(run *models.Run, box *models.Sandbox, output string, code int) {
	agent := r.agent(box.ID)
	agent.Print(*run.BashCommandID, output)
	agent.Exit(*run.BashCommandID, code)
}

// finish ends a run as its callback does.
func (r *rig) finish(run *models.Run, o models.Outcome) models.Finished {
	r.Helper()
	if o.Status == "" {
		o.Status = models.RunCompleted
	}
	if o.Actor == "" {
		o.Actor, o.Reason = "callback", "callback"
	}
	f, err := r.store.Finish(r.Context(), run.ID, o, func(e models.Ending) models.Decision {
		return sandbox.Disposition(e, r.settings, r.fake.Capabilities())
	})
	require.NoError(r, err)
	require.True(r, f.Won)
	return f
}

// cancel ends a run as a user's cancel does.
func (r *rig) cancel(run *models.Run) {
	r.Helper()
	r.finish(run, models.Outcome{Status: models.RunCancelled, Actor: "user:u", Reason: "cancelled", From: []models.RunStatus{models.RunPending, models.RunRunning}})
}

// settle makes passes until nothing is due.
func (r *rig) settle() {
	r.Helper()
	for range 500 {
		n, err := r.settler.Pass(r.Context(), place)
		require.NoError(r, err)
		if n == 0 {
			return
		}
	}
	require.Fail(r, "the settler does not come to rest")
}

// settleFor settles, lets the clock go on to the next step, and so on for d.
func (r *rig) settleFor(d time.Duration) {
	r.Helper()
	end := r.clock.Now().Add(d)
	for {
		r.settle()
		next, err := r.settler.NextAt(r.Context(), place)
		require.NoError(r, err)
		if next == nil || next.After(end) {
			r.clock.Advance(end.Sub(r.clock.Now()))
			return
		}
		r.clock.Advance(max(next.Sub(r.clock.Now()), time.Millisecond))
	}
}

func (r *rig) box(id uuid.UUID) *models.Sandbox {
	r.Helper()
	b, err := r.store.Sandbox(r.Context(), uuid.Nil, id)
	require.NoError(r, err)
	return b
}

func (r *rig) run(id uuid.UUID) *models.Run {
	r.Helper()
	run, err := r.store.Run(r.Context(), uuid.Nil, id)
	require.NoError(r, err)
	return run
}

// is requires a box's states, and that it is at rest exactly when wanted.
func (r *rig) is(id uuid.UUID, desired models.Desired, observed models.Observed, rests bool) *models.Sandbox {
	r.Helper()
	b := r.box(id)
	require.Equal(r, desired, b.Desired)
	require.Equal(r, observed, b.Observed)
	require.Equal(r, rests, b.NextStepAt == nil, "at rest")
	require.Nil(r, b.LeaseToken, "no lease is left behind")
	return b
}

func (r *rig) order(id uuid.UUID, to models.Desired, who string) {
	r.Helper()
	require.NoError(r, r.store.Order(r.Context(), id, to, who, "test"))
}

// events returns "what outcome" of a box's timeline.
func (r *rig) events(id uuid.UUID) []string {
	r.Helper()
	events, _, err := r.store.Events(r.Context(), id, 100, 0)
	require.NoError(r, err)
	var all []string
	for _, e := range events {
		all = append(all, e.What+" "+e.Outcome)
	}
	return all
}

// raw is a handle for what no method of Store does.
func (r *rig) raw() *bun.DB { return modelstest.Of(r.T, r.store).Raw() }

// decode joins the raw output in stored NDJSON.
func decode(t *testing.T, ndjson string) string {
	t.Helper()
	var all bytes.Buffer
	for line := range strings.Lines(ndjson) {
		var f sandbox.Frame
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		all.Write(f.Data)
	}
	return all.String()
}

func cancelable(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	return ctx, stop
}

// synctestHang runs call against a box that takes the request and never answers, and requires it to end within two minutes.
func synctestHang(t *testing.T, call func(sandbox.Agent) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		agent := sandbox.Agent{URL: "http://box", HTTP: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}}
		require.ErrorIs(t, call(agent), sandbox.ErrUnreachable)
		require.LessOrEqual(t, time.Since(started), 2*time.Minute)
	})
}
