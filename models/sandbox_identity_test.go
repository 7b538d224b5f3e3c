package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestS0_118_S0_119_S0_154_OneWorkspaceIDOverEveryIdentityAfterResume(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, now := t.Context(), s.Now()
		f := seed(t, s)
		record := func(kind models.IdentityKind, id, url, key string, after time.Duration) {
			require.NoError(t, s.RecordIdentity(ctx, models.Identity{
				SandboxID: f.Box.ID, Kind: kind, ProviderID: id, URL: url, SessionKey: key, SeenAt: now.Add(after),
			}))
		}
		record(models.IdentityBox, "sb-1", "https://one", "key-1", 0)
		record(models.IdentitySnapshot, "im-1", "", "", time.Second)
		require.NoError(t, s.MarkGone(ctx, f.Box.ID, models.IdentityBox, "sb-1"))
		record(models.IdentityBox, "sb-2", "https://two", "key-2", 2*time.Second)
		record(models.IdentityBox, "sb-2", "", "key-2b", 3*time.Second) // the key rotates, the url is not told again

		b := box(t, s, f.Box.ID)
		require.Equal(t, f.Box.ID, b.ID)
		require.Equal(t, "https://two", b.URL)
		require.Equal(t, "key-2b", b.SessionKey)
		var ids []string
		for _, i := range b.Identities {
			ids = append(ids, i.ProviderID)
		}
		require.Equal(t, []string{"sb-1", "im-1", "sb-2"}, ids, "the history is kept")
		require.NotNil(t, b.Identities[0].GoneAt)
		require.Equal(t, "key-1", b.Identities[0].SessionKey)
		sameTime(t, now.Add(2*time.Second), &b.Identities[2].SeenAt)
		require.Len(t, b.Open(), 2)
		for _, name := range []string{"sb-1", "im-1", "sb-2"} {
			id, err := s.SandboxByProviderID(ctx, f.Box.OrgID, name)
			require.NoError(t, err)
			require.Equal(t, f.Box.ID, id)
		}
		_, err := s.SandboxByProviderID(ctx, uuid.New(), "sb-2")
		require.ErrorIs(t, err, models.ErrNotFound, "foreign and unknown alike")
		_, err = s.SandboxByProviderID(ctx, f.Box.OrgID, "sb-3")
		require.ErrorIs(t, err, models.ErrNotFound)
	})
}

func TestSessionKeysAreSealedInTheRowAndNeverBlock(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		ctx := t.Context()
		s := db.Open(t)
		f := seed(t, s, work(s.Now()))
		require.NoError(t, s.RecordIdentity(ctx, models.Identity{
			SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "sb-1", URL: "https://one", SessionKey: "top-secret",
		}))
		for _, column := range []string{"SELECT session_key FROM sandboxes", "SELECT session_key FROM sandbox_identities"} {
			var stored string
			require.NoError(t, db.Raw().NewRaw(column).Scan(ctx, &stored))
			require.NotEmpty(t, stored)
			require.NotContains(t, stored, "top-secret")
		}
		other := db.Open(t, models.WithKeys(models.NewKey()))
		c := claim(t, other)
		require.Empty(t, c.Box.SessionKey)
		require.Empty(t, c.Box.Identities[0].SessionKey)
		require.Equal(t, "sb-1", c.Box.Identities[0].ProviderID, "the box can still be deleted")
		st := step(c, "delete")
		st.Observed, st.Next = ptr(models.SeenDeleting), ptr(s.Now())
		_, err := other.RecordStep(ctx, st)
		require.NoError(t, err)
		require.Equal(t, "top-secret", box(t, s, f.Box.ID).SessionKey, "a key that could not be read is not lost")
	})
}

