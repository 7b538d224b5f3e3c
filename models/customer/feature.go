package customer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// feature is a row of agent_features: agents are on or off for a sandbox, or for a tenant where a sandbox says nothing.
type feature struct {
	bun.BaseModel `bun:"table:agent_features,alias:f"`

	ScopeID   uuid.UUID `bun:"scope_id,pk"` // of a sandbox or of a tenant
	OrgID     uuid.UUID `bun:"org_id"`
	Enabled   bool      `bun:"enabled"`
	ChangedAt time.Time `bun:"changed_at"`
	ChangedBy string    `bun:"changed_by"`
}

// SwitchAgents turns agents on or off for a scope: a sandbox of the tenant, or the tenant itself.
func (s *Store) SwitchAgents(ctx context.Context, orgID, scopeID uuid.UUID, on bool, who string) error {
	row := &feature{ScopeID: scopeID, OrgID: orgID, Enabled: on, ChangedAt: s.core.Now(), ChangedBy: who}
	err := s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(row).
			On("CONFLICT (scope_id) DO UPDATE").
			Set("enabled = EXCLUDED.enabled, changed_at = EXCLUDED.changed_at, changed_by = EXCLUDED.changed_by").
			Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("switch agents of %s: %w", scopeID, err)
	}
	return nil
}

// AgentsOn reports whether agents are on for a sandbox: what was said of it, else of its tenant, else no.
func (s *Store) AgentsOn(ctx context.Context, orgID, sandboxID uuid.UUID) (bool, error) {
	var on bool
	err := s.core.Reads().NewSelect().Model((*feature)(nil)).Column("enabled").
		Where("f.scope_id IN (?)", bun.List([]uuid.UUID{sandboxID, orgID})).
		OrderExpr("CASE WHEN f.scope_id = ? THEN 0 ELSE 1 END", sandboxID).
		Limit(1).
		Scan(ctx, &on)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read whether agents are on for %s: %w", sandboxID, err)
	}
	return on, nil
}
