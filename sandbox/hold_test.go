package sandbox_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// rows counts the attachments that are stored.
func (r *rig) rows() int {
	r.Helper()
	n, err := r.raw().NewSelect().TableExpr("sandbox_attachments").Count(r.Context())
	require.NoError(r, err)
	return int(n)
}

func (r *rig) held(id uuid.UUID) bool {
	r.Helper()
	idle, err := r.store.IdleBoxes(r.Context(), []models.Place{place}, r.clock.Now(), 100)
	require.NoError(r, err)
	for _, b := range idle {
		if b.ID == id {
			return false
		}
	}
	return true
}

func TestS3_018_WhoIsInAnOldStartHoldsNoNewOne(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk}, withDelay, func(r *rig) {
		_, box := r.paused()
		modelstest.Set(r.T, r.store, box, "run_id = NULL")
		a := r.entrance()
		detach := func() func() {
			d, err := a.Attach(r.Context(), box.ID)
			require.NoError(r, err)
			return d
		}
		old := detach()
		_, err := r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		first := r.box(box.ID).AwakeEpoch
		r.fake.IdlePause(box.ID) // its provider stopped it, and the old one does not notice
		a.Doubt(box.ID)
		_, err = r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		require.Greater(r, r.box(box.ID).AwakeEpoch, first)
		a.Release(box.ID)
		require.False(r, r.held(box.ID), "D3: the new start is not held by who is in the old one")
		now := detach()
		old()
		require.True(r, r.held(box.ID), "nor released by who leaves the old one")
		now()
		require.False(r, r.held(box.ID))
		require.Zero(r, r.rows(), "D11: nothing is left")
	})
}

func TestS3_026_ARequestHoldsTheBoxAMomentLongerAndAStreamDoesNot(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		modelstest.Set(r.T, r.store, box, "run_id = NULL")
		r.clock.Advance(time.Minute)
		a := r.entrance()
		_, err := r.enter(r.Context(), a, box.ID)
		require.NoError(r, err)
		require.Equal(r, 1, r.rows(), "the next request writes nothing")
		entered := *r.box(box.ID).LastAccessAt
		require.Eventually(r, func() bool { return r.rows() == 0 }, 20*time.Second, 10*time.Millisecond)
		require.True(r, r.box(box.ID).LastAccessAt.After(entered), "and when it left is when the TTL begins")

		detach, err := a.Attach(r.Context(), box.ID)
		require.NoError(r, err)
		detach()
		require.Zero(r, r.rows())
	})
}

func TestNobodyIsLetInAfterClose(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.clock.Advance(time.Minute)
		a := sandbox.NewAccess(sandbox.AccessConfig{Store: r.store, HTTP: r.agents.Client()})
		_, leave, err := a.Enter(r.Context(), r.box(box.ID), "user:u")
		require.NoError(r, err)
		told := make(chan struct{})
		a.OnClose(func() { close(told) })
		closed := make(chan struct{})
		go func() { defer close(closed); a.Close() }()
		<-told // whoever is inside leaves now
		leave()
		<-closed
		require.Zero(r, r.rows())
		_, _, err = a.Enter(r.Context(), r.box(box.ID), "user:u")
		require.ErrorIs(r, err, sandbox.ErrNotReady)
		_, err = a.Attach(r.Context(), box.ID)
		require.ErrorIs(r, err, sandbox.ErrNotReady)
		a.Close() // twice is once
	})
}

// Fault: the database is away when somebody comes in, or leaves.
func TestAnAttachmentThatCouldNotBeWrittenIsNone(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.clock.Advance(time.Minute)
		a := r.entrance()
		gone, cancel := context.WithCancel(r.Context())
		cancel()
		_, err := a.Attach(gone, box.ID)
		require.ErrorIs(r, err, context.Canceled)
		_, _, err = a.Enter(gone, box, "user:u")
		require.ErrorIs(r, err, context.Canceled)
		require.Zero(r, r.rows())
		detach, err := a.Attach(r.Context(), box.ID)
		require.NoError(r, err, "and the next one is let in")
		require.Equal(r, 1, r.rows())
		detach()
	})
}

