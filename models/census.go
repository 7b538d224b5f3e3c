package models

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// Census is how many rows are in which state: what gauges show.
type Census struct {
	At        time.Time
	Runs      map[RunStatus]int
	Boxes     []BoxCount
	Held      map[BoxState]int64 // bytes that boxes last said they hold
	Cleanups  map[string]Cleanup // by backend
	Migration uint               // version of the schema
	Dirty     bool               // its last migration was cut short
}

// BoxCount is how many boxes, not known to be deleted, are in one state.
type BoxCount struct {
	Backend  string   `bun:"backend"`
	Observed Observed `bun:"observed"`
	Kept     bool     `bun:"kept"`
	N        int      `bun:"n"`
	Orphans  int      `bun:"orphans"` // of them listed by the provider before a row owned them, and not missing since
}

// BoxState is where boxes stand at one backend.
type BoxState struct {
	Backend  string
	Observed Observed
}

// Cleanup is what is to be deleted at one backend. A box is overdue from its due date, or from the order to delete it, until
// its provider shows it gone; what nothing works on any more is not.
type Cleanup struct {
	Pending       int // due dates ahead
	Overdue       int
	OldestOverdue time.Duration // 0: none is overdue
}

// Census counts. It reads every run and every box that is not deleted: callers keep the answer for a while.
func (s *Store) Census(ctx context.Context) (Census, error) {
	c := Census{At: s.Now(), Runs: map[RunStatus]int{}, Cleanups: map[string]Cleanup{}}
	var runs []struct {
		Status RunStatus
		N      int
	}
	err := s.db.NewSelect().Model((*Run)(nil)).Column("status").ColumnExpr("count(*) AS n").Group("status").Scan(ctx, &runs)
	if err != nil {
		return c, fmt.Errorf("count runs: %w", err)
	}
	for _, r := range runs {
		c.Runs[r.Status] = r.N
	}
	err = s.db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.backend", "s.observed").
		ColumnExpr("s.kept_at IS NOT NULL AS kept").
		ColumnExpr("count(*) AS n").
		ColumnExpr("count(CASE WHEN s.created_by = ? AND s.observed <> ? THEN 1 END) AS orphans", CreatedByOrphan, SeenMissing).
		Where("s.observed <> 'deleted'"). // as in the index
		GroupExpr("s.backend, s.observed, s.kept_at IS NOT NULL").
		OrderExpr("s.backend, s.observed, s.kept_at IS NOT NULL").
		Scan(ctx, &c.Boxes)
	if err != nil {
		return c, fmt.Errorf("count boxes: %w", err)
	}
	if err := s.countHeld(ctx, &c); err != nil {
		return c, err
	}
	if err := s.countCleanups(ctx, &c); err != nil {
		return c, err
	}
	c.Migration, c.Dirty, err = s.SchemaVersion(ctx)
	return c, err
}

// countHeld adds up what boxes last said they hold, one row at a time.
func (s *Store) countHeld(ctx context.Context, c *Census) error {
	c.Held = map[BoxState]int64{}
	rows, err := s.db.NewSelect().Model((*Sandbox)(nil)).Column("s.backend", "s.observed", "s.storage").
		Where("s.observed <> 'deleted'"). // as in the index
		Where("s.storage IS NOT NULL").
		Rows(ctx)
	if err != nil {
		return fmt.Errorf("read what boxes hold: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var at BoxState
		var status []byte
		if err := rows.Scan(&at.Backend, &at.Observed, &status); err != nil {
			return fmt.Errorf("read what a box holds: %w", err)
		}
		if held := storageBytes(status); held != nil {
			c.Held[at] += *held
		}
	}
	return rows.Err()
}

// countCleanups counts due dates and orders to delete, in two steps: dates ahead, and what is late.
func (s *Store) countCleanups(ctx context.Context, c *Census) error {
	type count struct {
		Backend string
		N       int
		Oldest  time.Time
	}
	var ahead, due, ordered []count
	grouped := func(q *bun.SelectQuery, since string) *bun.SelectQuery {
		return q.Column("s.backend").ColumnExpr("count(*) AS n").ColumnExpr("min(" + since + ") AS oldest").GroupExpr("s.backend")
	}
	const stamp = "r.sandbox_cleanup_due_at"
	if err := grouped(sweepable(s.db), stamp).Where(stamp+" > ?", c.At).Scan(ctx, &ahead); err != nil {
		return fmt.Errorf("count due dates: %w", err)
	}
	if err := grouped(sweepable(s.db), stamp).Where(stamp+" <= ?", c.At).Scan(ctx, &due); err != nil {
		return fmt.Errorf("count overdue boxes: %w", err)
	}
	err := grouped(s.db.NewSelect().TableExpr("sandboxes AS s"), "s.ordered_at").
		Where("s.observed <> 'deleted'"). // as in the index
		Where("s.desired = ?", WantDeleted).
		Where("s.next_step_at IS NOT NULL OR s.lease_until IS NOT NULL").
		Scan(ctx, &ordered)
	if err != nil {
		return fmt.Errorf("count boxes ordered deleted: %w", err)
	}
	for _, n := range ahead {
		c.Cleanups[n.Backend] = Cleanup{Pending: n.N}
	}
	for _, late := range [][]count{due, ordered} {
		for _, n := range late {
			x := c.Cleanups[n.Backend]
			x.Overdue += n.N
			x.OldestOverdue = max(x.OldestOverdue, c.At.Sub(n.Oldest))
			c.Cleanups[n.Backend] = x
		}
	}
	return nil
}

// SchemaVersion returns the version of the schema, 0 before the first migration, and whether its last migration was cut short.
func (s *Store) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	var row struct {
		Version uint
		Dirty   bool
	}
	if err := s.db.NewRaw("SELECT version, dirty FROM schema_migrations").Scan(ctx, &row); err != nil {
		return 0, false, notFound(err, "read the version of the schema")
	}
	return row.Version, row.Dirty, nil
}

// Pools are the pools of connections by name, for their statistics.
func (s *Store) Pools() map[string]*sql.DB {
	if s.writer == nil {
		return map[string]*sql.DB{"main": s.db.DB}
	}
	return map[string]*sql.DB{"read": s.db.DB, "write": s.writer.db.DB}
}
