package models

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Extend sets the stamp of the box's run (locks run, then box). ErrNoStamp when it has none, ErrDeletionOrdered.
func (s *Store) Extend(ctx context.Context, boxID uuid.UUID, due time.Time, who string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		run, box, err := s.lockedRunAndBox(ctx, tx, boxID)
		if err != nil {
			return err
		}
		if run == nil || run.CleanupDueAt == nil {
			return ErrNoStamp
		}
		return stampTx(ctx, tx, run, box, "extended", who, &due, s.Now())
	})
}

// Keep pins a box and clears the stamp of its run; ErrDeletionOrdered.
func (s *Store) Keep(ctx context.Context, boxID uuid.UUID, who, reason string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		run, box, err := s.lockedRunAndBox(ctx, tx, boxID)
		if err != nil {
			return err
		}
		now := s.Now()
		_, err = tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("kept_at = ?", now).Set("kept_by = ?", who).Set("kept_reason = ?", reason).
			Where("id = ?", boxID).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("pin box %s: %w", boxID, err)
		}
		if run != nil && run.CleanupDueAt != nil {
			if err := setStampTx(ctx, tx, run.ID, nil); err != nil {
				return err
			}
		}
		return appendEventsTx(ctx, tx, now, []Event{box.event("kept", who, reason, now)})
	})
}

// Unkeep unpins a box and, where its run is terminal and its automation not keep_alive, stamps from now + delay. It returns
// the new due date or nil. A box that is not pinned keeps the due date it has.
func (s *Store) Unkeep(ctx context.Context, boxID uuid.UUID, delay time.Duration, who string) (*time.Time, error) {
	var due *time.Time
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		due = nil
		keepAlive, err := s.lockedKeepAliveOf(ctx, tx, boxID)
		if err != nil {
			return err
		}
		run, box, err := s.lockedRunAndBox(ctx, tx, boxID)
		if err != nil {
			return err
		}
		if box.KeptAt == nil {
			if run != nil {
				due = run.CleanupDueAt
			}
			return nil
		}
		_, err = tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("kept_at = NULL, kept_by = '', kept_reason = ''").
			Where("id = ?", boxID).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("unpin box %s: %w", boxID, err)
		}
		now := s.Now()
		if run == nil || !run.Status.Terminal() || keepAlive {
			return appendEventsTx(ctx, tx, now, []Event{box.event("unkept", who, "", now)})
		}
		at := now.Add(delay)
		due = &at
		return stampTx(ctx, tx, run, box, "unkept", who, due, now)
	})
	return due, err
}

// lockedRunAndBox locks first the run and then the box, which must not be ordered deleted. The run is nil where the box has
// none or is not its newest: then a stamp of that run is not about this box.
func (s *Store) lockedRunAndBox(ctx context.Context, tx bun.IDB, boxID uuid.UUID) (*Run, *Sandbox, error) {
	run, err := s.lockedRunOf(ctx, tx, boxID)
	if err != nil {
		return nil, nil, err
	}
	box, err := s.lockedBox(ctx, tx, boxID)
	if err != nil {
		return nil, nil, err
	}
	if run != nil && (run.BoxID == nil || *run.BoxID != boxID) {
		run = nil
	}
	return run, box, nil
}

// lockedKeepAliveOf reads keep_alive of a box's automation under a share lock, before run and box are locked.
func (s *Store) lockedKeepAliveOf(ctx context.Context, tx bun.IDB, boxID uuid.UUID) (bool, error) {
	var keepAlive []*bool
	q := tx.NewSelect().Model((*Automation)(nil)).
		Column("a.keep_alive").
		Where("a.id = (SELECT s.automation_id FROM sandboxes AS s WHERE s.id = ?)", boxID)
	if err := s.lock(q, "SHARE").Scan(ctx, &keepAlive); err != nil {
		return false, fmt.Errorf("lock the automation of box %s: %w", boxID, err)
	}
	return len(keepAlive) == 1 && keepAlive[0] != nil && *keepAlive[0], nil
}

// stampTx writes a due date together with the event that says who moved it, and to when.
func stampTx(ctx context.Context, tx bun.IDB, run *Run, box *Sandbox, what, who string, due *time.Time, now time.Time) error {
	if err := setStampTx(ctx, tx, run.ID, due); err != nil {
		return err
	}
	detail, err := json.Marshal(map[string]*time.Time{"due_at": due})
	if err != nil {
		return fmt.Errorf("describe the due date of box %s: %w", box.ID, err)
	}
	event := box.event(what, who, "", now)
	event.Detail = detail
	return appendEventsTx(ctx, tx, now, []Event{event})
}

func setStampTx(ctx context.Context, tx bun.IDB, runID uuid.UUID, due *time.Time) error {
	_, err := tx.NewUpdate().Model((*Run)(nil)).
		Set("sandbox_cleanup_due_at = ?", due).
		Where("id = ?", runID).
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("set the due date of run %s: %w", runID, err)
	}
	return nil
}
