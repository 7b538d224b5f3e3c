package models_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// hold is how long an attachment holds a box past its due date.
const hold = time.Hour

func sweep(t *testing.T, s *models.Store, limit int) []uuid.UUID {
	t.Helper()
	ids, err := s.OrderDue(t.Context(), places, limit, hold)
	require.NoError(t, err)
	return ids
}

func TestS1_030_TheSweepTouchesOnlyDueRowsOldestFirst(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		now := s.Now()
		young := seed(t, s, due(now.Add(-time.Second)))
		oldest := seed(t, s, due(now.Add(-50*time.Minute)))
		older := seed(t, s, due(now.Add(-40*time.Minute)))
		future := seed(t, s, due(now.Add(time.Hour)))
		never := seed(t, s, func(f *seeded) { f.Run.CleanupDueAt = nil })

		require.Equal(t, []uuid.UUID{oldest.Box.ID, older.Box.ID, young.Box.ID}, sweep(t, s, 10))
		for _, f := range []seeded{future, never} {
			b := box(t, s, f.Box.ID)
			require.Equal(t, models.WantSuspended, b.Desired)
			require.Nil(t, b.NextStepAt)
			require.Empty(t, whats(t, s, f.Box.ID))
		}
		b := box(t, s, oldest.Box.ID)
		require.Equal(t, models.WantDeleted, b.Desired)
		require.EqualValues(t, 2, b.Generation)
		require.Equal(t, "janitor", b.OrderedBy)
		require.Equal(t, "due", b.OrderReason)
		require.NotNil(t, b.NextStepAt)
		require.Nil(t, b.LeaseToken, "the janitor takes no lease")
		sameTime(t, *oldest.Run.CleanupDueAt, stamp(t, s, oldest))
		require.Equal(t, []string{"ordered"}, whats(t, s, oldest.Box.ID))
		require.Empty(t, sweep(t, s, 10), "each is ordered once")
	})
}

func TestS1_031_APassIsBoundedAndTheBacklogDrains(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		for n := range 7 {
			seed(t, s, due(s.Now().Add(-time.Duration(n+1)*time.Minute)))
		}
		seen := make(map[uuid.UUID]bool)
		for _, want := range []int{3, 3, 1, 0} {
			ids := sweep(t, s, 3)
			require.Len(t, ids, want)
			for _, id := range ids {
				require.False(t, seen[id])
				seen[id] = true
			}
		}
		require.Empty(t, sweep(t, s, 0))
	})
}

func TestWhatTheSweepLeavesAloneTakesNoPlaceInAPass(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		past := due(now.Add(-30 * time.Minute))
		left := map[string]seeded{
			"S1-020 kept by a person": seed(t, s, past, func(f *seeded) { f.Box.KeptAt = &now }),
			"BR-03 another backend":   seed(t, s, past, func(f *seeded) { f.Box.Backend = "acme" }),
			"BR-03 another place":     seed(t, s, past, func(f *seeded) { f.Box.Location = "host-b" }),
			"ordered deleted before":  seed(t, s, past, work(now.Add(time.Hour))),
			"the run still runs":      seed(t, s, past, func(f *seeded) { f.Run.Status = models.RunRunning }),
			"attached":                seed(t, s, past),
		}
		require.NoError(t, attach(ctx, s, left["attached"].Box.ID, uuid.New(), now.Add(time.Hour)))
		swept := seed(t, s, due(now.Add(-time.Second)))
		before := make(map[string]*models.Sandbox)
		for name, f := range left {
			before[name] = box(t, s, f.Box.ID)
		}
		require.Equal(t, []uuid.UUID{swept.Box.ID}, sweep(t, s, 1))
		require.Empty(t, sweep(t, s, 10))
		for name, f := range left {
			require.Equal(t, before[name], box(t, s, f.Box.ID), name)
			sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
		}
		none, err := s.OrderDue(ctx, nil, 10, hold)
		require.NoError(t, err)
		require.Empty(t, none, "a process that serves nothing sweeps nothing")
	})
}

