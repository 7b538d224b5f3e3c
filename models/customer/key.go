package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"automation/models"
)

// KeyKind tells the two kinds of credentials apart (S2-002).
type KeyKind string

// The kinds.
const (
	APIKey      KeyKind = "api_key"      // of a workspace
	AccessToken KeyKind = "access_token" // of a customer
)

// prefixes start the secret of each kind.
var prefixes = map[KeyKind]string{APIKey: "wak_", AccessToken: "cat_"}

// Permissions that a key can hold. Every other word grants nothing here: a legacy scope, a repository grant (S2-005).
const (
	ReadSandboxes  = "sandboxes:read"
	WriteSandboxes = "sandboxes:write"
	Everything     = "all:all" // within what its creator may do at the moment (S2-006)
)

// Key is a row of customer_keys. The secret itself is stored nowhere.
type Key struct {
	bun.BaseModel `bun:"table:customer_keys,alias:k"`

	ID          uuid.UUID  `bun:"id,pk"`
	OrgID       uuid.UUID  `bun:"org_id"` // the tenant
	Kind        KeyKind    `bun:"kind"`
	Name        string     `bun:"name"`
	Start       string     `bun:"start"` // of the secret, to be told from others
	Hash        []byte     `bun:"hash"`
	Permissions string     `bun:"permissions"` // JSON list; see Grants
	CreatorOrg  uuid.UUID  `bun:"creator_org"` // the organization its creator was logged in to
	CreatorID   uuid.UUID  `bun:"creator_id"`
	CreatedAt   time.Time  `bun:"created_at"`
	ExpiresAt   *time.Time `bun:"expires_at"`
	RevokedAt   *time.Time `bun:"revoked_at"`
	LastUsedAt  *time.Time `bun:"last_used_at"`
}

// Grants are the permissions of the key.
func (k *Key) Grants() []string {
	var all []string
	_ = json.Unmarshal([]byte(k.Permissions), &all) // written by CreateKey
	return all
}

// usedEvery is how often the use of a key is recorded at most.
const usedEvery = time.Minute

// CreateKey stores a new key and returns its secret, which is shown this once.
func (s *Store) CreateKey(ctx context.Context, k *Key, grants []string) (secret string, err error) {
	list, err := json.Marshal(grants)
	if err != nil {
		return "", err
	}
	secret = newSecret(prefixes[k.Kind])
	k.ID, k.CreatedAt = uuid.Must(uuid.NewV7()), s.core.Now()
	k.Start, k.Hash, k.Permissions = secret[:12], hashOf(secret), string(list)
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(k).Exec(ctx)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("create key %q: %w", k.Name, err)
	}
	return secret, nil
}

// IsKey reports whether a credential has the shape of a key.
func IsKey(secret string) bool {
	return strings.HasPrefix(secret, prefixes[APIKey]) || strings.HasPrefix(secret, prefixes[AccessToken])
}

// KeyOf returns the key with this secret and records that it is used; models.ErrNotFound when there is none that is valid now.
func (s *Store) KeyOf(ctx context.Context, secret string) (*Key, error) {
	k, now := new(Key), s.core.Now()
	err := s.core.Reads().NewSelect().Model(k).
		Where("k.hash = ?", hashOf(secret)).
		Where("k.revoked_at IS NULL").
		Where("k.expires_at IS NULL OR k.expires_at > ?", now).
		Scan(ctx)
	if err != nil {
		return nil, missing(err, "look a key up")
	}
	if k.LastUsedAt != nil && now.Sub(*k.LastUsedAt) < usedEvery {
		return k, nil
	}
	k.LastUsedAt = &now
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model(k).Column("last_used_at").WherePK().Exec(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("record the use of key %s: %w", k.ID, err)
	}
	return k, nil
}

// Keys returns the keys of a tenant, newest first, and how many there are.
func (s *Store) Keys(ctx context.Context, orgID uuid.UUID, limit, offset int) (keys []*Key, total int, err error) {
	count, err := s.core.Reads().NewSelect().Model(&keys).
		Where("k.org_id = ?", orgID).
		OrderExpr("k.created_at DESC, k.id DESC").
		Limit(int64(limit)).Offset(int64(offset)).
		ScanAndCount(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list keys: %w", err)
	}
	return keys, int(count), nil
}

// Key returns one; models.ErrNotFound.
func (s *Store) Key(ctx context.Context, id uuid.UUID) (*Key, error) {
	k := &Key{ID: id}
	err := s.core.Reads().NewSelect().Model(k).WherePK().Scan(ctx)
	return k, missing(err, "read key %s", id)
}

// RevokeKey ends a key's validity at once; one that was revoked stays so.
func (s *Store) RevokeKey(ctx context.Context, id uuid.UUID) error {
	err := s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		n, err := changed(tx.NewUpdate().Model((*Key)(nil)).
			Set("revoked_at = COALESCE(revoked_at, ?)", s.core.Now()).
			Where("id = ?", id).Exec(ctx))
		if err == nil && n == 0 {
			err = models.ErrNotFound
		}
		return err
	})
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return fmt.Errorf("revoke key %s: %w", id, err)
	}
	return err
}
