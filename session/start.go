package session

import (
	"context"
	"errors"
	"time"

	"automation/models/customer"
	"automation/sandbox"
)

// How a session's server is started: once, whatever becomes of the answer. A box with start_once_v1 knows a start by the
// session's id: it is sent again until an answer comes. In another one the command is looked for, and never sent again.

// lookFor is how long a box without start_once_v1 is asked for a command whose start may still be on its way.
const lookFor = time.Minute

var errStartUnknown = errors.New("whether the start arrived is not known yet")

// nothing is the command that takes the place of one that must not start any more: what was sent before and arrives later is
// answered with it.
const nothing = "true"

// start starts the command in the box's time awake epoch, or finds out what became of an earlier start.
func (c *collector) start(ctx context.Context, agent sandbox.Agent, epoch int64) error {
	command := startLine(c.session.ID, c.s.Command)
	if c.session.StartSentAt != nil {
		info, err := agent.ServerInfo(ctx)
		switch {
		case err != nil:
			return err
		case !info.Has(sandbox.FeatureStartOnce):
			return c.find(ctx, agent)
		case c.session.StopAskedAt != nil: // it must not start any more (S2-034)
			command = nothing
		}
	}
	if command != nothing {
		sent, err := c.s.Agents.SendStart(ctx, c.session.ID, c.token, epoch)
		if err != nil {
			return err
		}
		c.session = sent
	}
	id, text, err := agent.StartCommandOnce(ctx, c.session.ID, command, commandLife)
	var answer *sandbox.AgentError
	switch {
	case errors.As(err, &answer) && answer.Refused():
		return c.close(ctx, customer.End{State: customer.Failed, Reason: customer.ReasonStartFailed})
	case err != nil:
		return err
	case text == nothing:
		return c.close(ctx, customer.End{State: customer.Stopped, Reason: customer.ReasonStopped})
	}
	return c.started(ctx, agent, id)
}

// find looks for the command of a start whose answer was lost, until it cannot arrive any more.
func (c *collector) find(ctx context.Context, agent sandbox.Agent) error {
	id, err := agent.FindCommand(ctx, ": "+c.session.ID+";")
	switch {
	case err != nil:
		return err
	case id != "":
		return c.started(ctx, agent, id)
	case c.s.Store.Now().Sub(*c.session.StartSentAt) < lookFor:
		return errStartUnknown
	}
	return c.close(ctx, customer.End{State: customer.Failed, Reason: customer.ReasonLost})
}

// started records the command and follows it.
func (c *collector) started(ctx context.Context, agent sandbox.Agent, commandID string) error {
	if err := c.s.Agents.SessionStarted(ctx, c.session.ID, commandID); err != nil {
		return err
	}
	c.session.CommandID = &commandID
	c.s.announce(c.session.ID)
	c.poke() // a stop that came meanwhile
	return c.follow(ctx, agent)
}
