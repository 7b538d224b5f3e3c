package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// MarkSuspendSent is the entry of Sandbox.Tried which says that a provider was asked to suspend the box. Unlike the others it
// outlives an order to run: what was sent may still take effect.
const MarkSuspendSent = "suspend sent"

// order is a change of mind about boxes.
type order struct {
	to  Desired
	who string // "user:<id>" or a duty
	why string
	now time.Time

	after []Event // of the same change, told before the order
}

// orderTx orders one box inside the caller's transaction, which holds the lock of the box's run where it has one (lock order:
// automation, run, box, identity). It checks nothing about the run: that is for Order, which a person calls.
// ErrDeletionOrdered, ErrNotFound.
func orderTx(ctx context.Context, tx bun.IDB, boxID uuid.UUID, o order) error {
	ordered, err := orderBoxesTx(ctx, tx, []uuid.UUID{boxID}, o)
	if err != nil || len(ordered) == 1 {
		return err
	}
	return whyNotOrderable(ctx, tx, boxID)
}

// whyNotOrderable says why a statement that leaves out boxes ordered deleted found no row: ErrDeletionOrdered, ErrNotFound.
func whyNotOrderable(ctx context.Context, tx bun.IDB, boxID uuid.UUID) error {
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

// orderBoxesTx orders all boxes that are not ordered deleted yet, in one statement, with one event each, and returns of each
// what says which box it is and whose.
func orderBoxesTx(ctx context.Context, tx bun.IDB, ids []uuid.UUID, o order) ([]*Sandbox, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var boxes []*Sandbox
	q := tx.NewUpdate().Model(&boxes).
		Set("desired = ?", o.to).
		Set("generation = generation + 1").
		Set("ordered_at = ?", o.now).
		Set("ordered_by = ?", o.who).
		Set("order_reason = ?", o.why).
		Set("next_step_at = ?", o.now).
		Set("attempts = 0").
		Set("prepare_until = NULL").
		Set("held_because = '', idle_check_at = NULL").
		// What was exported of a box that still runs does not say what is in it when this order is carried out.
		Set("exported_epoch = CASE WHEN observed = ? THEN 0 ELSE exported_epoch END", SeenRunning).
		Where("id IN (?)", bun.List(ids)).
		Where("desired <> ?", WantDeleted).
		Returning("id, org_id, user_id, automation_id, run_id, backend, location, observed, storage")
	if o.to != WantRunning {
		q = q.Set("tried = '[]'")
	}
	if err := q.Scan(ctx); err != nil {
		return nil, fmt.Errorf("order boxes %s: %w", o.to, err)
	}
	if o.to == WantRunning {
		if err := forgetTriedTx(ctx, tx, ids); err != nil {
			return nil, err
		}
	}
	events := slices.Clone(o.after)
	for _, b := range boxes {
		events = append(events, b.event("ordered", o.who, string(o.to)+": "+o.why, o.now))
	}
	return boxes, appendEventsTx(ctx, tx, o.now, events)
}

// takes makes a row that was read before an order what a reader is shown after it.
func (b *Sandbox) takes(o order) {
	b.Desired, b.Generation = o.to, b.Generation+1
	b.OrderedAt, b.OrderedBy, b.OrderReason = o.now, o.who, o.why
	b.NextStepAt, b.Attempts, b.PrepareUntil = &o.now, 0, nil
}

// forgetTriedTx clears tried of boxes that were just ordered to run, and are locked so, but for MarkSuspendSent.
func forgetTriedTx(ctx context.Context, tx bun.IDB, ids []uuid.UUID) error {
	for condition, left := range map[string]string{"LIKE": `["` + MarkSuspendSent + `"]`, "NOT LIKE": "[]"} {
		_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("tried = '"+left+"'").
			Where("id IN (?)", bun.List(ids)).
			Where("desired = ?", WantRunning).
			Where("CAST(tried AS TEXT) "+condition+" ?", `%"`+MarkSuspendSent+`"%`).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("forget what was tried: %w", err)
		}
	}
	return nil
}

