package models_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"automation/models"
	"automation/models/modelstest"
)

// suspendFor decides as the service does with a delay: the rules themselves are tested where they live.
func suspendFor(delay time.Duration) func(models.Ending) models.Decision {
	return func(e models.Ending) models.Decision {
		switch {
		case e.Box == nil:
			return models.Decision{Box: models.BoxNothing}
		case e.Outcome.Status == models.RunCancelled:
			return models.Decision{Box: models.BoxDelete}
		case e.KeepAlive:
			return models.Decision{Box: models.BoxNothing}
		case delay == 0:
			return models.Decision{Box: models.BoxDelete}
		}
		due := e.Run.CompletedAt.Add(delay)
		return models.Decision{Box: models.BoxSuspend, Due: &due}
	}
}

// callback is the outcome of a callback.
func callback(status models.RunStatus) models.Outcome {
	o := models.Outcome{Status: status, Actor: "callback", Reason: "callback"}
	if status == models.RunFailed {
		o.ErrorDetail = ptr("it broke")
	}
	return o
}

func finish(t *testing.T, s *models.Store, r *models.Run, o models.Outcome, decide func(models.Ending) models.Decision) models.Finished {
	t.Helper()
	f, err := s.Finish(t.Context(), r.ID, o, decide)
	require.NoError(t, err)
	return f
}

// read returns a run as it is stored.
func read(t *testing.T, s *models.Store, id uuid.UUID) *models.Run {
	t.Helper()
	r, err := s.Run(t.Context(), uuid.Nil, id)
	require.NoError(t, err)
	return r
}

// rawNull reads from the table itself whether a run's stamp is NULL.
func rawNull(t *testing.T, s *models.Store, id uuid.UUID) bool {
	t.Helper()
	var null bool
	query := "SELECT sandbox_cleanup_due_at IS NULL FROM automation_runs WHERE id = ?"
	require.NoError(t, modelstest.Of(t, s).Raw().NewRaw(query, id).Scan(t.Context(), &null))
	return null
}

// statements keeps what was sent to the database.
type statements struct {
	mu  sync.Mutex
	all []string
}

func (h *statements) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, e.Query)
	return ctx
}

func (*statements) AfterQuery(context.Context, *bun.QueryEvent) {}

func TestS1_010_S1_011_S1_025_TheStampIsWrittenByTheOneUpdateThatEndsTheRun(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		sent := new(statements)
		s.Watch(sent)
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		f := finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		require.True(t, f.Won)

		var ends []string
		for _, q := range sent.all {
			if strings.HasPrefix(q, "UPDATE") && strings.Contains(q, "automation_runs") {
				ends = append(ends, q)
			}
		}
		require.Len(t, ends, 1)
		set, where, ok := strings.Cut(ends[0], "WHERE")
		require.True(t, ok)
		for _, column := range []string{`"status" = 'COMPLETED'`, `"completed_at" = '`, `"sandbox_cleanup_due_at" = '`} {
			require.Contains(t, set, column)
		}
		require.Contains(t, where, "status IN ('RUNNING')")

		got := read(t, s, r.ID)
		require.Equal(t, models.RunCompleted, got.Status)
		sameTime(t, got.CompletedAt.Add(time.Hour), got.CleanupDueAt)
		require.Equal(t, models.WantSuspended, got.Box.Desired)
		require.EqualValues(t, 2, got.Box.Generation)
		require.Equal(t, "callback", got.Box.OrderedBy)
		require.NotNil(t, got.Box.NextStepAt)
		require.Equal(t, []string{"finished", "ordered"}, whats(t, s, b.ID))
	})
}

func TestS1_012_ACrashRightAfterTheCommitLeavesAStampedRun(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		s := db.Open(t)
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, callback(models.RunFailed), suspendFor(time.Hour))
		got := read(t, db.Open(t), r.ID) // another process, while the first never closes
		require.Equal(t, models.RunFailed, got.Status)
		sameTime(t, got.CompletedAt.Add(time.Hour), got.CleanupDueAt)
	})
}

