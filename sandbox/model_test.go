package sandbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// The model: one run with one box, everything that may happen to them in an order that chance picks, and beside it what the
// promises say must be. Between any two happenings the row, the provider and the promises are compared; in the end, once the
// provider is well and time has gone by, the box rests as the last accepted order says, and once it is ordered deleted
// nothing of it is left anywhere.

// life is the model and what it is compared with.
type life struct {
	t       *rapid.T
	db      *modelstest.DB
	clock   *clock
	store   *models.Store
	fake    *sandboxtest.Fake
	agents  *sandboxtest.AgentServer
	deploy  uuid.UUID
	place   models.Place
	config  sandbox.Settings
	auto    *models.Automation
	run     *models.Run
	box     *models.Sandbox
	crashes int
	wire    *mortal

	// What must be.
	status     models.RunStatus
	timedOut   bool
	keepAlive  bool
	kept       bool
	desired    models.Desired
	due        *time.Time
	generation int64
	attempted  bool // a Delete was called for: its record clears the stamp
}

// mortal is a provider at one of whose calls the process dies: before it, when the provider has named a thing but nobody has
// heard, or after it.
type mortal struct {
	sandbox.Backend
	life    *life
	at      int // call, from 1; 0: never
	when    string
	made    int
	deletes int
}

// errDead is what a process that has died hears of its own call.
var errDead = errors.New("the process has died")

func (m *mortal) die() error {
	require.NoError(m.life.t, m.life.store.Close())
	return errDead
}

func (m *mortal) call(seen func(sandbox.Identity) error, effect func(func(sandbox.Identity) error) error) error {
	m.made++
	if m.made != m.at {
		return effect(seen)
	}
	switch m.when {
	case "before":
		return m.die()
	case "named":
		if err := effect(func(sandbox.Identity) error { return m.die() }); err != nil {
			return err
		}
		return m.die()
	default:
		_ = effect(seen)
		return m.die()
	}
}

func (m *mortal) Inspect(ctx context.Context, box sandbox.Ref) (obs sandbox.Observation, err error) {
	err = m.call(nil, func(func(sandbox.Identity) error) error {
		obs, err = m.Backend.Inspect(ctx, box)
		return err
	})
	return obs, err
}

func (m *mortal) Suspend(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	require.Equal(m.life.t, models.WantSuspended, m.life.desired, "a box is suspended that nobody wants suspended")
	return m.call(seen, func(seen func(sandbox.Identity) error) error { return m.Backend.Suspend(ctx, box, seen) })
}

func (m *mortal) Resume(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	require.NotEqual(m.life.t, models.WantSuspended, m.life.desired, "a box is resumed that nobody wants awake")
	return m.call(seen, func(seen func(sandbox.Identity) error) error { return m.Backend.Resume(ctx, box, seen) })
}

func (m *mortal) Delete(ctx context.Context, box sandbox.Ref) error {
	require.Equal(m.life.t, models.WantDeleted, m.life.desired, "a box is deleted that nobody ordered deleted")
	m.deletes++
	return m.call(nil, func(func(sandbox.Identity) error) error { return m.Backend.Delete(ctx, box) })
}

// kinds are the providers that the model is lived on.
var kinds = map[string]sandboxtest.Quirks{
	"kind":      {},
	"snapshots": {Suspend: sandbox.SuspendSnapshot, ListLag: 1},
	"renames":   {NewIdentity: true, RotateKey: true},
	"liar":      {FalseGone: true},
	"slow":      {SlowSuspend: 1, SlowResume: 1, SlowDelete: 1},
	"active":    {Activity: true},
	"blind":     {NoList: true, NoLabels: true},
	"cannot":    {Suspend: sandbox.SuspendNone},
}

func newLife(t *testing.T, rt *rapid.T, db *modelstest.DB, c *clock) *life {
	quirks := kinds[rapid.SampledFrom(slices.Sorted(maps.Keys(kinds))).Draw(rt, "provider")]
	l := &life{
		t: rt, db: db, clock: c, fake: sandboxtest.NewFake(quirks), agents: sandboxtest.NewAgentServer(t),
		place:  models.Place{Backend: "model-" + uuid.NewString()},
		config: sandbox.Settings{CleanupDelay: rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(rt, "delay"), Export: sandbox.ExportOff},
		status: models.RunRunning, desired: models.WantRunning, generation: 1,
	}
	l.fake.Agents = l.agents
	l.store = db.Open(t, models.WithClock(c.Now))
	deploy, err := l.store.Deployment(t.Context())
	require.NoError(rt, err)
	l.deploy = deploy
	l.auto = modelstest.Automation(t, l.store)
	var named sandbox.Identity
	l.run, l.box = modelstest.Running(t, l.store, l.auto, func(run *models.Run, b *models.Sandbox) {
		b.Backend = l.place.Backend
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: deploy, WorkspaceID: b.ID}}
		require.NoError(rt, l.fake.Create(t.Context(), spec, func(i sandbox.Identity) error { named = i; return nil }))
		b.Identities[0].ProviderID = named.ProviderID
		id := l.agents.Box(named.ProviderID).Run("start '" + sandbox.StartMarker(run.ID) + "'")
		run.BashCommandID = &id
	})
	require.NoError(rt, l.store.RecordIdentity(t.Context(), models.Identity{
		SandboxID: l.box.ID, Kind: named.Kind, ProviderID: named.ProviderID, URL: named.URL, SessionKey: named.Key,
	}))
	return l
}

