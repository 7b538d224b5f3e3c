package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/models/customer"
	"automation/sandbox"
)

// Waits of a collector between its tries.
const (
	firstWait  = 200 * time.Millisecond
	longestTry = 5 * time.Second
	endWithin  = 5 * time.Second // for recording while the service stops
)

// collector takes one session from its start to its end, as long as it holds the lease.
type collector struct {
	s       *Sessions
	id      string    // of the session
	boxID   uuid.UUID // in which it is
	token   uuid.UUID
	log     *slog.Logger
	poked   chan struct{}     // the stop is asked for, perhaps
	session *customer.Session // as step has read it last, which alone looks at it
	silent  time.Time         // since when the box has not answered; zero: it answers
	fallen  time.Time         // since when the command is known to have gone with the agent server; zero: it has not
	stopper sync.Once
}

func (c *collector) poke() {
	select {
	case c.poked <- struct{}{}:
	default:
	}
}

// collect works until the session has ended, another holds the lease, or ctx ends: then it gives the session up.
func (c *collector) collect(ctx context.Context) {
	working, cancel := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() { c.beat(working, cancel) })
	wait := firstWait
	for working.Err() == nil {
		before := c.session.LastSeq
		err := c.step(working)
		if err == nil || errors.Is(err, models.ErrLeaseLost) {
			break
		}
		if working.Err() != nil {
			break
		}
		c.log.DebugContext(working, "collecting goes on after a while", "error", err)
		if c.session.LastSeq > before {
			wait = firstWait
		}
		select {
		case <-working.Done():
		case <-time.After(wait):
			wait = min(2*wait, longestTry)
		}
	}
	cancel()
	beating.Wait()
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer done()
	if err := c.s.Agents.ReleaseSession(ending, c.id, c.token); err != nil && !errors.Is(err, models.ErrLeaseLost) {
		c.log.WarnContext(ending, "session not given up; its lease runs out", "error", err)
	}
	c.s.announce(c.id)
}

// beat renews the lease, and has the command stopped once that is asked for. It cancels the collector when the lease is lost.
func (c *collector) beat(ctx context.Context, cancel context.CancelFunc) {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	var stopping sync.WaitGroup
	defer stopping.Wait()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
		case <-c.poked:
		}
		session, err := c.s.Agents.RenewSession(ctx, c.id, c.token, c.s.Store.Now().Add(leaseFor))
		switch {
		case errors.Is(err, models.ErrLeaseLost), err != nil && time.Since(renewed) > leaseFor*2/3:
			cancel()
			return
		case err != nil:
			continue
		}
		renewed = time.Now()
		if session.StopAskedAt != nil && session.CommandID != nil {
			c.stopper.Do(func() { stopping.Go(func() { c.end(ctx, *session.CommandID) }) })
		}
	}
}

// end stops the command, again until the box has done it. That it has ended is read from its output.
func (c *collector) end(ctx context.Context, commandID string) {
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, longestTry) {
		box, err := c.box(ctx)
		if err == nil && c.s.reachable(box) {
			if err = c.s.agent(box).StopCommandGently(ctx, commandID, stopGrace); err == nil || isUnknown(err) {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func (c *collector) box(ctx context.Context) (*models.Sandbox, error) {
	return c.s.Store.Sandbox(ctx, uuid.Nil, c.boxID)
}

// step brings the session on as far as it goes now: nil when it has ended, an error when it goes on later.
func (c *collector) step(ctx context.Context) error {
	session, err := c.s.Agents.Session(ctx, c.id)
	if err != nil {
		return err
	}
	if c.session = session; session.Closed() {
		return nil
	}
	box, err := c.box(ctx)
	if errors.Is(err, models.ErrNotFound) {
		return c.close(ctx, deleted)
	}
	if err != nil {
		return err
	}
	if end, over := c.over(box); over {
		return c.close(ctx, end)
	}
	if !c.s.reachable(box) {
		c.silent = time.Time{} // nobody expects an answer
		return fmt.Errorf("%w: it is %s", ErrNotRunning, box.Observed)
	}
	agent := c.s.agent(box)
	switch {
	case session.CommandID != nil:
		err = c.follow(ctx, agent)
	case c.anew(box): // whatever became of the start
		return c.close(ctx, paused)
	default:
		err = c.start(ctx, agent, box.AwakeEpoch)
	}
	var refused *sandbox.AgentError
	if errors.Is(err, sandbox.ErrUnreachable) || errors.As(err, &refused) {
		return c.unanswered(ctx, box, err)
	}
	c.silent = time.Time{}
	return err
}

// unanswered has the box looked at that does not answer, or only with errors, and gives the session up for lost when that has
// not helped for long.
func (c *collector) unanswered(ctx context.Context, box *models.Sandbox, cause error) error {
	now := time.Now()
	if c.silent.IsZero() {
		c.silent = now
		if err := c.s.Store.NudgeBox(ctx, box.ID); err != nil {
			return errors.Join(cause, err)
		}
	}
	if now.Sub(c.silent) < giveUpAfter {
		return cause
	}
	return c.close(ctx, customer.End{State: customer.Failed, Reason: customer.ReasonLost})
}

// isUnknown reports whether the box answered that it knows no such command.
func isUnknown(err error) bool {
	var answer *sandbox.AgentError
	return errors.As(err, &answer) && answer.Status == http.StatusNotFound
}
