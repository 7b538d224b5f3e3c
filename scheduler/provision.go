package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"automation/models"
	"automation/sandbox"
	"automation/testhooks"
)

const (
	// firstPoll is the wait after the first look at a new box; it doubles up to the configured interval, so that a box that is
	// up in a moment is used in a moment.
	firstPoll = 250 * time.Millisecond
	// openhands is the backend whose boxes have the contract's layout and an agent server that is up with its box.
	openhands = "openhands"
)

// provision gets a box that runs, in as many attempts as are configured, and starts the command in it. Every attempt has a
// row of its own: Create is never repeated on one (design section 4).
func (d *Dispatch) provision(ctx context.Context, c models.Dispatched) error {
	h := d.holdBox(ctx, c.Box)
	defer func() { h.End() }()
	for {
		err := d.attempt(ctx, h, c)
		var down *provisioning
		if !errors.As(err, &down) {
			return d.letGo(h, d.conclude(ctx, c.Run, err))
		}
		if c.Run.Attempt >= d.Settings.ProvisionMaxAttempts {
			return d.letGo(h, d.conclude(ctx, c.Run, down.failure(c.Run.Attempt)))
		}
		d.Log.WarnContext(ctx, "box did not come up", "run_id", c.Run.ID, "workspace_id", c.Box.ID, "attempt", c.Run.Attempt, "error", down)
		next, err := d.nextAttempt(ctx, h, c, down)
		if err != nil {
			return d.conclude(ctx, c.Run, err)
		}
		h, c.Box = next, next.box
		c.Run.Attempt++
	}
}

// nextAttempt orders the failed box deleted and makes the row of the next, then waits out the backoff under its lease. It
// ends with sandbox.ErrOrdered when the run is ended meanwhile.
func (d *Dispatch) nextAttempt(ctx context.Context, h *hold, c models.Dispatched, why *provisioning) (*hold, error) {
	wait := retryDelay(d.Settings.ProvisionRetryDelay, c.Run.Attempt, rand.Float64())
	claim := d.claim()
	timeoutAt := d.Store.Now().Add(wait + claim.Budget + d.runTime(c.Automation))
	box, err := d.Store.NextAttempt(ctx, c, claim, why.Error(), timeoutAt)
	if err != nil {
		return nil, d.letGo(h, fmt.Errorf("next attempt of run %s: %w", c.Run.ID, err))
	}
	if err := d.letGo(h, nil); err != nil {
		d.Log.WarnContext(ctx, "lease not given back", "workspace_id", h.box.ID, "error", err)
	}
	next := d.holdBox(ctx, box)
	if err := pause(next.Patient, wait); err != nil {
		return nil, d.letGo(next, err)
	}
	return next, nil
}

// retryDelay is the wait before attempt n+1: doubled with each, and spread by chance (0 to 1) over half to one and a half.
func retryDelay(first time.Duration, n int, chance float64) time.Duration {
	return time.Duration(float64(first) * float64(int64(1)<<min(n-1, 16)) * (0.5 + chance))
}

// attempt makes the box of one attempt, waits until it runs, and starts the command in it.
func (d *Dispatch) attempt(ctx context.Context, h *hold, c models.Dispatched) error {
	if err := d.stillRunning(h.Patient, c.Run); err != nil {
		return err
	}
	if err := d.create(ctx, h, c); err != nil {
		return err
	}
	agent, err := d.ready(h, c)
	if err != nil {
		return err
	}
	if err := d.stillRunning(h.Patient, c.Run); err != nil {
		return err
	}
	work := contractWorkspace(c.Run.ID)
	if c.Box.Backend != openhands {
		home, err := agent.Home(h.Patient)
		if err != nil {
			return d.agentFailure(h.Patient, "Failed to prepare the workspace", err)
		}
		work = homeWorkspace(c.Run.ID, home)
	}
	return d.start(h.Patient, &execution{Dispatched: c, hold: h, agent: agent, work: work})
}

