package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
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

// blobs keeps tarballs and outputs in memory.
type blobs struct {
	mu   sync.Mutex
	data map[string][]byte
}

func (b *blobs) Put(_ context.Context, key string, r io.Reader) (int64, error) {
	content, err := io.ReadAll(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data[key] = content
	return int64(len(content)), err
}

func (b *blobs) Open(_ context.Context, key string) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content, ok := b.data[key]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

func (b *blobs) get(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data[key])
}

var place = models.Place{Backend: modelstest.Backend}

// rig is the duties of this package, and a settler, over one database and one provider in memory.
type rig struct {
	logging sync.Mutex // of log, which the duties of several processes write to
	*testing.T
	db       *modelstest.DB
	store    *models.Store
	clock    *clock
	fake     *sandboxtest.Fake
	agents   *sandboxtest.AgentServer
	blobs    *blobs
	log      *bytes.Buffer
	settings sandbox.Settings
	dispatch *Dispatch
	schedule *Schedules
	settler  *sandbox.Settler
	auto     *models.Automation
}

// each runs test on both dialects.
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
	c := &clock{}
	r := &rig{
		T: t, db: db, clock: c, store: db.Open(t, models.WithClock(c.Now)),
		fake: sandboxtest.NewFake(quirks), agents: sandboxtest.NewAgentServer(t),
		blobs: &blobs{data: map[string][]byte{}}, log: &bytes.Buffer{}, settings: sandbox.Settings{CleanupDelay: time.Hour},
	}
	r.fake.Agents = r.agents
	r.auto = r.automation()
	deploy, err := r.store.Deployment(t.Context())
	require.NoError(t, err)
	r.dispatch, r.schedule = r.duties(r.store)
	r.settler = sandbox.NewSettler(sandbox.SettlerConfig{
		Store: r.store, Deployment: deploy, Settings: r.settings, Blobs: r.blobs, HTTP: r.agents.Client(),
		Timing:   sandbox.Timing{Call: 2 * time.Second, Shows: 2 * time.Second, Poll: time.Millisecond},
		Backends: map[string]*sandbox.Decorated{modelstest.Backend: sandbox.Decorate(r.fake, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 1000})},
	})
	return r
}

// duties are those of one process, on a store of its own.
func (r *rig) duties(s *models.Store) (*Dispatch, *Schedules) {
	deploy, err := s.Deployment(r.Context())
	require.NoError(r, err)
	settings := config.Default(r.TempDir()).Dispatch
	settings.PollInterval, settings.ReadyTimeout, settings.ProvisionRetryDelay = 10*time.Millisecond, 5*time.Second, 0
	log := slog.New(slog.NewTextHandler(&locked{mu: &r.logging, w: r.log}, nil))
	d := &Dispatch{
		Store: s, Backend: r.fake, Place: place, Blobs: r.blobs, Decide: r.decide, Deployment: deploy,
		APIURL: "http://automation.test/api/automation", Settings: settings, HTTP: r.agents.Client(),
		Log: log, Nudge: loop.NewNudge(), Stale: loop.NewNudge(), Settle: func() {},
	}
	return d, &Schedules{
		Store: s, Decide: r.decide, Interval: time.Minute, Log: log,
		Nudge: loop.NewNudge(), Dispatch: d.Nudge, Settle: func() {},
	}
}

// locked lets several goroutines write.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (r *rig) decide(e models.Ending) models.Decision {
	return sandbox.Disposition(e, r.settings, r.fake.Capabilities())
}

// automation makes one whose tarball is an upload of its organization.
func (r *rig) automation(edit ...func(*models.Automation)) *models.Automation {
	r.Helper()
	size := int64(7)
	upload := &models.Upload{OrgID: modelstest.Org, UserID: modelstest.User, Name: "code", Status: models.UploadCompleted, SizeBytes: &size}
	upload.ID = uuid.Must(uuid.NewV7())
	upload.BlobKey = "uploads/" + upload.ID.String() + ".tar"
	require.NoError(r, r.store.CreateUpload(r.Context(), upload))
	_, err := r.blobs.Put(r.Context(), upload.BlobKey, bytes.NewBufferString("tarball"))
	require.NoError(r, err)
	tarball := func(a *models.Automation) { a.TarballPath = internalUpload + upload.ID.String() }
	return modelstest.Automation(r.T, r.store, append([]func(*models.Automation){tarball}, edit...)...)
}

// scheduled makes an automation that fires by a schedule, from now on.
func (r *rig) scheduled(schedule string, edit ...func(*models.Automation)) *models.Automation {
	r.Helper()
	return r.automation(append([]func(*models.Automation){func(a *models.Automation) {
		a.Trigger = json.RawMessage(`{"type":"cron","schedule":"` + schedule + `","timezone":"UTC"}`)
		arm(a, r.store.Now())
	}}, edit...)...)
}

// arm sets next_run_at the way the API does when an automation is created, changed or switched on.
func arm(a *models.Automation, now time.Time) {
	a.NextRunAt = nil
	if at, ok := NextFire(triggerOf(a).Schedule, triggerOf(a).Timezone, now); ok && a.Enabled() {
		a.NextRunAt = &at
	}
}

func (r *rig) pending() *models.Run { return modelstest.Pending(r.T, r.store, r.auto) }

// execute makes a dispatch pass, which must find something to do.
func (r *rig) execute() {
	r.Helper()
	n, err := r.dispatch.pass(r.Context())
	require.NoError(r, err)
	require.Positive(r, n)
}

// fire makes schedule passes until nothing is due.
func (r *rig) fire() {
	r.Helper()
	for range 100 {
		n, err := r.schedule.pass(r.Context())
		require.NoError(r, err)
		if n == 0 {
			return
		}
	}
	require.Fail(r, "schedules stay due")
}

// settle makes passes of the settler until nothing is due.
func (r *rig) settle() {
	r.Helper()
	for range 200 {
		n, err := r.settler.Pass(r.Context(), place)
		require.NoError(r, err)
		if n == 0 {
			return
		}
	}
	require.Fail(r, "the settler does not come to rest")
}

// agent is the agent server in a box.
func (r *rig) agent(boxID uuid.UUID) *sandboxtest.AgentBox {
	return r.agents.Box(r.fake.Identity(boxID).ProviderID)
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

// boxes returns the rows of a run, oldest first.
func (r *rig) boxes(run *models.Run) []*models.Sandbox {
	r.Helper()
	var rows []*models.Sandbox
	err := r.db.Raw().NewSelect().Model(&rows).Where("s.run_id = ?", run.ID).OrderExpr("s.created_at, s.id").Scan(r.Context())
	require.NoError(r, err)
	return rows
}

// runs returns the runs of an automation, newest first.
func (r *rig) runs(a *models.Automation) []*models.Run {
	r.Helper()
	runs, _, err := r.store.ListRuns(r.Context(), models.RunFilter{OrgID: a.OrgID, AutomationID: &a.ID, Limit: 10000})
	require.NoError(r, err)
	return runs
}

func (r *rig) detail(run *models.Run) (d models.StatusDetail) {
	r.Helper()
	require.NoError(r, json.Unmarshal(run.StatusDetail, &d))
	return d
}

// finish ends a run as its callback does.
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
