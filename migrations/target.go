package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
)

// The dialects, by the names of their folders and of golang-migrate's drivers.
const (
	sqliteDialect   = "sqlite"
	postgresDialect = "postgres"
)

// target is a database to look at or to migrate.
type target struct {
	dialect string
	path    string // of a SQLite file
	db      *sql.DB
}

// open opens a database; readOnly never makes a file, a table or a lock.
func open(dsn string, readOnly bool) (*target, error) {
	path, isFile := strings.CutPrefix(dsn, "sqlite:")
	if !isFile {
		db, err := sql.Open("postgres", dsn)
		if err != nil {
			return nil, fmt.Errorf("database URL: %w", err)
		}
		return &target{dialect: postgresDialect, db: db}, nil
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: path}
	query := "?_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)"
	if readOnly {
		if _, err := os.Stat(path); err != nil {
			return nil, err
		}
		query += "&mode=ro"
	} else {
		query += "&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
	}
	db, err := sql.Open("sqlite", name.String()+query)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return &target{dialect: sqliteDialect, path: path, db: db}, nil
}

// locked runs work on a database. A SQLite file is guarded by a lock beside it, for golang-migrate's own lock there binds one
// process only; on PostgreSQL golang-migrate takes an advisory lock.
func locked(ctx context.Context, dsn string, work func(*target) error) (err error) {
	t, err := open(dsn, false)
	if err != nil {
		return err
	}
	defer func() { _ = t.db.Close() }()
	if t.dialect == sqliteDialect {
		lock := flock.New(t.path + ".migrate.lock")
		wait, cancel := context.WithTimeout(ctx, lockWait)
		defer cancel()
		if _, err := lock.TryLockContext(wait, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for another migration of %s: %w", t.path, err)
		}
		defer func() { err = errors.Join(err, lock.Close()) }()
	}
	return work(t)
}

// driver wraps the database for golang-migrate; it makes the table schema_migrations.
func (t *target) driver() (driver database.Driver, err error) {
	if t.dialect == sqliteDialect {
		driver, err = sqlite.WithInstance(t.db, &sqlite.Config{})
	} else {
		driver, err = postgres.WithInstance(t.db, &postgres.Config{})
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the migration: %w", err)
	}
	return driver, nil
}

// State is where a database stands.
type State struct {
	Version uint // 0: no schema
	Latest  uint // the newest version that this program knows
	Dirty   bool // a step was cut short
	Foreign bool // the database of the Python service
}

// Err says why the database cannot be served as it is; nil when it can. One version newer can: its steps only add.
func (st State) Err() error {
	switch {
	case st.Foreign:
		return ErrForeign
	case st.Dirty:
		return fmt.Errorf("version %d: %w", st.Version, ErrDirty)
	case st.Version == 0:
		return ErrMissing
	case st.Version < st.Latest:
		return fmt.Errorf("%w (it is at version %d, this program needs %d)", ErrOld, st.Version, st.Latest)
	case st.Version > st.Latest+1:
		return fmt.Errorf("%w (it is at version %d, the newest known here is %d)", ErrNewer, st.Version, st.Latest)
	default:
		return nil
	}
}

// Status looks where a database stands. It only reads: a SQLite file that is not there is not made.
func Status(ctx context.Context, dsn string) (State, error) {
	t, err := open(dsn, true)
	if errors.Is(err, fs.ErrNotExist) {
		return State{Latest: Latest()}, nil
	}
	if err != nil {
		return State{}, err
	}
	defer func() { _ = t.db.Close() }()
	return t.state(ctx)
}

func (t *target) state(ctx context.Context) (State, error) {
	st := State{Latest: Latest()}
	ours, err := t.hasTable(ctx, "schema_migrations")
	if err != nil {
		return st, err
	}
	if !ours {
		st.Foreign, err = t.hasTable(ctx, "alembic_version")
		return st, err
	}
	err = t.db.QueryRowContext(ctx, "SELECT version, dirty FROM schema_migrations").Scan(&st.Version, &st.Dirty)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return st, fmt.Errorf("read the schema's version: %w", err)
	}
	return st, nil
}

func (t *target) refuseForeign(ctx context.Context) error {
	st, err := t.state(ctx)
	if err != nil {
		return err
	}
	if st.Foreign {
		return ErrForeign
	}
	return nil
}

func (t *target) hasTable(ctx context.Context, name string) (bool, error) {
	query := "SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = $1"
	if t.dialect == sqliteDialect {
		query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = $1"
	}
	var n int
	if err := t.db.QueryRowContext(ctx, query, name).Scan(&n); err != nil {
		return false, fmt.Errorf("look for table %s: %w", name, err)
	}
	return n > 0, nil
}
