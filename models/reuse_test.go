package models

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"
)

func TestWhatIsLiftedOutOfAStatement(t *testing.T) {
	const id = "0197a000-0000-7000-8000-000000000001"
	long := strings.Repeat("it''s ", 10)
	for _, c := range []struct {
		query, text string
		values      []any
	}{
		{`SELECT "a" FROM "r" WHERE (id = '` + id + `') LIMIT 1`, `SELECT "a" FROM "r" WHERE (id = ?) LIMIT 1`, []any{id}},
		{`SELECT a FROM r WHERE status = 'RUNNING'`, `SELECT a FROM r WHERE status = 'RUNNING'`, nil},
		{`UPDATE r SET note = '` + long + `', n = 123456, x2 = 12`, `UPDATE r SET note = ?, n = ?, x2 = 12`, []any{strings.ReplaceAll(long, "''", "'"), int64(123456)}},
		{`INSERT INTO t20260101 (a) VALUES (X'00ff', X'', '', 1.2345, -54321)`, `INSERT INTO t20260101 (a) VALUES (?, X'', '', 1.2345, -?)`, []any{[]byte{0, 255}, int64(54321)}},
		{`SELECT "a name of more than twenty bytes" FROM r`, `SELECT "a name of more than twenty bytes" FROM r`, nil},
		{`SELECT 'what ends; like -- two /* ? statements'`, `SELECT ?`, []any{"what ends; like -- two /* ? statements"}},
		{`SELECT x'abcd', box'`, "", nil},
		{`SELECT 1; SELECT 2`, "", nil},
		{`SELECT a FROM r WHERE id = ?`, "", nil},
		{`SELECT a -- with a remark`, "", nil},
		{`SELECT a /* with a remark */`, "", nil},
		{`PRAGMA optimize`, "", nil},
		{`ROLLBACK TO write_1; RELEASE write_1`, "", nil},
	} {
		text, values, ok := lift(c.query)
		require.Equal(t, c.text != "", ok, c.query)
		require.Equal(t, c.text, text, c.query)
		var got []any
		for n, v := range values {
			require.Equal(t, n+1, v.Ordinal)
			got = append(got, v.Value)
		}
		if ok {
			require.Equal(t, c.values, got, c.query)
		}
	}
}

func TestAStatementIsCompiledOnceAndLentToOneAtATime(t *testing.T) {
	connector, err := sqlite.NewConnector("file:" + filepath.Join(t.TempDir(), "a.db"))
	require.NoError(t, err)
	db := sql.OpenDB(reusing{connector, 3})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	kept := func() (texts []string) {
		require.NoError(t, conn.Raw(func(c any) error {
			own, ok := c.(*reusingConn)
			require.True(t, ok)
			for text := range own.kept {
				texts = append(texts, text)
			}
			return nil
		}))
		return texts
	}
	exec := func(query string) {
		t.Helper()
		_, err := conn.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	exec("CREATE TABLE a (id TEXT, n INTEGER, b BLOB)")
	for _, id := range []string{"the first of two identities", "the second of two identities"} {
		exec("INSERT INTO a VALUES ('" + id + "', 12345, X'00ff')")
	}
	require.Equal(t, []string{"INSERT INTO a VALUES (?, ?, ?)"}, kept())

	// The same text again while its rows are open is another statement; afterwards one is kept.
	const read = "SELECT id, n, b FROM a WHERE n > 10000 ORDER BY id"
	outer, err := conn.QueryContext(t.Context(), read)
	require.NoError(t, err)
	require.True(t, outer.Next())
	inner, err := conn.QueryContext(t.Context(), read)
	require.NoError(t, err)
	require.True(t, inner.Next())
	require.True(t, inner.Next())
	var id string
	var n int
	var b []byte
	require.NoError(t, inner.Scan(&id, &n, &b))
	require.Equal(t, "the second of two identities", id)
	require.Equal(t, 12345, n)
	require.Equal(t, []byte{0, 255}, b)
	require.NoError(t, inner.Err())
	require.NoError(t, inner.Close()) //nolint:sqlclosecheck // when is what is tested
	require.NoError(t, outer.Scan(&id, &n, &b))
	require.Equal(t, "the first of two identities", id)
	require.NoError(t, outer.Err())
	require.NoError(t, outer.Close()) //nolint:sqlclosecheck // when is what is tested
	require.Len(t, kept(), 2)

	// One that fails is not kept, more than fits makes room, and a changed schema is seen.
	_, err = conn.ExecContext(t.Context(), "INSERT INTO a VALUES (1, 2)")
	require.Error(t, err)
	exec("ALTER TABLE a ADD COLUMN more TEXT")
	rows, err := conn.QueryContext(t.Context(), "SELECT * FROM a")
	require.NoError(t, err)
	columns, err := rows.Columns()
	require.NoError(t, err)
	require.Len(t, columns, 4)
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close()) //nolint:sqlclosecheck // the next statement needs the connection
	exec("DELETE FROM a WHERE n = 12345")
	require.Equal(t, []string{"DELETE FROM a WHERE n = ?"}, kept())
}
