package router

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/models/customer"
)

// Keys of customers and the switch of their agents. Both are for those who manage a tenant's automations.

// permissionWord is what a key's permission may look like. Words that this service does not know are stored and grant nothing
// here (S2-005); the answer says which.
var permissionWord = regexp.MustCompile(`^[a-z][a-z0-9_.:/*-]{0,99}$`)

// granting are the permissions that grant something.
var granting = []string{customer.ReadSandboxes, customer.WriteSandboxes, customer.Everything}

// newKey is POST /keys.
var newKey = object([]field{
	{name: "name", required: true, rule: text(1, 200)},
	{name: "tenant", rule: identifier},
	{name: "kind", absent: string(customer.APIKey), rule: oneOf("enum", string(customer.APIKey), string(customer.AccessToken))},
	{name: "permissions", required: true, rule: permissionList},
	{name: "expires_in_seconds", rule: between(1, 10*365*24*3600)},
})

var permissionList = rule{checkPermissions, schema{"type": "array", "minItems": 1, "maxItems": 50, "items": schema{"type": "string", "maxLength": 100}}}

func checkPermissions(c *check, at loc, v any) any {
	list, isList := v.([]any)
	if !isList || len(list) == 0 || len(list) > 50 {
		c.add("list_type", at, "Input should be a list of 1 to 50 permissions", v, nil)
		return nil
	}
	var words []string
	for i, item := range list {
		word, isText := item.(string)
		if !isText || !permissionWord.MatchString(word) {
			c.refuse(at.at(i), item, saysf("a permission is a word such as %q, %q or %q", granting[0], granting[1], granting[2]))
			continue
		}
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

// agentSwitch is PUT …/agent-feature.
var agentSwitch = object([]field{{name: "enabled", required: true, rule: boolean}})

// keyQuery are the parameters of the list of keys.
var keyQuery = append(slices.Clone(paging), field{name: "tenant", rule: identifier})

// keyObject is a key without its secret.
type keyObject struct {
	ID          uuid.UUID `json:"id"`
	Tenant      uuid.UUID `json:"tenant"`
	Kind        string    `json:"kind"`
	Name        string    `json:"name"`
	Start       string    `json:"start"` // of the secret
	Permissions []string  `json:"permissions"`
	Ineffective []string  `json:"ineffective"` // of them, those that grant nothing here
	CreatedBy   uuid.UUID `json:"created_by"`
	CreatedAt   stamp     `json:"created_at"`
	ExpiresAt   *stamp    `json:"expires_at"`
	RevokedAt   *stamp    `json:"revoked_at"`
	LastUsedAt  *stamp    `json:"last_used_at"`
}

// newKeyObject is a key with its secret, which is shown this once.
type newKeyObject struct {
	keyObject
	Key string `json:"key"`
}

type keyList struct {
	Keys  []keyObject `json:"keys"`
	Total int         `json:"total"`
}

type switchObject struct {
	ID      uuid.UUID `json:"id"` // of the sandbox or tenant
	Enabled bool      `json:"enabled"`
}

func showKey(k *customer.Key) keyObject {
	o := keyObject{
		ID: k.ID, Tenant: k.OrgID, Kind: string(k.Kind), Name: k.Name, Start: k.Start, Permissions: k.Grants(), Ineffective: []string{},
		CreatedBy: k.CreatorID, CreatedAt: stamp(k.CreatedAt), ExpiresAt: optStamp(k.ExpiresAt), RevokedAt: optStamp(k.RevokedAt), LastUsedAt: optStamp(k.LastUsedAt),
	}
	for _, word := range o.Permissions {
		if !slices.Contains(granting, word) {
			o.Ineffective = append(o.Ineffective, word)
		}
	}
	return o
}

// managesTenant lets in who manages the tenant: their own, with the permission for it.
func (c Caller) managesTenant(tenant uuid.UUID) error {
	if tenant != c.OrgID {
		return forbidden("Only the tenant " + c.OrgID.String() + " can be managed with this login")
	}
	if !c.may(manageAutomations) {
		return forbidden("Requires " + manageAutomations + " permission")
	}
	return nil
}

// tenantOf is the tenant that a request names, or the caller's.
func (c Caller) tenantOf(in values) uuid.UUID {
	if named := opt[uuid.UUID](in, "tenant"); named != nil {
		return *named
	}
	return c.OrgID
}

// createKey is POST /v1/keys.
func (s *server) createKey(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, newKey, false)
	if err != nil {
		return err
	}
	k := &customer.Key{
		OrgID: who.tenantOf(in), Kind: customer.KeyKind(get[string](in, "kind")), Name: get[string](in, "name"),
		CreatorOrg: who.OrgID, CreatorID: who.UserID,
	}
	if err := who.managesTenant(k.OrgID); err != nil {
		return err
	}
	if life := opt[int64](in, "expires_in_seconds"); life != nil {
		at := s.Store.Now().Add(time.Duration(*life) * time.Second)
		k.ExpiresAt = &at
	}
	secret, err := s.Customers.Store.CreateKey(r.Context(), k, get[[]string](in, "permissions"))
	if err != nil {
		return err
	}
	return created(w, newKeyObject{showKey(k), secret})
}

// listKeys is GET /v1/keys.
func (s *server) listKeys(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, keyQuery...)
	if err := c.err(); err != nil {
		return err
	}
	tenant := who.tenantOf(in)
	if err := who.managesTenant(tenant); err != nil {
		return err
	}
	keys, total, err := s.Customers.Store.Keys(r.Context(), tenant, int(get[int64](in, "limit")), int(get[int64](in, "offset")))
	if err != nil {
		return err
	}
	list := keyList{Keys: []keyObject{}, Total: total}
	for _, k := range keys {
		list.Keys = append(list.Keys, showKey(k))
	}
	return ok(w, list)
}

// revokeKey is DELETE /v1/keys/{id}.
func (s *server) revokeKey(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "id")
	if err := c.err(); err != nil {
		return err
	}
	k, err := s.Customers.Store.Key(r.Context(), id)
	if errors.Is(err, models.ErrNotFound) || err == nil && k.OrgID != who.OrgID {
		return notFound("Key not found")
	}
	if err == nil {
		err = who.managesTenant(k.OrgID)
	}
	if err == nil {
		err = s.Customers.Store.RevokeKey(r.Context(), id)
	}
	if err != nil {
		return err
	}
	return noContent(w)
}

// switchSandbox is PUT /v1/sandboxes/{id}/agent-feature.
func (s *server) switchSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in, err := s.body(&c, w, r, agentSwitch, false)
	if err != nil {
		return err
	}
	b, err := s.box(r, who)
	if err != nil {
		return err
	}
	return s.switchAgents(w, r, who, b.OrgID, b.ID, get[bool](in, "enabled"))
}

// switchTenant is PUT /v1/tenants/{id}/agent-feature.
func (s *server) switchTenant(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	id := c.pathID(r, "id")
	in, err := s.body(&c, w, r, agentSwitch, false)
	if err != nil {
		return err
	}
	return s.switchAgents(w, r, who, id, id, get[bool](in, "enabled"))
}

func (s *server) switchAgents(w http.ResponseWriter, r *http.Request, who Caller, tenant, scope uuid.UUID, on bool) error {
	if err := who.managesTenant(tenant); err != nil {
		return err
	}
	if err := s.Customers.Store.SwitchAgents(r.Context(), tenant, scope, on, who.name()); err != nil {
		return err
	}
	return ok(w, switchObject{ID: scope, Enabled: on})
}
