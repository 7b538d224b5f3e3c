package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
	"automation/testhooks"
)

const (
	// firstCheck is how long after its start a command is asked for its exit the first time (design section 5).
	firstCheck = 5 * time.Second
	// tokenOutlives is how long the callback's credential is good after the run's deadline.
	tokenOutlives = 24 * time.Hour
)

// execution is a run whose box, or shared agent server, can be reached.
type execution struct {
	models.Dispatched
	hold  *hold // nil in local mode
	agent sandbox.Agent
	work  workspace
}

// lives is what an execution's facts are stored under: an order does not end it, the loss of the lease or our stopping does.
func (x *execution) lives(ctx context.Context) context.Context {
	if x.hold == nil {
		return ctx
	}
	return x.hold.Wire
}

// start puts the run's files in place and starts its command. ctx ends when an order for the box comes in. From
// models.MarkStarting on nothing is repeated and nothing but a definite refusal fails the run here: the callback, check_at or
// timeout_at decide (design section 4, "Dispatch after a crash").
func (d *Dispatch) start(ctx context.Context, x *execution) error {
	if err := d.fetchTarball(ctx, x); err != nil {
		return err
	}
	timeout := d.runTime(x.Automation)
	timeoutAt := d.Store.Now().Add(timeout + d.Settings.TimeoutMargin)
	env, err := d.environment(ctx, x, timeoutAt)
	if err != nil {
		return d.agentFailure(ctx, "Failed to prepare the environment file", err)
	}
	if err := x.agent.Upload(ctx, x.work.env(), strings.NewReader(env.file())); err != nil {
		return d.agentFailure(ctx, "Failed to upload the environment file", err)
	}
	testhooks.Reached(testhooks.DispatchUploaded)
	boxID, token := uuid.Nil, uuid.Nil
	if x.hold != nil {
		boxID, token = x.Box.ID, x.hold.token
	}
	now := d.Store.Now()
	timeoutAt = now.Add(timeout + d.Settings.TimeoutMargin)
	if err := d.Store.MarkStarting(ctx, x.Run.ID, boxID, token, timeoutAt, now.Add(firstCheck)); err != nil {
		return fmt.Errorf("mark run %s as starting: %w", x.Run.ID, err)
	}
	testhooks.Reached(testhooks.DispatchStartSent)
	if d.Started != nil {
		d.Started(x.Run)
	}
	// An order ends waits, not this: a command that was started must be known.
	alive, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	command, err := x.agent.StartCommand(alive, startCommand(x.work, x.Automation.Entrypoint), timeout)
	if err != nil {
		command, err = d.resolveStart(alive, x, err)
	}
	if err != nil || command == "" {
		return err
	}
	testhooks.Reached(testhooks.DispatchStarted)
	d.Log.InfoContext(ctx, "command started", "run_id", x.Run.ID, "command_id", command)
	return d.recordCommand(x.lives(ctx), x.Run.ID, command)
}

// resolveStart deals with a start that did not answer with an id. What certainly did not happen fails the run; what may have
// happened is left to the stale duty, which looks the command up.
func (d *Dispatch) resolveStart(ctx context.Context, x *execution, cause error) (command string, err error) {
	var answered *sandbox.AgentError
	refused := sandbox.NeverDone(cause)
	if !refused && errors.As(cause, &answered) {
		// The box has dealt with the request: what it knows now is final.
		found, lookErr := x.agent.FindCommand(ctx, sandbox.StartMarker(x.Run.ID))
		if lookErr == nil && found != "" {
			return found, nil
		}
		refused = lookErr == nil
	}
	if !refused {
		d.Log.WarnContext(ctx, "answer to the start lost: the command will be looked up", "run_id", x.Run.ID, "error", cause)
		return "", nil
	}
	d.removeEnv(ctx, x)
	return "", executionFailure("Failed to start the command: "+cause.Error(), cause)
}

// removeEnv takes the environment file away where it would outlive the run, as the contract does: best effort, by the agent
// server that the run shares with others or that OpenHands owns. Boxes of ours are deleted with it (S0-001).
func (d *Dispatch) removeEnv(ctx context.Context, x *execution) {
	if x.Box != nil && x.Box.Backend != openhands {
		return
	}
	if _, err := x.agent.StartCommand(ctx, removeEnvCommand(x.work), 30*time.Second); err != nil {
		d.Log.WarnContext(ctx, "environment file not removed", "run_id", x.Run.ID, "error", err)
	}
}

// recordCommand stores the id the box gave to the command: a fact, also when the run has ended meanwhile, and once more when
// we are stopping. Without it the stale duty finds the command by its text.
func (d *Dispatch) recordCommand(ctx context.Context, run uuid.UUID, command string) error {
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		write, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
		err := d.Store.RecordCommand(write, run, command)
		cancel()
		if err == nil {
			return nil
		}
		if pauseErr := pause(ctx, wait); pauseErr != nil {
			return fmt.Errorf("record the command of run %s: %w", run, err)
		}
	}
}

// environment is what the command finds in its environment (contract section 4.3). A box of ours gets no credential but the
// run's own token and the key of its own agent server (S0-010).
func (d *Dispatch) environment(ctx context.Context, x *execution, timeoutAt time.Time) (variables, error) {
	v := commonVariables(x.Run, x.Automation, d.APIURL)
	v["SESSION_API_KEY"] = x.agent.Key
	if x.Box != nil && d.Contract != nil {
		own, err := d.Contract(ctx, sandbox.Owner{OrgID: x.Box.OrgID, UserID: x.Box.UserID})
		if err != nil {
			return nil, err
		}
		maps.Copy(v, own)
		if named, ok := sandbox.RefOf(x.Box).Newest(models.IdentityBox); ok {
			v["SANDBOX_ID"] = named.ProviderID
		}
		return v, nil
	}
	v["AGENT_SERVER_URL"] = x.agent.URL
	v["WORKSPACE_BASE"] = x.work.dir
	if x.Box == nil {
		if d.Local.InnerURL != "" {
			v["AGENT_SERVER_URL"] = d.Local.InnerURL
		}
		v["AUTOMATION_CALLBACK_API_KEY"] = d.Local.CallbackKey.Reveal()
		return v, nil
	}
	v["SANDBOX_ID"] = x.Box.ID.String()
	v["AUTOMATION_CALLBACK_API_KEY"] = d.Store.MintRunToken(x.Run.ID, timeoutAt.Add(tokenOutlives))
	return v, nil
}

// agentFailure is an error of the box's agent server before the start; one that comes from our own stopping, or from an order,
// says nothing about the run.
func (d *Dispatch) agentFailure(ctx context.Context, text string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return executionFailure(text+": "+err.Error(), err)
}