// Whatever callers, evictions, pauses, the provider's own timer and two processes do at once: who is let in finds a box that
// answers for as long as nobody pauses it by hand, and each start is one call.
func TestS3_021_S3_022_S3_024_VolumeAccessAndEvictionRace(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendDisk, RotateKey: true, SlowResume: 1}, sandbox.Settings{CleanupDelay: time.Hour, Reclaim: sandbox.ReclaimOff, Export: sandbox.ExportOff}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		modelstest.Set(r.T, r.store, box, "run_id = NULL")
		r.agent(box.ID).Idle(time.Hour)
		doors := []*sandbox.Access{r.entrance(), r.entrance()}
		var inside, evicted atomic.Int32
		var callers, evictor sync.WaitGroup
		ctx, stop := cancelable(r.T)
		evictor.Go(func() {
			looks := time.NewTicker(time.Millisecond)
			defer looks.Stop()
			for ctx.Err() == nil {
				boxes, err := r.store.IdleBoxes(ctx, []models.Place{place}, r.clock.Now(), 1)
				if err != nil || len(boxes) == 0 {
					<-looks.C
					continue
				}
				ordered, err := r.store.OrderIdle(ctx, boxes[0], r.clock.Now(), "idle")
				if err != nil && ctx.Err() == nil {
					r.Error(err)
				}
				if ordered {
					evicted.Add(1)
				}
				if _, err := r.settler.Pass(ctx, place); err != nil && ctx.Err() == nil {
					r.Error(err)
				}
			}
		})
		for n := range 6 {
			callers.Go(func() {
				a := doors[n%2]
				for range 1 + modelstest.Volume(800)/100 {
					read, err := r.store.Sandbox(context.Background(), uuid.Nil, box.ID)
					if err != nil {
						r.Error(err)
						return
					}
					in, leave, err := a.Enter(context.Background(), read, "user:u")
					if err != nil {
						r.Error(err)
						return
					}
					inside.Add(1)
					if err := sandbox.AgentOf(in, r.agents.Client()).Ready(context.Background()); err != nil {
						r.Error("a dying box was entered:", err)
					}
					leave()
					if rand.IntN(2) == 0 {
						a.Release(box.ID)
					}
				}
			})
		}
		callers.Wait()
		for _, a := range doors {
			a.Release(box.ID)
		}
		require.Eventually(r, func() bool { return evicted.Load() > 0 }, 20*time.Second, time.Millisecond)
		stop()
		evictor.Wait()
		require.NotZero(r, inside.Load())
		resumes, suspends := r.fake.Count("Resume"), r.fake.Count("Suspend")
		require.LessOrEqual(r, resumes, suspends, "never a start of what was not stopped")
		require.LessOrEqual(r, suspends, int(evicted.Load())+resumes)
		for _, a := range doors {
			a.Close()
		}
		require.Zero(r, r.rows())
	})
}

// Fault: the database refuses while the last one leaves. The row is not forgotten, or it would be renewed for ever.
func TestD12_AnAttachmentThatCouldNotBeRemovedIsRemovedLater(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		a := r.entrance()
		detach, err := a.Attach(r.Context(), box.ID)
		require.NoError(r, err)
		_, err = r.raw().NewRaw("ALTER TABLE sandbox_attachments RENAME TO hidden").Exec(r.Context())
		require.NoError(r, err)
		detach()
		_, err = r.raw().NewRaw("ALTER TABLE hidden RENAME TO sandbox_attachments").Exec(r.Context())
		require.NoError(r, err)
		require.Equal(r, 1, r.rows())
		require.Eventually(r, func() bool { return r.rows() == 0 }, 20*time.Second, 10*time.Millisecond)
	})
}
