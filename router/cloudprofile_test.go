package router_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/router"
	"automation/tests/cloudstub"
)

func TestAgentProfilesAreLookedUpWithTheCallersOwnCredential(t *testing.T) {
	stub := cloudstub.New(t)
	check := newCheck(t, stub.URL)
	for name, c := range map[string]struct {
		cred router.Credential
		id   string
		want bool
	}{
		"known":                   {router.Credential{Key: "tok-bob"}, cloudstub.AgentProfile, true},
		"by cookie":               {router.Credential{Key: "tok-bob", Cookie: "keycloak_auth", OrgID: cloudstub.Org}, cloudstub.AgentProfile, true},
		"unknown":                 {router.Credential{Key: "tok-bob"}, uuid.NewString(), false},
		"of another organization": {router.Credential{Key: "tok-eve"}, cloudstub.AgentProfile, false},
	} {
		known, err := check.HasAgentProfile(t.Context(), c.cred, uuid.MustParse(c.id))
		require.NoError(t, err, name)
		require.Equal(t, c.want, known, name)
	}
}

func TestAnAgentProfileLookUpThatFailsIsToldApart(t *testing.T) {
	const unexpected = "502 Unexpected response from OpenHands API for agent profiles"
	for name, c := range map[string]struct {
		fault cloudstub.Fault
		want  string
	}{
		"401":         {cloudstub.Fault{Status: 401}, "401 OpenHands API refused the request for agent profiles"},
		"403":         {cloudstub.Fault{Status: 403}, "403 OpenHands API refused the request for agent profiles"},
		"404":         {cloudstub.Fault{Status: 404}, unexpected},
		"429":         {cloudstub.Fault{Status: 429}, unexpected},
		"500":         {cloudstub.Fault{Status: 500}, unexpected},
		"redirect":    {cloudstub.Fault{Status: 302, Header: map[string]string{"Location": "/api/v1/users/me"}}, unexpected},
		"html":        {cloudstub.Fault{Body: "<html>"}, unexpected},
		"no profiles": {cloudstub.Fault{Body: `{"items":[]}`}, unexpected},
		"reset":       {cloudstub.Fault{Reset: true}, "502 Failed to reach OpenHands API for agent profiles"},
		"hang":        {cloudstub.Fault{Hang: true}, "502 Failed to reach OpenHands API for agent profiles"},
		"slow":        {cloudstub.Fault{Slow: true, Body: `{"profiles":`}, "502 Failed to reach OpenHands API for agent profiles"},
	} {
		t.Run(name, func(t *testing.T) {
			stub := cloudstub.New(t)
			stub.FailAlways("agent_profiles", c.fault)
			check := newCheck(t, stub.URL, briefly(c.fault))
			_, err := check.HasAgentProfile(t.Context(), router.Credential{Key: "tok-alice"}, agentProfile)
			require.Equal(t, c.want, refusal(t, err))
			require.Len(t, stub.Calls("agent_profiles"), 1)
		})
	}
}

// counting counts look-ups.
type counting struct {
	people
	asked *atomic.Int64
}

func (c counting) HasAgentProfile(ctx context.Context, cred router.Credential, id uuid.UUID) (bool, error) {
	c.asked.Add(1)
	return c.people.HasAgentProfile(ctx, cred, id)
}

func TestAnAutomationTakesOnlyAKnownAgentProfile(t *testing.T) {
	var asked atomic.Int64
	once(t, func(t *testing.T, w *world) {
		unknown := uuid.NewString()
		refused := "Agent profile `" + unknown + "` not found"
		got := w.call("tok-alice", http.MethodPost, "/api/automation/v1", newAutomation("agent_profile_id", unknown)).is(422)
		require.Equal(t, refused, got["detail"])

		made := w.call("tok-alice", http.MethodPost, "/api/automation/v1", newAutomation("agent_profile_id", agentProfile.String())).is(201)
		require.Nil(t, made["model"])
		id := made["id"].(string)
		require.Equal(t, refused, w.call("tok-alice", http.MethodPatch, id, map[string]any{"agent_profile_id": unknown}).is(422)["detail"])
		w.call("tok-alice", http.MethodPatch, id, map[string]any{"agent_profile_id": agentProfile.String()}).is(200)
		require.EqualValues(t, 3, asked.Load(), "what the automation has already is not looked up again")
	}, func(d *router.Deps) { d.Cloud = counting{asked: &asked} })
}

func TestAModelOfNullIsTheCallersActiveProfile(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		made := w.call("tok-carol", http.MethodPost, "/api/automation/v1", newAutomation("model", "fast")).is(201)
		require.Equal(t, "fast", made["model"])
		id := made["id"].(string)
		require.Equal(t, "deep", w.call("tok-carol", http.MethodPatch, id, map[string]any{"model": nil}).is(200)["model"])
		require.Equal(t, "deep", w.call("tok-carol", http.MethodPatch, id, map[string]any{"name": "x"}).is(200)["model"])
		with := w.call("tok-carol", http.MethodPatch, id, map[string]any{"agent_profile_id": agentProfile.String()}).is(200)
		require.Nil(t, with["model"], "a profile brings its model")
		require.Nil(t, w.call("tok-carol", http.MethodPatch, id, map[string]any{"model": nil}).is(200)["model"])
		w.call("tok-carol", http.MethodPatch, id, map[string]any{"model": "fast"}).is(422)
	})
}