func TestAnAttachmentHoldsABoxForAnHourPastDueAtMost(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, process := t.Context(), uuid.New()
		f := seed(t, s, due(s.Now()))
		gone := seed(t, s, due(s.Now()))
		require.NoError(t, attach(ctx, s, f.Box.ID, process, s.Now().Add(90*time.Second)))
		require.NoError(t, attach(ctx, s, gone.Box.ID, process, s.Now().Add(90*time.Second)))
		require.NoError(t, detach(ctx, s, gone.Box.ID, process))
		require.Equal(t, []uuid.UUID{gone.Box.ID}, sweep(t, s, 10))
		for range 119 {
			clock.Advance(30 * time.Second)
			require.NoError(t, attach(ctx, s, f.Box.ID, process, s.Now().Add(90*time.Second)), "renewed")
		}
		require.Empty(t, sweep(t, s, 10), "59 and a half minutes past due")
		sameTime(t, *f.Run.CleanupDueAt, stamp(t, s, f))
		clock.Advance(30 * time.Second)
		require.Equal(t, []uuid.UUID{f.Box.ID}, sweep(t, s, 10))
	}, models.WithClock(clock.Now))
}

func TestAnAttachmentOfAProcessThatDiedRunsOut(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, due(s.Now()))
		require.NoError(t, attach(t.Context(), s, f.Box.ID, uuid.New(), s.Now().Add(90*time.Second)))
		require.Empty(t, sweep(t, s, 10))
		clock.Advance(90 * time.Second)
		require.Equal(t, []uuid.UUID{f.Box.ID}, sweep(t, s, 10))
	}, models.WithClock(clock.Now))
}

func TestS1_036_OneBadRowDoesNotStopTheBatch(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		if s.Dialect() == models.SQLite { // PostgreSQL stores nothing but times there
			bad := seed(t, s)
			modelstest.Set(t, s, bad.Run, "sandbox_cleanup_due_at = ''")
		}
		zero := seed(t, s)
		modelstest.Set(t, s, zero.Run, "sandbox_cleanup_due_at = ?", "0001-01-01 00:00:00+00:00")
		sealed := seed(t, s, func(f *seeded) { f.Box.SessionKey = "not sealed by us" })
		good := seed(t, s)
		require.ElementsMatch(t, []uuid.UUID{sealed.Box.ID, good.Box.ID}, sweep(t, s, 10))
		claims, err := s.ClaimBoxes(t.Context(), here, 10, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Len(t, claims, 2)
	})
}

func TestBR_07_AnInvalidStampIsRepairedFromTheCompletion(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, done := t.Context(), s.Now()
		f := seed(t, s, func(f *seeded) { f.Run.CompletedAt = &done })
		bad := []string{"0001-01-01 00:00:00+00:00"}
		if s.Dialect() == models.SQLite {
			bad = append(bad, "", "0")
		}
		for _, text := range bad {
			modelstest.Set(t, s, f.Run, "sandbox_cleanup_due_at = ?", text)
			require.Nil(t, box(t, s, f.Box.ID).DueAt, "the year 1 is never shown")
			require.Empty(t, sweep(t, s, 10), "nor taken as long overdue")
			n, err := s.RepairStamps(ctx, time.Hour, 10)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			sameTime(t, done.Add(time.Hour), stamp(t, s, f))
		}
		clock.Advance(60 * time.Second)
		require.Empty(t, sweep(t, s, 10))
		n, err := s.RepairStamps(ctx, time.Hour, 10)
		require.NoError(t, err)
		require.Zero(t, n)
		clock.Advance(3541 * time.Second)
		require.Equal(t, []uuid.UUID{f.Box.ID}, sweep(t, s, 10))
	}, models.WithClock(clock.Now))
}

func TestS1_037_AStampWithoutABoxIsClearedWithoutACall(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		invalid := seed(t, s, due(now.Add(-2*time.Hour)))
		var without []seeded
		for range 3 {
			without = append(without, seed(t, s, func(f *seeded) { f.Box = nil }))
		}
		later := seed(t, s, due(now.Add(time.Hour)), func(f *seeded) { f.Box = nil })
		over := seed(t, s, func(f *seeded) { f.Box.Desired, f.Box.Observed = models.WantDeleted, models.SeenMissing })
		waiting := seed(t, s, work(now.Add(time.Hour)))
		good := seed(t, s)
		require.Equal(t, []uuid.UUID{good.Box.ID}, sweep(t, s, 10))
		n, err := s.RepairStamps(ctx, time.Hour, 3)
		require.NoError(t, err)
		require.Equal(t, 3, n, "bounded")
		sameTime(t, *invalid.Run.CleanupDueAt, stamp(t, s, invalid))
		n, err = s.RepairStamps(ctx, time.Hour, 3)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		sameTime(t, invalid.Run.CompletedAt.Add(time.Hour), stamp(t, s, invalid))
		for _, f := range append(without, over) {
			require.Nil(t, stamp(t, s, f))
		}
		for _, f := range []seeded{later, waiting, good} {
			require.NotNil(t, stamp(t, s, f), "only due rows, and none whose delete is still to come")
		}
	})
}

