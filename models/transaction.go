package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"modernc.org/sqlite"
)

// maxRetries bounds how often a PostgreSQL transaction is repeated after a serialization failure or a deadlock.
const maxRetries = 8

// commit runs fn in a transaction. On SQLite it joins the writer's next batch, on PostgreSQL it is a short READ COMMITTED
// transaction of its own. Lock order everywhere: automation, run, box, identity.
func (s *Store) commit(ctx context.Context, fn writeFunc) error {
	if isInWrite(ctx) {
		return errors.New("a write was started inside a write")
	}
	if s.writer != nil {
		return s.writer.do(ctx, fn)
	}
	for try := 1; ; try++ {
		err := s.transact(ctx, fn)
		if err == nil || !isRetryable(err) || try > maxRetries {
			return err
		}
		pause := time.NewTimer(rand.N(time.Duration(try) * 20 * time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// transact runs fn in one PostgreSQL transaction.
func (s *Store) transact(ctx context.Context, fn writeFunc) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := call(inWrite(ctx), tx, fn); err != nil {
		_ = tx.Rollback() // the first error is the one that tells
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// lock adds a row lock ("UPDATE", "NO KEY UPDATE SKIP LOCKED", "SHARE OF a") on PostgreSQL. SQLite knows none and needs none:
// its writer is alone.
func (s *Store) lock(q *bun.SelectQuery, strength string) *bun.SelectQuery {
	if s.dialect == SQLite {
		return q
	}
	return q.For(strength)
}

// earliest reads the time that q selects and orders by; nil when there is none.
func earliest(ctx context.Context, q *bun.SelectQuery) (*time.Time, error) {
	var at time.Time
	err := q.Limit(1).Scan(ctx, &at)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	default:
		return &at, nil
	}
}

// affected returns how many rows a statement changed: the row count names the winner of a conditional statement.
func affected(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// The result codes of SQLite for a violated primary key and unique index, and PostgreSQL's SQLSTATEs.
const (
	sqlitePrimaryKey = 1555
	sqliteUnique     = 2067
	pqUnique         = "23505"
	pqSerialization  = "40001"
	pqDeadlock       = "40P01"
)

// isUnique reports whether err is a violated primary key or unique index.
func isUnique(err error) bool {
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		return lite.Code() == sqlitePrimaryKey || lite.Code() == sqliteUnique
	}
	return hasState(err, pqUnique)
}

func isRetryable(err error) bool { return hasState(err, pqSerialization) || hasState(err, pqDeadlock) }

func hasState(err error, state string) bool {
	var pg *pq.Error
	return errors.As(err, &pg) && string(pg.Code) == state
}

// notFound says what was done when err came, and maps the "no rows" of database/sql to ErrNotFound.
func notFound(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
