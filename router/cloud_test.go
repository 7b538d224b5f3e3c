package router_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/router"
	"automation/tests/cloudstub"
)

func newCheck(t *testing.T, url string, change ...func(*config.Config)) *router.Cloud {
	t.Helper()
	c := config.Default(t.TempDir())
	c.Sandbox.APIBaseURL = url + "/"
	c.Auth.InitialBackoff, c.Auth.MaxBackoff = time.Millisecond, 2*time.Millisecond
	for _, f := range change {
		f(&c)
	}
	cloud := router.NewCloud(c, slog.New(slog.DiscardHandler))
	t.Cleanup(cloud.Close)
	return cloud
}

// refusal is the status and text that an error of a Verifier is answered with.
func refusal(t *testing.T, err error) string {
	t.Helper()
	w := newWorld(t, nil, nil, func(d *router.Deps) { d.Cloud = refuser{err} })
	got := w.call("some-key", http.MethodGet, "", nil)
	return fmt.Sprintf("%d %v", got.Code, got.json()["detail"])
}

type refuser struct{ err error }

func (r refuser) Verify(context.Context, router.Credential) (router.Caller, error) {
	return router.Caller{}, r.err
}

func (r refuser) HasAgentProfile(context.Context, router.Credential, uuid.UUID) (bool, error) {
	return false, r.err
}

func TestTheCloudCheckReadsWhoItIs(t *testing.T) {
	stub := cloudstub.New(t)
	check := newCheck(t, stub.URL)
	who, err := check.Verify(t.Context(), router.Credential{Key: "tok-alice"})
	require.NoError(t, err)
	require.Equal(t, uuid.MustParse(cloudstub.Alice), who.UserID)
	require.Equal(t, uuid.MustParse(cloudstub.Org), who.OrgID)
	require.Equal(t, []string{"view_automations", "manage_automations"}, who.Permissions)
	require.Equal(t, "tok-alice", who.APIKey)
	require.Nil(t, who.Models)

	who, err = check.Verify(t.Context(), router.Credential{Key: "tok-carol", Cookie: "keycloak_auth"})
	require.NoError(t, err)
	require.Equal(t, &router.Profiles{Names: []string{"deep", "fast"}, Active: "deep"}, who.Models)
	require.Empty(t, who.APIKey, "a cookie is no API key")
	calls := stub.Calls("users_me")
	require.Equal(t, "Authorization: Bearer tok-alice", calls[0].Auth)
	require.Equal(t, "Cookie", calls[1].Auth)
}

func TestTheCloudCheckIsRememberedByMethodOrganizationAndCredential(t *testing.T) {
	stub := cloudstub.New(t)
	check := newCheck(t, stub.URL, func(c *config.Config) { c.Auth.CacheTTL, c.Auth.CacheSize = time.Hour, 3 })
	ask := func(c router.Credential) {
		_, err := check.Verify(t.Context(), c)
		require.NoError(t, err)
	}
	different := []router.Credential{
		{Key: "tok-alice"}, {Key: "tok-alice", Cookie: "openhands_auth"}, {Key: "tok-alice", OrgID: cloudstub.Org},
	}
	for range 3 {
		for _, c := range different {
			ask(c)
		}
	}
	ask(router.Credential{Key: "tok-alice", OrgID: strings.ToUpper(cloudstub.Org)})
	require.Len(t, stub.Calls("users_me"), 3)
	ask(router.Credential{Key: "tok-bob"}) // the fourth: the oldest is forgotten
	ask(router.Credential{Key: "tok-alice"})
	require.Len(t, stub.Calls("users_me"), 5)

	for range 3 {
		_, err := check.Verify(t.Context(), router.Credential{Key: "tok-unknown"})
		require.Error(t, err)
	}
	require.Len(t, stub.Calls("users_me"), 8, "a refusal is not remembered")
}

func TestTheCloudCheckForgetsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		c := config.Default(t.TempDir())
		check := router.NewCloud(c, slog.New(slog.DiscardHandler))
		check.SetTransport(answering(func() (int, string) {
			asked.Add(1)
			return http.StatusOK, `{"id":"` + cloudstub.Alice + `","org_id":"` + cloudstub.Org + `"}`
		}))
		for range 3 {
			_, err := check.Verify(t.Context(), router.Credential{Key: "k"})
			require.NoError(t, err)
			time.Sleep(c.Auth.CacheTTL - time.Second)
		}
		require.EqualValues(t, 2, asked.Load(), "19 s later still known, 38 s later not")
	})
}

// answering is a transport without a network.
type answering func() (int, string)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := a()
	w := httptest.NewRecorder()
	w.WriteHeader(status)
	_, _ = w.WriteString(body)
	return w.Result(), nil
}

// briefly waits a moment for an answer that does not come.
func briefly(f cloudstub.Fault) func(*config.Config) {
	return func(c *config.Config) {
		if f.Hang || f.Slow {
			c.HTTP.Timeout = 200 * time.Millisecond
		}
	}
}

