package watchdog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"automation/config"
	"automation/loop"
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
	put  func()
	fail bool
}

func (b *blobs) Put(_ context.Context, key string, r io.Reader) (int64, error) {
	if b.put != nil {
		b.put()
	}
	content, err := io.ReadAll(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data[key] = bytes.Clone(content)
	return int64(len(content)), err
}

func (b *blobs) Delete(_ context.Context, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail {
		return errors.New("disk error")
	}
	delete(b.data, key)
	return nil
}

func (b *blobs) get(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data[key])
}

// deleteCall is how a Fake names a delete.
const deleteCall = "Delete"

var place = models.Place{Backend: modelstest.Backend}

// rig is the duties of this package and a settler over one database and one provider in memory.
type rig struct {
	*testing.T
	*Watchdog
	db       *modelstest.DB
	store    *models.Store
	clock    *clock
	fake     *sandboxtest.Fake
	agents   *sandboxtest.AgentServer
	blobs    *blobs
	boxes    *http.Client // of agents
	settings sandbox.Settings
	settler  *sandbox.Settler
	auto     *models.Automation
}

// each runs test on both dialects, with a clean-up delay of an hour.
func each(t *testing.T, quirks sandboxtest.Quirks, test func(*rig)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) { test(newRig(t, db, quirks)) })
}

// one runs test on SQLite only: for what does not depend on the engine.
func one(t *testing.T, quirks sandboxtest.Quirks, test func(*rig)) {
	t.Helper()
	test(newRig(t, modelstest.NewSQLite(t), quirks))
}

func newRig(t *testing.T, db *modelstest.DB, quirks sandboxtest.Quirks) *rig {
	agents := sandboxtest.NewAgentServer(t)
	return rigOf(t, db, quirks, agents, agents.Client())
}

func rigOf(t *testing.T, db *modelstest.DB, quirks sandboxtest.Quirks, agents *sandboxtest.AgentServer, boxes *http.Client) *rig {
	c := &clock{}
	r := &rig{
		T: t, db: db, clock: c, store: db.Open(t, models.WithClock(c.Now)), fake: sandboxtest.NewFake(quirks),
		agents: agents, boxes: boxes, blobs: &blobs{data: map[string][]byte{}},
	}
	r.fake.Agents = r.agents
	r.auto = modelstest.Automation(t, r.store)
	r.Watchdog, r.settler = r.process(r.store)
	r.delay(time.Hour)
	return r
}

// process is what one process has: its duties and its settler.
func (r *rig) process(s *models.Store) (*Watchdog, *sandbox.Settler) {
	deploy, err := s.Deployment(r.Context())
	require.NoError(r, err)
	backend := sandbox.Decorate(r.fake, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 1000})
	settler := sandbox.NewSettler(sandbox.SettlerConfig{
		Store: s, Deployment: deploy, Settings: r.settings, Blobs: r.blobs, HTTP: r.boxes,
		Timing:   sandbox.Timing{Call: 2 * time.Second, Shows: 2 * time.Second, Poll: time.Millisecond},
		Backends: map[string]*sandbox.Decorated{place.Backend: backend},
	})
	return &Watchdog{
		Store: s, Config: config.Default(r.TempDir()), Deployment: deploy,
		Backends: map[models.Place]sandbox.Backend{place: backend}, Settler: settler, HTTP: r.boxes, Blobs: r.blobs,
		Decide: r.decide, Log: slog.New(slog.DiscardHandler),
		StaleNudges:  map[models.Place]loop.Nudge{place: loop.NewNudge()},
		JanitorNudge: loop.NewNudge(), SettleNudges: map[models.Place]loop.Nudge{place: loop.NewNudge()},
	}, settler
}

// delay sets the clean-up delay.
func (r *rig) delay(d time.Duration) {
	r.settings.CleanupDelay = d
	r.settler.Settings.CleanupDelay = d
	r.Config.Cleanup.Delay = d
}

func (r *rig) decide(e models.Ending) models.Decision {
	return sandbox.Disposition(e, r.settings, r.fake.Capabilities())
}

// running makes a box at the provider, with a command that runs in it, and its rows.
func (r *rig) running(edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	return r.runningOf(r.auto, edit...)
}

