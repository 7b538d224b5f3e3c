package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Export is a row of sandbox_exports: one archive of the history in a box, from before its bytes are written anywhere until
// they are removed. A box may have several; of those that were trusted the one begun last counts.
type Export struct {
	bun.BaseModel `bun:"table:sandbox_exports,alias:x"`

	ID            uuid.UUID              `bun:"id,pk"`
	SandboxID     uuid.UUID              `bun:"sandbox_id"`
	OrgID         uuid.UUID              `bun:"org_id"`
	AwakeEpoch    int64                  `bun:"awake_epoch"` // of the box, as the export saw it
	BlobKey       string                 `bun:"blob_key"`
	BegunAt       time.Time              `bun:"begun_at"`
	TakenAt       *time.Time             `bun:"taken_at"`    // when it was checked and stored; NULL: never
	ObsoleteAt    *time.Time             `bun:"obsolete_at"` // from when on nobody needs it; NULL: not known yet
	Bytes         int64                  `bun:"bytes"`
	SHA256        string                 `bun:"sha256"` // of the stored archive, hexadecimal
	Conversations []ExportedConversation `bun:"conversations,type:jsonb"`
}

// ExportedConversation is one conversation in an export.
type ExportedConversation struct {
	ID     string `json:"id"` // as the agent server names it
	Events int    `json:"events"`
}

// exportAbandoned is the age at which an export that was never finished has lost its maker.
const exportAbandoned = 24 * time.Hour

// ExportCurrent reports whether nothing in the box is newer than what was exported of it: the export was taken by the suspend
// that ended its present time awake (design section 9). Of a box that runs no export is current.
func (b *Sandbox) ExportCurrent() bool {
	return b.Observed == SeenSuspended && b.AwakeEpoch > 0 && b.ExportedEpoch == b.AwakeEpoch
}

// hasCurrentExport reports whether a current export of the box is stored. That there was nothing to export spares a person no
// question: files that are no history go too.
func hasCurrentExport(ctx context.Context, db bun.IDB, b *Sandbox) (bool, error) {
	if !b.ExportCurrent() {
		return false, nil
	}
	stored, err := db.NewSelect().Model((*Export)(nil)).
		Where("x.sandbox_id = ? AND x.awake_epoch = ?", b.ID, b.AwakeEpoch).
		Where("x.taken_at IS NOT NULL AND x.obsolete_at IS NULL").
		Exists(ctx)
	if err != nil {
		return false, fmt.Errorf("look for an export of box %s: %w", b.ID, err)
	}
	return stored, nil
}

// BeginExport writes down that an export of the box is being made, before its blob is: no blob is ever without a row.
func (s *Store) BeginExport(ctx context.Context, b *Sandbox) (*Export, error) {
	now := s.Now()
	abandoned := now.Add(exportAbandoned)
	x := &Export{
		ID: newID(), SandboxID: b.ID, OrgID: b.OrgID, AwakeEpoch: b.AwakeEpoch, BegunAt: now, ObsoleteAt: &abandoned,
		Conversations: []ExportedConversation{},
	}
	x.BlobKey = "exports/" + x.ID.String() + ".zip"
	return x, s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if _, err := tx.NewInsert().Model(x).Exec(ctx); err != nil {
			return fmt.Errorf("begin an export of box %s: %w", b.ID, err)
		}
		return nil
	})
}

// FinishExport records an export that was checked and is stored. Of those that were taken of a box only the one that was begun
// last is needed from then on: what it holds is newest, whichever was finished last.
func (s *Store) FinishExport(ctx context.Context, x *Export) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		q := tx.NewSelect().Model((*Sandbox)(nil)).Column("s.id").Where("s.id = ?", x.SandboxID)
		if err := s.lock(q, "UPDATE").Scan(ctx, new(uuid.UUID)); err != nil { // one after the other
			return notFound(err, "lock box %s", x.SandboxID)
		}
		taken := func(q *bun.SelectQuery) *bun.SelectQuery {
			return q.Model((*Export)(nil)).Where("x.sandbox_id = ?", x.SandboxID).Where("x.taken_at IS NOT NULL AND x.obsolete_at IS NULL")
		}
		late, err := tx.NewSelect().Apply(taken).Where("x.begun_at > ?", x.BegunAt).Exists(ctx)
		if err != nil {
			return fmt.Errorf("look for newer exports of box %s: %w", x.SandboxID, err)
		}
		_, err = tx.NewUpdate().Model((*Export)(nil)).
			Set("obsolete_at = ?", now).
			Where("id IN (?)", tx.NewSelect().Apply(taken).Column("x.id").Where("x.begun_at <= ?", x.BegunAt)).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("make older exports of box %s obsolete: %w", x.SandboxID, err)
		}
		x.TakenAt, x.ObsoleteAt = &now, nil
		if late {
			x.ObsoleteAt = &now
		}
		_, err = tx.NewUpdate().Model(x).Column("taken_at", "obsolete_at", "bytes", "sha256", "conversations").WherePK().Exec(ctx)
		if err != nil {
			return fmt.Errorf("finish an export of box %s: %w", x.SandboxID, err)
		}
		return nil
	})
}

// completeExports fills in the newest trusted export of each box with one statement.
func (s *Store) completeExports(ctx context.Context, boxes []*Sandbox) error {
	if len(boxes) == 0 {
		return nil
	}
	var found []*Export
	err := s.db.NewSelect().Model(&found).
		Where("x.sandbox_id IN (?)", bun.List(boxIDs(boxes))).
		Where("x.taken_at IS NOT NULL AND x.obsolete_at IS NULL").
		OrderExpr("x.begun_at, x.id").
		Scan(ctx)
	if err != nil {
		return fmt.Errorf("read exports: %w", err)
	}
	newest := make(map[uuid.UUID]*Export, len(found))
	for _, x := range found {
		newest[x.SandboxID] = x
	}
	for _, b := range boxes {
		b.Export = newest[b.ID]
	}
	return nil
}

// ExpiredExports returns up to limit exports that nobody needs at now any more: replaced by a newer one, never finished, or of
// a box that has been gone since before gone. ForgetExport removes the row after the blob was.
func (s *Store) ExpiredExports(ctx context.Context, now, gone time.Time, limit int) ([]*Export, error) {
	var obsolete, outlived []*Export
	err := s.db.NewSelect().Model(&obsolete).Where("x.obsolete_at <= ?", now).OrderExpr("x.obsolete_at").Limit(int64(limit)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for obsolete exports: %w", err)
	}
	if len(obsolete) >= limit {
		return obsolete, nil
	}
	err = s.db.NewSelect().Model(&outlived).
		Join("JOIN sandboxes AS s ON s.id = x.sandbox_id").
		Where("x.taken_at < ?", gone). // never after the box went: bounds the scan of the index
		Where("x.obsolete_at IS NULL").
		Where("s.deleted_at < ? OR (s.observed = ? AND s.observed_at < ?)", gone, SeenMissing, gone).
		OrderExpr("x.taken_at").
		Limit(int64(limit - len(obsolete))).
		Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for exports of boxes that are gone: %w", err)
	}
	return append(obsolete, outlived...), nil
}

// ForgetExport removes the row of an export whose blob is removed.
func (s *Store) ForgetExport(ctx context.Context, id uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if _, err := tx.NewDelete().Model((*Export)(nil)).Where("id = ?", id).Exec(ctx); err != nil {
			return fmt.Errorf("forget export %s: %w", id, err)
		}
		return nil
	})
}
