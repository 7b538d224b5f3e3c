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

// attachment is a row of sandbox_attachments: a process has a request, stream or relay into one start of the box open until
// then. It holds that start and none after it (design section 4).
type attachment struct {
	bun.BaseModel `bun:"table:sandbox_attachments,alias:t"`

	SandboxID  uuid.UUID `bun:"sandbox_id,pk"`
	Process    uuid.UUID `bun:"process,pk"`
	Until      time.Time `bun:"until"`
	AwakeEpoch int64     `bun:"awake_epoch"`
}

// Incarnation is the start of the box that whoever comes in now is in: the present one, or the next where it does not run.
func (b *Sandbox) Incarnation() int64 {
	if b.Observed == SeenRunning {
		return b.AwakeEpoch
	}
	return b.AwakeEpoch + 1
}

// Touch moves last_access_at forward to at.
func (s *Store) Touch(ctx context.Context, boxID uuid.UUID, at time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error { return touchTx(ctx, tx, boxID, at) })
}

func touchTx(ctx context.Context, tx bun.IDB, boxID uuid.UUID, at time.Time) error {
	_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
		Set("last_access_at = ?", at).
		Where("id = ?", boxID).
		Where("last_access_at IS NULL OR last_access_at < ?", at).
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("touch box %s: %w", boxID, err)
	}
	return nil
}

// Attach writes the attachment of this process to a box until until, records the access, and returns the Incarnation that it
// holds. It takes the box's lock, so that whoever locks the box and then looks for attachments sees it or comes first.
// ErrDeletionOrdered where the box is ordered deleted, ErrNotFound where there is none.
func (s *Store) Attach(ctx context.Context, boxID, process uuid.UUID, until time.Time) (incarnation int64, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		box := new(Sandbox)
		err := tx.NewUpdate().Model(box).
			Set("last_access_at = CASE WHEN last_access_at > ?0 THEN last_access_at ELSE ?0 END", s.Now()).
			Where("id = ?", boxID).
			Where("desired <> ?", WantDeleted).
			Returning("observed, awake_epoch").
			Scan(ctx)
		if errors.Is(err, sql.ErrNoRows) {
			return whyNotOrderable(ctx, tx, boxID)
		}
		if err != nil {
			return fmt.Errorf("touch box %s: %w", boxID, err)
		}
		incarnation = box.Incarnation()
		row := attachment{SandboxID: boxID, Process: process, Until: until, AwakeEpoch: incarnation}
		_, err = tx.NewInsert().Model(&row).
			On("CONFLICT (sandbox_id, process) DO UPDATE").
			Set("until = EXCLUDED.until").
			Set("awake_epoch = EXCLUDED.awake_epoch").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("attach to box %s: %w", boxID, err)
		}
		return nil
	})
	return incarnation, err
}

// RenewAttachments prolongs the attachments of this process to boxes until until and records these as accessed, so that none looks
// unused for as long as its attachment was held if this process dies.
func (s *Store) RenewAttachments(ctx context.Context, process uuid.UUID, boxes []uuid.UUID, until time.Time) error {
	if len(boxes) == 0 {
		return nil
	}
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		// Boxes before attachments, as everywhere, and those that somebody has locked are in use anyway.
		held := tx.NewSelect().Model((*Sandbox)(nil)).Column("s.id").
			Join("JOIN sandbox_attachments AS t ON t.sandbox_id = s.id").
			Where("t.process = ?", process).
			Where("t.sandbox_id IN (?)", bun.List(boxes)).
			Where("t.awake_epoch >= s.awake_epoch").
			Where("s.desired <> ?", WantDeleted).
			OrderExpr("s.id")
		_, err := tx.NewUpdate().With("held", s.lock(held, "UPDATE OF s SKIP LOCKED")).
			Model((*Sandbox)(nil)).
			Set("last_access_at = ?", s.Now()).
			Where("id IN (SELECT id FROM held)").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("touch attached boxes: %w", err)
		}
		_, err = tx.NewUpdate().Model((*attachment)(nil)).Set("until = ?", until).
			Where("process = ?", process).
			Where("sandbox_id IN (?)", bun.List(boxes)).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("renew attachments: %w", err)
		}
		return nil
	})
}

