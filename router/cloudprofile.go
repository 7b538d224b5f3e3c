package router

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

// userPath and profilesPath are what Cloud is asked for.
const (
	userPath     = "/api/v1/users/me"
	profilesPath = "/api/agent-profiles"
)

// HasAgentProfile asks with the caller's own credential whether their organization has an agent profile.
func (c *Cloud) HasAgentProfile(ctx context.Context, cred Credential, id uuid.UUID) (bool, error) {
	status, body, err := c.askOnce(ctx, cred, profilesPath)
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("ask for agent profiles: %w", ctx.Err())
	case err != nil:
		c.log.WarnContext(ctx, "agent profile look-up failed", "error", err)
		return false, Refuse(http.StatusBadGateway, "Failed to reach OpenHands API for agent profiles")
	case status == http.StatusUnauthorized || status == http.StatusForbidden: // the login was remembered, and holds no more
		return false, Refuse(status, "OpenHands API refused the request for agent profiles")
	}
	known, err := profileIDs(body)
	if status != http.StatusOK || err != nil {
		return false, Refuse(http.StatusBadGateway, "Unexpected response from OpenHands API for agent profiles")
	}
	return known[id.String()], nil
}

// profileIDs reads an answer about agent profiles. An entry without an id is no error: nobody can choose it.
func profileIDs(body []byte) (map[string]bool, error) {
	var answer struct {
		Profiles *[]struct {
			ID string `json:"id"`
		} `json:"profiles"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Profiles == nil {
		return nil, fmt.Errorf("no profiles in %.80q", body)
	}
	known := map[string]bool{}
	for _, p := range *answer.Profiles {
		known[p.ID] = true
	}
	return known, nil
}

// checkAgentProfile is rule 4 of the contract's section 2.2: where callers are known by Cloud, the profile they choose must be
// one of their organization's. stored is the automation's profile so far, which is not looked up again; nil: none.
func (s *server) checkAgentProfile(ctx context.Context, who Caller, in values, stored *uuid.UUID) error {
	id := opt[uuid.UUID](in, "agent_profile_id")
	if id == nil || stored != nil && *stored == *id || who.credential.Key == "" {
		return nil
	}
	known, err := s.Cloud.HasAgentProfile(ctx, who.credential, *id)
	if err == nil && !known {
		err = unprocessable("Agent profile `" + id.String() + "` not found")
	}
	return err
}
