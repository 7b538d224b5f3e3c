package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// quarantine is how long a box that no row owns is left alone.
const quarantine = 15 * time.Minute

func sight(t *testing.T, s *models.Store, l models.Listed) bool {
	t.Helper()
	sighted, err := s.SightOrphan(t.Context(), here, l, quarantine)
	require.NoError(t, err)
	return sighted
}

func TestS0_002_ABoxThatNoRowOwnsIsQuarantinedThenDeletedByItsCreationLabel(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, workspace := t.Context(), uuid.New()
		listed := models.Listed{Kind: models.IdentityBox, ProviderID: "stray", WorkspaceID: workspace, Observed: models.SeenRunning}
		require.True(t, sight(t, s, listed))
		require.False(t, sight(t, s, listed), "known from then on")

		b := box(t, s, workspace)
		require.Equal(t, models.CreatedByOrphan, b.CreatedBy)
		require.Equal(t, models.WantDeleted, b.Desired)
		require.Equal(t, models.SeenRunning, b.Observed)
		sameTime(t, s.Now().Add(quarantine), b.NextStepAt)
		require.Equal(t, "stray", b.Identities[0].ProviderID)
		require.Equal(t, []string{"orphan"}, whats(t, s, workspace))
		claims, err := s.ClaimBoxes(ctx, here, 10, time.Minute, time.Minute)
		require.NoError(t, err)
		require.Empty(t, claims, "quarantined")
		clock.Advance(quarantine)
		require.Equal(t, workspace, claim(t, s).Box.ID)
	}, models.WithClock(clock.Now))
}

func TestAnUnreadableLabelMakesOneRowHoweverOftenItIsListed(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		listed := models.Listed{Kind: models.IdentityBox, ProviderID: "stray", Observed: models.SeenRunning}
		for range 2 {
			sight(t, db.Open(t), listed)
		}
		var rows int
		require.NoError(t, db.Raw().NewRaw("SELECT count(*) FROM sandboxes").Scan(t.Context(), &rows))
		require.Equal(t, 1, rows)
	})
}

func TestAListedBoxOfALostCreateIsGivenToItsRow(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		missing := func(f *seeded) { f.Box.Desired, f.Box.Observed = models.WantDeleted, models.SeenMissing }
		f := seed(t, s, missing)
		listed := models.Listed{Kind: models.IdentityBox, ProviderID: "late", WorkspaceID: f.Box.ID, Observed: models.SeenRunning}
		require.True(t, sight(t, s, listed))
		b := box(t, s, f.Box.ID)
		require.Equal(t, "late", b.Identities[0].ProviderID)
		require.NotNil(t, b.NextStepAt)
		require.Equal(t, models.CreatedByDispatch, b.CreatedBy)

		creating := seed(t, s, running, func(f *seeded) {
			f.Box.Observed = models.SeenProvisioning
			f.Box.LeaseToken, f.Box.LeaseUntil = ptr(uuid.New()), ptr(s.Now().Add(time.Minute))
		})
		listed.ProviderID, listed.WorkspaceID = "early", creating.Box.ID
		require.True(t, sight(t, s, listed))
		b = box(t, s, creating.Box.ID)
		require.Equal(t, "early", b.Identities[0].ProviderID)
		require.Nil(t, b.NextStepAt, "dispatch owns it")
		require.Equal(t, models.WantRunning, b.Desired)
	})
}

func TestAKnownBoxIsNoOrphan(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, named("sb-1"))
		listed := models.Listed{Kind: models.IdentityBox, ProviderID: "sb-1", WorkspaceID: f.Box.ID, Observed: models.SeenRunning}
		before := box(t, s, f.Box.ID)
		require.False(t, sight(t, s, listed))
		require.Equal(t, before, box(t, s, f.Box.ID))

		modelstest.Set(t, s, f.Box, "desired = 'deleted', observed = 'deleted'")
		require.NoError(t, s.MarkGone(t.Context(), f.Box.ID, models.IdentityBox, "sb-1"))
		clock.Advance(quarantine - time.Second)
		require.False(t, sight(t, s, listed), "a list that lags shows what is gone")
		clock.Advance(2 * time.Second)
		require.True(t, sight(t, s, listed), "but not for so long")
		require.Len(t, box(t, s, f.Box.ID).Open(), 1)
		require.Equal(t, f.Box.ID, claim(t, s).Box.ID)
	}, models.WithClock(clock.Now))
}

func TestOnlyIdentitiesSeenBeforeTheListBeganCount(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		old := seed(t, s, named("old"))
		seed(t, s, named("fresh"), func(f *seeded) { f.Box.Identities[0].SeenAt = now })
		seed(t, s, named("gone"), func(f *seeded) { f.Box.Identities[0].GoneAt = &now })
		seed(t, s, named("deleted"), func(f *seeded) { f.Box.Observed = models.SeenDeleted })
		seed(t, s, named("missing"), func(f *seeded) { f.Box.Observed = models.SeenMissing })
		seed(t, s, named("elsewhere"), func(f *seeded) { f.Box.Location = "host-b" })
		seed(t, s, named("snapshot"), func(f *seeded) { f.Box.Identities[0].Kind = models.IdentitySnapshot })
		seed(t, s, named("worked-on"), func(f *seeded) { f.Box.LeaseUntil = ptr(now.Add(time.Minute)) })
		known, err := s.KnownBoxes(ctx, here, now)
		require.NoError(t, err)
		require.Equal(t, []models.Known{{BoxID: old.Box.ID, ProviderID: "old"}}, known)

		require.NoError(t, s.NudgeBox(ctx, old.Box.ID))
		require.Equal(t, old.Box.ID, claim(t, s).Box.ID)
	})
}

func TestANudgeBringsWorkForwardAndNeverBack(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		past := s.Now().Add(-time.Hour)
		f := seed(t, s, work(past))
		require.NoError(t, s.NudgeBox(t.Context(), f.Box.ID))
		sameTime(t, past, box(t, s, f.Box.ID).NextStepAt)
		later := seed(t, s, work(s.Now().Add(time.Hour)))
		require.NoError(t, s.NudgeBox(t.Context(), later.Box.ID))
		require.False(t, box(t, s, later.Box.ID).NextStepAt.After(s.Now()))
	})
}
