package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/config"
	"automation/models"
	"automation/sandbox"
)

// KeyStore keeps the keys that a provider minted per user (models.Store).
type KeyStore interface {
	// ProviderKey returns the key of a user; models.ErrNotFound.
	ProviderKey(ctx context.Context, backend string, orgID, userID uuid.UUID) (models.ProviderKey, error)
	// KeepProviderKey stores a key that was minted now.
	KeepProviderKey(ctx context.Context, backend string, orgID, userID uuid.UUID, key string) (models.ProviderKey, error)
}

// vainFor is how long no key is minted for a user after one that had just been minted was refused: the user has no right, and
// asking again for every box of theirs would be a storm.
const vainFor = time.Minute

// mintedKeys are the API keys of users at OpenHands Cloud: minted once per user and organization with the service key, kept,
// and minted anew when one is refused.
type mintedKeys struct {
	api     jsonClient
	service config.Secret
	store   KeyStore // nil: memory only
	log     *slog.Logger
	now     func() time.Time

	mu    sync.Mutex
	users map[sandbox.Owner]*userKey
}

// userKey is the key of one user. busy holds one token: whoever has it may look up or mint.
type userKey struct {
	busy   chan struct{}
	key    models.ProviderKey
	vainAt time.Time // when a fresh key was refused
}

func (m *mintedKeys) user(o sandbox.Owner) *userKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.users[o]
	if u == nil {
		u = &userKey{busy: make(chan struct{}, 1)}
		m.users[o] = u
	}
	return u
}

// hold waits for a user's turn; release gives it back.
func (u *userKey) hold(ctx context.Context) (release func(), err error) {
	select {
	case u.busy <- struct{}{}:
		return func() { <-u.busy }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the user's key: %w", ctx.Err())
	}
}

// of returns the user's key, minted where there is none yet.
func (m *mintedKeys) of(ctx context.Context, o sandbox.Owner) (string, error) {
	u := m.user(o)
	release, err := u.hold(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if u.key.Key == "" {
		u.key = m.stored(ctx, o)
	}
	if u.key.Key != "" {
		return u.key.Key, nil
	}
	return m.mint(ctx, o, u)
}

// renew returns another key than the refused one: what somebody else has minted meanwhile, else a new one.
func (m *mintedKeys) renew(ctx context.Context, o sandbox.Owner, refused string) (string, error) {
	u := m.user(o)
	release, err := u.hold(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if u.key.Key != "" && u.key.Key != refused {
		return u.key.Key, nil
	}
	if other := m.stored(ctx, o); other.Key != "" && other.Key != refused {
		u.key = other
		return other.Key, nil
	}
	if m.now().Sub(u.vainAt) < vainFor {
		return "", fmt.Errorf("the key minted at %s: %w", u.key.MintedAt.UTC().Format(time.RFC3339), sandbox.ErrRefused)
	}
	return m.mint(ctx, o, u)
}

// vain records that a key was refused although it had just been renewed.
func (m *mintedKeys) vain(ctx context.Context, o sandbox.Owner) {
	u := m.user(o)
	if release, err := u.hold(ctx); err == nil {
		u.vainAt = m.now()
		release()
	}
}

// stored is the key in the store; one that cannot be had is minted anew.
func (m *mintedKeys) stored(ctx context.Context, o sandbox.Owner) models.ProviderKey {
	if m.store == nil {
		return models.ProviderKey{}
	}
	key, err := m.store.ProviderKey(ctx, openhandsName, o.OrgID, o.UserID)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		m.log.WarnContext(ctx, "key of a user not read", "user_id", o.UserID, "error", err)
	}
	return key
}

// mint asks for a new key. Who is no member any more is sandbox.ErrRefused; nothing of it says anything about a box.
func (m *mintedKeys) mint(ctx context.Context, o sandbox.Owner, u *userKey) (string, error) {
	var answer struct {
		Key string `json:"key"`
	}
	err := m.api.do(ctx, request{
		method: http.MethodPost,
		path:   "/api/service/users/" + url.PathEscape(o.UserID.String()) + "/orgs/" + url.PathEscape(o.OrgID.String()) + "/api-keys",
		header: "X-Service-API-Key", credential: m.service.Reveal(),
		body: map[string]string{"name": "automation"}, within: lifecycleWithin,
	}, &answer)
	switch {
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrInvalid):
		answer, _ := errors.AsType[*sandbox.ProviderError](err)
		return "", fmt.Errorf("no key for user %s: %w: %w", o.UserID, sandbox.ErrRefused, answer)
	case err != nil:
		return "", fmt.Errorf("key for user %s: %w", o.UserID, err)
	case answer.Key == "":
		return "", fmt.Errorf("key for user %s: the answer holds none", o.UserID)
	}
	u.key = models.ProviderKey{Backend: openhandsName, OrgID: o.OrgID, UserID: o.UserID, Key: answer.Key, MintedAt: m.now()}
	if m.store != nil {
		if _, err := m.store.KeepProviderKey(ctx, openhandsName, o.OrgID, o.UserID, answer.Key); err != nil {
			m.log.WarnContext(ctx, "key of a user not kept", "user_id", o.UserID, "error", err)
		}
	}
	return answer.Key, nil
}
