package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// attachment is a row of sandbox_attachments: a process has a request, stream or relay into the box open until then.
type attachment struct {
	bun.BaseModel `bun:"table:sandbox_attachments,alias:t"`

	SandboxID uuid.UUID `bun:"sandbox_id,pk"`
	Process   uuid.UUID `bun:"process,pk"`
	Until     time.Time `bun:"until"`
}

// Touch moves last_access_at forward to at.
func (s *Store) Touch(ctx context.Context, boxID uuid.UUID, at time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("last_access_at = ?", at).
			Where("id = ?", boxID).
			Where("last_access_at IS NULL OR last_access_at < ?", at).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("touch box %s: %w", boxID, err)
		}
		return nil
	})
}

// Attach writes or renews the attachment of this process to a box until until; it takes the box FOR SHARE, so that the sweep,
// which locks the box and then looks for attachments, sees it or comes first. ErrDeletionOrdered where the box is ordered
// deleted, ErrNotFound where there is none.
func (s *Store) Attach(ctx context.Context, boxID, process uuid.UUID, until time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		box := new(Sandbox)
		q := tx.NewSelect().Model(box).Column("s.id", "s.desired").Where("s.id = ?", boxID)
		if err := s.lock(q, "SHARE").Scan(ctx); err != nil {
			return notFound(err, "lock box %s", boxID)
		}
		if box.Desired == WantDeleted {
			return ErrDeletionOrdered
		}
		_, err := tx.NewInsert().Model(&attachment{SandboxID: boxID, Process: process, Until: until}).
			On("CONFLICT (sandbox_id, process) DO UPDATE").
			Set("until = EXCLUDED.until").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("attach to box %s: %w", boxID, err)
		}
		return nil
	})
}

// Detach removes the attachment of this process.
func (s *Store) Detach(ctx context.Context, boxID, process uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewDelete().Model((*attachment)(nil)).
			Where("sandbox_id = ? AND process = ?", boxID, process).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("detach from box %s: %w", boxID, err)
		}
		return nil
	})
}

// attachedOf returns which of the boxes have a live attachment.
func attachedOf(ctx context.Context, db bun.IDB, ids []uuid.UUID, now time.Time) (map[uuid.UUID]bool, error) {
	attached := make(map[uuid.UUID]bool)
	if len(ids) == 0 {
		return attached, nil
	}
	var live []uuid.UUID
	err := db.NewSelect().Model((*attachment)(nil)).
		Distinct().
		Column("t.sandbox_id").
		Where("t.sandbox_id IN (?)", bun.List(ids)).
		Where("t.until > ?", now).
		Scan(ctx, &live)
	if err != nil {
		return nil, fmt.Errorf("look for attachments: %w", err)
	}
	for _, id := range live {
		attached[id] = true
	}
	return attached, nil
}
