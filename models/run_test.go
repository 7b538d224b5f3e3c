package models_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// dispatch claims up to limit runs for boxes of the tests' backend.
func dispatch(limit int) models.DispatchClaim {
	return models.DispatchClaim{
		Limit: limit, Backend: modelstest.Backend, MaxAttempts: 3,
		Budget: 5 * time.Minute, Lease: time.Minute, DefaultRun: 10 * time.Minute,
	}
}

func claimRuns(t *testing.T, s *models.Store, c models.DispatchClaim) (claimed []models.Dispatched, exhausted []*models.Run) {
	t.Helper()
	claimed, exhausted, err := s.ClaimDispatch(t.Context(), c)
	require.NoError(t, err)
	return claimed, exhausted
}

func TestDispatchClaimsOldestFirstWithABoxRowInTheSameTransaction(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s, func(a *models.Automation) { a.TimeoutSeconds = ptr(60) })
		first := modelstest.Pending(t, s, a)
		clock.Advance(time.Second)
		second := modelstest.Pending(t, s, a)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now(), at)

		claimed, exhausted := claimRuns(t, s, dispatch(1))
		require.Empty(t, exhausted)
		require.Len(t, claimed, 1)
		require.Equal(t, first.ID, claimed[0].Run.ID)
		require.Equal(t, a.ID, claimed[0].Automation.ID)
		r, b := read(t, s, first.ID), claimed[0].Box
		require.Equal(t, models.RunRunning, r.Status)
		require.Equal(t, "Preparing environment", *r.CurrentPhase)
		require.Nil(t, r.StatusDetail)
		require.Nil(t, r.ProviderID)
		require.Equal(t, 1, r.Attempt)
		sameTime(t, clock.Now(), r.StartedAt)
		sameTime(t, clock.Now().Add(6*time.Minute), r.TimeoutAt)
		require.Equal(t, b.ID, r.Box.ID)
		require.Equal(t, models.WantRunning, r.Box.Desired)
		require.Equal(t, models.SeenProvisioning, r.Box.Observed)
		require.Nil(t, r.Box.NextStepAt, "dispatch owns the box")
		require.Equal(t, models.CreatedByDispatch, r.Box.CreatedBy)
		require.Equal(t, a.UserID, r.Box.UserID)
		require.Equal(t, *b.LeaseToken, *r.Box.LeaseToken)
		require.True(t, r.Box.Leased(clock.Now().Add(59*time.Second)))

		claimed, _ = claimRuns(t, s, dispatch(10))
		require.Len(t, claimed, 1)
		require.Equal(t, second.ID, claimed[0].Run.ID)
	}, models.WithClock(clock.Now))
}

func TestDispatchClaimsManualRunsOfDisabledAutomationsOnly(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		off := modelstest.Automation(t, s, func(a *models.Automation) { a.State = models.AutomationInactive })
		manual := modelstest.Pending(t, s, off)
		cron := models.TriggerCron
		modelstest.Pending(t, s, off, func(r *models.Run) { r.TriggerSource = &cron })
		modelstest.Pending(t, s, off, func(r *models.Run) { r.TriggerSource = nil })
		on := modelstest.Automation(t, s)
		scheduled := modelstest.Pending(t, s, on, func(r *models.Run) { r.TriggerSource = &cron })
		claimed, _ := claimRuns(t, s, dispatch(10))
		require.Len(t, claimed, 2)
		require.Equal(t, manual.ID, claimed[0].Run.ID)
		require.Equal(t, scheduled.ID, claimed[1].Run.ID)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		require.NotNil(t, at, "the leases of the two")
		require.True(t, at.After(s.Now()), "what may not be dispatched is no work")
	})
}

