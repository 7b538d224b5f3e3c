package models_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// of puts what seed makes into an organization.
func of(org uuid.UUID) func(*seeded) {
	return func(f *seeded) { f.Automation.OrgID, f.Box.OrgID = org, org }
}

func planned(t *testing.T, s *models.Store, f models.SweepFilter) *models.Sweep {
	t.Helper()
	w, err := s.PlanSweep(t.Context(), f, "user:me")
	require.NoError(t, err)
	return w
}

func listed(w *models.Sweep) map[uuid.UUID]models.SweepOutcome {
	out := map[uuid.UUID]models.SweepOutcome{}
	for _, i := range w.Items {
		out[i.SandboxID] = i.Outcome
	}
	return out
}

func TestAPlanListsExactlyWhatIsDue(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		org, now := uuid.New(), s.Now()
		old := seed(t, s, of(org), due(now.Add(-2*time.Hour)), func(f *seeded) {
			started := now.Add(-3 * time.Hour)
			f.Run.CompletedAt = &started
			f.Box.Storage = []byte(`{"trash_bytes":5,"conversations":[{"size_bytes":7},{"size_bytes":30}]}`)
		})
		young := seed(t, s, of(org))
		soon := seed(t, s, of(org), due(now.Add(time.Hour)), func(f *seeded) { f.Box.Backend = "other" })
		seed(t, s) // somebody else's
		seed(t, s, of(org), func(f *seeded) { f.Box.KeptAt = &now })
		seed(t, s, of(org), func(f *seeded) { f.Box.Desired = models.WantDeleted })
		seed(t, s, of(org), due(time.Time{})) // invalid: the janitor repairs it (BR-07)
		seed(t, s, of(org), func(f *seeded) { f.Run.CleanupDueAt = nil })

		w := planned(t, s, models.SweepFilter{OrgID: org})
		require.Len(t, w.Items, 2)
		first := w.Items[0]
		require.Equal(t, old.Box.ID, first.SandboxID, "the longest overdue first")
		require.Equal(t, old.Run.ID, first.RunID)
		require.Equal(t, old.Automation.ID, *first.AutomationID)
		require.Equal(t, "nightly", *first.AutomationName)
		require.EqualValues(t, 42, *first.SizeBytes)
		sameTime(t, *old.Run.CleanupDueAt, &first.DueAt)
		require.Equal(t, young.Box.ID, w.Items[1].SandboxID)
		require.Nil(t, w.Items[1].SizeBytes)
		require.Equal(t, map[models.SweepOutcome]int{models.SweepPlanned: 2}, w.Counts)

		require.Len(t, planned(t, s, models.SweepFilter{OrgID: org, DueWithin: 2 * time.Hour}).Items, 3)
		only := planned(t, s, models.SweepFilter{OrgID: org, DueWithin: 2 * time.Hour, Backend: "other"})
		require.Equal(t, map[uuid.UUID]models.SweepOutcome{soon.Box.ID: models.SweepPlanned}, listed(only))
		require.Equal(t, models.WantSuspended, box(t, s, old.Box.ID).Desired, "a plan orders nothing")
		require.Empty(t, whats(t, s, old.Box.ID))
	})
}

func TestAPlanIsAppliedExactlyWhereItIsStillTrue(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		org, now, ctx := uuid.New(), s.Now(), t.Context()
		still, kept, inside, moved, gone := seed(t, s, of(org)), seed(t, s, of(org)), seed(t, s, of(org)), seed(t, s, of(org)), seed(t, s, of(org))
		overdue := seed(t, s, of(org), due(now.Add(-2*hold)), func(f *seeded) {
			ended := now.Add(-3 * hold)
			f.Run.CompletedAt = &ended
		})
		w := planned(t, s, models.SweepFilter{OrgID: org})
		late := seed(t, s, of(org)) // due too, but not in the plan
		require.NoError(t, s.Keep(ctx, kept.Box.ID, "user:you", "mine"))
		require.NoError(t, s.Extend(ctx, moved.Box.ID, now.Add(time.Hour), "user:you"))
		require.NoError(t, s.Order(ctx, gone.Box.ID, models.WantDeleted, "user:you", "by hand"))
		for _, f := range []seeded{inside, overdue} {
			require.NoError(t, attach(ctx, s, f.Box.ID, uuid.New(), now.Add(time.Hour)))
		}

		done, err := s.ApplySweep(ctx, org, w.ID, "user:me", hold)
		require.NoError(t, err)
		want := map[uuid.UUID]models.SweepOutcome{
			still.Box.ID: models.SweepOrdered, overdue.Box.ID: models.SweepOrdered, kept.Box.ID: models.SweepKept,
			inside.Box.ID: models.SweepAttached, moved.Box.ID: models.SweepChanged, gone.Box.ID: models.SweepGone,
		}
		require.Equal(t, want, listed(done))
		require.Equal(t, "user:me", done.AppliedBy)
		b := box(t, s, still.Box.ID)
		require.Equal(t, models.WantDeleted, b.Desired)
		require.Equal(t, "user:me", b.OrderedBy)
		require.Equal(t, "sweep "+w.ID.String(), b.OrderReason)
		require.Equal(t, []string{"ordered"}, whats(t, s, still.Box.ID))
		for _, f := range []seeded{kept, inside, moved, late} {
			require.Equal(t, models.WantSuspended, box(t, s, f.Box.ID).Desired)
		}
		require.Equal(t, "user:you", box(t, s, gone.Box.ID).OrderedBy)

		require.NoError(t, detach(ctx, s, inside.Box.ID, uuid.New()))
		again, err := s.ApplySweep(ctx, org, w.ID, "user:other", hold)
		require.NoError(t, err)
		require.Equal(t, done, again, "a second apply answers the first result and changes nothing")
		require.Equal(t, []string{"ordered"}, whats(t, s, still.Box.ID))
	})
}

