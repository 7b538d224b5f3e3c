package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// order is a change of mind about boxes.
type order struct {
	to  Desired
	who string // "user:<id>" or a duty
	why string
	now time.Time
}

// orderTx orders one box inside the caller's transaction, which holds the lock of the box's run where it has one (lock order:
// automation, run, box, identity). It checks nothing about the run: that is for Order, which a person calls.
// ErrDeletionOrdered, ErrNotFound.
func orderTx(ctx context.Context, tx bun.IDB, boxID uuid.UUID, o order) error {
	ordered, err := orderBoxesTx(ctx, tx, []uuid.UUID{boxID}, o)
	if err != nil || len(ordered) == 1 {
		return err
	}
	known, err := tx.NewSelect().Model((*Sandbox)(nil)).Where("s.id = ?", boxID).Exists(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look for box %s: %w", boxID, err)
	case known:
		return ErrDeletionOrdered
	default:
		return fmt.Errorf("box %s: %w", boxID, ErrNotFound)
	}
}

// orderBoxesTx orders all boxes that are not ordered deleted yet, in one statement, with one event each, and returns them.
func orderBoxesTx(ctx context.Context, tx bun.IDB, ids []uuid.UUID, o order) ([]*Sandbox, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var boxes []*Sandbox
	err := tx.NewUpdate().Model(&boxes).
		Set("desired = ?", o.to).
		Set("generation = generation + 1").
		Set("ordered_at = ?", o.now).
		Set("ordered_by = ?", o.who).
		Set("order_reason = ?", o.why).
		Set("next_step_at = ?", o.now).
		Set("attempts = 0").
		Set("tried = '[]'").
		Set("prepare_until = NULL").
		Where("id IN (?)", bun.List(ids)).
		Where("desired <> ?", WantDeleted).
		Returning("*").
		Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("order boxes %s: %w", o.to, err)
	}
	events := make([]Event, len(boxes))
	for i, b := range boxes {
		events[i] = b.event("ordered", o.who, string(o.to)+": "+o.why, o.now)
	}
	return boxes, appendEventsTx(ctx, tx, o.now, events)
}