func TestTheCloudCheckAnswersFailuresAsTheContractSays(t *testing.T) {
	user := func(id, org string) string { return `{"id":` + id + `,"org_id":` + org + `}` }
	for name, c := range map[string]struct {
		fault cloudstub.Fault
		cred  router.Credential
		want  string
	}{
		"401 key":           {cloudstub.Fault{Status: 401}, router.Credential{Key: "k"}, "401 Invalid or expired API key"},
		"401 cookie":        {cloudstub.Fault{Status: 401}, router.Credential{Key: "k", Cookie: "openhands_auth"}, "401 Invalid or expired session cookie"},
		"429":               {cloudstub.Fault{Status: 429}, router.Credential{Key: "k"}, "429 Rate limited by authentication service"},
		"403":               {cloudstub.Fault{Status: 403}, router.Credential{Key: "k"}, "502 Unexpected response from OpenHands API"},
		"500":               {cloudstub.Fault{Status: 500}, router.Credential{Key: "k"}, "502 Unexpected response from OpenHands API"},
		"redirect":          {cloudstub.Fault{Status: 302, Header: map[string]string{"Location": "/api/v1/users/you"}}, router.Credential{Key: "k"}, "502 Unexpected response from OpenHands API"},
		"reset":             {cloudstub.Fault{Reset: true}, router.Credential{Key: "k"}, "502 Failed to reach OpenHands API for authentication"},
		"hang":              {cloudstub.Fault{Hang: true}, router.Credential{Key: "k"}, "502 Failed to reach OpenHands API for authentication"},
		"slow":              {cloudstub.Fault{Slow: true, Body: `{"id":`}, router.Credential{Key: "k"}, "502 Failed to reach OpenHands API for authentication"},
		"html":              {cloudstub.Fault{Body: "<html>"}, router.Credential{Key: "k"}, "502 Unexpected response shape from OpenHands API"},
		"empty":             {cloudstub.Fault{}, router.Credential{Key: "k"}, "502 Unexpected response shape from OpenHands API"},
		"list":              {cloudstub.Fault{Body: "[]"}, router.Credential{Key: "k"}, "502 Unexpected response shape from OpenHands API"},
		"null":              {cloudstub.Fault{Body: "null"}, router.Credential{Key: "k"}, "502 Unexpected response shape from OpenHands API"},
		"no identity":       {cloudstub.Fault{Body: user("null", `""`)}, router.Credential{Key: "k"}, "502 Could not determine user/org identity from OpenHands API"},
		"odd identity":      {cloudstub.Fault{Body: user(`"u1"`, `"o1"`)}, router.Credential{Key: "k"}, "502 Invalid user_id or org_id format from OpenHands API"},
		"odd organization":  {cloudstub.Fault{}, router.Credential{Key: "k", OrgID: "not-a-uuid"}, "400 Invalid X-Org-Id header (must be a UUID)"},
		"no permissions":    {cloudstub.Fault{Body: user(`"`+cloudstub.Alice+`"`, `"`+cloudstub.Org+`"`)}, router.Credential{Key: "k"}, ""},
		"odd profiles":      {cloudstub.Fault{Body: `{"id":"` + cloudstub.Alice + `","org_id":"` + cloudstub.Org + `","llm_profiles":["x"]}`}, router.Credential{Key: "k"}, ""},
		"unknown to itself": {cloudstub.Fault{Status: 404}, router.Credential{Key: "k"}, "502 Unexpected response from OpenHands API"},
	} {
		t.Run(name, func(t *testing.T) {
			stub := cloudstub.New(t)
			stub.FailAlways("users_me", c.fault)
			check := newCheck(t, stub.URL, briefly(c.fault))
			who, err := check.Verify(t.Context(), c.cred)
			if c.want == "" {
				require.NoError(t, err)
				require.Empty(t, who.Permissions)
				require.Nil(t, who.Models)
				return
			}
			require.Error(t, err)
			require.Equal(t, c.want, refusal(t, err))
			most := 1
			if c.fault.Status == http.StatusTooManyRequests {
				most = 4 // AUTOMATION_AUTH_MAX_RETRIES
			}
			if c.cred.OrgID != "" {
				most = 0
			}
			require.Len(t, stub.Calls("users_me"), most)
			require.Empty(t, stub.Calls("other"), "no redirect is followed")
		})
	}
}

func TestARateLimitThatPassesIsNotSeen(t *testing.T) {
	stub := cloudstub.New(t)
	stub.Fail("users_me", cloudstub.Fault{Status: 429}, cloudstub.Fault{Status: 429})
	_, err := newCheck(t, stub.URL).Verify(t.Context(), router.Credential{Key: "tok-alice"})
	require.NoError(t, err)
	require.Len(t, stub.Calls("users_me"), 3)
}

func TestS2_006_WhatAUserMayInAnotherOrganizationIsNothing(t *testing.T) {
	stub := cloudstub.New(t)
	check := newCheck(t, stub.URL)
	may, err := check.PermissionsNow(t.Context(), "tok-alice", uuid.MustParse(cloudstub.Org))
	require.NoError(t, err)
	require.Equal(t, []string{"view_automations", "manage_automations"}, may)
	may, err = check.PermissionsNow(t.Context(), "tok-unknown", uuid.MustParse(cloudstub.Org))
	require.NoError(t, err)
	require.Empty(t, may)
	stub.FailAlways("users_me", cloudstub.Fault{Body: `{"id":"` + cloudstub.Alice + `","org_id":"` + cloudstub.Org + `","permissions":["view_automations"]}`})
	may, err = check.PermissionsNow(t.Context(), "tok-alice", uuid.New())
	require.NoError(t, err)
	require.Empty(t, may, "Cloud told of the organization that the user is in now")
}
