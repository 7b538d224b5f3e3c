package watchdog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// due makes n runs that ended, with paused boxes, the first due a minute before the next.
func (r *rig) due(n int) (runs []*models.Run, boxes []*models.Sandbox) {
	r.Helper()
	for range n {
		run, box := r.finished()
		runs, boxes = append(runs, run), append(boxes, box)
	}
	now := r.clock.Now()
	for i, run := range runs {
		modelstest.Set(r.T, r.store, run, "completed_at = ?", now.Add(-2*time.Hour))
		modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = ?", now.Add(time.Duration(i-n)*time.Minute))
	}
	return runs, boxes
}

func TestS1_028_JanitorSweepsWhatIsDue(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.finished()
		r.sweepAll()
		require.Equal(r, models.SeenSuspended, r.fake.State(box.ID), "S1-030 a future stamp is not touched")
		r.clock.Advance(time.Hour)
		r.sweepAll()
		r.gone(box.ID)
		t.Run("C-007 the stamp is cleared", func(t *testing.T) { require.Nil(t, r.run(run.ID).CleanupDueAt) })
	})
}

func TestS1_030_OldestFirst(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		_, boxes := r.due(5)
		r.drain(r.Janitor().Pass)
		r.settle()
		var deleted []uuid.UUID
		for _, c := range r.fake.Calls() {
			if c.Method == deleteCall {
				deleted = append(deleted, c.Workspace)
			}
		}
		require.Len(r, deleted, len(boxes))
		require.Equal(r, boxes[0].ID, deleted[0])
		unstamped, _ := r.running()
		require.Nil(r, r.run(unstamped.ID).CleanupDueAt)
		r.sweepAll()
		require.Equal(r, models.RunRunning, r.run(unstamped.ID).Status)
	})
}

func TestC_005_S1_031_BacklogDrainsInBoundedBatches(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		const many = sweepBatch + 3
		now := r.clock.Now()
		for n := range many {
			modelstest.Running(r.T, r.store, r.auto, func(run *models.Run, b *models.Sandbox) {
				before, due := now.Add(-2*time.Hour), now.Add(-time.Duration(n+1)*time.Second)
				run.Status, run.CompletedAt, run.CleanupDueAt, run.CheckAt = models.RunCompleted, &before, &due, nil
				b.Desired, b.Observed = models.WantSuspended, models.SeenSuspended
			})
		}
		for _, want := range []int{sweepBatch, 3, 0} {
			n, err := r.Janitor().Pass(r.Context())
			require.NoError(r, err)
			require.Equal(r, want, n, "C-005: at once while full, never more than a batch")
		}
		require.Zero(r, r.fake.Count("Delete"), "the janitor calls no provider")
	})
}

func TestS1_034_BoxThatRefusesToBeDeletedCannotPinTheSweep(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		runs, boxes := r.due(6)
		for _, bad := range boxes[:3] {
			r.fake.FailFor("Delete", bad.ID, errors.New("500"))
		}
		r.sweepAll()
		for n, box := range boxes {
			if n < 3 {
				require.Equal(r, models.SeenSuspended, r.fake.State(box.ID))
				require.Nil(r, r.run(runs[n].ID).CleanupDueAt, "S1-061 the stamp is cleared though the deletion failed")
				require.Equal(r, models.WantDeleted, r.box(box.ID).Desired, "and the box is still to be deleted")
				require.NotNil(r, r.box(box.ID).NextStepAt)
				require.NotEmpty(r, r.box(box.ID).LastError)
				continue
			}
			r.gone(box.ID)
		}
		fresh, freshBoxes := r.due(1)
		r.sweepAll()
		r.gone(freshBoxes[0].ID)
		require.Nil(r, r.run(fresh[0].ID).CleanupDueAt)
		for _, bad := range boxes[:3] {
			r.fake.FailFor("Delete", bad.ID, nil)
		}
		r.settleFor(time.Hour)
		for _, box := range boxes[:3] {
			r.gone(box.ID)
		}
	})
}