func TestAnOutcomeIsWrittenOnlyOverWhatWasVerified(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		seen := s.Now()
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s), func(r *models.Run, _ *models.Sandbox) { r.ExitSeenAt = &seen })
		o := models.Outcome{Status: models.RunFailed, Actor: "watchdog", Reason: "timed out"}
		o.IfTimeoutAt = ptr(r.TimeoutAt.Add(time.Second))
		require.False(t, finish(t, s, r, o, suspendFor(0)).Won, "timeout_at has moved")
		o.IfTimeoutAt, o.IfExitSeen = r.TimeoutAt, ptr(seen.Add(time.Second))
		require.False(t, finish(t, s, r, o, suspendFor(0)).Won, "another exit was seen")
		o.IfExitSeen = &seen
		require.True(t, finish(t, s, r, o, suspendFor(0)).Won)
	})
}

func TestS1_014_S1_016_S1_020_S1_022_S1_023_WhatEndsDecidesAboutTheStamp(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		status    models.RunStatus
		keepAlive *bool
		delay     time.Duration
		desired   models.Desired
		stamped   bool
	}{
		"S1-014 completed, delay":                {models.RunCompleted, nil, time.Hour, models.WantSuspended, true},
		"S1-014 failed, delay":                   {models.RunFailed, nil, time.Hour, models.WantSuspended, true},
		"S1-022 keep_alive false, delay":         {models.RunCompleted, &no, time.Hour, models.WantSuspended, true},
		"S1-016 BR-13 completed, delay 0":        {models.RunCompleted, nil, 0, models.WantDeleted, false},
		"S1-020 BR-13 keep_alive beats delay":    {models.RunCompleted, &yes, time.Hour, models.WantRunning, false},
		"S1-020 BR-13 keep_alive beats delay 0":  {models.RunFailed, &yes, 0, models.WantRunning, false},
		"S1-023 cancel deletes, delay":           {models.RunCancelled, nil, time.Hour, models.WantDeleted, false},
		"S1-023 cancel deletes, keep_alive even": {models.RunCancelled, &yes, time.Hour, models.WantDeleted, false},
	} {
		t.Run(name, func(t *testing.T) {
			modelstest.Each(t, func(t *testing.T, s *models.Store) {
				a := modelstest.Automation(t, s, func(a *models.Automation) { a.KeepAlive = c.keepAlive })
				r, _ := modelstest.Running(t, s, a)
				o := callback(c.status)
				o.Actor, o.From = "user:"+modelstest.User.String(), []models.RunStatus{models.RunPending, models.RunRunning}
				require.True(t, finish(t, s, r, o, suspendFor(c.delay)).Won)
				got := read(t, s, r.ID)
				require.Equal(t, c.status, got.Status)
				require.Equal(t, c.desired, got.Box.Desired)
				require.Equal(t, !c.stamped, rawNull(t, s, r.ID))
				if c.stamped {
					sameTime(t, got.CompletedAt.Add(c.delay), got.CleanupDueAt)
				}
			})
		})
	}
}

func TestBR_13_AClearedStampIsNULLAndLeavesThePartialIndex(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		require.False(t, rawNull(t, s, r.ID))
		require.NoError(t, s.Keep(t.Context(), b.ID, "user:x", "looking"))
		require.True(t, rawNull(t, s, r.ID))
		indexed, err := modelstest.Of(t, s).Raw().NewSelect().Model((*models.Run)(nil)).Where("sandbox_cleanup_due_at IS NOT NULL").Count(t.Context())
		require.NoError(t, err)
		require.Zero(t, indexed)
	})
}

