package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"automation/models"
	"automation/models/customer"
	"automation/sandbox"
)

// How a session ends: with its command, or with its box.

// paused is the end of a session whose box was paused without its memory, deleted that of one whose box is gone (S2-047).
var (
	paused  = customer.End{State: customer.Stopped, Reason: customer.ReasonPaused}
	deleted = customer.End{State: customer.Stopped, Reason: customer.ReasonDeleted}
)

// over tells from the box how a session ended that can end no other way (S2-047).
func (c *collector) over(box *models.Sandbox) (customer.End, bool) {
	switch {
	case box.Observed == models.SeenDeleted, box.Observed == models.SeenMissing:
		return deleted, true
	case box.Observed == models.SeenSuspended && !c.s.Capabilities(box.Backend).MemoryKept():
		return paused, true
	case box.Observed == models.SeenFailed:
		return customer.End{State: customer.Failed, Reason: customer.ReasonLost}, true
	}
	return customer.End{}, false
}

// anew reports whether the box was started anew, without its memory, since the session's start was sent: then the server is
// gone, however soon the box was back.
func (c *collector) anew(box *models.Sandbox) bool {
	sent := c.session.StartSentAt != nil && c.session.AwakeEpoch != 0 // 0: by a replica from before this was recorded
	return sent && c.session.AwakeEpoch != box.AwakeEpoch && !c.s.Capabilities(box.Backend).MemoryKept()
}

// follow stores what the command prints until it ends. An error says that the box broke off.
func (c *collector) follow(ctx context.Context, agent sandbox.Agent) error {
	exit, err := c.store(ctx, agent)
	if isUnknown(err) { // its records are gone
		exit, err = sandbox.Frame{Reason: customer.ReasonLost}, nil
	}
	switch {
	case err != nil:
		return err
	case exit.Reason == boxStopped, exit.Reason == customer.ReasonLost:
		return c.fell(ctx, exit)
	}
	return c.close(ctx, ending(exit))
}

// downWithin is how long a box goes on running at the most whose agent server has gone down with it.
const downWithin = 10 * time.Second

var errNotLookedAt = errors.New("the command went with the agent server, and the box was not looked at since")

// fell decides how a session ended whose command went with the agent server of the box. That mostly is the beginning of a pause
// or a deletion: what the box is then shows once somebody has looked at it, not too soon.
func (c *collector) fell(ctx context.Context, exit sandbox.Frame) error {
	session, err := c.s.Agents.Session(ctx, c.id)
	if err != nil {
		return err
	}
	if session.StopAskedAt != nil {
		return c.close(ctx, ending(exit))
	}
	box, err := c.box(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotLookedAt, err) // the next step tells
	}
	now := c.s.Store.Now()
	if c.fallen.IsZero() {
		c.fallen = now
	}
	seen := box.ObservedAt != nil && !box.ObservedAt.Before(c.fallen.Add(downWithin))
	end, over := c.over(box)
	switch {
	case over:
		return c.close(ctx, end)
	case c.anew(box):
		return c.close(ctx, paused)
	case box.Desired == models.WantRunning && (seen || now.Sub(c.fallen) >= giveUpAfter):
		return c.close(ctx, ending(exit))
	}
	return errors.Join(errNotLookedAt, c.s.Store.NudgeBox(ctx, box.ID))
}

// Exit codes and reasons of the agent server (process_output_v1), beside those that go through as they are.
const (
	boxStopped  = "stopped"
	boxTimedOut = "timed_out"
	signalBase  = 128 // an exit by signal n is shown as 128+n (S2-041)
	mostCode    = 255 // of an exit; a number beyond it, or beyond that of a signal, is none
)

// ending is how a session ended whose command did so by itself.
func ending(exit sandbox.Frame) customer.End {
	if code := exit.ExitCode; code != nil && (*code > mostCode || *code < -(mostCode-signalBase)) {
		exit.ExitCode = nil
	}
	end := customer.End{State: customer.Failed, Reason: exit.Reason, ExitCode: exit.ExitCode}
	if code := exit.ExitCode; code != nil && *code < 0 && exit.Reason != customer.ReasonStartFailed && exit.Reason != customer.ReasonLost {
		shown := signalBase - *code
		end.ExitCode = &shown
	}
	switch exit.Reason {
	case customer.ReasonExited, customer.ReasonKilled, customer.ReasonStartFailed, customer.ReasonLost:
		if end.ExitCode != nil && *end.ExitCode == 0 {
			end.State = customer.Stopped
		}
	case boxTimedOut:
		end.Reason = customer.ReasonKilled
	default: // boxStopped, with the agent server of the box; or no word of the contract: whoever has the box can make it say anything
		end.Reason = customer.ReasonLost
	}
	return end
}

// close records the end.
func (c *collector) close(ctx context.Context, end customer.End) error {
	if err := c.s.Agents.CloseSession(ctx, c.session.ID, c.token, end); err != nil {
		return err
	}
	c.log.InfoContext(ctx, "agent of a customer ended", "state", end.State, "reason", end.Reason)
	return nil
}
