package sandbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// due makes a paused box overdue and lets the janitor order it.
func (r *rig) due(run *models.Run) {
	r.Helper()
	modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = completed_at")
	r.sweep(1)
}

func (r *rig) sweep(want int) {
	r.Helper()
	ids, err := r.store.OrderDue(r.Context(), []models.Place{place}, 50, time.Hour)
	require.NoError(r, err)
	require.Len(r, ids, want)
}

func TestS1_033_BR_05_TheStampIsClearedAfterOneAttemptWhateverTheOutcome(t *testing.T) {
	outcomes := map[string]struct {
		err  error
		gone bool
	}{
		"success":       {nil, true},
		"404":           {sandbox.ErrGone, true},
		"401":           {sandbox.ErrRefused, false},
		"500":           {&sandbox.ProviderError{Status: 500, Body: "boom"}, false},
		"hangs":         {context.DeadlineExceeded, false},
		"in transition": {sandbox.ErrBusy, false},
	}
	for name, o := range outcomes {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				run, box := r.paused()
				if o.err != nil {
					r.fake.Fail("Delete", o.err)
				}
				r.due(run)
				require.NotNil(r, r.run(run.ID).CleanupDueAt, "the order leaves the stamp; the attempt clears it")
				r.settle()
				require.Nil(r, r.run(run.ID).CleanupDueAt)
				require.Equal(r, 1, r.fake.Count("Delete"))
				b := r.box(box.ID)
				require.Equal(r, o.gone, b.Observed == models.SeenDeleted)
				if o.gone {
					return
				}
				require.NotNil(r, b.NextStepAt, "nothing leaks: it is still an ordered box with a next step")
				require.NotNil(r, b.LastError)
				if o.err != sandbox.ErrBusy { //nolint:errorlint // the very value
					require.NotEmpty(r, b.NeedsAttention, "it is in the list of leaks, with the reason")
				}
				r.settleFor(2 * time.Hour)
				b = r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Empty(r, b.NeedsAttention)
				require.Empty(r, r.fake.Alive())
			})
		})
	}
}

func TestBR_25_AlreadyGoneIsSuccessAtTheFirstCall(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.paused()
		r.fake.Vanish(box.ID)
		r.due(run)
		r.settleFor(time.Hour)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Equal(r, 1, r.fake.Count("Delete"))
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		require.Contains(r, r.events(box.ID), "deleted ok")
	})
}

func TestAGoneThatMayBeALieIsBelievedAfterALook(t *testing.T) {
	each(t, sandboxtest.Quirks{FalseGone: true}, withDelay, func(r *rig) {
		run, box := r.paused()
		r.fake.LieGone(1)
		r.due(run)
		r.settle()
		b := r.is(box.ID, models.WantDeleted, models.SeenSuspended, false)
		require.Contains(r, *b.LastError, "the provider shows it suspended")
		r.settleFor(time.Minute)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, r.fake.Alive())
	})
}

func TestBR_26_AcceptedIsNotDoneUntilALookSaysGone(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowDelete: 3}, withDelay, func(r *rig) {
		run, box := r.paused()
		r.fake.Fail("Delete", sandbox.ErrBusy, sandbox.ErrBusy) // 409 twice
		r.due(run)
		deletes := 0
		for range 20 {
			r.settle()
			b := r.box(box.ID)
			require.LessOrEqual(r, r.fake.Count("Delete")-deletes, 1, "at most one DELETE a pass")
			deletes = r.fake.Count("Delete")
			if b.Observed == models.SeenDeleted {
				break
			}
			require.NotEmpty(r, r.fake.Alive())
			r.clock.Advance(b.NextStepAt.Sub(r.clock.Now()) + time.Millisecond)
		}
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Equal(r, 3, r.fake.Count("Delete"))
		require.Empty(r, r.fake.Alive())
	})
}

func TestADeleteDoesNotWaitForALookThatFails(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.paused()
		r.fake.FailAlways("Inspect", &sandbox.ProviderError{Status: 500})
		r.due(run)
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
	})
}