func TestTwoStoresClaimAVolumeOfRunsEachExactlyOnce(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		stores := []*models.Store{db.Open(t), db.Open(t)}
		a := modelstest.Automation(t, stores[0])
		want := 2 * modelstest.Volume(100)
		for range want {
			modelstest.Pending(t, stores[0], a)
		}
		var mu sync.Mutex
		got := map[uuid.UUID]int{}
		var group sync.WaitGroup
		for n := range 4 {
			group.Go(func() {
				for {
					claimed, _, err := stores[n%2].ClaimDispatch(context.Background(), dispatch(7))
					if err != nil {
						t.Error(err)
						return
					}
					if len(claimed) == 0 {
						return
					}
					mu.Lock()
					for _, d := range claimed {
						got[d.Run.ID]++
					}
					mu.Unlock()
				}
			})
		}
		group.Wait()
		// A claimer that found all rows locked by another one stopped early: what is left is claimed here.
		claimed, _ := claimRuns(t, stores[0], dispatch(want))
		for _, d := range claimed {
			got[d.Run.ID]++
		}
		require.Len(t, got, want)
		for id, n := range got {
			require.Equal(t, 1, n, id)
		}
		boxes, err := db.Raw().NewSelect().Model((*models.Sandbox)(nil)).Count(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, want, boxes)
	})
}

func TestADispatchThatDiedIsTakenOverWhenItsLeaseEndsUntilTheLastAttempt(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		dead := claimed[0]
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again, "its lease lives")
		require.Empty(t, exhausted)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(time.Minute), at)

		for attempt := 2; attempt <= 3; attempt++ {
			clock.Advance(time.Minute)
			claimed, exhausted = claimRuns(t, s, dispatch(10))
			require.Empty(t, exhausted)
			require.Len(t, claimed, 1)
			got := read(t, s, r.ID)
			require.Equal(t, attempt, got.Attempt)
			require.Equal(t, claimed[0].Box.ID, got.Box.ID)
			require.NotEqual(t, dead.Box.ID, got.Box.ID)
			old := box(t, s, dead.Box.ID)
			require.Equal(t, models.WantDeleted, old.Desired)
			require.Equal(t, "dispatch", old.OrderedBy)
			require.NotNil(t, old.NextStepAt)
			require.ErrorIs(t, s.MarkStarting(t.Context(), r.ID, dead.Box.ID, *dead.Box.LeaseToken, clock.Now(), clock.Now()),
				models.ErrConflict, "the dead dispatch must not start")
			dead = claimed[0]
		}
		clock.Advance(time.Minute)
		claimed, exhausted = claimRuns(t, s, dispatch(10))
		require.Empty(t, claimed)
		require.Len(t, exhausted, 1)
		require.Equal(t, r.ID, exhausted[0].ID)
		require.Equal(t, models.RunRunning, read(t, s, r.ID).Status, "the caller finishes it")
		require.Equal(t, models.WantDeleted, box(t, s, dead.Box.ID).Desired)
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_05_ALeaseRenewedMeanwhileKeepsTheAttempt(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		b := claimed[0].Box
		clock.Advance(50 * time.Second)
		_, err := s.Renew(t.Context(), b.ID, *b.LeaseToken, time.Minute)
		require.NoError(t, err)
		clock.Advance(50 * time.Second)
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again)
		require.Empty(t, exhausted)
	}, models.WithClock(clock.Now))
}

