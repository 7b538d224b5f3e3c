package models_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestASandboxIsReadInItsOrganizationOnly(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		f := seed(t, s, named("sb-1"))
		b, err := s.Sandbox(ctx, f.Box.OrgID, f.Box.ID)
		require.NoError(t, err)
		require.Equal(t, "sb-1", b.Identities[0].ProviderID)
		sameTime(t, *f.Run.CleanupDueAt, b.DueAt)
		_, err = s.Sandbox(ctx, uuid.New(), f.Box.ID)
		require.ErrorIs(t, err, models.ErrNotFound)
		old := older(t, s, f, func(*models.Sandbox) {})
		require.Nil(t, box(t, s, old.ID).DueAt, "the stamp is about the newest box")
	})
}

func TestListSandboxesFiltersAndPages(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now, org := t.Context(), s.Now(), uuid.New()
		ours := func(f *seeded) { f.Automation.OrgID, f.Box.OrgID = org, org }
		aged := func(d time.Duration) func(*seeded) { return func(f *seeded) { f.Box.CreatedAt = now.Add(-d) } }
		newest := seed(t, s, ours, aged(time.Minute), named("sb-1"), due(now.Add(time.Hour)))
		awake := seed(t, s, ours, aged(2*time.Minute), running)
		gone := seed(t, s, ours, aged(3*time.Minute), work(now), func(f *seeded) {
			f.Box.Observed, f.Box.Backend, f.Run.CleanupDueAt = models.SeenDeleted, "acme", nil
		})
		seed(t, s)

		list := func(f models.SandboxFilter) ([]uuid.UUID, int) {
			f.OrgID = org
			if f.Limit == 0 {
				f.Limit = 10
			}
			boxes, total, err := s.ListSandboxes(ctx, f)
			require.NoError(t, err)
			var ids []uuid.UUID
			for _, b := range boxes {
				ids = append(ids, b.ID)
				if b.ID == newest.Box.ID {
					require.Len(t, b.Identities, 1)
					sameTime(t, now.Add(time.Hour), b.DueAt)
				}
			}
			return ids, total
		}
		for name, tc := range map[string]struct {
			filter models.SandboxFilter
			want   []uuid.UUID
			total  int
		}{
			"newest first": {models.SandboxFilter{}, []uuid.UUID{newest.Box.ID, awake.Box.ID, gone.Box.ID}, 3},
			"a page":       {models.SandboxFilter{Limit: 1, Offset: 1}, []uuid.UUID{awake.Box.ID}, 3},
			"by state":     {models.SandboxFilter{States: []models.Observed{models.SeenRunning, models.SeenFailed}}, []uuid.UUID{awake.Box.ID}, 1},
			"by desired":   {models.SandboxFilter{Desired: []models.Desired{models.WantDeleted}}, []uuid.UUID{gone.Box.ID}, 1},
			"by backend":   {models.SandboxFilter{Backend: "acme"}, []uuid.UUID{gone.Box.ID}, 1},
			"due soon":     {models.SandboxFilter{DueWithin: ptr(2 * time.Hour)}, []uuid.UUID{newest.Box.ID}, 1},
			"due at once":  {models.SandboxFilter{DueWithin: ptr(time.Minute)}, nil, 0},
		} {
			ids, total := list(tc.filter)
			require.Equal(t, tc.want, ids, name)
			require.Equal(t, tc.total, total, name)
		}
	})
}

func TestBoxesThatNeedAPersonAreFound(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now, org := t.Context(), s.Now(), uuid.New()
		week := 8 * 24 * time.Hour
		want := make(map[uuid.UUID]string)
		add := func(reason string, change ...func(*seeded)) {
			f := seed(t, s, append(change, func(f *seeded) { f.Automation.OrgID, f.Box.OrgID = org, org })...)
			require.Equal(t, reason, box(t, s, f.Box.ID).NeedsAttention)
			if reason != "" {
				want[f.Box.ID] = reason
			}
		}
		add("")
		add("refused", func(f *seeded) { f.Box.NeedsAttention = "refused" })
		add("history_lost", work(now), func(f *seeded) { f.Box.NeedsAttention, f.Box.Observed = "history_lost", models.SeenDeleted })
		add(models.AttentionUnserved, work(now.Add(-2*time.Hour)))
		add("", work(now.Add(-time.Minute)))
		add("", work(now.Add(-2*time.Hour)), func(f *seeded) { f.Box.LeaseUntil = ptr(now.Add(time.Minute)) })
		add(models.AttentionKept, func(f *seeded) { f.Box.KeptAt = ptr(now.Add(-week)) })
		add("", func(f *seeded) { f.Box.KeptAt = ptr(now.Add(-time.Hour)) })
		add(models.AttentionKeepAlive, keepAlive, func(f *seeded) { f.Box.CreatedAt = now.Add(-week) })
		add("", keepAlive)
		add("", func(f *seeded) { f.Box.CreatedAt = now.Add(-week) })
		add("", func(f *seeded) {
			f.Box.KeptAt, f.Box.Desired, f.Box.Observed = ptr(now.Add(-week)), models.WantDeleted, models.SeenDeleted
		})
		boxes, total, err := s.ListSandboxes(ctx, models.SandboxFilter{OrgID: org, NeedsAttention: true, Limit: 50})
		require.NoError(t, err)
		require.Equal(t, len(want), total)
		got := make(map[uuid.UUID]string)
		for _, b := range boxes {
			got[b.ID] = b.NeedsAttention
		}
		require.Equal(t, want, got)
	})
}

