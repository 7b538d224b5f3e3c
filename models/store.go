// Package models holds every row, every enum and every SQL statement of the service, on SQLite and on PostgreSQL. It owns
// the moves that decide: Finish (a run becomes terminal), Order (minds change about a box) and the claims. It imports
// nothing of ours.
package models

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
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
	// ErrNoStamp means that the box has no due date that could be extended.
	ErrNoStamp = errors.New("the box has no due date")
	// ErrLeaseLost means that the lease token is no longer the row's.
	ErrLeaseLost = errors.New("lease lost")
	// ErrSealed means that a stored secret cannot be opened with the configured keys.
	ErrSealed = errors.New("secret cannot be opened")
)

// Store is the one handle on the database: SQLite (one process, one writer, a read pool) or PostgreSQL.
type Store struct {
	store
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
	keys  [][]byte
	pool  int
}

// WithClock replaces the clock behind Store.Now; for tests.
func WithClock(now func() time.Time) Option { return func(o *options) { o.clock = now } }

// WithKeys gives the 32-byte keys that seal secrets at rest: the first seals, all open.
func WithKeys(keys ...[]byte) Option { return func(o *options) { o.keys = keys } }

// WithPool sets the largest number of PostgreSQL connections.
func WithPool(n int) Option { return func(o *options) { o.pool = n } }

// Open opens a migrated database. dsn is "sqlite:<path>" or a "postgres://" URL.
func Open(ctx context.Context, dsn string, opts ...Option) (*Store, error) { panic("unwritten") }

// Close stops the writer after what is queued, and closes the connections.
func (s *Store) Close() error { panic("unwritten") }

// Dialect returns the engine.
func (s *Store) Dialect() Dialect { panic("unwritten") }

// Now is the only clock of rows, UTC, cut to microseconds: PostgreSQL's own (read at start and every minute by Sync, advanced
// monotonically between), the host's on SQLite, where a backward step only waits (design section 4).
func (s *Store) Now() time.Time { panic("unwritten") }

// Sync reads the database's clock anew and returns the host's skew against it (zero on SQLite).
func (s *Store) Sync(ctx context.Context) (skew time.Duration, err error) { panic("unwritten") }

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error { panic("unwritten") }

// Deployment returns the UUID that the first migration wrote: the deployment label of every box.
func (s *Store) Deployment(ctx context.Context) (uuid.UUID, error) { panic("unwritten") }