func TestTheNextAttemptIsTheOwnersAlone(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, dispatch(10))
		deadline := clock.Now().Add(time.Hour)
		next, err := s.NextAttempt(t.Context(), claimed[0], dispatch(10), "image_pull_error", deadline)
		require.NoError(t, err)
		got := read(t, s, r.ID)
		require.Equal(t, next.ID, got.Box.ID)
		require.Equal(t, 2, got.Attempt)
		sameTime(t, deadline, got.TimeoutAt)
		require.True(t, got.Box.Leased(clock.Now()))
		old := box(t, s, claimed[0].Box.ID)
		require.Equal(t, models.WantDeleted, old.Desired)
		require.Equal(t, "image_pull_error", old.OrderReason)

		_, err = s.NextAttempt(t.Context(), claimed[0], dispatch(10), "again", deadline)
		require.ErrorIs(t, err, models.ErrConflict, "not the newest box")
		finish(t, s, r, models.Outcome{Status: models.RunCancelled, Actor: "user:x"}, suspendFor(0))
		_, err = s.NextAttempt(t.Context(), models.Dispatched{Run: r, Automation: claimed[0].Automation, Box: next}, dispatch(10), "late", deadline)
		require.ErrorIs(t, err, models.ErrConflict, "cancelled meanwhile")
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_04_NothingIsStartedForARunThatWasCancelled(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		modelstest.Pending(t, s, a)
		modelstest.Pending(t, s, a)
		claimed, _ := claimRuns(t, s, dispatch(10))
		timeout, check := clock.Now().Add(10*time.Minute), clock.Now().Add(5*time.Second)
		start := func(d models.Dispatched, token uuid.UUID) error {
			return s.MarkStarting(t.Context(), d.Run.ID, d.Box.ID, token, timeout, check)
		}
		cancelled, good := claimed[0], claimed[1]
		finish(t, s, cancelled.Run, models.Outcome{Status: models.RunCancelled, Actor: "user:x"}, suspendFor(time.Hour))
		require.ErrorIs(t, start(cancelled, *cancelled.Box.LeaseToken), models.ErrConflict)
		require.ErrorIs(t, start(good, uuid.New()), models.ErrConflict, "a lease that is not ours")
		require.NoError(t, start(good, *good.Box.LeaseToken))
		got := read(t, s, good.Run.ID)
		sameTime(t, clock.Now(), got.StartingAt)
		sameTime(t, timeout, got.TimeoutAt)
		sameTime(t, check, got.CheckAt)
		sameTime(t, check, got.Box.NextStepAt)
		require.Equal(t, "Starting automation", *got.CurrentPhase)
		require.ErrorIs(t, start(good, *good.Box.LeaseToken), models.ErrConflict, "once")

		clock.Advance(time.Hour)
		again, exhausted := claimRuns(t, s, dispatch(10))
		require.Empty(t, again, "from starting_at on nothing is repeated")
		require.Empty(t, exhausted)
	}, models.WithClock(clock.Now))
}

func TestS1_053_LocalModeHasNoBoxAndIsDispatchedAgainPastItsDeadline(t *testing.T) {
	clock := modelstest.NewClock()
	local := dispatch(10)
	local.Backend = ""
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		claimed, _ := claimRuns(t, s, local)
		require.Len(t, claimed, 1)
		require.Nil(t, claimed[0].Box)
		require.Nil(t, read(t, s, r.ID).Box)
		at, err := s.NextDispatchAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(local.Budget), at)
		stale, err := s.ClaimStale(t.Context(), 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, stale)

		clock.Advance(local.Budget)
		stale, err = s.ClaimStale(t.Context(), 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, stale, "still dispatch's")
		claimed, _ = claimRuns(t, s, local)
		require.Len(t, claimed, 1)
		require.Equal(t, 2, claimed[0].Run.Attempt)
		require.NoError(t, s.MarkStarting(t.Context(), r.ID, uuid.Nil, uuid.Nil, clock.Now().Add(time.Hour), clock.Now().Add(time.Second)))
		f := finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		require.True(t, f.Won)
		require.Equal(t, models.BoxNothing, f.Decision.Box)
		require.True(t, rawNull(t, s, r.ID))
	}, models.WithClock(clock.Now))
}