func TestS1_023_CancelDeletesAtOnceAlsoARunningBox(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Print(*run.BashCommandID, "so far")
		r.cancel(run)
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		require.Zero(r, r.fake.Count("Suspend"))
		require.Equal(r, "so far", decode(r.T, r.blobs.get(*r.run(run.ID).OutputKey)), "BR-33: cancel stores what there is")
	})
}

func TestBR_33_LinesAreInTheStoreBeforeTheDeleteCall(t *testing.T) {
	one(t, sandboxtest.Quirks{}, sandbox.Settings{}, func(r *rig) {
		detail := models.TimedOutPrefix + "Command still running"
		run, box := r.running()
		for range 200 {
			r.agent(box.ID).Print(*run.BashCommandID, "a line\n")
		}
		var mu sync.Mutex
		var order []string
		note := func(what string) { mu.Lock(); order = append(order, what); mu.Unlock() }
		r.blobs.put = func() { note("put") }
		r.fake.Watch(func(c sandboxtest.Call) { note(c.Method) })
		r.finish(run, models.Outcome{Status: models.RunFailed, ErrorDetail: &detail})
		r.settle()
		require.Less(r, index(order, "put"), index(order, "Delete"))
		require.GreaterOrEqual(r, index(order, "put"), 0)
	})
}

func TestCancelWhileCreateIsOnTheWire(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		pending := modelstest.Pending(r.T, r.store, r.auto)
		claimed, _, err := r.store.ClaimDispatch(r.Context(), models.DispatchClaim{
			Limit: 1, Backend: modelstest.Backend, MaxAttempts: 3, Budget: time.Minute, Lease: time.Minute, DefaultRun: time.Minute,
		})
		require.NoError(r, err)
		require.Len(r, claimed, 1)
		box, token := claimed[0].Box, *claimed[0].Box.LeaseToken
		require.NoError(r, r.store.MarkCreate(r.Context(), box.ID, token, true))
		hold := r.fake.HoldAnswer("Create") // it exists, nobody was told yet that it does
		created := make(chan error, 1)
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: box.ID}}
		go func() {
			created <- r.fake.Create(context.Background(), spec, func(i sandbox.Identity) error {
				return r.store.RecordIdentity(context.Background(), models.Identity{SandboxID: box.ID, Kind: i.Kind, ProviderID: i.ProviderID, URL: i.URL, SessionKey: i.Key})
			})
		}()
		<-hold.Entered
		r.cancel(pending)
		n, err := r.settler.Pass(r.Context(), place)
		require.NoError(r, err)
		require.Zero(r, n, "dispatch still holds the lease")
		hold.Release()
		require.NoError(r, <-created)
		require.NoError(r, r.store.MarkCreate(r.Context(), box.ID, token, false))
		require.NoError(r, r.store.Release(r.Context(), box.ID, token))
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, r.fake.Alive())
	})
}

func TestS0_020_S0_034_S1_039_ASweepAfterARestartDeletes(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.paused()
		r.clock.Advance(time.Hour + time.Second) // nobody was there meanwhile; all there is to know is in the rows
		r.settler = sandbox.NewSettler(r.config)
		r.sweep(1)
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Nil(r, r.run(run.ID).CleanupDueAt)
	})
}

func TestAnOlderAttemptsDeleteNeverClearsTheNewerBoxesStamp(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, newer := r.paused()
		older := modelstest.NewBox(r.store)
		older.RunID, older.AutomationID = &run.ID, &r.auto.ID
		require.NoError(r, r.fake.Create(r.Context(), sandbox.Spec{Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: older.ID}}, func(i sandbox.Identity) error {
			older.Identities[0].ProviderID = i.ProviderID
			return nil
		}))
		modelstest.Box(r.T, r.store, older)
		r.order(older.ID, models.WantDeleted, "dispatch")
		r.settle()
		r.is(older.ID, models.WantDeleted, models.SeenDeleted, true)
		r.is(newer.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Equal(r, run.CleanupDueAt, r.run(run.ID).CleanupDueAt)
	})
}

