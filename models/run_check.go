package models

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// The stale duty looks at a RUNNING run at check_at, or at timeout_at where check_at is NULL. So that one of the two is always
// the earlier, whatever writes check_at keeps it at or before a timeout_at that lies ahead; a claim then needs only to move
// check_at.

// checkTime is check_at for a look planned at next.
func checkTime(next, timeoutAt, now time.Time) time.Time {
	if timeoutAt.After(now) && timeoutAt.Before(next) {
		return timeoutAt
	}
	return next
}

// foreignAfter is how long past its timeout_at a run in a box of another place is left to the processes that serve that place.
// Then anybody may end it: they may be gone for good.
const foreignAfter = 2 * time.Minute

// Reach says which RUNNING runs are looked at: those in boxes of In, and with Rest also those without a box, and those that
// nobody seems to look after: foreignAfter past their timeout_at, in boxes neither of In nor of Served.
type Reach struct {
	In     []Place
	Rest   bool
	Served []Place // other places that this process looks after
}

// ClaimStale claims up to limit RUNNING runs within reach whose check_at or timeout_at is <= now, earliest first, by moving
// check_at to now + hold (the row count names the winner), and returns them with their newest boxes. A run that is still
// provisioned is dispatch's until its timeout_at.
func (s *Store) ClaimStale(ctx context.Context, reach Reach, limit int, hold time.Duration) ([]*Run, error) {
	var runs []*Run
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		runs = nil
		now := s.Now()
		var claimed []uuid.UUID
		due := []*bun.SelectQuery{checkDue(tx, reach, now), reach.of(timedOut(tx, now, now))}
		if reach.Rest {
			due = append(due, foreign(tx, reach, now))
		}
		for _, q := range due {
			ids, err := s.holdStale(ctx, tx, q.Limit(int64(limit-len(claimed))), now.Add(hold))
			if err != nil {
				return err
			}
			if claimed = append(claimed, ids...); len(claimed) >= limit {
				break
			}
		}
		if len(claimed) == 0 {
			return nil
		}
		if err := selectRuns(tx, &runs).Where("r.id IN (?)", bun.List(claimed)).OrderExpr("r.timeout_at, r.id").Scan(ctx); err != nil {
			return fmt.Errorf("read stale runs: %w", err)
		}
		return s.addBoxes(ctx, tx, runs)
	})
	return runs, err
}

// holdStale moves check_at of the runs that q selects to until, and returns them.
func (s *Store) holdStale(ctx context.Context, tx bun.IDB, q *bun.SelectQuery, until time.Time) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	if err := s.lock(q, "NO KEY UPDATE OF r SKIP LOCKED").Scan(ctx, &ids); err != nil {
		return nil, fmt.Errorf("look for stale runs: %w", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	_, err := tx.NewUpdate().Model((*Run)(nil)).
		Set("check_at = ?", until).
		Where("id IN (?)", bun.List(ids)).
		Exec(ctx)
	if err != nil {
		return nil, fmt.Errorf("claim stale runs: %w", err)
	}
	return ids, nil
}

// withBox selects RUNNING runs, with their newest boxes as s.
func withBox(db bun.IDB, column string) *bun.SelectQuery {
	return db.NewSelect().Model((*Run)(nil)).
		Column(column).
		Join("LEFT JOIN sandboxes AS s ON s.id = r.box_id").
		Where("r.status = 'RUNNING'") // as in the index
}

// of leaves runs within reach, but for those that nobody looks after.
func (r Reach) of(q *bun.SelectQuery) *bun.SelectQuery {
	return q.WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
		q = q.Where("s.id IS NULL AND ?", r.Rest)
		for _, p := range r.In {
			q = q.WhereOr("s.backend = ? AND s.location = ?", p.Backend, p.Location)
		}
		return q
	})
}

// checkDue selects the ids of RUNNING runs whose command wants a look, earliest first.
func checkDue(db bun.IDB, reach Reach, now time.Time) *bun.SelectQuery {
	return reach.of(withBox(db, "r.id")).
		Where("r.check_at <= ?", now).
		Where("r.starting_at IS NOT NULL").
		OrderExpr("r.check_at")
}

// timedOut selects the ids of RUNNING runs whose timeout_at is at or before t and that nobody holds now, earliest first.
func timedOut(db bun.IDB, t, now time.Time) *bun.SelectQuery {
	return withBox(db, "r.id").
		Where("r.timeout_at <= ?", t).
		Where("r.check_at IS NULL OR r.check_at <= ?", now).
		OrderExpr("r.timeout_at")
}

