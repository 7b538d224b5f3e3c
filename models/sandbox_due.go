package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// terminalStatuses are the statuses of a run that is over.
var terminalStatuses = []RunStatus{RunCompleted, RunFailed, RunCancelled, RunSkipped}

// OrderDue orders deleted, in one bounded transaction, up to limit boxes of runs that are terminal, whose stamp is <= now,
// whose newest box is not ordered deleted, not kept, in one of places, and not attached (an attachment holds for at most
// hold past the stamp, which does not move). It locks run, then box, then checks attachments. It takes no lease. It returns
// the ids ordered, the longest overdue first. The pass after a full one goes on where that one ended, so that a backlog is read
// once and not anew with every pass; one that is not full makes the next begin at the start.
func (s *Store) OrderDue(ctx context.Context, places []Place, limit int, hold time.Duration) ([]uuid.UUID, error) {
	if len(places) == 0 || limit <= 0 {
		return nil, nil
	}
	var ordered []uuid.UUID
	var due []dueBox
	from := s.sweptTo.Load()
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		ordered, due = nil, nil
		now := s.Now()
		q := dueBoxes(tx, places, now, hold)
		if from != nil {
			q = q.Where("r.sandbox_cleanup_due_at >= ?", *from)
		}
		if err := s.lock(q, "UPDATE OF r SKIP LOCKED").Limit(int64(limit)).Scan(ctx, &due); err != nil {
			return fmt.Errorf("look for due boxes: %w", err)
		}
		ids, err := s.stillDueTx(ctx, tx, due, now)
		if err != nil {
			return err
		}
		now = s.Now() // of the order: what was committed while we waited for the locks came before it
		boxes, err := orderBoxesTx(ctx, tx, ids, order{to: WantDeleted, who: "janitor", why: "due", now: now})
		if err != nil {
			return err
		}
		if err := recordPassTx(ctx, tx, boxes, due, now); err != nil {
			return err
		}
		taken := make(map[uuid.UUID]bool, len(boxes))
		for _, b := range boxes {
			taken[b.ID] = true
		}
		for _, id := range ids {
			if taken[id] {
				ordered = append(ordered, id)
			}
		}
		return nil
	})
	s.sweptTo.Store(nil)
	if err == nil && len(due) == limit {
		s.sweptTo.Store(&due[limit-1].DueAt)
	}
	return ordered, err
}

// dueBox is a box that is due; Overdue says that no attachment holds it any more.
type dueBox struct {
	ID      uuid.UUID `bun:"id"`
	RunID   uuid.UUID `bun:"run_id"`
	DueAt   time.Time `bun:"due_at"`
	Overdue bool      `bun:"overdue"`
}

// AttachedHold is how long past its stamp a due box is spared while somebody is in it (design section 9).
const AttachedHold = time.Hour

// sweepable selects the newest boxes of runs that carry a valid stamp, where they may be swept. A stamp from before the run
// ended (a zero time) is not taken as long overdue: RepairStamps mends it (BR-07).
func sweepable(db bun.IDB) *bun.SelectQuery {
	return db.NewSelect().
		TableExpr("automation_runs AS r").
		Join("JOIN sandboxes AS s ON s.id = r.box_id").
		Where("r.sandbox_cleanup_due_at >= r.completed_at").
		Where("r.status IN (?)", bun.List(terminalStatuses)).
		Where("s.desired <> ?", WantDeleted).
		Where("s.kept_at IS NULL")
}

// inPlaces leaves what a process of these places serves (BR-03).
func inPlaces(q *bun.SelectQuery, places []Place) *bun.SelectQuery {
	return q.WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
		for _, p := range places {
			q = q.WhereOr("s.backend = ? AND s.location = ?", p.Backend, p.Location)
		}
		return q
	})
}

// dueBoxes selects what may be swept now, oldest stamp first. What is attached is left out here already, so that it takes no
// place in a bounded pass; stillDueTx looks again under the lock.
func dueBoxes(db bun.IDB, places []Place, now time.Time, hold time.Duration) *bun.SelectQuery {
	return inPlaces(sweepable(db), places).
		Column("s.id").
		ColumnExpr("r.id AS run_id").
		ColumnExpr("r.sandbox_cleanup_due_at AS due_at").
		ColumnExpr("r.sandbox_cleanup_due_at <= ? AS overdue", now.Add(-hold)).
		Where("r.sandbox_cleanup_due_at <= ?", now).
		Where("r.sandbox_cleanup_due_at <= ? OR NOT EXISTS (?)", now.Add(-hold), liveAttachments(db, now)).
		OrderExpr("r.sandbox_cleanup_due_at, s.id")
}

