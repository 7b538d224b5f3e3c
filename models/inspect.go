package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/uptrace/bun/dialect/sqlitedialect"
)

// OpenReadOnly opens a migrated database for its readers alone, while a service uses it. A SQLite file that is not there is
// not made, and one that is there cannot be written to. dsn is as for Open.
func OpenReadOnly(ctx context.Context, dsn string, opts ...Option) (*Store, error) {
	o := options{pool: 2}
	for _, opt := range opts {
		opt(&o)
	}
	keys, err := newKeys(o.keys)
	if err != nil {
		return nil, err
	}
	s := &Store{store{keys: keys}}
	if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
		err = s.openFileReadOnly(path, o)
	} else {
		err = s.openPostgres(dsn, o)
	}
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the database: %w", err), s.Close())
	}
	return s, nil
}

func (s *Store) openFileReadOnly(path string, o options) error {
	s.dialect, s.clock = SQLite, newClock(o, true)
	name := url.URL{Scheme: "file", OmitHost: true, Path: path}
	db, err := sql.Open("sqlite", name.String()+"?mode=ro&_pragma=busy_timeout(10000)&_timezone=UTC")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(o.pool)
	s.db = newBun(db, sqlitedialect.New())
	return nil
}

// CheckKeys tries to open the stored session keys of boxes that exist, the newest limit of them, and returns how many there
// are and how many the configured keys do not open.
func (s *Store) CheckKeys(ctx context.Context, limit int) (stored, sealed int, err error) {
	var keys []string
	err = s.db.NewSelect().Model((*Identity)(nil)).Column("session_key").
		Where("session_key <> ''").
		Where("gone_at IS NULL").
		OrderExpr("seen_at DESC").
		Limit(int64(limit)).
		Scan(ctx, &keys)
	if err != nil {
		return 0, 0, fmt.Errorf("read the keys of boxes: %w", err)
	}
	for _, key := range keys {
		if _, err := s.unseal(key); err != nil {
			sealed++
		}
	}
	return len(keys), sealed, nil
}

// Backup writes a SQLite database, as it is at one moment, into a new file; whoever serves it goes on. errors.ErrUnsupported
// on PostgreSQL, which has tools of its own.
func (s *Store) Backup(ctx context.Context, path string) error {
	if s.dialect != SQLite {
		return fmt.Errorf("back up a PostgreSQL database: %w", errors.ErrUnsupported)
	}
	if _, err := s.db.NewRaw("VACUUM INTO ?", path).Exec(ctx); err != nil {
		return fmt.Errorf("back the database up into %s: %w", path, err)
	}
	return nil
}
