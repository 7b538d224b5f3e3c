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

// RecordIdentity stores a fact, unconditionally, whatever the lease, the generation or the run's status: the identity (URL
// and key are updated when not empty, gone_at cleared only by a later sighting of the same id) and the box's present url and
// key. seen_at stays the time of the first sighting, so that the identities' order is the order in which they were named. A
// box that was taken for missing or deleted gets work again by an identity that nobody saw gone: else it would leak.
func (s *Store) RecordIdentity(ctx context.Context, id Identity) error {
	id.SessionKey = s.sealKey(id.SessionKey)
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		return s.recordIdentityTx(ctx, tx, id, s.Now())
	})
}

// sealKey encrypts a session key for a row. A key that cannot be sealed is left out rather than the fact that comes with it: a
// key can be read anew from the provider, an identity that nobody stored cannot.
func (s *Store) sealKey(plain string) string {
	sealed, err := s.seal(plain)
	if err != nil {
		return ""
	}
	return sealed
}

// recordIdentityTx is RecordIdentity with a sealed key, inside the caller's transaction.
func (s *Store) recordIdentityTx(ctx context.Context, tx bun.IDB, id Identity, now time.Time) error {
	if id.SeenAt.IsZero() {
		id.SeenAt = now
	}
	box := new(Sandbox)
	q := tx.NewSelect().Model(box).Column("s.id", "s.observed", "s.next_step_at").Where("s.id = ?", id.SandboxID)
	if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
		return notFound(err, "lock box %s", id.SandboxID)
	}
	old := Identity{SandboxID: id.SandboxID, Kind: id.Kind, ProviderID: id.ProviderID}
	err := tx.NewSelect().Model(&old).WherePK().Scan(ctx)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if _, err := tx.NewInsert().Model(&id).Exec(ctx); err != nil {
			return fmt.Errorf("record %s %s of box %s: %w", id.Kind, id.ProviderID, id.SandboxID, err)
		}
	case err != nil:
		return fmt.Errorf("read %s %s of box %s: %w", id.Kind, id.ProviderID, id.SandboxID, err)
	default:
		if err := sightAgainTx(ctx, tx, &old, id); err != nil {
			return err
		}
		id = old
	}
	return currentIdentityTx(ctx, tx, box, id, now)
}

// sightAgainTx stores what a later sighting of a known identity adds.
func sightAgainTx(ctx context.Context, tx bun.IDB, old *Identity, id Identity) error {
	if id.URL != "" {
		old.URL = id.URL
	}
	if id.SessionKey != "" {
		old.SessionKey = id.SessionKey
	}
	if old.GoneAt != nil && id.SeenAt.After(*old.GoneAt) {
		old.GoneAt, old.SeenAt = nil, id.SeenAt
	}
	_, err := tx.NewUpdate().Model(old).Column("url", "session_key", "seen_at", "gone_at").WherePK().Exec(ctx)
	if err != nil {
		return fmt.Errorf("record %s %s of box %s again: %w", id.Kind, id.ProviderID, id.SandboxID, err)
	}
	return nil
}

// currentIdentityTx writes to the box what follows from a fact about one of its identities.
func currentIdentityTx(ctx context.Context, tx bun.IDB, box *Sandbox, id Identity, now time.Time) error {
	q := tx.NewUpdate().Model((*Sandbox)(nil)).Where("id = ?", box.ID)
	changes := false
	set := func(expr string, arg any) { q, changes = q.Set(expr, arg), true }
	if id.Kind == IdentityBox && id.URL != "" {
		set("url = ?", id.URL)
	}
	if id.Kind == IdentityBox && id.SessionKey != "" {
		set("session_key = ?", id.SessionKey)
	}
	if id.GoneAt == nil && (box.Observed == SeenDeleted || box.Observed == SeenMissing) {
		set("observed = ?", SeenMissing)
		q = q.Set("deleted_at = NULL")
		if box.NextStepAt == nil {
			set("next_step_at = ?", now)
		}
	}
	if !changes {
		return nil
	}
	if _, err := q.Exec(ctx); err != nil {
		return fmt.Errorf("record what box %s is called now: %w", box.ID, err)
	}
	return nil
}

// MarkGone stores that the provider shows the identity gone; a fact.
func (s *Store) MarkGone(ctx context.Context, boxID uuid.UUID, kind IdentityKind, providerID string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model((*Identity)(nil)).
			Set("gone_at = ?", s.Now()).
			Where("sandbox_id = ? AND kind = ? AND provider_id = ?", boxID, kind, providerID).
			Where("gone_at IS NULL").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("mark %s %s of box %s gone: %w", kind, providerID, boxID, err)
		}
		return nil
	})
}

// MarkCreate stores create_sent_at (sent true) or create_ended_at, WHERE the lease is token's. ErrLeaseLost otherwise. Any
// error of sent true means: do not call Create. It is ErrDeletionOrdered for a box that is not wanted any more, and
// ErrConflict for a row on which Create was sent before: it is never repeated on a row.
func (s *Store) MarkCreate(ctx context.Context, boxID, token uuid.UUID, sent bool) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		box := new(Sandbox)
		q := tx.NewSelect().Model(box).Column("s.id", "s.desired", "s.create_sent_at").
			Where("s.id = ? AND s.lease_token = ?", boxID, token)
		if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
			return leaseLost(err, "mark the create of box %s", boxID)
		}
		column := "create_ended_at"
		if sent {
			column = "create_sent_at"
			switch {
			case box.Desired == WantDeleted:
				return ErrDeletionOrdered
			case box.CreateSentAt != nil:
				return fmt.Errorf("create of box %s was sent before: %w", boxID, ErrConflict)
			}
		}
		_, err := tx.NewUpdate().Model((*Sandbox)(nil)).Set("? = ?", bun.Ident(column), s.Now()).Where("id = ?", boxID).Exec(ctx)
		if err != nil {
			return fmt.Errorf("mark the create of box %s: %w", boxID, err)
		}
		return nil
	})
}
