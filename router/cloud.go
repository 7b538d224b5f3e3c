package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/config"
)

// userBytes bounds what is read of an answer about a user.
const userBytes = 1 << 20

// Cloud is the Cloud check of the contract (section 1.1): it asks OpenHands Cloud whose credential it is. Who was found is
// remembered for a while; refusals and failures never are.
type Cloud struct {
	base     string // of the API, without a slash at its end
	http     *http.Client
	settings config.Auth
	within   time.Duration
	log      *slog.Logger
	now      func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]knownCaller
	order []knownKey // oldest first
}

type knownCaller struct {
	who   Caller
	until time.Time
}

type knownKey struct {
	key   [sha256.Size]byte
	until time.Time
}

var _ Verifier = (*Cloud)(nil)

// NewCloud makes the check against the configured API.
func NewCloud(c config.Config, log *slog.Logger) *Cloud {
	return &Cloud{
		base: strings.TrimRight(c.Sandbox.APIBaseURL, "/"), settings: c.Auth, within: c.HTTP.Timeout, log: log,
		http: &http.Client{
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
				TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
			},
			// The credential goes to no other address.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		now: time.Now, known: map[[sha256.Size]byte]knownCaller{},
	}
}

// Close lets go of idle connections.
func (c *Cloud) Close() { c.http.CloseIdleConnections() }

// Verify returns whose credential it is, or the contract's refusal.
func (c *Cloud) Verify(ctx context.Context, cred Credential) (Caller, error) {
	if cred.OrgID != "" {
		id, err := uuid.Parse(cred.OrgID)
		if err != nil {
			return Caller{}, Refuse(http.StatusBadRequest, "Invalid X-Org-Id header (must be a UUID)")
		}
		cred.OrgID = id.String()
	}
	key := sha256.Sum256([]byte(cred.Cookie + "\x00" + cred.OrgID + "\x00" + cred.Key))
	if who, ok := c.remembered(key); ok {
		return who, nil
	}
	status, body, err := c.ask(ctx, cred)
	switch {
	case ctx.Err() != nil:
		return Caller{}, fmt.Errorf("ask whose credential it is: %w", ctx.Err())
	case err != nil:
		c.log.WarnContext(ctx, "login check failed", "error", err)
		return Caller{}, Refuse(http.StatusBadGateway, "Failed to reach OpenHands API for authentication")
	}
	who, err := callerOf(status, body, cred)
	if err == nil {
		c.remember(key, who)
	}
	return who, err
}

// PermissionsNow returns what the user whose key it is may do in an organization at this moment; none where the key is refused.
func (c *Cloud) PermissionsNow(ctx context.Context, key string, orgID uuid.UUID) ([]string, error) {
	cred := Credential{Key: key, OrgID: orgID.String()}
	status, body, err := c.ask(ctx, cred)
	if err != nil {
		return nil, fmt.Errorf("ask what a user may do: %w", err)
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return nil, nil
	}
	who, err := callerOf(status, body, cred)
	if who.OrgID != orgID { // what is known of another organization says nothing of this one
		return nil, err
	}
	return who.Permissions, err
}

// ask makes the request; a 429 is repeated with growing waits.
func (c *Cloud) ask(ctx context.Context, cred Credential) (status int, body []byte, err error) {
	wait := c.settings.InitialBackoff
	for try := 0; ; try++ {
		status, body, err = c.askOnce(ctx, cred, userPath)
		if err != nil || status != http.StatusTooManyRequests || try >= c.settings.MaxRetries {
			return status, body, err
		}
		timer := time.NewTimer(min(wait, c.settings.MaxBackoff))
		wait *= 2
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, nil, ctx.Err()
		}
	}
}

// askOnce makes one request with a caller's credential.
func (c *Cloud) askOnce(ctx context.Context, cred Credential, path string) (int, []byte, error) {
	call, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	r, err := http.NewRequestWithContext(call, http.MethodGet, c.base+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if cred.Cookie != "" {
		r.Header.Set("Cookie", cred.Cookie+"="+cred.Key)
	} else {
		r.Header.Set("Authorization", "Bearer "+cred.Key)
	}
	if cred.OrgID != "" {
		r.Header.Set("X-Org-Id", cred.OrgID)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, userBytes))
	return resp.StatusCode, body, err
}

// callerOf reads an answer, in the contract's words.
func callerOf(status int, body []byte, cred Credential) (Caller, error) {
	switch {
	case status == http.StatusUnauthorized && cred.Cookie != "":
		return Caller{}, Refuse(http.StatusUnauthorized, "Invalid or expired session cookie")
	case status == http.StatusUnauthorized:
		return Caller{}, Refuse(http.StatusUnauthorized, "Invalid or expired API key")
	case status == http.StatusTooManyRequests:
		return Caller{}, Refuse(http.StatusTooManyRequests, "Rate limited by authentication service")
	case status != http.StatusOK:
		return Caller{}, Refuse(http.StatusBadGateway, "Unexpected response from OpenHands API")
	}
	var user *struct {
		ID          *string         `json:"id"`
		OrgID       *string         `json:"org_id"`
		Email       *string         `json:"email"`
		Role        *string         `json:"role"`
		Permissions []string        `json:"permissions"`
		Profiles    json.RawMessage `json:"llm_profiles"`
	}
	if err := json.Unmarshal(body, &user); err != nil || user == nil {
		return Caller{}, Refuse(http.StatusBadGateway, "Unexpected response shape from OpenHands API")
	}
	if orEmpty(user.ID) == "" || orEmpty(user.OrgID) == "" {
		return Caller{}, Refuse(http.StatusBadGateway, "Could not determine user/org identity from OpenHands API")
	}
	id, idErr := uuid.Parse(*user.ID)
	org, orgErr := uuid.Parse(*user.OrgID)
	if idErr != nil || orgErr != nil {
		return Caller{}, Refuse(http.StatusBadGateway, "Invalid user_id or org_id format from OpenHands API")
	}
	who := Caller{
		UserID: id, OrgID: org, Email: orEmpty(user.Email), Role: orEmpty(user.Role), Permissions: user.Permissions,
		Models: profilesOf(user.Profiles),
	}
	if cred.Cookie == "" {
		who.APIKey = cred.Key
	}
	return who, nil
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// profilesOf reads model profiles; nil where they have any other shape than the contract's.
func profilesOf(raw json.RawMessage) *Profiles {
	var p struct {
		Profiles map[string]json.RawMessage `json:"profiles"`
		Active   *string                    `json:"active"`
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if err := decoder.Decode(&p); err != nil || p.Profiles == nil {
		return nil
	}
	return &Profiles{Names: slices.Sorted(maps.Keys(p.Profiles)), Active: orEmpty(p.Active)}
}

func (c *Cloud) remembered(key [sha256.Size]byte) (Caller, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.known[key]
	return found.who, ok && c.now().Before(found.until)
}

// remember keeps a caller for the configured time, and forgets what is over and what is too much, oldest first.
func (c *Cloud) remember(key [sha256.Size]byte, who Caller) {
	if c.settings.CacheTTL <= 0 || c.settings.CacheSize <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	until := now.Add(c.settings.CacheTTL)
	c.known[key] = knownCaller{who: who, until: until}
	c.order = append(c.order, knownKey{key: key, until: until})
	for len(c.order) > 0 && (len(c.known) > c.settings.CacheSize || !now.Before(c.order[0].until)) {
		oldest := c.order[0]
		c.order = c.order[1:]
		if c.known[oldest.key].until.Equal(oldest.until) { // not seen again since
			delete(c.known, oldest.key)
		}
	}
}
