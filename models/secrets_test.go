package models_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestSecretsAreSealedWithTheFirstKeyAndOpenedWithAny(t *testing.T) {
	db := modelstest.NewSQLite(t)
	first, second := models.NewKey(), models.NewKey()
	old := db.Open(t, models.WithKeys(first))
	sealed, err := old.Seal("session key")
	require.NoError(t, err)
	require.NotContains(t, sealed, "session key")
	again, err := old.Seal("session key")
	require.NoError(t, err)
	require.NotEqual(t, sealed, again, "a nonce of its own each time")

	both := db.Open(t, models.WithKeys(second, first))
	plain, err := both.Unseal(sealed)
	require.NoError(t, err)
	require.Equal(t, "session key", plain)
	sealed, err = both.Seal("newer")
	require.NoError(t, err)
	_, err = old.Unseal(sealed)
	require.ErrorIs(t, err, models.ErrSealed)

	empty, err := old.Seal("")
	require.NoError(t, err)
	require.Empty(t, empty)
	for _, bad := range []string{"plain", "gcm1:", "gcm1:!", "gcm1:AAAA", sealed[:len(sealed)-2]} {
		_, err := both.Unseal(bad)
		require.ErrorIs(t, err, models.ErrSealed, bad)
	}
}

func TestKeysMustHave32Bytes(t *testing.T) {
	db := modelstest.NewSQLite(t)
	_, err := models.Open(t.Context(), db.DSN, models.WithKeys(bytes.Repeat([]byte("k"), 31)))
	require.ErrorContains(t, err, "31 bytes")
	s, err := models.Open(t.Context(), db.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.Seal("x")
	require.ErrorIs(t, err, models.ErrSealed)
	_, err = s.VerifyRunToken(s.MintRunToken(uuid.New(), time.Now().Add(time.Hour)))
	require.ErrorIs(t, err, models.ErrRunToken)
}

func TestARunTokenOpensItsRunUntilItExpires(t *testing.T) {
	clock := modelstest.NewClock()
	db := modelstest.NewSQLite(t)
	first, second := models.NewKey(), models.NewKey()
	s := db.Open(t, models.WithKeys(first), models.WithClock(clock.Now))
	run := uuid.New()
	token := s.MintRunToken(run, clock.Now().Add(time.Hour))
	got, err := s.VerifyRunToken(token)
	require.NoError(t, err)
	require.Equal(t, run, got)
	got, err = db.Open(t, models.WithKeys(second, first), models.WithClock(clock.Now)).VerifyRunToken(token)
	require.NoError(t, err, "an older key still opens")
	require.Equal(t, run, got)

	other := s.MintRunToken(uuid.New(), clock.Now().Add(time.Hour))
	spliced := token[:30] + other[30:]
	strange := db.Open(t, models.WithKeys(second)).MintRunToken(run, clock.Now().Add(time.Hour))
	for _, bad := range []string{"", "run1.", token[:len(token)-1], token + "A", token[5:], spliced, strange, "run1.*"} {
		_, err := s.VerifyRunToken(bad)
		require.ErrorIs(t, err, models.ErrRunToken, bad)
	}
	clock.Advance(time.Hour)
	_, err = s.VerifyRunToken(token)
	require.ErrorIs(t, err, models.ErrRunToken, "expired")
}

func TestEveryStoreOfADatabaseHasItsDeployment(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		one, err := db.Open(t).Deployment(t.Context())
		require.NoError(t, err)
		two, err := db.Open(t).Deployment(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, uuid.Nil, one)
		require.Equal(t, one, two)
	})
}

func TestOpenRefusesWhatIsNoDatabase(t *testing.T) {
	for _, dsn := range []string{"", "mysql://x/y", "automation.db", "postgres://%zz"} {
		_, err := models.Open(t.Context(), dsn)
		require.Error(t, err, dsn)
	}
	_, err := models.Open(t.Context(), "postgres://127.0.0.1:1/x?sslmode=disable")
	require.ErrorContains(t, err, "open the database")
}
