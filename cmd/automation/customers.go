package main

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"automation/models/customer"
	"automation/router"
	"automation/sandbox"
	agents "automation/session"
)

// customers makes what runs the servers that customers start in boxes.
func (a *App) customers() *agents.Sessions {
	sessions := agents.New(agents.Config{
		Store: a.store, Agents: customer.New(a.store), Command: a.config.Dispatch.AgentCommand, Places: a.places(),
		Capabilities: a.capabilities, Retention: a.config.Cleanup.EventRetention, Log: a.component("agents"),
		Collected: a.metrics.AgentCollected, Reads: a.metrics.AgentReader,
	})
	a.onClose(func() error {
		sessions.Close()
		return nil
	})
	return sessions
}

// ofCustomers is what the routes of customers work with.
func (a *App) ofCustomers(check *router.Cloud) router.Customers {
	c := router.Customers{Store: customer.New(a.store), Agents: a.agents}
	if check != nil && a.contract != nil {
		c.Creator = a.creator(check)
	}
	return c
}

// asVerifier keeps a missing check from looking like one.
func asVerifier(check *router.Cloud) router.Verifier {
	if check == nil {
		return nil
	}
	return check
}

// userKeyVariable is where the contract of OpenHands puts the key that was minted for a user.
const userKeyVariable = "OPENHANDS_API_KEY"

// creator asks OpenHands Cloud what a user may do, with the key that was minted for that user.
func (a *App) creator(check *router.Cloud) func(context.Context, uuid.UUID, uuid.UUID) ([]string, error) {
	return func(ctx context.Context, orgID, userID uuid.UUID) ([]string, error) {
		env, err := a.contract(ctx, sandbox.Owner{OrgID: orgID, UserID: userID})
		if errors.Is(err, sandbox.ErrRefused) { // who has left may do nothing
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return check.PermissionsNow(ctx, env[userKeyVariable], orgID)
	}
}
