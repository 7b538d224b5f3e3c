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

// Listed is one box that a provider listed under our deployment label.
type Listed struct {
	Kind        IdentityKind
	ProviderID  string
	WorkspaceID uuid.UUID // from the label; uuid.Nil when unreadable
	Observed    Observed
}

// SightOrphan handles one listed box after the list was read. Known identity: nothing (false), but one that was taken for
// gone for longer than quarantine, which a list that lags cannot explain, is sighted anew (true), and a row at rest that is
// taken for missing is looked at again (false). Row of that workspace id
// without this identity (a create whose answer was lost): the identity is recorded and the row nudged (true). No row: one is
// inserted, created_by orphan, ordered deleted with next_step_at = now + quarantine, and its identity (true). What it deletes
// carries our deployment's label: nothing else is ever listed (S0-002).
func (s *Store) SightOrphan(ctx context.Context, p Place, l Listed, quarantine time.Duration) (bool, error) {
	sighted := false
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		sighted = false
		now := s.Now()
		known, err := knownIdentity(ctx, tx, p, l)
		if err != nil {
			return err
		}
		switch {
		case known == nil:
		case known.GoneAt == nil && known.Observed == SeenMissing:
			return restingNudgeTx(ctx, tx, known.SandboxID, now)
		case known.GoneAt == nil || known.GoneAt.After(now.Add(-quarantine)):
			return nil
		}
		sighted = true
		boxID := orphanID(p, l)
		if known != nil {
			boxID = known.SandboxID
		}
		if err := s.insertOrphanTx(ctx, tx, p, l, boxID, now, quarantine); err != nil {
			return err
		}
		id := Identity{SandboxID: boxID, Kind: l.Kind, ProviderID: l.ProviderID, SeenAt: now}
		return s.recordIdentityTx(ctx, tx, id, now)
	})
	return sighted, err
}

// orphanID is the workspace id of a listed box. Where the label is unreadable it follows from the provider's name of the box,
// so that two processes that see the same box make one row.
func orphanID(p Place, l Listed) uuid.UUID {
	if l.WorkspaceID != uuid.Nil {
		return l.WorkspaceID
	}
	name := fmt.Sprintf("%s\x00%s\x00%s\x00%s", p.Backend, p.Location, l.Kind, l.ProviderID)
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(name))
}

// owned is an identity that a row has, and what the row's box was last seen as.
type owned struct {
	SandboxID uuid.UUID
	GoneAt    *time.Time
	Observed  Observed
}

func knownIdentity(ctx context.Context, tx bun.IDB, p Place, l Listed) (*owned, error) {
	known := new(owned)
	err := tx.NewSelect().Model((*Identity)(nil)).
		Column("i.sandbox_id", "i.gone_at", "s.observed").
		Join("JOIN sandboxes AS s ON s.id = i.sandbox_id").
		Where("i.provider_id = ? AND i.kind = ?", l.ProviderID, l.Kind).
		Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
		OrderExpr("i.gone_at IS NULL DESC, i.seen_at DESC").
		Limit(1).
		Scan(ctx, known)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s %s: %w", l.Kind, l.ProviderID, err)
	}
	return known, nil
}

// insertOrphanTx makes the row of a listed box that has none; one that exists and that nobody holds is nudged.
func (s *Store) insertOrphanTx(ctx context.Context, tx bun.IDB, p Place, l Listed, boxID uuid.UUID, now time.Time, quarantine time.Duration) error {
	after := now.Add(quarantine)
	box := &Sandbox{
		ID: boxID, Backend: p.Backend, Location: p.Location, CreatedBy: CreatedByOrphan,
		Desired: WantDeleted, Observed: l.Observed, ObservedAt: &now,
		Generation: 1, OrderedAt: now, OrderedBy: "orphans", OrderReason: "no row owned it",
		NextStepAt: &after, Tried: []string{}, CreatedAt: now,
	}
	inserted, err := affected(tx.NewInsert().Model(box).On("CONFLICT (id) DO NOTHING").Exec(ctx))
	if err != nil {
		return fmt.Errorf("insert the row of orphan %s: %w", l.ProviderID, err)
	}
	if inserted == 0 {
		return nudgeTx(ctx, tx, boxID, now, true)
	}
	found := box.event("orphan", "orphans", l.ProviderID+" was listed and no row owned it", now)
	return appendEventsTx(ctx, tx, now, []Event{found})
}

// Known is an identity of a row at rest that a list may fail to show.
type Known struct {
	BoxID      uuid.UUID
	ProviderID string
}

// KnownBoxes returns the open box identities of the place seen before t whose rows are not deleted or missing; those that a
// list taken after t does not show are nudged (NudgeBox), so that the settler inspects them under the lease. Rows that
// somebody works on are left out.
func (s *Store) KnownBoxes(ctx context.Context, p Place, t time.Time) ([]Known, error) {
	var known []Known
	err := knownBoxes(s.db, p, t, s.Now()).Scan(ctx, &known)
	if err != nil {
		return nil, fmt.Errorf("read the known boxes of %s: %w", p.Backend, err)
	}
	return known, nil
}

func knownBoxes(db bun.IDB, p Place, t, now time.Time) *bun.SelectQuery {
	return db.NewSelect().
		TableExpr("sandboxes AS s").
		Join("JOIN sandbox_identities AS i ON i.sandbox_id = s.id").
		ColumnExpr("s.id AS box_id").
		Column("i.provider_id").
		Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
		Where("s.observed <> 'deleted' AND s.observed <> 'missing'").
		Where("s.lease_until IS NULL OR s.lease_until <= ?", now).
		Where("i.kind = ?", IdentityBox).
		Where("i.gone_at IS NULL").
		Where("i.seen_at < ?", t).
		OrderExpr("s.id, i.provider_id")
}

// NudgeBox sets next_step_at = now where the row is at rest or later.
func (s *Store) NudgeBox(ctx context.Context, boxID uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error { return nudgeTx(ctx, tx, boxID, s.Now(), false) })
}

// restingNudgeTx is NudgeBox of a row at rest: one that is worked on finds out by itself.
func restingNudgeTx(ctx context.Context, tx bun.IDB, boxID uuid.UUID, now time.Time) error {
	_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
		Set("next_step_at = ?", now).
		Where("id = ? AND next_step_at IS NULL AND lease_until IS NULL", boxID).
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("nudge box %s: %w", boxID, err)
	}
	return nil
}

// nudgeTx is NudgeBox; unowned leaves a row alone that somebody holds a lease on: a dispatch that is creating the box.
func nudgeTx(ctx context.Context, tx bun.IDB, boxID uuid.UUID, now time.Time, unowned bool) error {
	q := tx.NewUpdate().Model((*Sandbox)(nil)).
		Set("next_step_at = ?", now).
		Where("id = ?", boxID).
		Where("next_step_at IS NULL OR next_step_at > ?", now)
	if unowned {
		q = q.Where("lease_until IS NULL OR lease_until <= ?", now)
	}
	if _, err := q.Exec(ctx); err != nil {
		return fmt.Errorf("nudge box %s: %w", boxID, err)
	}
	return nil
}