func TestS1_036_OneBadRowDoesNotStopTheOthers(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		_, boxes := r.due(3)
		modelstest.Set(r.T, r.store, boxes[0], "session_key = ?", "not a sealed value")
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == deleteCall && c.Workspace == boxes[1].ID {
				panic("a provider's adapter has a bug")
			}
		})
		ctx, cancel := context.WithCancel(r.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- loop.Run(ctx, slog.New(slog.DiscardHandler), r.Janitor(), r.Settle(place)) }()
		require.Eventually(r, func() bool {
			return r.fake.State(boxes[0].ID) == models.SeenMissing && r.fake.State(boxes[2].ID) == models.SeenMissing
		}, 20*time.Second, 20*time.Millisecond)
		cancel()
		require.NoError(r, <-stopped)
	})
}

func TestS1_037_StampWithoutABoxIsClearedWithoutACall(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run := modelstest.Pending(r.T, r.store, r.auto)
		_, err := r.store.Finish(r.Context(), run.ID, models.Outcome{
			Status: models.RunFailed, Actor: "test", From: []models.RunStatus{models.RunPending},
		}, r.decide)
		require.NoError(r, err)
		modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = ?", r.clock.Now().Add(time.Minute))
		r.clock.Advance(2 * time.Minute)
		r.sweepAll()
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		require.Empty(r, r.fake.Calls())
	})
}

func TestS1_039_RestartBetweenStampAndDue(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		_, box := r.finished()
		restarted, _ := r.process(r.db.Open(r.T, models.WithClock(r.clock.Now)))
		r.clock.Advance(time.Hour + time.Minute)
		r.drain(restarted.Janitor().Pass)
		r.drain(restarted.Settle(place).Pass)
		r.gone(box.ID)
	})
}

func TestS1_046_ResumingDoesNotExtendTheDelay(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.finished()
		due := *run.CleanupDueAt
		r.clock.Advance(50 * time.Minute)
		require.NoError(r, r.store.Order(r.Context(), box.ID, models.WantRunning, "user:u", "look inside"))
		r.settle()
		t.Run("S1-047 within the window the box can be resumed", func(*testing.T) {
			require.Equal(r, models.SeenRunning, r.box(box.ID).Observed)
		})
		require.Equal(r, due, *r.run(run.ID).CleanupDueAt)
		r.clock.Advance(11 * time.Minute)
		r.sweepAll()
		r.gone(box.ID)
	})
}

func TestS1_052_DelayTable(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Hour} {
		t.Run(delay.String(), func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				r.delay(delay)
				run, box := r.finished()
				if delay == 0 {
					require.Nil(r, run.CleanupDueAt)
					r.gone(box.ID)
					return
				}
				require.Equal(r, models.SeenSuspended, r.fake.State(box.ID))
				r.clock.Advance(delay)
				r.sweepAll()
				r.gone(box.ID)
			})
		})
	}
}

func TestS1_055_EveryEndDecidesByOneFunction(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		decided := 0
		r.Decide = func(e models.Ending) models.Decision { decided++; return r.decide(e) }
		verified, box := r.running()
		r.exit(verified, box, "", "", 0)
		unverifiable, lost := r.running()
		r.fake.Vanish(lost.ID)
		exited, quick := r.running()
		r.exit(exited, quick, "", "", 1)
		r.clock.Advance(5 * time.Second)
		r.stale()
		r.clock.Advance(time.Hour)
		r.stale()
		for _, run := range []*models.Run{verified, unverifiable, exited} {
			require.True(r, r.run(run.ID).Status.Terminal())
		}
		require.Equal(r, 3, decided)
	})
}

func TestC_004_StampAndPause(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, _ := r.running()
		require.True(r, r.finish(run.ID, models.RunFailed).Won)
		r.deferred(run.ID)
	})
}