func TestTouchMovesTheLastAccessForwardOnly(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		f := seed(t, s)
		require.NoError(t, s.Touch(ctx, f.Box.ID, now))
		require.NoError(t, s.Touch(ctx, f.Box.ID, now.Add(-time.Minute)))
		sameTime(t, now, box(t, s, f.Box.ID).LastAccessAt)
		require.NoError(t, s.Touch(ctx, f.Box.ID, now.Add(time.Minute)))
		sameTime(t, now.Add(time.Minute), box(t, s, f.Box.ID).LastAccessAt)
	})
}

func TestEventsAreATimelineThatOutlivesTheBox(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		f := seed(t, s)
		for n, what := range []string{"created", "suspended", "resumed"} {
			require.NoError(t, s.AppendEvent(ctx, models.Event{
				SandboxID: &f.Box.ID, What: what, Actor: "settler", At: now.Add(time.Duration(n) * time.Second), Bytes: 7,
			}))
		}
		require.NoError(t, s.AppendEvent(ctx, models.Event{OrgID: f.Box.OrgID, What: "swept", Actor: "janitor"}))
		require.ErrorIs(t, s.AppendEvent(ctx, models.Event{SandboxID: ptr(uuid.New()), What: "x"}), models.ErrNotFound)
		events, total, err := s.Events(ctx, f.Box.ID, 2, 1)
		require.NoError(t, err)
		require.Equal(t, 3, total)
		require.Len(t, events, 2)
		require.Equal(t, "suspended", events[0].What)
		require.Equal(t, f.Run.ID, *events[0].RunID)
		require.Equal(t, f.Box.OrgID, events[0].OrgID)
		require.Equal(t, models.EventOK, events[0].Outcome)
		require.EqualValues(t, 7, events[0].Bytes)

		_, err = modelstest.Of(t, s).Raw().NewDelete().Model(f.Automation).WherePK().Exec(ctx)
		require.NoError(t, err)
		_, total, err = s.Events(ctx, f.Box.ID, 10, 0)
		require.NoError(t, err)
		require.Equal(t, 3, total)

		gone, err := s.PurgeEvents(ctx, now.Add(time.Second+time.Millisecond), 1)
		require.NoError(t, err)
		require.Equal(t, 1, gone, "bounded")
		for range 2 {
			_, err = s.PurgeEvents(ctx, now.Add(time.Second+time.Millisecond), 10)
			require.NoError(t, err)
		}
		require.Equal(t, []string{"resumed"}, whats(t, s, f.Box.ID))
	})
}

// plan returns how the engine would run a query over a big table.
func plan(t *testing.T, s *models.Store, query string) string {
	t.Helper()
	raw := modelstest.Of(t, s).Raw()
	if s.Dialect() == models.SQLite {
		var rows []struct {
			ID, Parent, Notused int
			Detail              string
		}
		require.NoError(t, raw.NewRaw("EXPLAIN QUERY PLAN "+query).Scan(t.Context(), &rows))
		var lines []string
		for _, r := range rows {
			lines = append(lines, r.Detail)
		}
		return strings.Join(lines, "\n")
	}
	var lines []string
	require.NoError(t, raw.NewRaw("EXPLAIN "+query).Scan(t.Context(), &lines))
	return strings.Join(lines, "\n")
}

func TestS1_007_EveryQuestionOfWhatIsDueIsAnsweredByAPartialIndex(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		rows := 500
		if s.Dialect() == models.Postgres { // its plan depends on the size
			rows = 5_000
		}
		seedMany(t, s, rows)
		raw := modelstest.Of(t, s).Raw()
		// Nearly everything rests, as it does in a service that has kept boxes for long.
		for _, rest := range []string{
			"UPDATE automation_runs SET sandbox_cleanup_due_at = NULL WHERE attempt = 0 AND id NOT IN (SELECT id FROM automation_runs ORDER BY id LIMIT 5)",
			"UPDATE sandboxes SET next_step_at = ordered_at WHERE id IN (SELECT id FROM sandboxes ORDER BY id LIMIT 5)",
			"ANALYZE",
		} {
			_, err := raw.NewRaw(rest).Exec(t.Context())
			require.NoError(t, err)
		}
		unleased, leased := s.NextStepQueries(here)
		pointless, invalid := s.RepairQueries()
		for name, tc := range map[string]struct{ query, index string }{
			"claim":            {s.ClaimQuery(here).String(), "sandboxes_next_step"},
			"next step":        {unleased.String(), "sandboxes_next_step"},
			"leased steps":     {leased.String(), "sandboxes_leased"},
			"sweep":            {s.DueQuery(places).String(), "automation_runs_cleanup_due"},
			"next due":         {s.NextDueQuery(places).String(), "automation_runs_cleanup_due"},
			"pointless stamps": {pointless.String(), "automation_runs_cleanup_due"},
			"invalid stamps":   {invalid.String(), "automation_runs_cleanup_due"},
		} {
			text := plan(t, s, tc.query)
			require.Contains(t, text, tc.index, "%s:\n%s", name, text)
			require.NotContains(t, text, "Seq Scan on automation_runs", "%s:\n%s", name, text)
			require.NotContains(t, text, "Seq Scan on sandboxes", "%s:\n%s", name, text)
		}
	})
}
