package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// ByIdle is OrderedBy of a box that was ordered suspended because nobody uses it.
const ByIdle = "idle"

// Reasons in HeldBecause.
const (
	HeldAgent      = "agent_running"    // an agent works in it
	HeldCommand    = "command_running"  // a command runs in it
	HeldActive     = "recently_active"  // somebody else than we worked in it
	HeldUnreadable = "state_unreadable" // its agent server does not say
)

// IdleBoxes returns up to limit boxes in places that are awake and at rest, have no RUNNING run and no attachment, and that
// nobody has ordered, accessed or seen change since unused (design section 8, S3-002). The longest unused come first. What is
// found may be asked, and ordered by OrderIdle.
func (s *Store) IdleBoxes(ctx context.Context, places []Place, unused time.Time, limit int) ([]*Sandbox, error) {
	if len(places) == 0 || limit <= 0 {
		return nil, nil
	}
	var boxes []*Sandbox
	err := inPlaces(idle(s.db.NewSelect().Model(&boxes), s.Now(), unused), places).
		OrderExpr("s.last_access_at, s.id").
		Limit(int64(limit)).
		Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for idle boxes: %w", err)
	}
	return boxes, s.completeBoxes(ctx, s.db, boxes)
}

// idle leaves of a select of boxes those that look idle by their rows.
func idle(q *bun.SelectQuery, now, unused time.Time) *bun.SelectQuery {
	return q.
		Where("s.observed = ?", SeenRunning).
		Where("s.next_step_at IS NULL").
		Where("s.desired <> ?", WantDeleted).
		Where("s.lease_until IS NULL OR s.lease_until <= ?", now).
		Where("s.idle_check_at IS NULL OR s.idle_check_at <= ?", now).
		Where("s.last_access_at IS NULL OR s.last_access_at <= ?", unused).
		Where("s.ordered_at <= ? AND s.observed_at <= ?", unused, unused).
		Where("NOT EXISTS (?)", q.NewSelect().Model((*Run)(nil)).ColumnExpr("1").
			Where("r.id = s.run_id").
			Where("r.status IN (?) OR r.completed_at > ?", bun.List([]RunStatus{RunPending, RunRunning}), unused)).
		Where("NOT EXISTS (?)", liveAttachments(q.DB(), now))
}

// OrderIdle orders a box of IdleBoxes suspended, if it still is what it was: not ordered, accessed, attached or started anew
// since it was looked at (S3-021). why says how long it was unused.
func (s *Store) OrderIdle(ctx context.Context, seen *Sandbox, unused time.Time, why string) (ordered bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		ordered = false
		if _, err := s.lockedRunOf(ctx, tx, seen.ID); err != nil {
			return err
		}
		var locked []uuid.UUID
		q := tx.NewSelect().Model((*Sandbox)(nil)).Column("s.id").
			Where("s.id = ?", seen.ID).
			Where("s.generation = ? AND s.awake_epoch = ?", seen.Generation, seen.AwakeEpoch)
		if err := s.lock(q, "UPDATE").Scan(ctx, &locked); err != nil {
			return fmt.Errorf("lock box %s: %w", seen.ID, err)
		}
		now := s.Now()
		still, err := idle(tx.NewSelect().Model((*Sandbox)(nil)), now, unused).Where("s.id IN (?)", bun.List(locked)).Exists(ctx)
		if err != nil {
			return fmt.Errorf("look at box %s again: %w", seen.ID, err)
		}
		if !still || len(locked) == 0 {
			return nil
		}
		ordered = true
		return orderTx(ctx, tx, seen.ID, order{to: WantSuspended, who: ByIdle, why: why, now: now})
	})
	return ordered && err == nil, err
}

// HoldIdle records why an unused box is left awake, and when it is looked at again. What needsAttention says is written where
// the box needs none for anything else; "" takes that of an earlier call away.
func (s *Store) HoldIdle(ctx context.Context, boxID uuid.UUID, because string, again time.Time, needsAttention string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("held_because = ?", because).
			Set("idle_check_at = ?", again).
			Set("needs_attention = CASE WHEN needs_attention IN ('', ?) THEN ? ELSE needs_attention END", AttentionIdle, needsAttention).
			Where("id = ?", boxID).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("record why box %s is held: %w", boxID, err)
		}
		return nil
	})
}
