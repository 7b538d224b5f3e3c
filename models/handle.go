package models

import (
	"context"

	"github.com/uptrace/bun"
)

// Tables that nothing here reads have their statements in a sub-package, on the same handle (design section 3). These are its
// doors.

// Reads returns the handle for single statements that only read.
func (s *Store) Reads() bun.IDB { return s.db }

// Write runs fn in a transaction, under the rules of every write here: fn only reads, decides and writes through tx, and may
// run more than once.
func (s *Store) Write(ctx context.Context, fn func(ctx context.Context, tx bun.IDB) error) error {
	return s.write(ctx, fn)
}

// IsUnique reports whether err is a violated primary key or unique index.
func IsUnique(err error) bool { return isUnique(err) }
