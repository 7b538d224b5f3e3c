package customer

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"automation/models"
)

// What is removed for good, and when is the caller's to say.

// PurgeSessions removes up to limit sessions that closed before a time and whose output is gone, and returns how many went. The
// newest of a sandbox stays as long as the sandbox is there: how its agent ended is shown (S2-031, S2-066).
func (s *Store) PurgeSessions(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "sessions", (*Session)(nil), "id", limit, func(old *bun.SelectQuery) *bun.SelectQuery {
		newer := s.core.Reads().NewSelect().TableExpr("agent_sessions AS n").ColumnExpr("1").
			Where("n.sandbox_id = a.sandbox_id AND (n.created_at, n.id) > (a.created_at, a.id)")
		present := s.core.Reads().NewSelect().Model((*models.Sandbox)(nil)).ColumnExpr("1").
			Where("s.id = a.sandbox_id").Where("s.observed <> ?", models.SeenDeleted)
		return old.Where("a.purged_at IS NOT NULL").Where("a.closed_at <= ?", before).
			Where("EXISTS (?) OR NOT EXISTS (?)", newer, present).OrderExpr("a.closed_at")
	})
}

// PurgeKeys removes up to limit keys that were revoked, or ran out, before a time, and returns how many went.
func (s *Store) PurgeKeys(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "keys", (*Key)(nil), "id", limit, func(old *bun.SelectQuery) *bun.SelectQuery {
		return old.Where("k.revoked_at <= ?0 OR k.expires_at <= ?0", before)
	})
}

// PurgeTickets removes up to limit tickets that ran out before a time, and returns how many went.
func (s *Store) PurgeTickets(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "tickets", (*ticket)(nil), "hash", limit, func(old *bun.SelectQuery) *bun.SelectQuery {
		return old.Where("t.expires_at <= ?", before).OrderExpr("t.expires_at")
	})
}

// purge deletes up to limit rows of a model that are old.
func (s *Store) purge(ctx context.Context, what string, model any, key string, limit int, old func(*bun.SelectQuery) *bun.SelectQuery) (gone int, err error) {
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		picked := s.lock(old(tx.NewSelect().Model(model).Column(key)).Limit(int64(limit)))
		gone, err = changed(tx.NewDelete().Model(model).Where(key+" IN (?)", picked).Exec(ctx))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge %s: %w", what, err)
	}
	return gone, nil
}
