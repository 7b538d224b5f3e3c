package modelstest_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"automation/models"
	"automation/models/modelstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	for range 2 {
		modelstest.Each(t, func(t *testing.T, s *models.Store) {
			list, total, err := s.ListAutomations(t.Context(), models.AutomationFilter{OrgID: modelstest.Org, Limit: 10})
			require.NoError(t, err)
			require.Empty(t, list)
			require.Zero(t, total)
			r, b := modelstest.Running(t, s, modelstest.Automation(t, s))
			got, err := s.Run(t.Context(), modelstest.Org, r.ID)
			require.NoError(t, err)
			require.Equal(t, b.ID, got.Box.ID)
			require.Equal(t, b.Identities[0].ProviderID, *got.ProviderID)
		})
	}
}

func TestDatabasesAreMadeAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { t.Run("", func(t *testing.T) { modelstest.NewPostgres(t).Open(t) }) })
	}
	group.Wait()
}