func TestS1_039_ARestartBetweenStampAndDueLosesNothing(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		first := db.Open(t, models.WithClock(clock.Now))
		f := seed(t, first, due(first.Now().Add(time.Minute)))
		require.Empty(t, sweep(t, first, 10))
		clock.Advance(time.Minute)
		second := db.Open(t, models.WithClock(clock.Now))
		require.Equal(t, []uuid.UUID{f.Box.ID}, sweep(t, second, 10))
	})
}

func TestNextDueAtIsTheEarliestStampThereIsWorkFor(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		next := func() *time.Time {
			at, err := s.NextDueAt(ctx, places)
			require.NoError(t, err)
			return at
		}
		seed(t, s, func(f *seeded) { f.Box.KeptAt = &now })
		seed(t, s, func(f *seeded) { f.Box.Backend = "acme" })
		seed(t, s, work(now))
		attached := seed(t, s)
		require.NoError(t, attach(ctx, s, attached.Box.ID, uuid.New(), now.Add(time.Hour)))
		require.Nil(t, next(), "or a janitor would never sleep")
		future := seed(t, s, due(now.Add(2*time.Hour)))
		sameTime(t, now.Add(2*time.Hour), next())
		require.NoError(t, attach(ctx, s, future.Box.ID, uuid.New(), now.Add(time.Hour)))
		sameTime(t, now.Add(2*time.Hour), next())
		f := seed(t, s)
		sameTime(t, *f.Run.CleanupDueAt, next())
		none, err := s.NextDueAt(ctx, nil)
		require.NoError(t, err)
		require.Nil(t, none)
	})
}

func TestTenThousandDueBoxesAreOrderedAndClaimedInBoundedPasses(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, boxes := t.Context(), 10_000/volumeDivisor
		seedMany(t, s, boxes)
		ordered, claimedBoxes := 0, 0
		started := time.Now()
		for {
			ids := sweep(t, s, 500)
			if len(ids) == 0 {
				break
			}
			ordered += len(ids)
		}
		for {
			claims, err := s.ClaimBoxes(ctx, here, 500, time.Hour, time.Minute)
			require.NoError(t, err)
			if len(claims) == 0 {
				break
			}
			claimedBoxes += len(claims)
		}
		require.Equal(t, boxes, ordered)
		require.Equal(t, boxes, claimedBoxes)
		took := time.Since(started)
		t.Logf("%d boxes ordered and claimed in %s", boxes, took)
		require.Less(t, took, time.Minute)
	})
}

// seedMany inserts n due runs with resting boxes, many rows a statement.
func seedMany(t *testing.T, s *models.Store, n int) {
	t.Helper()
	f := seed(t, s)
	modelstest.Set(t, s, f.Run, "sandbox_cleanup_due_at = NULL")
	raw := modelstest.Of(t, s).Raw()
	for done := 0; done < n; {
		var runs []*models.Run
		var boxes []*models.Sandbox
		for ; len(runs) < 500 && done < n; done++ {
			run, b := *f.Run, *f.Box
			run.ID, run.BoxID, b.ID, b.RunID = uuid.New(), nil, uuid.New(), &run.ID
			run.CleanupDueAt = ptr(s.Now().Add(-time.Duration(done+1) * time.Millisecond))
			runs, boxes = append(runs, &run), append(boxes, &b)
		}
		_, err := raw.NewInsert().Model(&runs).Exec(t.Context())
		require.NoError(t, err)
		_, err = raw.NewInsert().Model(&boxes).Exec(t.Context())
		require.NoError(t, err)
	}
	_, err := raw.NewRaw("UPDATE automation_runs SET box_id = (SELECT s.id FROM sandboxes AS s WHERE s.run_id = automation_runs.id)").
		Exec(t.Context())
	require.NoError(t, err)
	if s.Dialect() == models.Postgres {
		for _, table := range []string{"automation_runs", "sandboxes"} {
			_, err := raw.NewRaw(fmt.Sprintf("ANALYZE %s", table)).Exec(t.Context())
			require.NoError(t, err)
		}
	}
}