func TestC_006_EveryBoxIsDeletedThroughItsOwnBackend(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		mine, box := r.finished()
		other := models.Place{Backend: "elsewhere"}
		theirs, foreign := r.finished()
		modelstest.Set(r.T, r.store, foreign, "backend = ?", other.Backend)
		r.clock.Advance(2 * time.Hour)
		r.sweepAll()
		r.gone(box.ID)
		require.Nil(r, r.run(mine.ID).CleanupDueAt)
		t.Run("BR-03 what is not served is left alone", func(*testing.T) {
			require.NotNil(r, r.run(theirs.ID).CleanupDueAt)
			require.Equal(r, models.WantSuspended, r.box(foreign.ID).Desired)
			require.Zero(r, r.fake.CountFor("Delete", foreign.ID))
			var said bytes.Buffer
			r.Log = slog.New(slog.NewTextHandler(&said, nil))
			unserved := r.Unserved()
			for range 3 {
				_, err := unserved.Pass(r.Context())
				require.NoError(r, err)
			}
			require.Equal(r, 1, strings.Count(said.String(), "provider=elsewhere"), "one warning, not one a pass")
			require.NotContains(r, said.String(), "provider=fake")
		})
		r.Backends[other] = r.Backends[place]
		r.drain(r.Janitor().Pass)
		require.Equal(r, models.WantDeleted, r.box(foreign.ID).Desired)
		r.settle()
		require.Zero(r, r.fake.CountFor("Delete", foreign.ID), "only a settler of its place takes it")
	})
}

func TestBR07_InvalidStampIsRepaired(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.finished()
		completed := *run.CompletedAt
		modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = ?", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
		r.clock.Advance(time.Minute)
		r.sweepAll()
		require.Equal(r, completed.Add(time.Hour), *r.run(run.ID).CleanupDueAt)
		require.Equal(r, models.SeenSuspended, r.fake.State(box.ID))
		r.clock.Advance(time.Hour)
		r.sweepAll()
		r.gone(box.ID)
		require.Equal(r, 1, r.fake.CountFor("Delete", box.ID))
	})
}

func TestBR07_ARepairThatFailsIsMadeAgainInTheNextPass(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		run, _ := r.finished()
		modelstest.Set(r.T, r.store, run, "sandbox_cleanup_due_at = ?", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
		exec := func(query string) {
			_, err := modelstest.Of(r.T, r.store).Raw().ExecContext(r.Context(), query)
			require.NoError(r, err)
		}
		pass := r.Janitor().Pass
		exec("CREATE TRIGGER broken BEFORE UPDATE OF sandbox_cleanup_due_at ON automation_runs BEGIN SELECT RAISE(ABORT, 'broken'); END")
		_, err := pass(r.Context())
		require.ErrorContains(r, err, "broken")
		exec("DROP TRIGGER broken")
		n, err := pass(r.Context())
		require.NoError(r, err)
		require.Equal(r, 1, n, "not an interval later")
	})
}

func TestBR11_ClockSteps(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		_, early := r.finished()
		run, box := r.running()
		r.exit(run, box, "", "", 0)
		o := models.Outcome{Status: models.RunCompleted, Actor: "callback", CompletedAt: r.clock.Now().Add(10 * time.Minute)}
		f, err := r.store.Finish(r.Context(), run.ID, o, r.decide)
		require.NoError(r, err)
		require.True(r, f.Won)
		r.settle()
		require.False(r, r.run(run.ID).CompletedAt.After(r.clock.Now()), "a completion ahead of the clock is clamped")

		r.clock.Advance(8 * time.Hour)
		r.sweepAll()
		r.gone(early.ID)
		r.gone(box.ID)
		require.Equal(r, 1, r.fake.CountFor("Delete", box.ID), "a step forward: handled once")
	})
}

func TestBR26_DeleteIsDoneOnlyWhenTheProviderShowsIt(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowDelete: 3}, func(r *rig) {
		_, box := r.finished()
		r.fake.Fail("Delete", sandbox.ErrBusy, sandbox.ErrBusy)
		r.clock.Advance(2 * time.Hour)
		r.drain(r.Janitor().Pass)
		r.settle()
		require.NotEqual(r, models.SeenDeleted, r.box(box.ID).Observed)
		r.settleFor(2 * time.Hour)
		r.gone(box.ID)
	})
}