func TestStaleRunsAreClaimedByMovingTheirCheck(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		one, two := db.Open(t, models.WithClock(clock.Now)), db.Open(t, models.WithClock(clock.Now))
		a := modelstest.Automation(t, one)
		at := func(check, timeout time.Duration) *models.Run {
			r, _ := modelstest.Running(t, one, a, func(r *models.Run, _ *models.Sandbox) {
				r.CheckAt, r.TimeoutAt = ptr(clock.Now().Add(check)), ptr(clock.Now().Add(timeout))
			})
			return r
		}
		second, first := at(-time.Second, time.Hour), at(-time.Minute, time.Hour)
		timedOut := at(0, -time.Second)
		at(time.Minute, time.Hour)
		unchecked := at(0, -2*time.Second)
		modelstest.Set(t, one, unchecked, "check_at = NULL")
		terminal := at(-time.Hour, -time.Hour)
		finish(t, one, terminal, callback(models.RunCompleted), suspendFor(0))

		next, err := one.NextStaleAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(-time.Minute), next)
		var got []uuid.UUID
		for _, s := range []*models.Store{one, two, one, two} {
			runs, err := s.ClaimStale(t.Context(), 2, 30*time.Second)
			require.NoError(t, err)
			for _, r := range runs {
				require.NotNil(t, r.Box)
				require.NotEmpty(t, r.Box.Identities)
				sameTime(t, clock.Now().Add(30*time.Second), r.CheckAt)
				got = append(got, r.ID)
			}
		}
		require.ElementsMatch(t, []uuid.UUID{first.ID, second.ID, timedOut.ID, unchecked.ID}, got)
		require.ElementsMatch(t, []uuid.UUID{first.ID, second.ID}, got[:2], "checks first")
		next, err = one.NextStaleAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(30*time.Second), next)
	})
}

func TestARunStillProvisionedIsStaleFromItsTimeoutOnlyAndHeldByTheClaim(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		modelstest.Pending(t, s, modelstest.Automation(t, s))
		c := dispatch(10)
		c.Lease = 24 * time.Hour
		claimRuns(t, s, c)
		next, err := s.NextStaleAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(15*time.Minute), next)
		clock.Advance(15 * time.Minute)
		runs, err := s.ClaimStale(t.Context(), 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, runs, 1)
		runs, err = s.ClaimStale(t.Context(), 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, runs)
		next, err = s.NextStaleAt(t.Context())
		require.NoError(t, err)
		sameTime(t, clock.Now().Add(time.Minute), next)
	}, models.WithClock(clock.Now))
}

func TestACheckIsRecordedOnlyWhileTheRunIsRunning(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		first := clock.Now()
		record := func(c models.Check) *models.Run {
			t.Helper()
			require.NoError(t, s.RecordCheck(t.Context(), r.ID, c))
			return read(t, s, r.ID)
		}
		got := record(models.Check{ExitSeenAt: &first, ExitCode: ptr(3), NextAt: clock.Now().Add(10 * time.Second), StatusDetail: json.RawMessage(`{"kind":"transport"}`)})
		sameTime(t, first, got.ExitSeenAt)
		require.Equal(t, 3, *got.ExitCode)
		require.JSONEq(t, `{"kind":"transport"}`, string(got.StatusDetail))
		sameTime(t, clock.Now().Add(10*time.Second), got.CheckAt)
		require.Equal(t, *r.TimeoutAt, *got.TimeoutAt)

		later := clock.Now().Add(2 * time.Second)
		got = record(models.Check{ExitSeenAt: &later, NextAt: clock.Now().Add(time.Hour)})
		sameTime(t, first, got.ExitSeenAt)
		sameTime(t, *r.TimeoutAt, got.CheckAt)
		require.NotNil(t, got.StatusDetail)

		moved := clock.Now().Add(2 * time.Hour)
		got = record(models.Check{NextAt: later, WasTimeoutAt: ptr(r.TimeoutAt.Add(time.Second)), TimeoutAt: &moved})
		require.Equal(t, *r.TimeoutAt, *got.TimeoutAt, "it moved meanwhile")
		got = record(models.Check{NextAt: later, WasTimeoutAt: r.TimeoutAt, TimeoutAt: &moved})
		sameTime(t, moved, got.TimeoutAt)

		clock.Advance(3 * time.Hour) // past timeout_at, still unverified: the next look keeps its time
		got = record(models.Check{NextAt: clock.Now().Add(time.Minute)})
		sameTime(t, clock.Now().Add(time.Minute), got.CheckAt)

		finish(t, s, r, callback(models.RunCompleted), suspendFor(0))
		require.ErrorIs(t, s.RecordCheck(t.Context(), r.ID, models.Check{NextAt: later}), models.ErrConflict)
		require.ErrorIs(t, s.RecordCheck(t.Context(), uuid.New(), models.Check{NextAt: later}), models.ErrNotFound)
	}, models.WithClock(clock.Now))
}

