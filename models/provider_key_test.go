package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestS1_032_AKeyOfAUserIsKeptSealedWithItsAge(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		s := db.Open(t, models.WithClock(clock.Now))
		org, user := uuid.New(), uuid.New()
		_, err := s.ProviderKey(t.Context(), "openhands", org, user)
		require.ErrorIs(t, err, models.ErrNotFound)

		for _, key := range []string{"sk-first", "sk-second"} { // a newer one takes the place of the older
			clock.Advance(time.Minute)
			kept, err := s.KeepProviderKey(t.Context(), "openhands", org, user, key)
			require.NoError(t, err)
			require.Equal(t, key, kept.Key)
			again, err := s.ProviderKey(t.Context(), "openhands", org, user)
			require.NoError(t, err)
			require.Equal(t, key, again.Key)
			require.WithinDuration(t, clock.Now(), again.MintedAt, 0)
		}
		for _, other := range []struct {
			backend   string
			org, user uuid.UUID
		}{{"other", org, user}, {"openhands", uuid.New(), user}, {"openhands", org, uuid.New()}} {
			_, err := s.ProviderKey(t.Context(), other.backend, other.org, other.user)
			require.ErrorIs(t, err, models.ErrNotFound)
		}
		stranger := db.Open(t, models.WithKeys([]byte("another key of thirty-two bytes!")))
		_, err = stranger.ProviderKey(t.Context(), "openhands", org, user)
		require.ErrorIs(t, err, models.ErrNotFound, "a key that cannot be opened is minted anew")
	})
}