func TestS1_034_VolumeThirtyBoxesThatNeverGoKeepNobodyWaiting(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		sickBoxes := max(3, modelstest.Volume(30))
		var runs []*models.Run
		for range sickBoxes {
			run, box := r.paused()
			r.fake.FailFor("Delete", box.ID, &sandbox.ProviderError{Status: 500})
			runs = append(runs, run)
		}
		for _, run := range runs {
			r.due(run)
		}
		r.settle()
		require.Equal(r, sickBoxes, r.fake.Count("Delete"))
		for range 5 { // time and again, a newly due box goes at its first pass
			run, box := r.paused()
			r.due(run)
			r.settle()
			r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
			r.settleFor(20 * time.Second)
		}
		require.Len(r, r.fake.Alive(), sickBoxes)
		rows, total, err := r.store.ListSandboxes(r.Context(), models.SandboxFilter{OrgID: modelstest.Org, NeedsAttention: true, Limit: 100})
		require.NoError(r, err)
		require.Equal(r, sickBoxes, total)
		for _, b := range rows {
			require.Equal(r, sandbox.AttentionDelete, b.NeedsAttention)
		}
	})
}

func TestASickProviderCostsOneCallABreakerInterval(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		boxes := map[uuid.UUID]bool{}
		var runs []*models.Run
		for range 10 {
			run, box := r.paused()
			boxes[box.ID] = true
			runs = append(runs, run)
		}
		for _, run := range runs {
			r.due(run)
		}
		sick := sandbox.Decorate(r.fake, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 2, Open: time.Second})
		r.config.Backends = map[string]*sandbox.Decorated{modelstest.Backend: sick}
		r.settler = sandbox.NewSettler(r.config)
		r.fake.FailAlways("Inspect", errors.New("connection refused"))
		r.fake.FailAlways("Delete", errors.New("connection refused"))
		pass := func() {
			_, err := r.settler.Pass(r.Context(), place)
			require.NoError(r, err)
		}
		before := len(r.fake.Calls())
		pass()
		pass()
		pass() // makes no call
		require.Equal(r, 2, len(r.fake.Calls())-before, "open after two")

		waiting := 0
		for id := range boxes {
			if b := r.box(id); b.Attempts == 0 {
				waiting++
				require.False(r, b.NextStepAt.After(r.clock.Now()), "rows are not claimed and keep their time")
			}
		}
		require.GreaterOrEqual(r, waiting, 8)
		next, err := r.settler.NextAt(r.Context(), place)
		require.NoError(r, err)
		require.True(r, next.After(r.clock.Now()), "there is no work before the breaker lets a call through")

		require.Eventually(r, func() bool { wait, _ := sick.ClosedIn(); return wait == 0 }, 5*time.Second, time.Millisecond)
		before = len(r.fake.Calls())
		pass()
		pass() // makes no call
		require.Equal(r, 1, len(r.fake.Calls())-before, "one call to see whether it is back")
		r.fake.FailAlways("Inspect", nil)
		r.fake.FailAlways("Delete", nil)
		require.Eventually(r, func() bool { wait, _ := sick.ClosedIn(); return wait == 0 }, 5*time.Second, time.Millisecond)
		next, err = r.settler.NextAt(r.Context(), place)
		require.NoError(r, err)
		require.False(r, next.After(r.clock.Now()), "a probe is due: a duty that waits for it would never make it")
		r.settleFor(time.Hour)
		require.Empty(r, r.fake.Alive())
	})
}