func TestFactsOfARunAreStoredAlsoAfterItEnded(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		o := callback(models.RunFailed)
		o.StatusDetail = json.RawMessage(`{"kind":"execution_error"}`)
		finish(t, s, r, o, suspendFor(time.Hour))
		require.NoError(t, s.RecordCommand(t.Context(), r.ID, "cmd-1"))
		require.NoError(t, s.RecordOutput(t.Context(), r.ID, models.Output{
			ExitCode: ptr(1), Key: ptr("outputs/x.ndjson"), Bytes: 42, FinishResponse: json.RawMessage(`{"message":"done"}`),
		}))
		require.NoError(t, s.RecordOutput(t.Context(), r.ID, models.Output{}), "less never replaces more")
		require.NoError(t, s.RecordLateCallback(t.Context(), r.ID, ptr("c1"), ptr(1.25), ptr("late words")))
		require.NoError(t, s.RecordLateCallback(t.Context(), r.ID, ptr("c2"), ptr(9.0), nil))
		got := read(t, s, r.ID)
		require.Equal(t, "cmd-1", *got.BashCommandID)
		require.Equal(t, 1, *got.ExitCode)
		require.Equal(t, "outputs/x.ndjson", *got.OutputKey)
		require.EqualValues(t, 42, *got.OutputBytes)
		require.NotNil(t, got.OutputAt)
		require.JSONEq(t, `{"finish_tool_response":{"message":"done"}}`, string(got.RunMetadata))
		require.Equal(t, "c1", *got.ConversationID)
		require.InDelta(t, 1.25, *got.Cost, 0)
		require.JSONEq(t, `{"kind":"execution_error","late_callback_error":"late words"}`, string(got.StatusDetail))
		require.Equal(t, models.RunFailed, got.Status)
		require.ErrorIs(t, s.RecordCommand(t.Context(), uuid.New(), "x"), models.ErrNotFound)
	})
}

func TestBR_12_OutputsExpireByTheTimeTheirBoxWasGone(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		stored := func(boxGone time.Duration, edit ...func(*models.Run, *models.Sandbox)) *models.Run {
			long := clock.Now().Add(-5 * time.Hour)
			gone := clock.Now().Add(-boxGone)
			r, _ := modelstest.Running(t, s, a, append(edit, func(r *models.Run, b *models.Sandbox) {
				r.Status, r.CompletedAt, r.OutputKey, r.OutputAt = models.RunCompleted, &long, ptr("outputs/"+r.ID.String()), &long
				b.DeletedAt = &gone
			})...)
			return r
		}
		old := stored(90 * time.Minute)
		stored(30 * time.Minute)
		live := stored(90 * time.Minute)
		modelstest.Set(t, s, live.Box, "deleted_at = NULL")
		boxless := stored(90 * time.Minute)
		modelstest.Set(t, s, boxless, "box_id = NULL")
		keys, err := s.ExpiredOutputs(t.Context(), clock.Now().Add(-time.Hour), 10)
		require.NoError(t, err)
		require.Equal(t, map[uuid.UUID]string{old.ID: *old.OutputKey, boxless.ID: *boxless.OutputKey}, keys)
		require.NoError(t, s.ForgetOutput(t.Context(), old.ID))
		require.Nil(t, read(t, s, old.ID).OutputKey)
		keys, err = s.ExpiredOutputs(t.Context(), clock.Now().Add(-time.Hour), 10)
		require.NoError(t, err)
		require.Len(t, keys, 1)
	}, models.WithClock(clock.Now))
}

