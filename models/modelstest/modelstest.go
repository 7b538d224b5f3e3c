// Package modelstest gives tests real databases: each test runs on a SQLite file and on a PostgreSQL database of its own,
// both copied from a template that the real migrations made. TEST_POSTGRES_URL names a server on which databases may be made;
// without it the PostgreSQL cases are skipped, but fail where CI is "true".
package modelstest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"automation/migrations"
	"automation/models"
)

// DB is a migrated database of one test. Any number of stores can be opened on it, as replicas would.
type DB struct {
	Dialect models.Dialect
	DSN     string // for models.Open

	raw *bun.DB
}

// Each runs test on both dialects, each time on a fresh database with one store.
func Each(t *testing.T, test func(t *testing.T, s *models.Store), opts ...models.Option) {
	t.Helper()
	EachDB(t, func(t *testing.T, db *DB) { test(t, db.Open(t, opts...)) })
}

// EachDB runs test on both dialects, each time on a fresh database.
func EachDB(t *testing.T, test func(t *testing.T, db *DB)) {
	t.Helper()
	t.Run(string(models.SQLite), func(t *testing.T) { test(t, NewSQLite(t)) })
	t.Run(string(models.Postgres), func(t *testing.T) { test(t, NewPostgres(t)) })
}

// Volume is n, or a hundredth of it under the race detector, where SQLite is some thirty times slower.
func Volume(n int) int { return max(1, n/volumeDivisor) }

// Key is the secret key of every store opened here.
var Key = []byte("a key of thirty-two bytes to test")[:32]

// stores remembers the database of each open store, for the makers.
var stores sync.Map // *models.Store → *DB

// Open opens a store on the database, closed with the test. opts are added to Key and a small pool.
func (db *DB) Open(t testing.TB, opts ...models.Option) *models.Store {
	t.Helper()
	s, err := models.Open(t.Context(), db.DSN, append([]models.Option{models.WithKeys(Key), models.WithPool(6)}, opts...)...)
	require.NoError(t, err)
	stores.Store(s, db)
	t.Cleanup(func() {
		stores.Delete(s)
		require.NoError(t, s.Close())
	})
	return s
}

// Of returns the database of a store that was opened here.
func Of(t testing.TB, s *models.Store) *DB {
	t.Helper()
	db, ok := stores.Load(s)
	require.True(t, ok, "the store was not opened by modelstest")
	return db.(*DB)
}

// Raw returns a handle for what no method of Store does: rows in states that are hard to reach, looks at stored values.
func (db *DB) Raw() *bun.DB { return db.raw }

// NewSQLite makes a migrated file.
func NewSQLite(t testing.TB) *DB {
	t.Helper()
	template, err := sqliteTemplate()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "automation.db")
	require.NoError(t, os.WriteFile(path, template, 0o600))
	name := url.URL{Scheme: "file", OmitHost: true, Path: path} // the name of a test may hold a #
	raw, err := sql.Open("sqlite", name.String()+"?_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)&_pragma=journal_mode(WAL)&_timezone=UTC&_txlock=immediate")
	require.NoError(t, err)
	return keep(t, &DB{Dialect: models.SQLite, DSN: "sqlite:" + path, raw: bun.NewDB(raw, sqlitedialect.New())})
}

// sqliteTemplate is the content of a migrated file, made once a process.
var sqliteTemplate = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "modelstest")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	path := filepath.Join(folder, "template.db")
	if err := migrations.Up(context.Background(), "sqlite:"+path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// NewPostgres makes a migrated database.
func NewPostgres(t testing.TB) *DB {
	t.Helper()
	if os.Getenv("TEST_POSTGRES_URL") == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("TEST_POSTGRES_URL is not set")
		}
		t.Skip("TEST_POSTGRES_URL is not set")
	}
	server, err := postgres()
	require.NoError(t, err)
	name := fmt.Sprintf("automation_test_%d_%d", os.Getpid(), counter.Add(1))
	drop := "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)" // there is one already where an earlier process of this id was killed
	require.NoError(t, server.exec(context.Background(), drop, "CREATE DATABASE "+name+" TEMPLATE "+server.template))
	t.Cleanup(func() { require.NoError(t, server.exec(context.Background(), drop)) })
	dsn := server.dsn(name)
	raw, err := sql.Open("postgres", dsn+"&timezone=UTC")
	require.NoError(t, err)
	return keep(t, &DB{Dialect: models.Postgres, DSN: dsn, raw: bun.NewDB(raw, pgdialect.New())})
}

func keep(t testing.TB, db *DB) *DB {
	t.Helper()
	db.raw.SetMaxOpenConns(2)
	t.Cleanup(func() { require.NoError(t, db.raw.Close()) })
	return db
}

var counter atomic.Int64

// server is the PostgreSQL server of the tests. No connection to it outlives a call, so that tests can look for leaks.
type server struct {
	url      *url.URL
	template string
}

// dsn names a database of the server.
func (s *server) dsn(database string) string {
	u := *s.url
	u.Path = "/" + database
	query := u.Query()
	query.Set("application_name", "modelstest")
	u.RawQuery = query.Encode()
	return u.String()
}

// postgres finds the server once a process and makes the template where no other process has.
var postgres = sync.OnceValues(func() (*server, error) {
	u, err := url.Parse(os.Getenv("TEST_POSTGRES_URL"))
	if err != nil {
		return nil, fmt.Errorf("TEST_POSTGRES_URL: %w", err)
	}
	s := &server{url: u, template: "automation_template_" + migrations.Digest()}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s, s.makeTemplate(ctx)
})

// exec runs statements on the server's own database, one by one.
func (s *server) exec(ctx context.Context, statements ...string) error {
	db, err := sql.Open("postgres", s.url.String())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// makeTemplate migrates the template under a lock of the server, for packages are tested in parallel. Its name holds the
// schema's digest, so a template that exists and is marked as one is the right one.
func (s *server) makeTemplate(ctx context.Context) error {
	db, err := sql.Open("postgres", s.url.String())
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // the lock belongs to its session
	const lock = "SELECT pg_advisory_lock(120249843575155)"
	if _, err := db.ExecContext(ctx, lock); err != nil {
		return err
	}
	var done bool
	query := "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate)"
	if err := db.QueryRowContext(ctx, query, s.template).Scan(&done); err != nil || done {
		return err
	}
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+s.template+" WITH (FORCE)", "CREATE DATABASE "+s.template); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.dsn(s.template)); err != nil {
		return err
	}
	return s.exec(ctx, "ALTER DATABASE "+s.template+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
}
