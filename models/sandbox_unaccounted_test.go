package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestOtherCreatesOfAUserAreSeenWhereTheyOverlap(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		start := s.Now()
		at := func(minutes int) *time.Time { v := start.Add(time.Duration(minutes) * time.Minute); return &v }
		create := func(sent, ended *time.Time, change ...func(*models.Sandbox)) *models.Sandbox {
			b := modelstest.NewBox(s)
			b.CreateSentAt, b.CreateEndedAt, b.Identities = sent, ended, nil
			for _, c := range change {
				c(b)
			}
			modelstest.Box(t, s, b)
			return b
		}
		mine := create(at(10), at(11))
		create(at(10), at(11), func(b *models.Sandbox) { b.UserID = uuid.New() })
		create(at(10), at(11), func(b *models.Sandbox) { b.OrgID = uuid.New() })
		create(at(10), at(11), func(b *models.Sandbox) { b.Backend = "another" })
		create(nil, nil)
		create(at(5), at(8))
		overlap := func(from, until int) bool {
			found, err := s.OtherCreates(t.Context(), mine, *at(from), *at(until))
			require.NoError(t, err)
			return found
		}
		require.False(t, overlap(9, 12), "others', at other providers, never sent, and over before")
		require.True(t, overlap(8, 12), "both ends count")
		require.True(t, overlap(0, 5))
		require.False(t, overlap(0, 4))
		create(at(20), nil)
		require.False(t, overlap(9, 19))
		require.True(t, overlap(9, 20), "one whose end nobody saw")
		require.True(t, overlap(100, 101))
	})
}

func TestKnownAtNamesTheRowsOfABackendsBoxes(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		open, gone, foreign := modelstest.NewBox(s), modelstest.NewBox(s), modelstest.NewBox(s)
		now := s.Now()
		open.Identities[0].ProviderID, gone.Identities[0].ProviderID, foreign.Identities[0].ProviderID = "open", "gone", "foreign"
		gone.Identities[0].GoneAt, foreign.Backend = &now, "another"
		for _, b := range []*models.Sandbox{open, gone, foreign} {
			modelstest.Box(t, s, b)
		}
		known, err := s.KnownAt(t.Context(), open.Backend, []string{"open", "gone", "foreign", "unknown"})
		require.NoError(t, err)
		require.Equal(t, map[string]uuid.UUID{"open": open.ID, "gone": gone.ID}, known)
		known, err = s.KnownAt(t.Context(), open.Backend, nil)
		require.NoError(t, err)
		require.Empty(t, known)
	})
}
