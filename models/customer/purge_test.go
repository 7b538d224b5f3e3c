package customer_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
)

func TestS2_055_S2_066_SessionsGoAfterTheirOutputAndTheNewestOfASandboxStays(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		core := db.Open(t, models.WithClock(clock.Now))
		store := customer.New(core)
		ran := func(box *models.Sandbox) string {
			session, err := store.StartSession(t.Context(), box.OrgID, box.ID, "key:test")
			require.NoError(t, err)
			_, err = store.StopSession(t.Context(), box.ID)
			require.NoError(t, err)
			clock.Advance(time.Minute)
			return session.ID
		}
		present, gone := modelstest.Box(t, core, modelstest.NewBox(core)), modelstest.Box(t, core, modelstest.NewBox(core))
		first, second, third, last := ran(present), ran(present), ran(present), ran(gone)
		modelstest.Set(t, core, gone, "observed = ?", models.SeenDeleted)
		purge := func(limit int) int {
			n, err := store.PurgeSessions(t.Context(), clock.Now(), limit)
			require.NoError(t, err)
			return n
		}
		require.Zero(t, purge(10), "their output is still there")
		n, err := store.PurgeOutput(t.Context(), clock.Now(), 10)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		kept, err := store.PurgeSessions(t.Context(), clock.Now().Add(-time.Hour), 10)
		require.NoError(t, err)
		require.Zero(t, kept, "it is too early")
		require.Equal(t, 2, purge(2), "a batch, the oldest first")
		require.Equal(t, 1, purge(2))
		require.Zero(t, purge(2))
		for _, id := range []string{first, second, last} {
			_, err := store.Session(t.Context(), id)
			require.ErrorIs(t, err, models.ErrNotFound)
		}
		newest, err := store.NewestSession(t.Context(), present.ID)
		require.NoError(t, err)
		require.Equal(t, third, newest.ID)
	})
}

func TestS2_008_KeysAndTicketsThatAreValidNoMoreGo(t *testing.T) {
	each(t, func(t *testing.T, clock *modelstest.Clock, store, _ *customer.Store, queued *customer.Session) {
		soon := clock.Now().Add(time.Minute)
		ids := map[string]uuid.UUID{}
		for name, expires := range map[string]*time.Time{"valid": nil, "revoked": nil, "expired": &soon} {
			k := &customer.Key{OrgID: queued.OrgID, Kind: customer.APIKey, Name: name, ExpiresAt: expires}
			_, err := store.CreateKey(t.Context(), k, []string{customer.Everything})
			require.NoError(t, err)
			ids[name] = k.ID
		}
		require.NoError(t, store.RevokeKey(t.Context(), ids["revoked"]))
		for range 3 {
			_, _, err := store.IssueTicket(t.Context(), queued, "key:test")
			require.NoError(t, err)
		}
		purge := func(purge func() (int, error)) int {
			n, err := purge()
			require.NoError(t, err)
			return n
		}
		keys := func() (int, error) { return store.PurgeKeys(t.Context(), clock.Now(), 1) }
		tickets := func() (int, error) { return store.PurgeTickets(t.Context(), clock.Now(), 2) }
		require.Zero(t, purge(tickets))
		clock.Advance(time.Minute)
		require.Equal(t, []int{2, 1, 0}, []int{purge(tickets), purge(tickets), purge(tickets)})
		require.Equal(t, []int{1, 1, 0}, []int{purge(keys), purge(keys), purge(keys)})
		left, _, err := store.Keys(t.Context(), queued.OrgID, 10, 0)
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.Equal(t, "valid", left[0].Name)
	})
}