func TestAPlanIsAppliedOnceHoweverManyAsk(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		org := uuid.New()
		var boxes []seeded
		for range 10 {
			boxes = append(boxes, seed(t, s, of(org)))
		}
		w := planned(t, s, models.SweepFilter{OrgID: org})
		var group sync.WaitGroup
		results := make([]*models.Sweep, 6)
		for n := range results {
			group.Go(func() { results[n], _ = s.ApplySweep(t.Context(), org, w.ID, "user:me", hold) })
		}
		group.Go(func() { _, _ = s.OrderDue(t.Context(), places, 5, hold) })
		group.Wait()
		for _, r := range results {
			require.Equal(t, results[0], r)
		}
		for _, f := range boxes {
			require.Equal(t, []string{"ordered"}, whats(t, s, f.Box.ID), "one order a box, whoever was first")
		}
	})
}

func TestAPlanExpiresAndIsItsOrganizations(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f, ctx := seed(t, s), t.Context()
		org := f.Automation.OrgID
		w, used := planned(t, s, models.SweepFilter{OrgID: org}), planned(t, s, models.SweepFilter{OrgID: org, Backend: "other"})
		_, err := s.ApplySweep(ctx, uuid.New(), w.ID, "user:eve", hold)
		require.ErrorIs(t, err, models.ErrNotFound)
		_, err = s.ApplySweep(ctx, org, uuid.New(), "user:me", hold)
		require.ErrorIs(t, err, models.ErrNotFound)
		first, err := s.ApplySweep(ctx, org, used.ID, "user:me", hold)
		require.NoError(t, err)

		clock.Advance(time.Hour)
		_, err = s.ApplySweep(ctx, org, w.ID, "user:me", hold)
		require.ErrorIs(t, err, models.ErrPlanExpired)
		require.Equal(t, models.WantSuspended, box(t, s, f.Box.ID).Desired)
		again, err := s.ApplySweep(ctx, org, used.ID, "user:me", hold)
		require.NoError(t, err, "the first result is still told")
		require.Equal(t, first, again)

		require.Equal(t, 0, must(s.PurgeSweeps(ctx, s.Now().Add(-365*24*time.Hour), 10)))
		clock.Advance(24*time.Hour + time.Second)
		require.Equal(t, 1, must(s.PurgeSweeps(ctx, s.Now().Add(-365*24*time.Hour), 10)), "the unused plan goes after a day")
		_, err = s.Sweep(ctx, org, w.ID)
		require.ErrorIs(t, err, models.ErrNotFound)
		require.Equal(t, 1, must(s.PurgeSweeps(ctx, s.Now(), 10)))
		_, total, err := s.ListSweeps(ctx, org, 10, 0)
		require.NoError(t, err)
		require.Zero(t, total)
		items, err := modelstest.Of(t, s).Raw().NewSelect().Table("sweep_items").Count(ctx)
		require.NoError(t, err)
		require.Zero(t, items)
		require.Zero(t, must(s.PurgeSweeps(ctx, s.Now(), 0)))
	}, models.WithClock(clock.Now))
}

func TestPassesOfTheJanitorAreHistory(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		org, ctx := uuid.New(), t.Context()
		one, two, other := seed(t, s, of(org)), seed(t, s, of(org)), seed(t, s)
		require.Len(t, sweep(t, s, 10), 3)
		require.Empty(t, sweep(t, s, 10))
		sweeps, total, err := s.ListSweeps(ctx, org, 10, 0)
		require.NoError(t, err)
		require.Equal(t, 1, total, "a pass that ordered nothing is none")
		require.Equal(t, models.SweepJanitor, sweeps[0].Kind)
		require.Equal(t, map[models.SweepOutcome]int{models.SweepOrdered: 2}, sweeps[0].Counts)
		w, err := s.Sweep(ctx, org, sweeps[0].ID)
		require.NoError(t, err)
		require.Equal(t, map[uuid.UUID]models.SweepOutcome{one.Box.ID: models.SweepOrdered, two.Box.ID: models.SweepOrdered}, listed(w))
		require.Equal(t, one.Run.ID, map[uuid.UUID]*models.SweepItem{w.Items[0].SandboxID: w.Items[0], w.Items[1].SandboxID: w.Items[1]}[one.Box.ID].RunID)
		_, total, err = s.ListSweeps(ctx, other.Automation.OrgID, 10, 0)
		require.NoError(t, err)
		require.Equal(t, 1, total)
		_, err = s.ApplySweep(ctx, org, w.ID, "user:me", hold)
		require.ErrorIs(t, err, models.ErrNotFound, "it is no plan")
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
