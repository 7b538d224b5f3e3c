package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
	"automation/watchdog"
)

// The race suite: everything that may change its mind about a box does so at once, from a barrier, through the routes and the
// duties of one process or two. What is required afterwards is that the timeline of each box, which every change writes in its
// own transaction, explains the row, the provider and the answers that were given.

// racePlace is where the boxes of the race suite are.
var racePlace = models.Place{Backend: modelstest.Backend}

// arena is one database with a provider in memory, and the processes that share both.
type arena struct {
	t         *testing.T
	processes []*process
	fake      *sandboxtest.Fake
	agents    *sandboxtest.AgentServer
	busy      callers
}

// process is what one process has of the service.
type process struct {
	*world
	stale, janitor, orphans, settle loop.Loop
	settler                         *sandbox.Settler
}

// weather is what changes between the waves of the suite.
type weather struct {
	quirks sandboxtest.Quirks
	delay  time.Duration
}

func newArena(t *testing.T, stores []*models.Store, wave weather) *arena {
	t.Helper()
	a := &arena{t: t, fake: sandboxtest.NewFake(wave.quirks), agents: sandboxtest.NewAgentServer(t)}
	a.fake.Agents = a.agents
	a.busy.Backend = a.fake
	for _, s := range stores {
		a.processes = append(a.processes, a.process(s, wave.delay))
	}
	return a
}

func (a *arena) process(s *models.Store, delay time.Duration) *process {
	a.t.Helper()
	deployment, err := s.Deployment(a.t.Context())
	require.NoError(a.t, err)
	settings := sandbox.Settings{CleanupDelay: delay, Export: sandbox.ExportOff}
	w := newWorld(a.t, s, nil, func(d *router.Deps) {
		d.Settings, d.Config.Cleanup.Delay = settings, delay
		d.Capabilities = func(string) sandbox.Capabilities { return a.fake.Capabilities() }
	})
	backend := sandbox.Decorate(&a.busy, sandbox.Limits{PerSecond: 1e6, Burst: 1000, Failures: 1000})
	p := &process{world: w, settler: sandbox.NewSettler(sandbox.SettlerConfig{
		Store: s, Deployment: deployment, Settings: settings, Blobs: w.blob, HTTP: a.agents.Client(),
		Timing:   sandbox.Timing{Call: 20 * time.Second, Shows: 20 * time.Second, Poll: time.Millisecond},
		Backends: map[string]*sandbox.Decorated{racePlace.Backend: backend},
	})}
	watch := &watchdog.Watchdog{
		Store: s, Config: w.deps.Config, Deployment: deployment, Backends: map[models.Place]sandbox.Backend{racePlace: backend},
		Settler: p.settler, HTTP: a.agents.Client(), Blobs: w.blob, Log: w.deps.Log,
		Decide: func(e models.Ending) models.Decision { return sandbox.Disposition(e, settings, a.fake.Capabilities()) },
	}
	p.stale, p.janitor, p.orphans, p.settle = watch.Stale(racePlace), watch.Janitor(), watch.Orphans(racePlace), watch.Settle(racePlace)
	return p
}

// callers is a provider that notices two changes to one box at once.
type callers struct {
	sandbox.Backend
	inside sync.Map // workspace id → true, while a change is on the wire
	twice  atomic.Int64
}

func (c *callers) alone(box uuid.UUID, change func() error) error {
	if _, taken := c.inside.LoadOrStore(box, true); taken {
		c.twice.Add(1)
	}
	defer c.inside.Delete(box)
	return change()
}

func (c *callers) Suspend(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	return c.alone(box.WorkspaceID, func() error { return c.Backend.Suspend(ctx, box, seen) })
}

func (c *callers) Resume(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	return c.alone(box.WorkspaceID, func() error { return c.Backend.Resume(ctx, box, seen) })
}

func (c *callers) Delete(ctx context.Context, box sandbox.Ref) error {
	return c.alone(box.WorkspaceID, func() error { return c.Backend.Delete(ctx, box) })
}

// racer is one run with its box, and what was answered about it.
type racer struct {
	automation *models.Automation
	run        *models.Run
	box        *models.Sandbox
	timedOut   bool
	moves      []string // of this act

	mu      sync.Mutex
	answers map[string][]int
}

func (r *racer) took(move string, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[move] = append(r.answers[move], status)
}

// accepted counts the answers 2xx to a move.
func (r *racer) accepted(moves ...string) int {
	n := 0
	for _, move := range moves {
		for _, status := range r.answers[move] {
			if status/100 == 2 {
				n++
			}
		}
	}
	return n
}

