package models_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestAReadOnlyStoreSeesWhichKeysOpen(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		ours, other := models.NewKey(), models.NewKey()
		s := db.Open(t, models.WithKeys(ours))
		a := modelstest.Automation(t, s)
		_, box := modelstest.Running(t, s, a)
		require.NoError(t, s.RecordIdentity(t.Context(), models.Identity{
			SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: "named", URL: "http://box", SessionKey: "secret",
		}))

		for _, c := range []struct {
			key    []byte
			sealed int
		}{{ours, 0}, {other, 1}} {
			look, err := models.OpenReadOnly(t.Context(), db.DSN, models.WithKeys(c.key))
			require.NoError(t, err)
			stored, sealed, err := look.CheckKeys(t.Context(), 100)
			require.NoError(t, err)
			require.Equal(t, 1, stored)
			require.Equal(t, c.sealed, sealed)
			names, err := look.LiveBackends(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{modelstest.Backend}, names)
			require.NoError(t, look.Close())
		}
	})
}

func TestABackupIsTakenWhileTheDatabaseIsWrittenTo(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		s := db.Open(t)
		a := modelstest.Automation(t, s)
		look, err := models.OpenReadOnly(t.Context(), db.DSN)
		require.NoError(t, err)
		defer func() { require.NoError(t, look.Close()) }()
		copied := filepath.Join(t.TempDir(), "copy.db")
		if look.Dialect() == models.Postgres {
			require.ErrorIs(t, look.Backup(t.Context(), copied), errors.ErrUnsupported)
			return
		}
		require.NoError(t, look.Backup(t.Context(), copied))
		modelstest.Pending(t, s, a) // after the copy
		require.Error(t, look.Backup(t.Context(), copied), "a file that is there is not overwritten")

		restored, err := models.Open(t.Context(), "sqlite:"+copied)
		require.NoError(t, err)
		defer func() { require.NoError(t, restored.Close()) }()
		_, err = restored.Automation(t.Context(), a.OrgID, a.ID)
		require.NoError(t, err)
		_, total, err := restored.ListRuns(t.Context(), models.RunFilter{OrgID: a.OrgID, Limit: 10})
		require.NoError(t, err)
		require.Zero(t, total, "the copy is of the moment it was taken")
	})
}
