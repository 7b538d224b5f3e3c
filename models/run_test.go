package models_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

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
		seedMany(t, s, 1_500)
		scheduled(t, s, 600, func(n int, a *models.Automation) {
			if n > 20 {
				a.NextRunAt = nil
			}
		})
		for _, statement := range []string{
			"UPDATE automation_runs SET status = 'RUNNING', starting_at = created_at, check_at = '2099-01-01 00:00:00+00:00', timeout_at = '2099-01-01 00:00:00+00:00' WHERE id IN (SELECT id FROM automation_runs ORDER BY id LIMIT 300)",
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