// requests are what people and the run itself may ask for.
var requests = map[string]func(p *process, r *racer) answer{
	"callback": func(p *process, r *racer) answer {
		return p.call("tok-alice", "POST", "runs/"+r.run.ID.String()+"/complete", map[string]any{"status": "COMPLETED"})
	},
	"cancel": func(p *process, r *racer) answer {
		return p.call("tok-alice", "POST", "runs/"+r.run.ID.String()+"/cancel", nil)
	},
	"pause": func(p *process, r *racer) answer {
		return p.call("tok-alice", "POST", sandboxPath(r.box, "/pause"), nil)
	},
	"resume": func(p *process, r *racer) answer {
		return p.call("tok-alice", "POST", sandboxPath(r.box, "/resume"), nil)
	},
	"extend": func(p *process, r *racer) answer {
		return p.call("tok-alice", "POST", sandboxPath(r.box, "/extend"), map[string]any{"seconds": 7200})
	},
	"keep": func(p *process, r *racer) answer {
		return p.call("tok-alice", "PUT", sandboxPath(r.box, "/keep"), map[string]any{"reason": "mine"})
	},
	"unkeep": func(p *process, r *racer) answer {
		return p.call("tok-alice", "DELETE", sandboxPath(r.box, "/keep"), nil)
	},
	"delete": func(p *process, r *racer) answer {
		return p.call("tok-alice", "DELETE", sandboxPath(r.box, "?confirm=history-will-be-lost"), nil)
	},
	"keep alive": func(p *process, r *racer) answer {
		return p.call("tok-alice", "PATCH", r.automation.ID.String(), map[string]any{"keep_alive": true})
	},
	"not alive": func(p *process, r *racer) answer {
		return p.call("tok-alice", "PATCH", r.automation.ID.String(), map[string]any{"keep_alive": false})
	},
}

// start makes a run whose command is started in a box; timed out: its deadline is over and its command was killed by it.
func (a *arena) start(timedOut bool) *racer {
	p := a.processes[0]
	deployment, err := p.store.Deployment(a.t.Context())
	require.NoError(a.t, err)
	var named sandbox.Identity
	r := &racer{timedOut: timedOut, answers: map[string][]int{}, automation: p.automation()}
	r.run, r.box = p.running(r.automation, func(run *models.Run, b *models.Sandbox) {
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: deployment, WorkspaceID: b.ID}}
		require.NoError(a.t, a.fake.Create(a.t.Context(), spec, func(i sandbox.Identity) error { named = i; return nil }))
		b.Identities[0].ProviderID = named.ProviderID
		command := a.agents.Box(named.ProviderID).Run("start '" + sandbox.StartMarker(run.ID) + "'")
		run.BashCommandID = &command
		if timedOut {
			past := p.store.Now().Add(-time.Second)
			run.TimeoutAt, run.CheckAt = &past, &past
			a.agents.Box(named.ProviderID).End(command, "", "", -1)
		}
	})
	require.NoError(a.t, p.store.RecordIdentity(a.t.Context(), models.Identity{
		SandboxID: r.box.ID, Kind: named.Kind, ProviderID: named.ProviderID, URL: named.URL, SessionKey: named.Key,
	}))
	return r
}

// race lets everything happen to the racers at once, and returns when all of it has been answered.
func (a *arena) race(racers []*racer) {
	start := make(chan struct{})
	var movers, duties sync.WaitGroup
	duty, stop := context.WithCancel(a.t.Context())
	defer stop()
	for n, r := range racers {
		for m, move := range r.moves {
			p := a.processes[(n+m)%len(a.processes)]
			movers.Go(func() {
				<-start
				r.took(move, requests[move](p, r).Code)
			})
		}
	}
	for _, p := range a.processes {
		for _, l := range []loop.Loop{p.stale, p.janitor, p.orphans, p.settle, p.settle} {
			duties.Go(func() {
				<-start
				for duty.Err() == nil {
					if _, err := l.Pass(context.WithoutCancel(duty)); err != nil {
						a.t.Errorf("%s: %v", l.Name, err)
						return
					}
				}
			})
		}
	}
	close(start)
	movers.Wait()
	stop()
	duties.Wait()
}