// create calls the provider's Create, once. The row says before and after that the call was made; an identity is stored as
// soon as it is named, whatever happened to run and box meanwhile.
func (d *Dispatch) create(ctx context.Context, h *hold, c models.Dispatched) error {
	if err := d.Store.MarkCreate(h.Patient, c.Box.ID, h.token, true); err != nil {
		return fmt.Errorf("mark create of box %s: %w", c.Box.ID, err)
	}
	call, cancel := context.WithTimeout(h.Wire, d.Settings.ReadyTimeout)
	defer cancel()
	spec := sandbox.Spec{
		Label: sandbox.Label{Deployment: d.Deployment, WorkspaceID: c.Box.ID},
		Owner: sandbox.Owner{OrgID: c.Box.OrgID, UserID: c.Box.UserID},
		Idle:  d.Backend.Capabilities().IdleTimer(d.Settings.IdleTTL),
	}
	testhooks.Reached(testhooks.DispatchCreateSent)
	err := d.Backend.Create(call, spec, func(i sandbox.Identity) error {
		testhooks.Reached(testhooks.DispatchCreateAnswered)
		if err := d.recordIdentity(h.Wire, c.Box, i); err != nil {
			return err
		}
		testhooks.Reached(testhooks.DispatchRecorded)
		return nil
	})

	record, done := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer done()
	if markErr := d.Store.MarkCreate(record, c.Box.ID, h.token, false); markErr != nil {
		return errors.Join(fmt.Errorf("mark the end of create of box %s: %w", c.Box.ID, markErr), err)
	}
	switch {
	case err == nil:
		return nil
	case definite(err), errors.Is(err, sandbox.ErrBreakerOpen), errors.Is(err, sandbox.ErrNotMade), sandbox.NeverDone(err):
		// nothing was made, or even asked
		if closeErr := d.closeRow(record, h); closeErr != nil {
			d.Log.WarnContext(ctx, "refused box not closed", "workspace_id", c.Box.ID, "error", closeErr)
		}
		return contextFailure(err)
	case ctx.Err() != nil:
		return ctx.Err()
	case h.Wire.Err() != nil:
		return context.Cause(h.Wire)
	}
	return contextFailure(err)
}

// definite reports whether a provider refused a create for certain, so that nothing was made.
func definite(err error) bool {
	return errors.Is(err, sandbox.ErrQuota) || errors.Is(err, sandbox.ErrRefused) || errors.Is(err, sandbox.ErrInvalid)
}

// closeRow records that the provider made no box for this row and never will.
func (d *Dispatch) closeRow(ctx context.Context, h *hold) error {
	gone := models.SeenDeleted
	_, err := d.Store.RecordStep(ctx, models.Step{
		BoxID: h.box.ID, Token: h.token, Generation: h.box.Generation, Name: "create", Observed: &gone,
		Events: []models.Event{{What: "created", Actor: "dispatch", Outcome: "failed", Reason: "nothing was made"}},
	})
	if err != nil {
		return fmt.Errorf("close the row of box %s: %w", h.box.ID, err)
	}
	return nil
}

// recordIdentity stores what the provider named. It tries until it is stored; its error means that we are stopping.
func (d *Dispatch) recordIdentity(ctx context.Context, box *models.Sandbox, i sandbox.Identity) error {
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		err := d.Store.RecordIdentity(ctx, models.Identity{
			SandboxID: box.ID, Kind: i.Kind, ProviderID: i.ProviderID, URL: i.URL, SessionKey: i.Key, SeenAt: d.Store.Now(),
		})
		if err == nil {
			remember(box, i)
			return nil
		}
		if pauseErr := pause(ctx, wait); pauseErr != nil {
			return errors.Join(fmt.Errorf("identity of box %s was not stored: %w", box.ID, err), pauseErr)
		}
	}
}

// remember keeps an identity on the box in hand; what the provider does not say again stays as it was.
func remember(box *models.Sandbox, i sandbox.Identity) {
	for _, known := range box.Identities {
		if known.Kind == i.Kind && known.ProviderID == i.ProviderID {
			known.URL, known.SessionKey = cmp.Or(i.URL, known.URL), cmp.Or(i.Key, known.SessionKey)
			return
		}
	}
	box.Identities = append(box.Identities, &models.Identity{
		SandboxID: box.ID, Kind: i.Kind, ProviderID: i.ProviderID, URL: i.URL, SessionKey: i.Key,
	})
}

