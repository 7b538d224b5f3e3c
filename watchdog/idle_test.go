package watchdog

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

const ttl = 20 * time.Minute

// idler is a rig whose idle duty has lived for a TTL, with a monotonic clock that goes with that of rows.
type idler struct {
	*rig
	duty loop.Loop
	jump time.Duration // of the rows' clock against the monotonic one
}

func eachIdle(t *testing.T, quirks sandboxtest.Quirks, test func(*idler)) {
	t.Helper()
	each(t, quirks, func(r *rig) { test(newIdler(r)) })
}

func newIdler(r *rig) *idler {
	i := &idler{rig: r}
	r.Config.Dispatch.IdleTTL = ttl
	began := r.clock.Now()
	r.Mono = func() time.Duration { return r.clock.Now().Sub(began) - i.jump }
	i.duty = r.Idle(place)
	i.pass()
	i.clock.Advance(ttl)
	return i
}

// pass makes one pass of the duty, and of the settler what it ordered.
func (i *idler) pass() {
	i.Helper()
	_, err := i.duty.Pass(i.Context())
	require.NoError(i, err)
	i.settle()
}

// later lets d go by, with the passes that there are in it.
func (i *idler) later(d time.Duration) {
	i.Helper()
	for ; d > 0; d -= ttl / 2 {
		i.clock.Advance(min(d, ttl/2))
		i.pass()
	}
}

// woken is the box of a run that ended, which somebody woke and has not used for the TTL.
func (i *idler) woken() *models.Sandbox {
	i.Helper()
	_, box := i.finished()
	require.NoError(i, i.store.Order(i.Context(), box.ID, models.WantRunning, "user:u", "resumed by hand"))
	i.settle()
	i.quiet(box.ID)
	return i.box(box.ID)
}

// conversation is a box without a run, unused for the TTL.
func (i *idler) conversation() *models.Sandbox {
	i.Helper()
	box := i.opened()
	i.quiet(box.ID)
	return i.box(box.ID)
}

// opened is a new box of a conversation, in which nothing runs.
func (i *idler) opened() *models.Sandbox {
	i.Helper()
	run, box := i.running()
	i.exit(run, box, "", "", 0)
	modelstest.Set(i.T, i.store, box, "run_id = NULL, created_by = ?", models.CreatedByRuntime)
	return i.box(box.ID)
}

// quiet lets the TTL go by for a box in which nothing runs.
func (i *idler) quiet(id uuid.UUID) {
	i.Helper()
	i.clock.Advance(ttl)
	i.agent(id).Idle(ttl + time.Minute)
}

func (i *idler) awake(id uuid.UUID) bool {
	i.Helper()
	return i.box(id).Observed == models.SeenRunning && i.fake.State(id) == models.SeenRunning
}

func TestS3_001_S3_002_S3_009_ManyUnusedBoxesAreAllStopped(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk}, func(i *idler) {
		var ids []uuid.UUID
		for range 8 {
			box := i.opened()
			ids = append(ids, box.ID)
		}
		box := i.woken()
		for _, id := range ids {
			i.agent(id).Idle(ttl)
		}
		i.pass()
		for _, id := range append(ids, box.ID) {
			require.False(i, i.awake(id))
			require.Equal(i, models.SeenSuspended, i.box(id).Observed)
			require.Equal(i, []string{"ordered suspended: idle for 20m0s"}, i.idleEvents(id))
		}
	})
}

// idleEvents are the idle duty's own entries in a box's timeline.
func (i *idler) idleEvents(id uuid.UUID) (all []string) {
	i.Helper()
	events, _, err := i.store.Events(i.Context(), id, 100, 0)
	require.NoError(i, err)
	for _, e := range events {
		if e.Actor == models.ByIdle {
			all = append(all, e.What+" "+e.Reason)
		}
	}
	return all
}

func TestS3_003_S3_010_WhatWorksIsNotStopped(t *testing.T) {
	works := map[string]struct {
		begin func(*sandboxtest.AgentBox) (end func())
		held  string
	}{
		"S3-003 an agent runs": {func(b *sandboxtest.AgentBox) func() {
			b.Converse(sandboxtest.Conversation{ID: "c", Status: "running"})
			return func() { b.Converse(sandboxtest.Conversation{ID: "c", Status: "finished"}) }
		}, models.HeldAgent},
		"D4 a command runs": {func(b *sandboxtest.AgentBox) func() {
			id := b.Run("make")
			return func() { b.Exit(id, 0) }
		}, models.HeldCommand},
		"S3-010 somebody works in it without us": {func(b *sandboxtest.AgentBox) func() {
			b.Idle(ttl / 2)
			return func() {}
		}, models.HeldActive},
	}
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		for name, work := range works {
			i.Run(name, func(t *testing.T) {
				box := i.conversation()
				agent := i.agent(box.ID)
				end := work.begin(agent)
				i.pass()
				require.True(t, i.awake(box.ID))
				require.Equal(t, work.held, i.box(box.ID).HeldBecause)
				require.Empty(t, i.idleEvents(box.ID), "not even ordered")
				asked := agent.Requests()
				i.pass()
				require.Equal(t, asked, agent.Requests(), "asked once, at the deadline")
				end()
				agent.Idle(ttl)
				i.later(2 * ttl)
				require.False(t, i.awake(box.ID), "and stopped when it has ended")
			})
		}
	})
}