func TestAFactIsStoredWhateverLeaseOrderAndRun(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		// The create was on the wire when the run was cancelled; somebody else looked for the box and did not find it.
		f := seed(t, s, running, func(f *seeded) {
			f.Run.Status, f.Run.CompletedAt = models.RunCancelled, ptr(s.Now())
			f.Box.Desired, f.Box.Observed = models.WantDeleted, models.SeenMissing
		})
		require.NoError(t, s.RecordIdentity(ctx, models.Identity{SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "late"}))
		c := claim(t, s)
		require.Equal(t, f.Box.ID, c.Box.ID, "a box that was taken for missing gets work by its late identity, or it would leak")
		require.Len(t, c.Box.Open(), 1)

		st := step(c, "delete") // while another identity becomes known, the settler finds the box missing
		require.NoError(t, s.RecordIdentity(ctx, models.Identity{SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "later"}))
		require.NoError(t, s.MarkGone(ctx, f.Box.ID, models.IdentityBox, "late"))
		st.Observed, st.Release = ptr(models.SeenMissing), true
		_, err := s.RecordStep(ctx, st)
		require.NoError(t, err)
		require.NotNil(t, box(t, s, f.Box.ID).NextStepAt, "an unasked identity of a deleted box never rests")

		c = claim(t, s)
		require.NoError(t, s.MarkGone(ctx, f.Box.ID, models.IdentityBox, "later"))
		st = step(c, "delete")
		st.Observed, st.Release = ptr(models.SeenDeleted), true
		_, err = s.RecordStep(ctx, st)
		require.NoError(t, err)
		require.Equal(t, models.SeenDeleted, box(t, s, f.Box.ID).Observed)

		require.NoError(t, s.RecordIdentity(ctx, models.Identity{
			SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "late", SeenAt: s.Now().Add(-time.Hour),
		}))
		require.Nil(t, box(t, s, f.Box.ID).NextStepAt, "an earlier sighting does not bring back what is gone")
		require.NoError(t, s.RecordIdentity(ctx, models.Identity{
			SandboxID: f.Box.ID, Kind: models.IdentityBox, ProviderID: "late", SeenAt: s.Now().Add(time.Hour),
		}))
		b := box(t, s, f.Box.ID)
		require.Equal(t, models.SeenMissing, b.Observed, "a later one does")
		require.Nil(t, b.DeletedAt)
		require.NotNil(t, b.NextStepAt)

		err = s.RecordIdentity(ctx, models.Identity{SandboxID: uuid.New(), Kind: models.IdentityBox, ProviderID: "x"})
		require.ErrorIs(t, err, models.ErrNotFound)
	})
}

func TestAFactOnABoxThatIsWorkedOnGivesNoWork(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		f := seed(t, s, running, func(f *seeded) { f.Box.Observed = models.SeenProvisioning })
		require.NoError(t, s.RecordIdentity(t.Context(), models.Identity{
			SandboxID: f.Box.ID, Kind: models.IdentityConfig, ProviderID: "cfg", URL: "https://config",
		}))
		b := box(t, s, f.Box.ID)
		require.Nil(t, b.NextStepAt)
		require.Equal(t, models.SeenProvisioning, b.Observed)
		require.Empty(t, b.URL, "a configuration is not where the box is reached")
	})
}

func TestCreateIsSentOnceAndOnlyForABoxThatIsWanted(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		provisioning := func(f *seeded) {
			running(f)
			f.Box.Observed = models.SeenProvisioning
			f.Box.LeaseToken, f.Box.LeaseUntil = ptr(uuid.New()), ptr(s.Now().Add(time.Minute))
		}
		f := seed(t, s, provisioning)
		token := *f.Box.LeaseToken
		require.ErrorIs(t, s.MarkCreate(ctx, f.Box.ID, uuid.New(), true), models.ErrLeaseLost)
		require.Nil(t, box(t, s, f.Box.ID).CreateSentAt)
		require.NoError(t, s.MarkCreate(ctx, f.Box.ID, token, true))
		sent := *box(t, s, f.Box.ID).CreateSentAt
		require.ErrorIs(t, s.MarkCreate(ctx, f.Box.ID, token, true), models.ErrConflict, "never repeated on a row")
		clock.Advance(time.Second)
		require.NoError(t, s.Order(ctx, f.Box.ID, models.WantDeleted, "dispatch", "cancelled"))
		require.NoError(t, s.MarkCreate(ctx, f.Box.ID, token, false), "the end of a call is recorded all the same")
		b := box(t, s, f.Box.ID)
		sameTime(t, sent, b.CreateSentAt)
		sameTime(t, s.Now(), b.CreateEndedAt)

		cancelled := seed(t, s, provisioning, func(f *seeded) { f.Box.Desired = models.WantDeleted })
		require.ErrorIs(t, s.MarkCreate(ctx, cancelled.Box.ID, *cancelled.Box.LeaseToken, true), models.ErrDeletionOrdered)
	}, models.WithClock(clock.Now))
}
