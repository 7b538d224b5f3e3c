package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// OtherCreates reports whether another create for the box's user at its backend was on its way at any time from from until
// until: what the provider made in that time may be that one's (design section 5).
func (s *Store) OtherCreates(ctx context.Context, box *Sandbox, from, until time.Time) (bool, error) {
	found, err := s.db.NewSelect().Model((*Sandbox)(nil)).
		Where("s.backend = ? AND s.org_id = ? AND s.user_id = ?", box.Backend, box.OrgID, box.UserID).
		Where("s.id <> ?", box.ID).
		Where("s.create_sent_at <= ?", until).
		Where("s.create_ended_at IS NULL OR s.create_ended_at >= ?", from).
		Exists(ctx)
	if err != nil {
		return false, fmt.Errorf("look for other creates beside that of box %s: %w", box.ID, err)
	}
	return found, nil
}

// KnownAt returns which of a backend's ids are identities of rows, gone ones too.
func (s *Store) KnownAt(ctx context.Context, backend string, providerIDs []string) (map[string]uuid.UUID, error) {
	known := map[string]uuid.UUID{}
	if len(providerIDs) == 0 {
		return known, nil
	}
	var found []Known
	err := s.db.NewSelect().
		TableExpr("sandbox_identities AS i").
		Join("JOIN sandboxes AS s ON s.id = i.sandbox_id").
		ColumnExpr("s.id AS box_id").
		Column("i.provider_id").
		Where("s.backend = ?", backend).
		Where("i.provider_id IN (?)", bun.List(providerIDs)).
		Scan(ctx, &found)
	if err != nil {
		return nil, fmt.Errorf("look for the rows of %d boxes of %s: %w", len(providerIDs), backend, err)
	}
	for _, k := range found {
		known[k.ProviderID] = k.BoxID
	}
	return known, nil
}