// rest lets all processes end and settle what is left until nothing is due.
func (a *arena) rest() {
	for range 1000 {
		done := 0
		for _, p := range a.processes {
			for _, l := range []loop.Loop{p.stale, p.settle} {
				n, err := l.Pass(a.t.Context())
				require.NoError(a.t, err)
				done += n
			}
		}
		if done > 0 {
			continue
		}
		next, err := a.processes[0].settler.NextAt(a.t.Context(), racePlace)
		require.NoError(a.t, err)
		if next == nil {
			return
		}
		a.t.Fatalf("box work is left for %s", next)
	}
	a.t.Fatal("the settlers do not come to rest")
}

// sweep makes passes of one janitor until nothing is due, and settles.
func (a *arena) sweep() {
	for range 1000 {
		n, err := a.processes[0].janitor.Pass(a.t.Context())
		require.NoError(a.t, err)
		if n == 0 {
			a.rest()
			return
		}
	}
	a.t.Fatal("the janitor does not come to an end")
}

// story is what a box's timeline says must be.
type story struct {
	finished, deletes int
	generation        int64
	status            models.RunStatus
	desired           models.Desired
	due               *time.Time
	told              []string
}

// read folds a timeline, in which every change stands in the order in which it was committed.
func (a *arena) read(r *racer) story {
	events, total, err := a.processes[0].store.Events(a.t.Context(), r.box.ID, 1000, 0)
	require.NoError(a.t, err)
	require.Len(a.t, events, total)
	s := story{generation: 1, status: models.RunRunning, desired: models.WantRunning}
	for _, e := range events {
		var detail struct {
			Status models.RunStatus `json:"status"`
			DueAt  *time.Time       `json:"due_at"`
		}
		if e.Detail != nil {
			require.NoError(a.t, json.Unmarshal(e.Detail, &detail))
		}
		switch e.What {
		case "finished":
			s.finished++
			s.status, s.due = detail.Status, detail.DueAt
		case "ordered":
			s.generation++
			to, _, _ := strings.Cut(e.Reason, ":")
			s.desired = models.Desired(to)
		case "adopted":
			s.desired = models.Desired(e.Reason)
		case "extended", "unkept", "stamped", "unstamped":
			if e.Detail != nil {
				s.due = detail.DueAt
			}
		case "kept":
			s.due = nil
		case "deleted":
			s.deletes++
			s.due = nil
		}
		s.told = append(s.told, fmt.Sprintf("%s %s %s: %s %s", e.At.Format("05.000000"), e.Actor, e.What, e.Reason, e.Detail))
	}
	return s
}

// proves requires of one racer, after everything has come to rest, what the promises say.
func (a *arena) proves(r *racer) {
	a.t.Helper()
	p := a.processes[0]
	run, box, s := p.run(r.run.ID), p.box(r.box.ID), a.read(r)
	saying := fmt.Sprintf("moves %v\nanswers %v\n%s", r.moves, r.answers, strings.Join(s.told, "\n"))

	ended := r.accepted("callback", "cancel") // by requests
	require.LessOrEqual(a.t, ended, s.finished, "every accepted end is written\n%s", saying)
	require.LessOrEqual(a.t, s.finished-ended, 1, "the watchdog ends a run once\n%s", saying)
	require.LessOrEqual(a.t, r.accepted("callback"), 1, "one callback is accepted\n%s", saying)
	if s.finished == 2 {
		require.Equal(a.t, models.RunCompleted, s.status, "only a late callback writes an end again\n%s", saying)
	}
	require.LessOrEqual(a.t, s.finished, 2, saying)
	require.Equal(a.t, s.status, run.Status, saying)
	require.Equal(a.t, s.due, run.CleanupDueAt, "the stamp is the one that was written last\n%s", saying)
	require.Equal(a.t, s.desired, box.Desired, "the last accepted order stands\n%s", saying)
	require.Equal(a.t, s.generation, box.Generation, saying)
	if slices.ContainsFunc(s.told, func(line string) bool { return strings.Contains(line, "ordered: deleted") }) {
		require.Equal(a.t, models.WantDeleted, box.Desired, "deleted is final\n%s", saying)
	}
	if r.accepted("delete")+r.accepted("cancel") > 0 {
		require.Equal(a.t, models.WantDeleted, box.Desired, saying)
	}

	alive, running := 0, 0
	for _, i := range box.Open() {
		if slices.Contains(a.fake.Alive(), i.ProviderID) {
			alive++
			if i.Kind == models.IdentityBox {
				running++
			}
		}
	}
	require.Nil(a.t, box.LeaseToken, saying)
	require.Nil(a.t, box.NextStepAt, "at rest\n%s", saying)
	if box.Desired == models.WantDeleted {
		require.Equal(a.t, models.SeenDeleted, box.Observed, saying)
		require.Equal(a.t, models.SeenMissing, a.fake.State(box.ID), saying)
		require.Nil(a.t, run.CleanupDueAt, saying)
		require.Equal(a.t, 1, a.fake.CountFor("Delete", box.ID), "BR-01 deleted once\n%s", saying)
		require.Equal(a.t, 1, s.deletes, saying)
		return
	}
	require.Positive(a.t, alive, "it is not lost\n%s", saying)
	require.LessOrEqual(a.t, running, 1, "one live identity\n%s", saying)
	require.Equal(a.t, string(box.Desired), string(box.Observed), saying)
	require.Equal(a.t, string(box.Desired), string(a.fake.State(box.ID)), saying)
	if box.KeptAt != nil || p.keepsAlive(r.automation) {
		require.Nil(a.t, run.CleanupDueAt, "what is kept has no date\n%s", saying)
	}
}