// Order changes the desired state of a box: generation + 1, ordered_at, order_reason, next_step_at = now, tried and
// prepare_until cleared, an event; WHERE desired <> 'deleted'. who is a user ("user:<id>") or a duty; why is a short reason.
// An order by a person ("user:" prefix) to suspend or delete a box whose run is RUNNING is ErrRunActive. ErrDeletionOrdered
// when deletion was ordered before (also for a repeated delete), ErrNotFound when there is no such box.
func (s *Store) Order(ctx context.Context, boxID uuid.UUID, to Desired, who, why string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		run, err := s.lockedRunOf(ctx, tx, boxID)
		if err != nil {
			return err
		}
		byHand := strings.HasPrefix(who, "user:") && to != WantRunning
		if byHand && run.activeIn(boxID) {
			return ErrRunActive
		}
		return orderTx(ctx, tx, boxID, order{to: to, who: who, why: why, now: s.Now()})
	})
}

// activeIn reports whether the run, nil for none, is RUNNING in the box.
func (r *Run) activeIn(boxID uuid.UUID) bool {
	return r != nil && r.Status == RunRunning && r.BoxID != nil && *r.BoxID == boxID
}

// TriedExport is the entry of Sandbox.Tried of an export that failed, or is not wanted.
const TriedExport = "export"

// Deletion is how a person wants a box deleted.
type Deletion struct {
	Who          string // "user:<id>"
	Why          string
	LossAccepted bool // also where its history goes with it
	SkipExport   bool // no export is made before
}

// OrderDeletion orders a box deleted by hand. It is ErrNoCurrentExport where that would lose the history and nobody accepted it;
// else as Order.
func (s *Store) OrderDeletion(ctx context.Context, boxID uuid.UUID, d Deletion) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		run, err := s.lockedRunOf(ctx, tx, boxID)
		if err != nil {
			return err
		}
		box, err := s.lockedBox(ctx, tx, boxID)
		switch {
		case err != nil:
			return err
		case run.activeIn(boxID):
			return ErrRunActive
		}
		if !d.LossAccepted {
			if stored, err := hasCurrentExport(ctx, tx, box); err != nil || !stored {
				return errors.Join(err, ErrNoCurrentExport)
			}
		}
		if err := orderTx(ctx, tx, boxID, order{to: WantDeleted, who: d.Who, why: d.Why, now: s.Now()}); err != nil || !d.SkipExport {
			return err
		}
		_, err = tx.NewUpdate().Model((*Sandbox)(nil)).Set("tried = ?", `["`+TriedExport+`"]`).Where("id = ?", boxID).Exec(ctx)
		if err != nil {
			return fmt.Errorf("skip the export of box %s: %w", boxID, err)
		}
		return nil
	})
}

// OrderedByHand reports whether the present order is a person's wish for this very box, and not a sweep's.
func (b *Sandbox) OrderedByHand() bool {
	return strings.HasPrefix(b.OrderedBy, "user:") && !strings.HasPrefix(b.OrderReason, sweepReason)
}

// lockedRunOf locks and returns the run of a box, before the box is locked (lock order: automation, run, box, identity); nil
// when the box has none. A box never changes its run, so that this can be read before.
func (s *Store) lockedRunOf(ctx context.Context, tx bun.IDB, boxID uuid.UUID) (*Run, error) {
	run := new(Run)
	q := tx.NewSelect().Model(run).Where("r.id = (SELECT s.run_id FROM sandboxes AS s WHERE s.id = ?)", boxID)
	err := s.lock(q, "UPDATE").Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock the run of box %s: %w", boxID, err)
	}
	return run, nil
}

// holdRunOf locks the run of a box without reading it; SQLite's writer is alone and needs no statement for that.
func (s *Store) holdRunOf(ctx context.Context, tx bun.IDB, boxID uuid.UUID) error {
	if s.dialect == SQLite {
		return nil
	}
	q := tx.NewSelect().Model((*Run)(nil)).ColumnExpr("1").Where("r.id = (SELECT s.run_id FROM sandboxes AS s WHERE s.id = ?)", boxID)
	if _, err := s.lock(q, "UPDATE").Exec(ctx); err != nil {
		return fmt.Errorf("lock the run of box %s: %w", boxID, err)
	}
	return nil
}

// lockedBox locks and returns a box that is not ordered deleted; ErrDeletionOrdered, ErrNotFound.
func (s *Store) lockedBox(ctx context.Context, tx bun.IDB, boxID uuid.UUID) (*Sandbox, error) {
	box := new(Sandbox)
	if err := s.lock(tx.NewSelect().Model(box).Where("s.id = ?", boxID), "UPDATE").Scan(ctx); err != nil {
		return nil, notFound(err, "lock box %s", boxID)
	}
	if box.Desired == WantDeleted {
		return nil, ErrDeletionOrdered
	}
	return box, nil
}