// stillDueTx locks boxes whose runs are locked, and returns, in the order given, those that nobody kept, ordered deleted or
// attached to before the lock was had.
func (s *Store) stillDueTx(ctx context.Context, tx bun.IDB, due []dueBox, now time.Time) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, len(due))
	for n, d := range due {
		ids[n] = d.ID
	}
	boxes, attached, err := s.lockBoxesTx(ctx, tx, ids, now)
	if err != nil {
		return nil, err
	}
	still := make([]uuid.UUID, 0, len(boxes))
	for _, d := range due {
		b := boxes[d.ID]
		if b != nil && b.Desired != WantDeleted && b.KeptAt == nil && (d.Overdue || !attached[d.ID]) {
			still = append(still, d.ID)
		}
	}
	return still, nil
}

// lockBoxesTx locks boxes whose runs are locked, and returns them with what decides about a sweep, and which are attached.
// The attachments are read in a statement of their own, after the lock: under READ COMMITTED a condition in the locking
// statement would see the time before it waited.
func (s *Store) lockBoxesTx(ctx context.Context, tx bun.IDB, ids []uuid.UUID, now time.Time) (map[uuid.UUID]*Sandbox, map[uuid.UUID]bool, error) {
	boxes := make(map[uuid.UUID]*Sandbox, len(ids))
	if len(ids) == 0 {
		return boxes, nil, nil
	}
	var locked []*Sandbox
	q := tx.NewSelect().Model(&locked).
		Column("s.id", "s.desired", "s.observed", "s.kept_at").
		Where("s.id IN (?)", bun.List(ids)).
		OrderExpr("s.id")
	if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
		return nil, nil, fmt.Errorf("lock due boxes: %w", err)
	}
	for _, b := range locked {
		boxes[b.ID] = b
	}
	attached, err := attachedOf(ctx, tx, ids, now)
	return boxes, attached, err
}

// NextDueAt returns the earliest stamp for which OrderDue has work in places, or nil. What it leaves alone does not count, or
// a janitor would never sleep; boxes that are due and attached are for its next regular pass.
func (s *Store) NextDueAt(ctx context.Context, places []Place) (*time.Time, error) {
	if len(places) == 0 {
		return nil, nil
	}
	now := s.Now()
	var at time.Time
	err := nextDue(s.db, places, now).Scan(ctx, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the next due box: %w", err)
	}
	return &at, nil
}

func nextDue(db bun.IDB, places []Place, now time.Time) *bun.SelectQuery {
	return inPlaces(sweepable(db), places).
		Column("r.sandbox_cleanup_due_at").
		Where("r.sandbox_cleanup_due_at > ? OR NOT EXISTS (?)", now, liveAttachments(db, now)).
		OrderExpr("r.sandbox_cleanup_due_at").
		Limit(1)
}

// RepairStamps clears due stamps of runs that have no box (S1-037) or whose box is deleted or will get no further step, and
// sets an invalid stamp (zero, before completed_at) of a terminal run to completed_at + delay (BR-07); bounded by limit. It
// returns how many rows it changed.
func (s *Store) RepairStamps(ctx context.Context, delay time.Duration, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	changed := 0
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		var err error
		changed, err = affected(tx.NewUpdate().Model((*Run)(nil)).
			Set("sandbox_cleanup_due_at = NULL").
			Where("id IN (?)", s.lock(pointlessStamps(tx, now).Limit(int64(limit)), "UPDATE OF r SKIP LOCKED")).
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("clear pointless stamps: %w", err)
		}
		if changed >= limit {
			return nil
		}
		var runs []*Run
		err = s.lock(invalidStamps(tx, now).Limit(int64(limit-changed)), "UPDATE OF r SKIP LOCKED").Scan(ctx, &runs)
		if err != nil {
			return fmt.Errorf("look for invalid stamps: %w", err)
		}
		for _, r := range runs { // one statement each: they do not occur but by hand
			due := now.Add(delay)
			if r.CompletedAt != nil {
				due = r.CompletedAt.Add(delay)
			}
			if err := setStampTx(ctx, tx, r.ID, &due); err != nil {
				return err
			}
		}
		changed += len(runs)
		return nil
	})
	return changed, err
}

// pointlessStamps selects due runs for whose box no delete is to come.
func pointlessStamps(db bun.IDB, now time.Time) *bun.SelectQuery {
	return db.NewSelect().
		TableExpr("automation_runs AS r").
		Column("r.id").
		Join("LEFT JOIN sandboxes AS s ON s.id = r.box_id").
		Where("r.sandbox_cleanup_due_at <= ?", now).
		Where("s.id IS NULL OR (s.desired = ? AND s.next_step_at IS NULL AND s.lease_until IS NULL)", WantDeleted).
		OrderExpr("r.sandbox_cleanup_due_at")
}

// invalidStamps selects terminal runs whose stamp cannot have been meant. It does not read the stamp, which may be no time at
// all.
func invalidStamps(db bun.IDB, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model((*Run)(nil)).
		Column("r.id", "r.completed_at").
		Where("r.sandbox_cleanup_due_at <= ?", now).
		Where("r.completed_at IS NULL OR r.sandbox_cleanup_due_at < r.completed_at").
		Where("r.status IN (?)", bun.List(terminalStatuses)).
		OrderExpr("r.sandbox_cleanup_due_at")
}
