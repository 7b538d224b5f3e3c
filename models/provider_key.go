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

// ProviderKey is a row of provider_keys: the credential that a provider minted for one user of one organization. It is kept
// across restarts, so that a provider is asked for one once per user and not once per box (S1-032).
type ProviderKey struct {
	bun.BaseModel `bun:"table:provider_keys,alias:pk"`

	Backend  string    `bun:"backend,pk"`
	OrgID    uuid.UUID `bun:"org_id,pk"`
	UserID   uuid.UUID `bun:"user_id,pk"`
	Key      string    `bun:"sealed"` // sealed in the table, plain in what ProviderKey returns
	MintedAt time.Time `bun:"minted_at"`
}

// ProviderKey returns the key of a user at a provider; ErrNotFound when there is none, or none that can be opened: then it is
// minted anew.
func (s *Store) ProviderKey(ctx context.Context, backend string, orgID, userID uuid.UUID) (ProviderKey, error) {
	k := ProviderKey{Backend: backend, OrgID: orgID, UserID: userID}
	err := s.db.NewSelect().Model(&k).WherePK().Scan(ctx)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ProviderKey{}, fmt.Errorf("key of user %s at %s: %w", userID, backend, ErrNotFound)
	case err != nil:
		return ProviderKey{}, fmt.Errorf("read key of user %s at %s: %w", userID, backend, err)
	}
	if k.Key = s.openKey(k.Key); k.Key == "" {
		return ProviderKey{}, fmt.Errorf("open key of user %s at %s: %w", userID, backend, ErrNotFound)
	}
	return k, nil
}

// KeepProviderKey stores a key that was minted now, in place of an older one, and returns its row.
func (s *Store) KeepProviderKey(ctx context.Context, backend string, orgID, userID uuid.UUID, key string) (ProviderKey, error) {
	sealed, err := s.seal(key)
	if err != nil {
		return ProviderKey{}, err
	}
	k := ProviderKey{Backend: backend, OrgID: orgID, UserID: userID, Key: sealed, MintedAt: s.Now()}
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(&k).
			On("CONFLICT (backend, org_id, user_id) DO UPDATE").
			Set("sealed = EXCLUDED.sealed").Set("minted_at = EXCLUDED.minted_at").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("keep key of user %s at %s: %w", userID, backend, err)
		}
		return nil
	})
	k.Key = key
	return k, err
}
