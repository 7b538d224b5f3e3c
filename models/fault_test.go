package models_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func TestFaultsOfTheDatabaseAreToldFromTheRest(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{&pq.Error{Code: "53100"}, models.ErrFull},
		{&pq.Error{Code: "57P01"}, models.ErrUnavailable},
		{&pq.Error{Code: "53300"}, models.ErrUnavailable},
		{&pq.Error{Code: "23505"}, nil},
		{driver.ErrBadConn, models.ErrUnavailable},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, models.ErrUnavailable},
		{syscall.ENOSPC, models.ErrFull},
		{models.ErrNotFound, nil},
		{models.ErrConflict, nil},
		{context.Canceled, nil},
		{errors.New("anything"), nil},
	} {
		require.Equal(t, c.want, models.Fault(fmt.Errorf("do: %w", c.err)), "%v", c.err)
	}
}

func TestAClosedOrFullDatabaseIsAFault(t *testing.T) {
	db := modelstest.NewSQLite(t)
	s := db.Open(t)
	_, err := modelstest.Of(t, s).Raw().ExecContext(t.Context(), "PRAGMA max_page_count = 1")
	require.NoError(t, err)
	_, err = modelstest.Of(t, s).Raw().ExecContext(t.Context(), "CREATE TABLE more AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 9999) SELECT * FROM n")
	require.Equal(t, models.ErrFull, models.Fault(err), "%v", err)
	_, err = models.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "missing", "x.db"))
	require.Equal(t, models.ErrUnavailable, models.Fault(err), "%v", err)
}