func (w *world) keepsAlive(a *models.Automation) bool {
	now, err := w.store.Automation(w.t.Context(), a.OrgID, a.ID)
	require.NoError(w.t, err)
	return now.KeepsAlive()
}

// waves are the providers and delays under which the suite is run.
var waves = []weather{
	{delay: time.Hour},
	{delay: time.Millisecond},
	{delay: time.Hour, quirks: sandboxtest.Quirks{Suspend: sandbox.SuspendSnapshot}},
	{delay: time.Millisecond, quirks: sandboxtest.Quirks{NewIdentity: true, RotateKey: true, ListLag: 1}},
	{delay: time.Hour, quirks: sandboxtest.Quirks{SlowSuspend: 3, SlowResume: 2}},
	{delay: 0},
}

// acts is how often the same runs are raced: what the first leaves suspended, timed out or kept is where the next begins.
const acts = 2

// choose picks some of the moves, in an order of its own. silent: the run does not call back.
func choose(random *rand.Rand, silent bool) []string {
	var moves []string
	for move, chance := range map[string]float64{
		"callback": .6, "cancel": .1, "pause": .5, "resume": .5, "extend": .3, "keep": .1, "unkeep": .2, "delete": .05,
		"keep alive": .1, "not alive": .2,
	} {
		for range 2 {
			if random.Float64() < chance && !(silent && move == "callback") {
				moves = append(moves, move)
			}
		}
	}
	return moves
}

func TestS1_057_BR_01_VolumeRacesEndEachRunAndBoxAsTheLastAcceptedOrderSays(t *testing.T) {
	runs, each := max(12, modelstest.Volume(204)), max(2, modelstest.Volume(17))
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		var shift atomic.Int64
		now := func() time.Time {
			return time.Now().UTC().Add(time.Duration(shift.Load())).Truncate(time.Microsecond)
		}
		stores := []*models.Store{db.Open(t, models.WithClock(now))}
		if db.Dialect == models.Postgres { // one process owns a SQLite file
			stores = append(stores, db.Open(t, models.WithClock(now)))
		}
		random := rand.New(rand.NewPCG(6, uint64(time.Now().UnixNano())))
		for wave := range runs / each {
			a := newArena(t, stores, waves[wave%len(waves)])
			racers := make([]*racer, each)
			for n := range racers {
				racers[n] = a.start(n%3 == 0)
			}
			for act := range acts {
				for n, r := range racers { // of those past their deadline half call back while the watchdog ends them, half later
					r.moves = choose(random, act == 0 && r.timedOut && (n+wave)%2 == 0)
				}
				a.race(racers)
				a.rest()
				for _, r := range racers {
					a.proves(r)
				}
			}
			require.Zero(t, a.busy.twice.Load(), "a box is changed by one process at a time")
			for _, r := range racers { // what runs would time out in the hours to come
				_ = requests["cancel"](a.processes[0], r)
			}
			shift.Add(int64(100 * time.Hour)) // whatever has a date goes; nothing else does
			a.sweep()
			for _, r := range racers {
				require.Nil(t, a.processes[0].run(r.run.ID).CleanupDueAt)
				a.cleared(r)
			}
		}
	})
}

// cleared ends a racer that is left over, so that the next wave has the database to itself.
func (a *arena) cleared(r *racer) {
	a.t.Helper()
	p := a.processes[0]
	if status := requests["delete"](p, r).Code; status != http.StatusAccepted {
		a.t.Fatalf("delete answered %d", status)
	}
	a.rest()
	require.Equal(a.t, models.SeenMissing, a.fake.State(r.box.ID))
}