func TestRunsAreReadInTheirOrganizationNewestFirst(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		var ids []uuid.UUID
		for range 5 { // one instant: the ids decide
			ids = append(ids, modelstest.Pending(t, s, a).ID)
		}
		slices.SortFunc(ids, func(x, y uuid.UUID) int { return strings.Compare(y.String(), x.String()) })
		var listed []uuid.UUID
		for page := range 3 {
			runs, total, err := s.ListRuns(t.Context(), models.RunFilter{OrgID: a.OrgID, AutomationID: &a.ID, Limit: 2, Offset: 2 * page})
			require.NoError(t, err)
			require.Equal(t, 5, total)
			for _, r := range runs {
				require.Equal(t, modelstest.User, r.OwnerID)
				listed = append(listed, r.ID)
			}
		}
		require.Equal(t, ids, listed, "peer defect 29: pages do not overlap")
		_, err := s.Run(t.Context(), uuid.New(), ids[0])
		require.ErrorIs(t, err, models.ErrNotFound)
		_, err = s.Run(t.Context(), a.OrgID, ids[0])
		require.NoError(t, err)
		running, total, err := s.ListRuns(t.Context(), models.RunFilter{OrgID: a.OrgID, Statuses: []models.RunStatus{models.RunRunning}, Limit: 10})
		require.NoError(t, err)
		require.Empty(t, running)
		require.Zero(t, total)
		require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))
		r, err := s.Run(t.Context(), a.OrgID, ids[0])
		require.NoError(t, err, "peer defect 31: the runs of a deleted automation stay readable")
		require.Equal(t, modelstest.User, r.OwnerID)
	}, models.WithClock(clock.Now))
}

func TestThePhaseIsSetUntilTheRunEnds(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		pending := modelstest.Pending(t, s, a)
		require.NoError(t, s.SetPhase(t.Context(), pending.ID, "waiting"))
		r, _ := modelstest.Running(t, s, a)
		require.NoError(t, s.SetPhase(t.Context(), r.ID, "cloning"))
		finish(t, s, r, callback(models.RunCompleted), suspendFor(0))
		require.ErrorIs(t, s.SetPhase(t.Context(), r.ID, "late"), models.ErrConflict)
		require.Equal(t, "cloning", *read(t, s, r.ID).CurrentPhase)
		require.ErrorIs(t, s.SetPhase(t.Context(), uuid.New(), "x"), models.ErrNotFound)
	})
}

func TestWhatIsDueIsFoundByItsPartialIndex(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		raw := modelstest.Of(t, s).Raw()
		seedMany(t, s, 5_000)
		scheduled(t, s, 2_000, func(n int, a *models.Automation) {
			if n > 20 {
				a.NextRunAt = nil
			}
		})
		for _, statement := range []string{
			"UPDATE automation_runs SET status = 'RUNNING', starting_at = created_at, check_at = '2099-01-01 00:00:00+00:00', timeout_at = '2099-01-01 00:00:00+00:00' WHERE id IN (SELECT id FROM automation_runs ORDER BY id LIMIT 1000)",
			"UPDATE automation_runs SET starting_at = NULL WHERE id IN (SELECT id FROM automation_runs ORDER BY id LIMIT 4)",
			"UPDATE automation_runs SET status = 'PENDING' WHERE id IN (SELECT id FROM automation_runs ORDER BY id DESC LIMIT 4)",
			"ANALYZE",
		} {
			_, err := raw.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		for index, q := range s.DueWork(s.Now()) {
			text := plan(t, s, q.String())
			require.Contains(t, text, index)
			require.NotContains(t, text, "Seq Scan on automation_runs")
		}
	})
}
