// Package models holds every row, every enum and every SQL statement of the service, on SQLite and on PostgreSQL. It owns
// the moves that decide: Finish (a run becomes terminal), Order (minds change about a box) and the claims. It imports
// nothing of ours.
package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	"modernc.org/sqlite"
)

// Errors that callers decide on.
var (
	// ErrNotFound means that no row matches in the caller's scope.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that a conditional statement matched no row: the row is in another state than the caller needs.
	ErrConflict = errors.New("conflict")
	// ErrDeletionOrdered means that the box is ordered deleted, which is final.
	ErrDeletionOrdered = errors.New("deletion of the box is ordered, which is final")
	// ErrRunActive means that the box's run is still RUNNING: cancel the run first.
	ErrRunActive = errors.New("the run of the box is still running: cancel the run first")
	// ErrNoCurrentExport means that the history in the box would be lost with it: nothing stored holds all of it.
	ErrNoCurrentExport = errors.New("no current export of the history in the box exists")
	// ErrNoStamp means that the box has no due date that could be extended.
	ErrNoStamp = errors.New("the box has no due date")
	// ErrLeaseLost means that the lease token is no longer the row's.
	ErrLeaseLost = errors.New("lease lost")
	// ErrClosed means that the store is closed.
	ErrClosed = errors.New("store is closed")
	// ErrSealed means that a stored secret cannot be opened with the configured keys.
	ErrSealed = errors.New("secret cannot be opened")
)

// Store is the one handle on the database: SQLite (one process, one writer, a read pool) or PostgreSQL.
type Store struct {
	store
}

// store is what a Store keeps.
type store struct {
	dialect Dialect
	db      *bun.DB // reads; on PostgreSQL everything
	writer  *writer // SQLite only
	clock   *clock
	keys    []key
	disable DisableRules
	tell    func(RunEnd) // nil: nobody

	sweptTo atomic.Pointer[time.Time] // the stamp at which the last pass of OrderDue ended, where it was full
}

// Dialect names the engine behind a Store.
type Dialect string

// The engines.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

// Option changes how Open makes a Store.
type Option func(*options)

type options struct {
	clock func() time.Time
	host  func() time.Time
	shift func() time.Duration
	keys  [][]byte
	pool  int

	disable DisableRules
	tell    func(RunEnd)
}

// WithClock replaces the clock behind Store.Now; for tests.
func WithClock(now func() time.Time) Option { return func(o *options) { o.clock = now } }

// WithKeys gives the 32-byte keys that seal secrets at rest: the first seals, all open.
func WithKeys(keys ...[]byte) Option { return func(o *options) { o.keys = keys } }

// WithPool sets the largest number of PostgreSQL connections.
func WithPool(n int) Option { return func(o *options) { o.pool = n } }

// WithDisableRules says when AfterEnd switches an automation off; without it, never.
func WithDisableRules(r DisableRules) Option { return func(o *options) { o.disable = r } }

// WithHost replaces the machine's clock, which Sync compares with PostgreSQL's and which is the clock on SQLite; for tests.
func WithHost(now func() time.Time) Option { return func(o *options) { o.host = now } }

// WithShift moves Store.Now by what shift returns, after the database has corrected it; for tests.
func WithShift(shift func() time.Duration) Option { return func(o *options) { o.shift = shift } }

// Open opens a migrated database. dsn is "sqlite:<path>" or a "postgres://" URL.
func Open(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	o := options{pool: defaultPool}
	for _, opt := range opts {
		opt(&o)
	}
	keys, err := newKeys(o.keys)
	if err != nil {
		return nil, err
	}
	s := &Store{store{keys: keys, disable: o.disable, tell: o.tell}}
	if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
		err = s.openSQLite(path, o)
	} else {
		err = s.openPostgres(dsn, o)
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.Sync(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the database: %w", err), s.Close())
	}
	return s, nil
}

// The sizes of the pools of connections.
const (
	defaultPool = 15
	readPool    = 8
)

// readCache bounds what each connection of the read pool keeps of the file, in KiB: the system keeps it once for all of them.
const readCache = "_pragma=cache_size(-512)"

// openSQLite opens a file twice: a pool that can only read, and the one connection of the writer.
func (s *Store) openSQLite(path string, o options) error {
	s.dialect, s.clock = SQLite, newClock(o, true)
	wrap := func(db *sql.DB) *bun.DB { return newBun(db, sqlitedialect.New()) }
	reads, err := openFile(sqliteDSN(path, readCache+"&_pragma=query_only(1)"), readKept)
	if err != nil {
		return err
	}
	reads.SetMaxOpenConns(readPool)
	reads.SetMaxIdleConns(readPool)
	s.db = wrap(reads)
	writes, err := openFile(sqliteDSN(path, "_txlock=immediate"), writeKept)
	if err != nil {
		return errors.Join(err, reads.Close())
	}
	s.writer = newWriter(writes, wrap)
	return nil
}

// How many compiled statements each connection keeps.
const (
	readKept  = 16
	writeKept = 128
)

func openFile(dsn string, kept int) (*sql.DB, error) {
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return sql.OpenDB(reusing{connector, kept}), nil
}

// sqliteDSN names a file with the settings every connection needs; a PRAGMA by hand would reach one pooled connection only.
func sqliteDSN(path, more string) string {
	name := url.URL{Scheme: "file", OmitHost: true, Path: path}
	return name.String() + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_timezone=UTC&" + more
}

func (s *Store) openPostgres(dsn string, o options) error {
	s.dialect, s.clock = Postgres, newClock(o, false)
	target, err := url.Parse(dsn)
	if err != nil || target.Scheme != "postgres" && target.Scheme != "postgresql" {
		return errors.New("database URL is neither sqlite: nor postgres://")
	}
	query := target.Query()
	query.Set("timezone", "UTC") // times come back in UTC, as everything here expects
	target.RawQuery = query.Encode()
	connector, err := pq.NewConnector(target.String())
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(o.pool)
	db.SetMaxIdleConns(o.pool)
	db.SetConnMaxIdleTime(5 * time.Minute)
	s.db = newBun(db, pgdialect.New())
	return nil
}

// newBun wraps a handle. Columns that no row knows are passed over: a schema one version newer is served (design section 9).
func newBun(db *sql.DB, dialect schema.Dialect) *bun.DB {
	return bun.NewDB(db, dialect, bun.WithDiscardUnknownColumns())
}

// Close stops the writer after what is queued, and closes the connections.
func (s *Store) Close() error {
	if s.writer == nil {
		return s.db.Close()
	}
	return errors.Join(s.writer.close(), s.db.Close())
}

// Dialect returns the engine.
func (s *Store) Dialect() Dialect { return s.dialect }

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Deployment returns the UUID that the first migration wrote: the deployment label of every box.
func (s *Store) Deployment(ctx context.Context) (uuid.UUID, error) {
	var id uuid.UUID
	err := s.db.NewRaw("SELECT id FROM deployment").Scan(ctx, &id)
	return id, notFound(err, "read the deployment id")
}

// newID makes the id of a new row: UUIDv7, so that keys are in the order of creation.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