func TestASickProviderBesideAHealthyOne(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		healthy := sandboxtest.NewFake(sandboxtest.Quirks{})
		r.config.Backends["healthy"] = sandbox.Decorate(healthy, sandbox.Limits{})
		r.settler = sandbox.NewSettler(r.config)
		run, box := r.paused()
		r.due(run)
		hold := r.fake.Hold("Delete") // the sick one hangs
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(r.Context(), place)
			done <- err
		}()
		<-hold.Entered

		other := modelstest.NewBox(r.store)
		other.Backend = "healthy"
		require.NoError(r, healthy.Create(r.Context(), sandbox.Spec{Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: other.ID}}, func(i sandbox.Identity) error {
			other.Identities[0].ProviderID = i.ProviderID
			return nil
		}))
		modelstest.Box(r.T, r.store, other)
		r.order(other.ID, models.WantDeleted, "janitor")
		n, err := r.settler.Pass(r.Context(), models.Place{Backend: "healthy"})
		require.NoError(r, err)
		require.Equal(r, 1, n)
		r.is(other.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Zero(r, r.fake.CountFor("Delete", other.ID), "C-006, S1-032: through the box's own backend")
		hold.Release()
		require.NoError(r, <-done)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Zero(r, healthy.CountFor("Delete", box.ID))
	})
}

func TestBR_01_VolumeTwoProcessesDelete200DueBoxesOnceEach(t *testing.T) {
	c := &clock{}
	db := modelstest.NewPostgres(t)
	r := newRig(t, db.Open(t, models.WithClock(c.Now)), c, sandboxtest.Quirks{}, withDelay)
	other := r.config
	other.Store = db.Open(t, models.WithClock(c.Now))
	settlers := []*sandbox.Settler{r.settler, sandbox.NewSettler(other)}

	dueBoxes := max(20, modelstest.Volume(200))
	var ids []uuid.UUID
	past := c.Now().Add(-time.Second)
	for range dueBoxes {
		run, box := r.running(func(run *models.Run, b *models.Sandbox) {
			run.Status, run.CompletedAt, run.CleanupDueAt = models.RunCompleted, &past, &past
			b.Desired, b.Observed, b.OutputEpoch, b.ExportedEpoch = models.WantSuspended, models.SeenSuspended, 1, 1
		})
		ids = append(ids, box.ID)
		r.fake.IdlePause(box.ID)
		_ = run
	}
	looks := r.fake.Count("Inspect")

	var wait sync.WaitGroup
	barrier := make(chan struct{})
	for n := range 8 {
		wait.Go(func() {
			<-barrier
			s := settlers[n%2]
			for range dueBoxes {
				_, err := s.Store.OrderDue(context.Background(), []models.Place{place}, 10, time.Hour)
				if err != nil {
					t.Error(err)
				}
				done, err := s.Pass(context.Background(), place)
				if err != nil {
					t.Error(err)
				}
				if done == 0 {
					if due, err := s.Store.NextDueAt(context.Background(), []models.Place{place}); err == nil && due == nil {
						return
					}
				}
			}
		})
	}
	close(barrier)
	wait.Wait()
	r.settle()
	for _, id := range ids {
		require.Equal(t, 1, r.fake.CountFor("Delete", id), "each id once")
		require.Equal(t, models.SeenDeleted, r.box(id).Observed)
	}
	require.Equal(t, dueBoxes, r.fake.Count("Delete"))
	require.LessOrEqual(t, r.fake.Count("Inspect")-looks, dueBoxes, "and no more looks than that")
	require.Empty(t, r.fake.Alive())
}

// What the model of model_test.go has found, each as the shortest way there.
func TestTheModelsFindsStayMended(t *testing.T) {
	t.Run("a box that somebody else deletes while it is ordered deleted leaves no date behind", func(t *testing.T) {
		each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			run, box := r.paused()
			r.fake.Wake(box.ID)
			modelstest.Set(r.T, r.store, run, "exit_code = NULL") // so that it is looked at before the delete
			require.NotNil(r, r.run(run.ID).CleanupDueAt)
			r.order(box.ID, models.WantDeleted, "user:ana")
			r.fake.Fail("Inspect", sandbox.ErrBusy) // it is going already
			r.settle()
			r.fake.Vanish(box.ID)
			r.settleFor(time.Minute)
			r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
			require.Zero(r, r.fake.CountFor("Delete", box.ID))
			require.Nil(r, r.run(run.ID).CleanupDueAt)
		})
	})
}