// foreign selects the ids of runs that are nobody's in particular any more.
func foreign(db bun.IDB, reach Reach, now time.Time) *bun.SelectQuery {
	q := timedOut(db, now.Add(-foreignAfter), now)
	for _, p := range slices.Concat(reach.In, reach.Served) {
		q = q.Where("s.backend <> ? OR s.location <> ?", p.Backend, p.Location)
	}
	return q
}

// NextStaleAt returns the earliest time at which ClaimStale has work within reach, or nil: the earliest check_at or timeout_at
// of a RUNNING run.
func (s *Store) NextStaleAt(ctx context.Context, reach Reach) (*time.Time, error) {
	now := s.Now()
	if reach.Rest {
		switch overdue, err := foreign(s.db, reach, now).Exists(ctx); {
		case err != nil:
			return nil, fmt.Errorf("look for overdue runs: %w", err)
		case overdue:
			return &now, nil
		}
	}
	running := func(column string) *bun.SelectQuery {
		return reach.of(withBox(s.db, column)).OrderExpr(column)
	}
	started, err := earliest(ctx, running("r.check_at").Where("r.check_at IS NOT NULL").Where("r.starting_at IS NOT NULL"))
	if err != nil {
		return nil, fmt.Errorf("look for the next check: %w", err)
	}
	unchecked, err := earliest(ctx, running("r.timeout_at").Where("r.timeout_at IS NOT NULL").Where("r.check_at IS NULL"))
	if err != nil {
		return nil, fmt.Errorf("look for the next timeout: %w", err)
	}
	var held []*Run // still provisioned, with a check_at: as many as dispatch has in flight
	err = reach.of(provisioning(s.db, &held)).Column("r.check_at", "r.timeout_at").Where("r.check_at IS NOT NULL").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for provisioned runs: %w", err)
	}
	next := sooner(started, unchecked)
	for _, r := range held {
		if r.TimeoutAt != nil {
			next = sooner(next, later(*r.TimeoutAt, *r.CheckAt))
		}
	}
	return next, nil
}

// sooner returns the earlier of two times; nil is never.
func sooner(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

func later(a, b time.Time) *time.Time {
	if b.After(a) {
		return &b
	}
	return &a
}

// Check is the record of one look at a RUNNING run.
type Check struct {
	ExitSeenAt   *time.Time
	ExitCode     *int
	NextAt       time.Time
	WasTimeoutAt *time.Time
	TimeoutAt    *time.Time
	StatusDetail json.RawMessage
}

// RecordCheck stores what a look at the command showed, WHERE the run is RUNNING: exit_seen_at (kept when set already), the
// next check_at and, when not nil, timeout_at (only where timeout_at still equals was) and status_detail. A run that is no
// longer RUNNING is ErrConflict; a timeout_at that moved meanwhile is left, and the rest is written.
func (s *Store) RecordCheck(ctx context.Context, runID uuid.UUID, c Check) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		r, err := s.lockRun(ctx, tx, runID)
		if err != nil {
			return err
		}
		if r.Status != RunRunning {
			return fmt.Errorf("run %s is %s: %w", runID, r.Status, ErrConflict)
		}
		if r.ExitSeenAt == nil {
			r.ExitSeenAt = c.ExitSeenAt
		}
		if c.ExitCode != nil {
			r.ExitCode = c.ExitCode
		}
		if c.TimeoutAt != nil && sameTime(r.TimeoutAt, c.WasTimeoutAt) {
			r.TimeoutAt = c.TimeoutAt
		}
		if c.StatusDetail != nil {
			r.StatusDetail = c.StatusDetail
		}
		next := c.NextAt
		if r.TimeoutAt != nil {
			next = checkTime(next, *r.TimeoutAt, s.Now())
		}
		r.CheckAt = &next
		_, err = tx.NewUpdate().Model(r).
			Column("exit_seen_at", "exit_code", "timeout_at", "status_detail", "check_at").
			WherePK().
			Where("status = ?", RunRunning).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("record the check of run %s: %w", runID, err)
		}
		return nil
	})
}

// sameTime reports whether two times are the same instant in a row, or both not set.
func sameTime(a, b *time.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return rowTime(*a).Equal(rowTime(*b))
}
