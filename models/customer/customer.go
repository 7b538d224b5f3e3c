// Package customer holds the tables behind the agents that customers start in boxes: their keys, where the feature is
// switched on, the sessions of agents with what they printed, and the tickets of relays. The core reads none of them.
package customer

import (
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"automation/models"
)

// Store is the handle on these tables; it shares the clock and the writer of the core's.
type Store struct {
	core *models.Store
}

// New returns the handle that shares core's.
func New(core *models.Store) *Store { return &Store{core: core} }

// newSecret makes what a credential consists of after its prefix: 32 random bytes.
func newSecret(prefix string) string {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

// hashOf is what is stored of a credential. The secrets are random, so a plain hash cannot be guessed back.
func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// missing says what was done when err came, and maps the "no rows" of database/sql to models.ErrNotFound.
func missing(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = models.ErrNotFound
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// lock keeps other replicas from the rows of q until the end of the transaction; rows that another one holds are passed over.
func (s *Store) lock(q *bun.SelectQuery) *bun.SelectQuery {
	if s.core.Dialect() == models.Postgres {
		q = q.For("UPDATE SKIP LOCKED")
	}
	return q
}

// changed returns how many rows a statement changed.
func changed(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}