func TestCancelEndsARunThatWasNeverDispatched(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := modelstest.Pending(t, s, modelstest.Automation(t, s))
		o := models.Outcome{Status: models.RunCancelled, Actor: "user:x", Reason: "cancelled", ErrorDetail: ptr("Cancelled by user")}
		require.False(t, finish(t, s, r, o, suspendFor(time.Hour)).Won, "only RUNNING unless From says otherwise")
		o.From = []models.RunStatus{models.RunPending, models.RunRunning}
		f := finish(t, s, r, o, suspendFor(time.Hour))
		require.True(t, f.Won)
		got := read(t, s, r.ID)
		require.Equal(t, models.RunCancelled, got.Status)
		require.Equal(t, "Cancelled by user", *got.ErrorDetail)
		require.Nil(t, got.Box)
		require.True(t, rawNull(t, s, r.ID))
		claimed, _, err := s.ClaimDispatch(t.Context(), dispatch(10))
		require.NoError(t, err)
		require.Empty(t, claimed)
	})
}

func TestWhatAnOutcomeLeavesOutIsKept(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s), func(r *models.Run, _ *models.Sandbox) {
			r.ConversationID, r.Cost, r.RunMetadata = ptr("c1"), ptr(0.5), json.RawMessage(`{"a":1}`)
			r.StatusDetail = json.RawMessage(`{"kind":"timeout"}`)
		})
		f := finish(t, s, r, callback(models.RunCompleted), func(models.Ending) models.Decision {
			return models.Decision{Box: models.BoxDelete, Note: "backend cannot suspend: deleted"}
		})
		require.Equal(t, models.BoxDelete, f.Decision.Box)
		got := read(t, s, r.ID)
		require.Equal(t, "c1", *got.ConversationID)
		require.InDelta(t, 0.5, *got.Cost, 0)
		require.JSONEq(t, `{"a":1}`, string(got.RunMetadata))
		require.Nil(t, got.StatusDetail, "a completed run has none")
		require.Equal(t, "backend cannot suspend: deleted", got.Box.Note)
		events, _, err := s.Events(t.Context(), b.ID, 10, 0)
		require.NoError(t, err)
		require.Contains(t, string(events[0].Detail), "backend cannot suspend")
	})
}

func TestBR_11_ACompletionAheadOfTheClockIsClamped(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		for given, want := range map[time.Time]time.Time{
			clock.Now().Add(10 * time.Minute): clock.Now(),
			clock.Now().Add(-time.Minute):     clock.Now().Add(-time.Minute),
			{}:                                clock.Now(),
		} {
			r, _ := modelstest.Running(t, s, a)
			o := callback(models.RunCompleted)
			o.CompletedAt = given
			finish(t, s, r, o, suspendFor(time.Hour))
			got := read(t, s, r.ID)
			sameTime(t, want, got.CompletedAt)
			sameTime(t, want.Add(time.Hour), got.CleanupDueAt)
		}
	}, models.WithClock(clock.Now))
}

func TestWhereDeletionIsOrderedItStaysSoAndNoStampIsWritten(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		require.NoError(t, s.Order(t.Context(), b.ID, models.WantDeleted, "orphans", "gone"))
		f := finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
		require.True(t, f.Won)
		require.Equal(t, models.BoxNothing, f.Decision.Box)
		got := read(t, s, r.ID)
		require.Equal(t, models.RunCompleted, got.Status)
		require.Equal(t, models.WantDeleted, got.Box.Desired)
		require.EqualValues(t, 2, got.Box.Generation)
		require.True(t, rawNull(t, s, r.ID))
	})
}