func TestAnAgentThatDiedWhileItRanDoesNotHoldItsBoxForEver(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		box := i.conversation()
		i.agent(box.ID).Converse(sandboxtest.Conversation{ID: "c", Status: "running"})
		i.agent(box.ID).Idle(25 * time.Hour)
		i.pass()
		require.False(i, i.awake(box.ID), "D4: nobody thinks for a day without a word")
	})
}

func TestS3_029_ABoxWhoseStateCannotBeReadIsNotStoppedAndSaysSo(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		for _, breaks := range []func(*sandboxtest.AgentBox){
			func(b *sandboxtest.AgentBox) { b.Down() },
			func(b *sandboxtest.AgentBox) { b.Fail("/server_info", 503) },
			func(b *sandboxtest.AgentBox) { b.Fail("/api/conversations/search", 500) },
			func(b *sandboxtest.AgentBox) { b.Fail("/api/bash/bash_events/search", 500) },
		} {
			box := i.conversation()
			breaks(i.agent(box.ID))
			i.pass()
			require.Equal(i, models.SeenRunning, i.box(box.ID).Observed)
			b := i.box(box.ID)
			require.Equal(i, []string{models.HeldUnreadable, models.AttentionIdle}, []string{b.HeldBecause, b.NeedsAttention})
			require.Empty(i, i.idleEvents(box.ID))
		}
		box := i.conversation()
		i.agent(box.ID).Fail("/server_info", 503)
		i.pass()
		i.agent(box.ID).Fail("/server_info", 0)
		i.later(ttl / 2)
		require.False(i, i.awake(box.ID), "and asked again soon")
		require.Empty(i, i.box(box.ID).NeedsAttention)
	})
}

func TestS3_007_S3_013_DisablingTheTTLDisablesEviction(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		has := func(ttl time.Duration, can sandboxtest.Quirks) bool {
			r.Config.Dispatch.IdleTTL, r.fake.Quirks = ttl, can
			for _, l := range r.Loops() {
				if l.Name == "idle fake" {
					return true
				}
			}
			return false
		}
		require.True(r, has(ttl, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk}))
		require.False(r, has(0, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk}), "0, and empty: never")
		require.False(r, has(ttl, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk, Idle: sandbox.Timer{Supported: true}}), "S0-012: the provider does it")
		require.False(r, has(ttl, sandboxtest.Quirks{Suspend: sandbox.SuspendNone}), "it cannot be stopped")
		require.False(r, has(ttl, sandboxtest.Quirks{Suspend: sandbox.SuspendMemory, LookingCounts: true}), "S0-131: asking would keep it awake")
	})
}

func TestS3_027_HowOftenIsLooked(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		20 * time.Minute: time.Minute, 2 * time.Minute: time.Minute, 30 * time.Second: 15 * time.Second, time.Second: time.Second,
	} {
		require.Equal(t, want, idleEvery(ttl))
	}
}

func TestS3_030_AStepOfTheClockStopsNothing(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		box := i.opened()
		i.pass()
		i.agent(box.ID).Idle(10 * time.Hour)
		for _, step := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour} {
			i.clock.Advance(step)
			i.jump += step
			i.pass()
			i.clock.Advance(ttl / 2)
			i.pass()
			require.True(i, i.awake(box.ID), "a step of %s", step)
		}
		i.later(ttl)
		require.False(i, i.awake(box.ID), "a whole TTL has passed since")
	})
}

func TestNothingIsStoppedBeforeTheServiceHasRunForTheTTL(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		box := i.conversation()
		i.duty = i.Idle(place) // the service was started anew
		i.pass()
		require.True(i, i.awake(box.ID))
		i.later(ttl)
		require.False(i, i.awake(box.ID))
	})
}

func TestS3_021_SomethingThatBeginsAfterTheOrderSavesTheBox(t *testing.T) {
	begins := map[string]struct {
		what func(*idler, *models.Sandbox)
		end  models.Desired
	}{
		"an agent": {func(i *idler, b *models.Sandbox) {
			i.agent(b.ID).Converse(sandboxtest.Conversation{ID: "c", Status: "running"})
		}, models.WantSuspended},
		"S3-029 silence": {func(i *idler, b *models.Sandbox) { i.agent(b.ID).Down() }, models.WantSuspended},
		"an attachment": {func(i *idler, b *models.Sandbox) {
			_, err := i.store.Attach(i.Context(), b.ID, uuid.New(), i.clock.Now().Add(time.Minute))
			require.NoError(i, err)
		}, models.WantSuspended},
		"S3-022 an access": {func(i *idler, b *models.Sandbox) {
			require.NoError(i, i.store.Order(i.Context(), b.ID, models.WantRunning, "user:u", "access"))
		}, models.WantRunning},
	}
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		for name, c := range begins {
			i.Run(name, func(t *testing.T) {
				box := i.conversation()
				_, err := i.duty.Pass(i.Context())
				require.NoError(t, err)
				require.Equal(t, models.WantSuspended, i.box(box.ID).Desired, "ordered")
				c.what(i, box)
				i.settle()
				require.Equal(t, models.SeenRunning, i.fake.State(box.ID))
				b := i.box(box.ID)
				require.Equal(t, []any{c.end, models.SeenRunning, true}, []any{b.Desired, b.Observed, b.NextStepAt == nil})
				require.Zero(t, i.fake.CountFor("Suspend", box.ID), "under the lease it is asked again")
			})
		}
	})
}