// Detach removes the attachment of this process to one incarnation of a box, which was last used at left; where the box has
// been started anew since, it releases and records nothing. A suspend that waited for it becomes due: the place to wake, or
// nil.
func (s *Store) Detach(ctx context.Context, boxID, process uuid.UUID, incarnation int64, left time.Time) (waiting *Place, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		waiting = nil
		var boxes []*Sandbox
		q := tx.NewSelect().Model(&boxes).
			Column("s.id", "s.backend", "s.location", "s.desired", "s.awake_epoch", "s.next_step_at").
			Where("s.id = ?", boxID)
		if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
			return fmt.Errorf("lock box %s: %w", boxID, err)
		}
		_, err := tx.NewDelete().Model((*attachment)(nil)).
			Where("sandbox_id = ? AND process = ? AND awake_epoch = ?", boxID, process, incarnation).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("detach from box %s: %w", boxID, err)
		}
		if len(boxes) == 0 || boxes[0].Desired == WantDeleted || boxes[0].AwakeEpoch > incarnation {
			return nil
		}
		box, now := boxes[0], s.Now()
		next := box.NextStepAt
		if box.Desired == WantSuspended && next != nil {
			waiting = &Place{Backend: box.Backend, Location: box.Location}
			if next.After(now) {
				next = &now
			}
		}
		_, err = tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("last_access_at = CASE WHEN last_access_at > ?0 THEN last_access_at ELSE ?0 END", left).
			Set("next_step_at = ?", next).
			Where("id = ?", boxID).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("touch box %s: %w", boxID, err)
		}
		return nil
	})
	return waiting, err
}

// DetachAll removes every attachment of a process that stops. Boxes that waited for one are looked at again within their own
// time.
func (s *Store) DetachAll(ctx context.Context, process uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewDelete().Model((*attachment)(nil)).Where("process = ?", process).Exec(ctx)
		if err != nil {
			return fmt.Errorf("remove the attachments of this process: %w", err)
		}
		return nil
	})
}

// PurgeAttachments removes up to limit attachments that ran out before a time: of processes that died.
func (s *Store) PurgeAttachments(ctx context.Context, before time.Time, limit int) (removed int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		old := tx.NewSelect().Model((*attachment)(nil)).Column("t.sandbox_id", "t.process").
			Where("t.until < ?", before).OrderExpr("t.sandbox_id, t.process").Limit(int64(limit))
		var err error
		removed, err = affected(tx.NewDelete().Model((*attachment)(nil)).Where("(sandbox_id, process) IN (?)", old).Exec(ctx))
		if err != nil {
			return fmt.Errorf("purge attachments: %w", err)
		}
		return nil
	})
	return removed, err
}

// liveAttachments selects the attachments that hold the present start of the box s of the outer statement, or its next.
func liveAttachments(db bun.IDB, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model((*attachment)(nil)).ColumnExpr("1").
		Where("t.sandbox_id = s.id").
		Where("t.awake_epoch >= s.awake_epoch").
		Where("t.until > ?", now)
}

// attachedOf returns which of the boxes have a live attachment.
func attachedOf(ctx context.Context, db bun.IDB, ids []uuid.UUID, now time.Time) (map[uuid.UUID]bool, error) {
	attached := make(map[uuid.UUID]bool)
	if len(ids) == 0 {
		return attached, nil
	}
	var live []uuid.UUID
	err := db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.id").
		Where("s.id IN (?)", bun.List(ids)).
		Where("EXISTS (?)", liveAttachments(db, now)).
		Scan(ctx, &live)
	if err != nil {
		return nil, fmt.Errorf("look for attachments: %w", err)
	}
	for _, id := range live {
		attached[id] = true
	}
	return attached, nil
}