// pass is one pass of a settler's worker, in which the process may die at a call. It reports whether there was work.
func (l *life) pass(t *testing.T, at int, when string) bool {
	l.wire = &mortal{Backend: l.fake, life: l, at: at, when: when}
	settler := sandbox.NewSettler(sandbox.SettlerConfig{
		Store: l.store, Deployment: l.deploy, Settings: l.config, Blobs: &blobs{data: map[string][]byte{}}, HTTP: l.agents.Client(), Timing: fast,
		Backends: map[string]*sandbox.Decorated{l.place.Backend: sandbox.Decorate(l.wire, sandbox.Limits{PerSecond: 1e6, Burst: 1000, Failures: 1000})},
	})
	n, err := settler.Pass(t.Context(), l.place)
	died := at > 0 && l.wire.made >= at
	if !died {
		require.NoError(l.t, err)
	}
	if l.wire.deletes > 0 && !died {
		l.due = nil // recorded
	}
	l.attempted = l.attempted || l.wire.deletes > 0
	if died {
		l.crashes++
		l.store = l.db.Open(t, models.WithClock(l.clock.Now))
	}
	return n > 0
}

// row is the box as it is stored.
func (l *life) row() *models.Sandbox {
	b, err := l.store.Sandbox(context.Background(), uuid.Nil, l.box.ID)
	require.NoError(l.t, err)
	return b
}

// holds compares what is with what must be.
func (l *life) holds() {
	run, err := l.store.Run(context.Background(), uuid.Nil, l.run.ID)
	require.NoError(l.t, err)
	b := l.row()
	require.Equal(l.t, l.status, run.Status, "the status changes only by an accepted end")
	if b.Desired != l.desired && l.desired != models.WantDeleted && b.Desired != models.WantDeleted {
		l.desired = b.Desired // adopted: what a person did at the provider is not fought
	}
	if b.Desired != l.desired && b.Desired == models.WantDeleted && b.OrderReason == "the box failed" {
		l.desired, l.generation = models.WantDeleted, b.Generation // by the settler itself
	}
	require.Equal(l.t, l.desired, b.Desired, "the last accepted order stands")
	require.Equal(l.t, l.generation, b.Generation)
	require.Equal(l.t, l.kept, b.KeptAt != nil)
	if b.Observed == models.SeenDeleted {
		l.due = nil // also where a delete was under way that nobody here had called for
	}
	if !(l.attempted && run.CleanupDueAt == nil) { // a process that died may have recorded its call, or not
		require.Equal(l.t, l.due, run.CleanupDueAt, "the stamp is what was written last")
	}
	if b.Observed == models.SeenDeleted {
		require.Empty(l.t, b.Open(), "deleted is a box whose every identity is gone")
		require.Nil(l.t, run.CleanupDueAt, "a box that is gone has no date: %s", l.told())
	}
	if b.Desired == models.WantDeleted && b.Observed != models.SeenDeleted && len(b.Open()) > 0 {
		require.NotNil(l.t, b.NextStepAt, "a box that is to go has a next step until it is gone: %s", b.Observed)
	}
}

// rests lets time go by until the box is at rest.
func (l *life) rests(t *testing.T) {
	for range 400 {
		if l.pass(t, 0, "") {
			l.holds()
			continue
		}
		at, err := l.store.NextStepAt(context.Background(), l.place)
		require.NoError(l.t, err)
		if at == nil {
			return
		}
		l.clock.Advance(max(at.Sub(l.clock.Now()), time.Millisecond))
	}
	require.Fail(l.t, "the box does not come to rest", "%+v", l.row())
}

func TestBR_01_BR_05_S1_010_VolumeNoOrderOfEventsLosesOrLeaksABox(t *testing.T) {
	require.NoError(t, flag.Set("rapid.nofailfile", "true"))
	require.NoError(t, flag.Set("rapid.checks", strconv.Itoa(max(4, modelstest.Volume(80)))))
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		c := &clock{}
		rapid.Check(t, func(rt *rapid.T) {
			l := newLife(t, rt, db, c)
			defer func() { _ = l.store.Close() }()
			rt.Repeat(l.moves(t))
			l.ends(t)
		})
	})
}

// ends heals the provider, lets the box come to rest, and then has it deleted: nothing of it may be left.
func (l *life) ends(t *testing.T) {
	l.heal()
	l.clock.Advance(2 * time.Minute) // the leases of the dead end
	l.look(t)
	require.NoError(l.t, l.store.NudgeBox(context.Background(), l.box.ID)) // what the provider did by itself is seen
	l.rests(t)
	l.holds()
	b, state := l.row(), l.fake.State(l.box.ID)
	gaveWay := slices.Contains(b.Tried, string(sandbox.StepSuspend)) // a user was in the box after the order
	if l.desired != models.WantDeleted && state != models.SeenMissing && state != models.SeenFailed && b.NeedsAttention == "" && !gaveWay {
		require.Equal(l.t, string(l.desired), string(state), "the provider shows what was ordered last: %s", l.told())
		require.Equal(l.t, string(l.desired), string(b.Observed))
	}
	if l.status == models.RunRunning {
		l.finish(models.RunCancelled)
	} else if l.desired != models.WantDeleted {
		l.order(models.WantDeleted)
	}
	l.rests(t)
	for range 4 { // what a dead process made and nobody heard of is found by its label, and quarantined
		l.look(t)
		l.clock.Advance(time.Hour)
		l.rests(t)
	}
	require.Empty(l.t, l.fake.Alive(), "nothing is left at the provider: %s", l.told())
	b = l.row()
	require.Contains(l.t, []models.Observed{models.SeenDeleted, models.SeenMissing}, b.Observed)
	require.Empty(l.t, b.Open())
	l.due = nil
	l.holds()
}

// told is the timeline.
func (l *life) told() string {
	events, _, err := l.store.Events(context.Background(), l.box.ID, 200, 0)
	require.NoError(l.t, err)
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "\n%s %s: %s (%s)", e.Actor, e.What, e.Reason, e.Outcome)
	}
	return text.String()
}