func TestS1_017_ALateCallbackFlipsATimedOutRunAndStampsFromTheNewCompletion(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, models.Outcome{
			Status: models.RunFailed, ErrorDetail: ptr("Timed out: Command still running"),
			StatusDetail: json.RawMessage(`{"kind":"timeout"}`), Actor: "watchdog", Reason: "timed out",
		}, suspendFor(time.Hour))
		clock.Advance(20 * time.Minute)
		o := callback(models.RunCompleted)
		o.ConversationID = ptr("c1")
		f, err := s.Reconcile(t.Context(), r.ID, o, func(e models.Ending) models.Decision {
			require.True(t, e.Reconcile)
			return suspendFor(time.Hour)(e)
		})
		require.NoError(t, err)
		require.True(t, f.Won)
		got := read(t, s, r.ID)
		require.Equal(t, models.RunCompleted, got.Status)
		require.Nil(t, got.ErrorDetail)
		require.Nil(t, got.StatusDetail)
		require.Equal(t, "c1", *got.ConversationID)
		sameTime(t, clock.Now(), got.CompletedAt)
		sameTime(t, clock.Now().Add(time.Hour), got.CleanupDueAt)
		again, err := s.Reconcile(t.Context(), r.ID, o, suspendFor(2*time.Hour))
		require.NoError(t, err)
		require.False(t, again.Won, "once")
		sameTime(t, clock.Now().Add(time.Hour), modelstest.Stamp(t, s, r.ID))
	}, models.WithClock(clock.Now))
}

func TestS1_017_ALateCallbackTakesNobodysExtensionBack(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, models.Outcome{Status: models.RunFailed, ErrorDetail: ptr("Timed out: x"), Actor: "watchdog", Reason: "timed out"}, suspendFor(time.Hour))
		extended := s.Now().Add(24 * time.Hour)
		require.NoError(t, s.Extend(t.Context(), b.ID, extended, "user:ana"))
		clock.Advance(time.Minute)
		f, err := s.Reconcile(t.Context(), r.ID, callback(models.RunCompleted), suspendFor(time.Hour))
		require.NoError(t, err)
		sameTime(t, extended, f.Decision.Due)
		sameTime(t, extended, modelstest.Stamp(t, s, r.ID))
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_11_ReconcilingABoxOrderedDeletedGivesNoStampAndNoSecondOrder(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, r, models.Outcome{Status: models.RunFailed, ErrorDetail: ptr("Timed out: x"), Actor: "watchdog"}, suspendFor(0))
		f, err := s.Reconcile(t.Context(), r.ID, callback(models.RunCompleted), suspendFor(time.Hour))
		require.NoError(t, err)
		require.True(t, f.Won)
		require.True(t, rawNull(t, s, r.ID))
		require.Equal(t, []string{"finished", "ordered", "finished"}, whats(t, s, b.ID))
	})
}

func TestS1_018_OnlyThatPrefixIsFlipped(t *testing.T) {
	ends := []struct {
		status models.RunStatus
		detail *string
	}{
		{models.RunFailed, nil},
		{models.RunFailed, ptr("it broke")},
		{models.RunFailed, ptr("timed out: lower case")},
		{models.RunFailed, ptr("Timed out:no blank")},
		{models.RunFailed, ptr("exit_code=1 Timed out: later")},
		{models.RunCompleted, nil},
		{models.RunCancelled, ptr("Timed out: but cancelled")},
		{models.RunSkipped, ptr("Timed out: but skipped")},
	}
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		for _, end := range ends {
			r, _ := modelstest.Running(t, s, a)
			finish(t, s, r, models.Outcome{Status: end.status, ErrorDetail: end.detail, Actor: "x"}, suspendFor(time.Hour))
			before := read(t, s, r.ID)
			f, err := s.Reconcile(t.Context(), r.ID, callback(models.RunCompleted), suspendFor(time.Minute))
			require.NoError(t, err)
			require.False(t, f.Won, end)
			require.Equal(t, before, read(t, s, r.ID))
		}
		r, _ := modelstest.Running(t, s, a)
		f, err := s.Reconcile(t.Context(), r.ID, callback(models.RunCompleted), suspendFor(time.Minute))
		require.NoError(t, err)
		require.False(t, f.Won, "RUNNING is for Finish")
	})
}