func (r *rig) runningOf(a *models.Automation, edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	r.Helper()
	var named sandbox.Identity
	build := func(run *models.Run, b *models.Sandbox) {
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.Deployment, WorkspaceID: b.ID}}
		require.NoError(r, r.fake.Create(r.Context(), spec, func(i sandbox.Identity) error { named = i; return nil }))
		b.Identities[0].ProviderID = named.ProviderID
		id := r.agents.Box(named.ProviderID).Run(". '/home/box/.automation/" + run.ID.String() + ".tar.gz.env' && . '/home/box/.automation/" + run.ID.String())
		run.BashCommandID = &id
	}
	run, box := modelstest.Running(r.T, r.store, a, append([]func(*models.Run, *models.Sandbox){build}, edit...)...)
	require.NoError(r, r.store.RecordIdentity(r.Context(), models.Identity{
		SandboxID: box.ID, Kind: named.Kind, ProviderID: named.ProviderID, URL: named.URL, SessionKey: named.Key,
	}))
	return run, r.box(box.ID)
}

// finished makes a run that ended, with its box suspended and its stamp written.
func (r *rig) finished() (*models.Run, *models.Sandbox) {
	r.Helper()
	run, box := r.running()
	r.exit(run, box, "done\n", "", 0)
	r.finish(run.ID, models.RunCompleted)
	r.settle()
	return r.run(run.ID), r.box(box.ID)
}

// timedOut moves the clock past a run's deadline.
func (r *rig) timedOut(run *models.Run) {
	r.Helper()
	r.clock.Advance(r.run(run.ID).TimeoutAt.Sub(r.clock.Now()) + time.Millisecond)
}

// exit ends the run's command in its box.
func (r *rig) exit(run *models.Run, box *models.Sandbox, stdout, stderr string, code int) {
	r.agent(box.ID).End(*run.BashCommandID, stdout, stderr, code)
}

// agent is the agent server in a box.
func (r *rig) agent(boxID uuid.UUID) *sandboxtest.AgentBox {
	return r.agents.Box(r.fake.Identity(boxID).ProviderID)
}

// stalePass is one pass of the stale duty, wherever a run is.
func (r *rig) stalePass(ctx context.Context) (int, error) {
	here, err := r.Stale(place).Pass(ctx)
	if err != nil {
		return here, err
	}
	stray, err := r.Stray().Pass(ctx)
	return here + stray, err
}

// stale makes passes of the stale duty until it finds nothing.
func (r *rig) stale() {
	r.Helper()
	r.drain(r.stalePass)
}

// sweepAll makes passes of the janitor until it finds nothing, and lets the settler do what it ordered.
func (r *rig) sweepAll() {
	r.Helper()
	r.drain(r.Janitor().Pass)
	r.settle()
}

func (r *rig) settle() {
	r.Helper()
	r.drain(r.Settle(place).Pass)
}

func (r *rig) drain(pass func(context.Context) (int, error)) {
	r.Helper()
	for range 1000 {
		n, err := pass(r.Context())
		require.NoError(r, err)
		if n == 0 {
			return
		}
	}
	require.Fail(r, "there is always more to do")
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
			r.clock.Advance(max(end.Sub(r.clock.Now()), 0))
			return
		}
		r.clock.Advance(max(next.Sub(r.clock.Now()), time.Millisecond))
	}
}

// finish ends a run as its callback, or a user, does.
func (r *rig) finish(id uuid.UUID, status models.RunStatus) models.Finished {
	r.Helper()
	o := models.Outcome{Status: status, Actor: "callback", Reason: "callback"}
	if status == models.RunCancelled {
		o.Actor, o.Reason, o.From = "user:u", "cancelled", []models.RunStatus{models.RunPending, models.RunRunning}
	}
	f, err := r.store.Finish(r.Context(), id, o, r.decide)
	require.NoError(r, err)
	return f
}

func (r *rig) run(id uuid.UUID) *models.Run {
	r.Helper()
	run, err := r.store.Run(r.Context(), uuid.Nil, id)
	require.NoError(r, err)
	return run
}

func (r *rig) box(id uuid.UUID) *models.Sandbox {
	r.Helper()
	b, err := r.store.Sandbox(r.Context(), uuid.Nil, id)
	require.NoError(r, err)
	return b
}

// gone requires that a box is deleted, here and at the provider.
func (r *rig) gone(id uuid.UUID) {
	r.Helper()
	require.Equal(r, models.SeenDeleted, r.box(id).Observed)
	require.Equal(r, models.SeenMissing, r.fake.State(id))
}

// deferred requires that a run's box is paused and its stamp counts from its completion.
func (r *rig) deferred(runID uuid.UUID) {
	r.Helper()
	run := r.run(runID)
	require.NotNil(r, run.CleanupDueAt)
	require.Equal(r, run.CompletedAt.Add(r.settings.CleanupDelay), *run.CleanupDueAt)
	r.settle()
	require.Equal(r, models.SeenSuspended, r.box(*run.BoxID).Observed)
}
