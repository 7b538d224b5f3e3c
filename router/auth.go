package router

import (
	"context"
	"crypto/subtle"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Permissions of a caller (contract section 1.1).
const (
	viewAutomations   = "view_automations"
	manageAutomations = "manage_automations"
)

// The local user of the contract's section 1.1: uuid5 of the DNS namespace.
var (
	localUserID = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-user"))
	localOrgID  = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org"))
)

// localPermissions are those of the local user.
var localPermissions = []string{viewAutomations, manageAutomations}

// Caller is who asks. Everything a caller sees or changes is in the caller's organization.
type Caller struct {
	UserID      uuid.UUID
	OrgID       uuid.UUID
	Email       string
	Role        string
	Permissions []string
	APIKey      string     // the bearer key, for calls in the caller's name; "" for the local user and cookies
	Models      *Profiles  // model profiles; nil: not known
	runID       uuid.UUID  // not Nil: a run token, good for that run alone
	credential  Credential // that Cloud knows the caller by; zero: Cloud does not
}

// Profiles are the model profiles of a caller.
type Profiles struct {
	Names  []string
	Active string // "" for none
}

// Credential is what a request shows, the first of: bearer key, X-Session-API-Key, session cookies.
type Credential struct {
	Key    string // an API key, or the reassembled cookie
	Cookie string // the cookie's name; "" for an API key
	OrgID  string // the X-Org-Id header, as sent
}

// Verifier checks credentials elsewhere: the Cloud check of the contract.
type Verifier interface {
	// Verify returns whose credential it is; an error made by Refuse is answered as it is.
	Verify(ctx context.Context, c Credential) (Caller, error)
	// HasAgentProfile reports whether the organization of a verified credential has an agent profile.
	HasAgentProfile(ctx context.Context, c Credential, id uuid.UUID) (bool, error)
}

// name is how the caller is written in orders and events.
func (c Caller) name() string { return "user:" + c.UserID.String() }

func (c Caller) may(permission string) bool { return slices.Contains(c.Permissions, permission) }

// canManage reports whether the caller may change what owner has made.
func (c Caller) canManage(owner uuid.UUID) bool { return c.UserID == owner || c.may(manageAutomations) }

const notYours = "Not your automation"

// mustManage is the contract's 403 for what the caller may not change.
func (c Caller) mustManage(owner uuid.UUID) error {
	if !c.canManage(owner) {
		return forbidden("Only admins, owners, or the automation creator can modify it")
	}
	return nil
}

// login finds out who asks. A run token is let in only where runToken says so, and the handler checks that it is the run's.
func (s *server) login(r *http.Request, runToken bool) (Caller, error) {
	cred, err := credential(r)
	if err != nil {
		return Caller{}, err
	}
	if cred.Cookie == "" {
		local := s.LocalKey.Reveal()
		if local != "" && subtle.ConstantTimeCompare([]byte(cred.Key), []byte(local)) == 1 {
			return Caller{
				UserID: localUserID, OrgID: localOrgID, Email: "local@localhost", Role: "admin",
				Permissions: localPermissions,
			}, nil
		}
		if runID, err := s.Store.VerifyRunToken(cred.Key); err == nil {
			if !runToken {
				return Caller{}, forbidden("This token is good for the callbacks of its own run only")
			}
			return Caller{runID: runID}, nil
		}
		if s.Cloud == nil {
			return Caller{}, unauthorized("Invalid API key")
		}
	}
	if s.Cloud == nil {
		return Caller{}, unauthorized("Invalid or expired session cookie")
	}
	who, err := s.Cloud.Verify(r.Context(), cred)
	who.credential = cred
	if err == nil && !who.may(viewAutomations) {
		err = forbidden("Requires " + viewAutomations + " permission")
	}
	return who, err
}

// credential takes the first that the request shows.
func credential(r *http.Request) (Credential, error) {
	org := r.Header.Get("X-Org-Id")
	if kind, key, isPair := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(kind, "Bearer") {
		if key = strings.TrimSpace(key); !isPair || key == "" {
			return Credential{}, unauthorized("Empty API key")
		}
		return Credential{Key: key, OrgID: org}, nil
	}
	if key := r.Header.Get("X-Session-API-Key"); key != "" {
		return Credential{Key: key, OrgID: org}, nil
	}
	for _, name := range []string{"openhands_auth", "keycloak_auth"} {
		if value := cookie(r, name); value != "" {
			return Credential{Key: value, Cookie: name, OrgID: org}, nil
		}
	}
	return Credential{}, unauthorized("Authentication required: provide Bearer token, X-Session-API-Key header, or session cookie")
}

// cookie returns a cookie's value, continued in NAME_1 to NAME_7.
func cookie(r *http.Request, name string) string {
	var value strings.Builder
	for i := range 8 {
		part := name
		if i > 0 {
			part += "_" + strconv.Itoa(i)
		}
		c, err := r.Cookie(part)
		if err != nil {
			break
		}
		value.WriteString(c.Value)
	}
	return value.String()
}