func TestBR11_JanitorSleepsUntilTheStampAndWakesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := modelstest.NewSQLite(t)
		s, err := models.Open(t.Context(), db.DSN, models.WithKeys(modelstest.Key), models.WithClock(func() time.Time { return time.Now().UTC() }))
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		a := &models.Automation{
			OrgID: modelstest.Org, UserID: modelstest.User, Name: "x", State: models.AutomationActive, Overlap: models.OverlapAllow,
			Trigger: []byte(`{"type":"event"}`), TarballPath: "x", Entrypoint: "x",
		}
		require.NoError(t, s.CreateAutomation(t.Context(), a))
		now := time.Now().UTC()
		due := now.Add(90 * time.Minute)
		run := &models.Run{ID: uuid.New(), AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunCompleted, CreatedAt: now, CompletedAt: &now, CleanupDueAt: &due, Attempt: 1}
		box := modelstest.NewBox(s)
		box.RunID, box.AutomationID, box.Desired, box.Observed = &run.ID, &a.ID, models.WantSuspended, models.SeenSuspended
		for _, row := range []any{run, box, box.Identities[0]} {
			_, err := db.Raw().NewInsert().Model(row).Exec(t.Context())
			require.NoError(t, err)
		}
		_, err = db.Raw().NewUpdate().Model(run).Set("box_id = ?", box.ID).WherePK().Exec(t.Context())
		require.NoError(t, err)

		w := &Watchdog{
			Store: s, Backends: map[models.Place]sandbox.Backend{place: sandboxtest.NewFake(sandboxtest.Quirks{})},
			Log: slog.New(slog.DiscardHandler), JanitorNudge: loop.NewNudge(),
		}
		w.Config.Watchdog.Interval = time.Hour
		l := w.Janitor()
		passes := 0
		pass := l.Pass
		l.Pass = func(ctx context.Context) (int, error) { passes++; return pass(ctx) }
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- loop.Run(ctx, w.Log, l) }()
		desired := func() models.Desired {
			b, err := s.Sandbox(t.Context(), uuid.Nil, box.ID)
			require.NoError(t, err)
			return b.Desired
		}
		<-time.After(due.Sub(now) - time.Second)
		require.Equal(t, models.WantSuspended, desired())
		<-time.After(2 * time.Second)
		require.Equal(t, models.WantDeleted, desired(), "at its time, not an interval later")
		<-time.After(24 * time.Hour)
		cancel()
		require.NoError(t, <-stopped)
		require.Less(t, passes, 24+10)
	})
}

func TestTwoProcessesDeleteEachDueBoxOnce(t *testing.T) {
	db := modelstest.NewPostgres(t)
	r := newRig(t, db, sandboxtest.Quirks{})
	now := r.clock.Now()
	var boxes []*models.Sandbox
	for range 200 {
		_, box := r.running(func(run *models.Run, b *models.Sandbox) {
			completed, due := now.Add(-2*time.Hour), now.Add(-time.Minute)
			run.Status, run.CompletedAt, run.CleanupDueAt, run.CheckAt, run.OutputAt = models.RunCompleted, &completed, &due, nil, &completed
			b.Desired, b.Observed = models.WantSuspended, models.SeenSuspended
		})
		r.fake.IdlePause(box.ID)
		boxes = append(boxes, box)
	}
	second, _ := r.process(db.Open(t, models.WithClock(r.clock.Now)))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 2)
	for _, w := range []*Watchdog{r.Watchdog, second} {
		go func() { stopped <- loop.Run(ctx, w.Log, w.Loops()...) }()
	}
	require.Eventually(t, func() bool { return len(r.fake.Alive()) == 0 }, 60*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(boxes, func(b *models.Sandbox) bool { return r.box(b.ID).Observed != models.SeenDeleted })
	}, 20*time.Second, 50*time.Millisecond)
	cancel()
	require.NoError(t, <-stopped)
	require.NoError(t, <-stopped)
	for _, b := range boxes {
		require.Equal(t, 1, r.fake.CountFor("Delete", b.ID), fmt.Sprint(r.fake.Methods(b.ID)))
	}
}