// ready looks at the box until it runs and its agent server answers, at most ReadyTimeout.
func (d *Dispatch) ready(h *hold, c models.Dispatched) (sandbox.Agent, error) {
	limited, cancel := context.WithTimeout(h.Patient, d.Settings.ReadyTimeout)
	defer cancel()
	last := sandbox.Observation{State: models.SeenProvisioning}
	for wait := firstPoll; ; wait = min(wait*2, d.Settings.PollInterval) {
		obs, err := d.look(limited, h.box)
		switch {
		case err == nil:
			last = obs
		case h.Patient.Err() != nil:
			return sandbox.Agent{}, context.Cause(h.Patient)
		case definite(err):
			return sandbox.Agent{}, contextFailure(err)
		case errors.Is(err, sandbox.ErrGone):
			return sandbox.Agent{}, &provisioning{code: "sandbox_missing", observed: models.SeenMissing}
		}
		switch {
		case err != nil:
		case obs.State == models.SeenRunning && obs.Identity.URL != "":
			return d.up(limited, h, obs)
		case obs.State == models.SeenFailed:
			return sandbox.Agent{}, &provisioning{code: "sandbox_error", observed: obs.State, class: sandbox.DetailClass(obs.Detail)}
		case obs.State == models.SeenMissing || obs.State == models.SeenDeleted:
			return sandbox.Agent{}, &provisioning{code: "sandbox_missing", observed: models.SeenMissing}
		}
		if err := pause(limited, max(wait, sandbox.RetryAfter(err))); err != nil {
			if h.Patient.Err() != nil {
				return sandbox.Agent{}, context.Cause(h.Patient)
			}
			return sandbox.Agent{}, d.notReady(last)
		}
		if err := d.stillRunning(h.Patient, c.Run); err != nil {
			return sandbox.Agent{}, err
		}
	}
}

// look inspects the box, with a deadline of its own. Where to reach the box may have been named before, and is not repeated.
func (d *Dispatch) look(ctx context.Context, box *models.Sandbox) (sandbox.Observation, error) {
	call, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ref := sandbox.RefOf(box)
	obs, err := d.Backend.Inspect(call, ref)
	if named, ok := ref.Newest(models.IdentityBox); err == nil && ok {
		obs.Identity.URL, obs.Identity.Key = cmp.Or(obs.Identity.URL, named.URL), cmp.Or(obs.Identity.Key, named.Key)
	}
	return obs, err
}

func (d *Dispatch) notReady(last sandbox.Observation) *provisioning {
	return &provisioning{
		code: "sandbox_ready_timeout", observed: last.State, class: sandbox.DetailClass(last.Detail),
		waited: fmt.Sprintf("not ready after %ds, ", int(d.Settings.ReadyTimeout.Seconds())),
	}
}

// up waits for the agent server of a box that runs, and records that it was seen awake.
func (d *Dispatch) up(limited context.Context, h *hold, obs sandbox.Observation) (sandbox.Agent, error) {
	if obs.Identity.ProviderID != "" {
		if err := d.recordIdentity(h.Wire, h.box, obs.Identity); err != nil {
			return sandbox.Agent{}, err
		}
	}
	agent := sandbox.Agent{URL: obs.Identity.URL, Key: obs.Identity.Key, HTTP: d.HTTP}
	if h.box.Backend != openhands {
		if err := agent.WaitReady(limited); err != nil {
			if h.Patient.Err() != nil {
				return agent, context.Cause(h.Patient)
			}
			return agent, d.notReady(obs)
		}
	}
	running, answered := models.SeenRunning, true
	_, err := d.Store.RecordStep(h.Patient, models.Step{
		BoxID: h.box.ID, Token: h.token, Generation: h.box.Generation, Name: "create",
		Observed: &running, Answered: &answered, ExpiresAt: obs.ExpiresAt, URL: &agent.URL, SessionKey: &agent.Key,
		Events: []models.Event{{What: "created", Actor: "dispatch", Outcome: "ok"}},
	})
	if err != nil {
		return agent, fmt.Errorf("record that box %s runs: %w", h.box.ID, err)
	}
	h.box.URL, h.box.SessionKey = agent.URL, agent.Key
	return agent, nil
}

// stillRunning is sandbox.ErrOrdered when the run was ended by somebody else.
func (d *Dispatch) stillRunning(ctx context.Context, run *models.Run) error {
	now, err := d.Store.Run(ctx, run.OrgID, run.ID)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("read run %s: %w", run.ID, err)
	case now.Status != models.RunRunning:
		return sandbox.ErrOrdered
	}
	return nil
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