func TestS3_022_AnAccessDuringTheStopWaitsAndStartsAnew(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk}, func(i *idler) {
		box := i.conversation()
		_, err := i.duty.Pass(i.Context())
		require.NoError(i, err)
		held := i.fake.HoldAnswer("Suspend") // it has stopped, and we do not know yet
		var settled sync.WaitGroup
		settled.Go(i.settle)
		<-held.Entered
		idle, err := i.store.IdleBoxes(i.Context(), []models.Place{place}, i.clock.Now(), 10)
		require.NoError(i, err)
		require.Empty(i, idle, "a stopping box is not idle")
		require.NoError(i, i.store.Order(i.Context(), box.ID, models.WantRunning, "user:u", "access"))
		require.Zero(i, i.fake.CountFor("Resume", box.ID), "nor startable")
		held.Release()
		settled.Wait()
		i.settle()
		require.True(i, i.awake(box.ID))
		require.Equal(i, []string{"Suspend", "Inspect", "Inspect", "Resume"}, after(i.fake.Methods(box.ID), "Suspend")[:4])
		require.Greater(i, i.box(box.ID).AwakeEpoch, box.AwakeEpoch, "another start")
	})
}

// after returns what follows the first of want, with it.
func after(all []string, want string) []string {
	for n, name := range all {
		if name == want {
			return append(all[n:len(all):len(all)], "", "", "")
		}
	}
	return make([]string, 4)
}

func TestS3_023_AStopThatFailsIsKeptCountedAndRetried(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		box := i.conversation()
		i.fake.FailFor("Suspend", box.ID, errors.New("engine says no"))
		i.pass()
		b := i.box(box.ID)
		require.Equal(i, []any{models.WantSuspended, models.SeenRunning, 1}, []any{b.Desired, b.Observed, b.Attempts})
		require.Contains(i, *b.LastError, "engine says no")
		i.fake.FailFor("Suspend", box.ID, nil)
		i.settleFor(time.Minute)
		require.False(i, i.awake(box.ID))
	})
}

func TestS3_028_CachesAreReclaimedJustBeforeTheStop(t *testing.T) {
	eachIdle(t, sandboxtest.Quirks{}, func(i *idler) {
		box := i.conversation()
		i.agent(box.ID).Frees(4096)
		var order []string
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		i.agent(box.ID).Watch(func(call string) {
			if call == "POST /api/storage/reclaim" {
				note("reclaim")
				require.NotNil(i, i.box(box.ID).LeaseToken, "under the box's lease")
			}
		})
		i.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "Suspend" {
				note("stop")
			}
		})
		i.pass()
		require.Equal(i, []string{"reclaim", "stop"}, order)
		require.EqualValues(i, 4096, i.box(box.ID).ReclaimedBytes)
	})
}

func TestS3_006_TheDutyEndsWithTheServiceWhateverItAsks(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		i := newIdler(r)
		box := i.conversation()
		asked := make(chan struct{}, 1)
		i.HTTP = &http.Client{Transport: hangs(func() { asked <- struct{}{} })}
		runner, err := loop.New(r.Log, loop.Loop{Name: "idle", Every: time.Second, Pass: i.duty.Pass})
		require.NoError(i, err)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); runner.Run(ctx) }()
		<-asked
		stop()
		<-ended
		require.Empty(i, i.idleEvents(box.ID))
		require.Empty(i, i.box(box.ID).HeldBecause, "a question that was cut says nothing")
	})
}

// hangs is a network on which nothing is answered.
type hangs func()

func (h hangs) RoundTrip(r *http.Request) (*http.Response, error) {
	h()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestBoxesAreAskedAndStoppedSideBySide(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		i := newIdler(r)
		var at atomic.Int32
		enough := make(chan struct{})
		for range idleAsks {
			box := i.opened()
			i.agent(box.ID).Idle(2 * ttl)
			i.agent(box.ID).Watch(func(call string) {
				if call != "GET /server_info" {
					return
				}
				if at.Add(1) == idleAsks {
					close(enough)
				}
				select {
				case <-enough:
				case <-time.After(20 * time.Second):
					i.Error("boxes are asked one after the other")
				}
			})
		}
		i.clock.Advance(ttl)
		_, err := i.duty.Pass(i.Context())
		require.NoError(i, err)
	})
}
