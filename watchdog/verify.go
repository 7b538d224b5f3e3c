package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"automation/models"
	"automation/sandbox"
)

// verdict is what a verification of a run past its deadline found (contract section 3.8).
type verdict struct {
	outcome string // environment_unavailable, still_running, transient_error, verification_error, exception; "" for an exit
	text    string
	kind    string
	code    string
	status  int // of the HTTP answer, 0 for none
	source  string
	asked   string // operation
	command sandbox.CommandOutput
}

// verify decides about a run past timeout_at. It ends only where timeout_at is still the one that was verified.
func (w *Watchdog) verify(ctx context.Context, run *models.Run) error {
	call, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	v := w.verdict(call, run)
	if ctx.Err() != nil {
		return nil // we are stopping: the run is claimed again
	}
	now := w.Store.Now()
	switch v.outcome {
	case "":
		o := exited(run, *v.command.ExitCode, v.command, now)
		return w.endVerified(ctx, run, o)
	case "still_running", "transient_error":
		allowed, err := w.hardCap(ctx, run)
		if err != nil {
			return err
		}
		if now.Before(allowed) {
			return w.wait(ctx, run, v, now, allowed)
		}
	}
	return w.endVerified(ctx, run, unverified(run, v, now))
}

func (w *Watchdog) endVerified(ctx context.Context, run *models.Run, o models.Outcome) error {
	o.IfTimeoutAt = run.TimeoutAt
	return w.end(ctx, run, o)
}

// hardCap is the time from which on a run is no longer waited for, whatever the verification says. Unlike in the Python
// service that holds for errors too, or an unreachable provider would keep a run for ever.
func (w *Watchdog) hardCap(ctx context.Context, run *models.Run) (time.Time, error) {
	timeout, err := w.runTime(ctx, run)
	if err != nil {
		return time.Time{}, err
	}
	d := w.Config.Dispatch
	started := run.CreatedAt
	if run.StartedAt != nil {
		started = *run.StartedAt
	}
	return started.Add(d.ReadyTimeout + timeout + d.HardGrace), nil
}

// wait leaves the run RUNNING: with a later deadline when its command works, and with the deadline as it is and the error
// shown when nobody could say (BR-24). Neither stamps nor pauses anything (S1-027).
func (w *Watchdog) wait(ctx context.Context, run *models.Run, v verdict, now, allowed time.Time) error {
	next := now.Add(w.Config.Watchdog.Interval)
	if allowed.Before(next) {
		next = allowed
	}
	c := models.Check{NextAt: next, WasTimeoutAt: run.TimeoutAt}
	if v.outcome == "still_running" {
		c.TimeoutAt = &next
		if run.StatusDetail != nil {
			c.StatusDetail = json.RawMessage("null")
		}
		return w.Store.RecordCheck(ctx, run.ID, c)
	}
	w.Log.WarnContext(ctx, "run could not be verified", "run_id", run.ID, "error", v.text)
	c.StatusDetail = models.StatusDetail{
		Phase: "verification", Kind: v.kind, Detail: v.text, Transient: true, Source: v.source, Operation: v.asked, StatusCode: v.status,
	}.Seen(now, run.StatusDetail)
	return w.Store.RecordCheck(ctx, run.ID, c)
}

// verdict asks the provider for the box and the box for the command.
func (w *Watchdog) verdict(ctx context.Context, run *models.Run) verdict {
	if run.Box != nil {
		if v, unavailable := w.boxVerdict(ctx, run.Box); unavailable {
			return v
		}
	} else if w.Local == nil || run.StartingAt == nil {
		return unavailable("No sandbox_id available for verification")
	}
	out, err := w.lastOutput(ctx, run)
	switch {
	case err != nil:
		return agentVerdict(err)
	case out.ExitCode != nil:
		return verdict{command: out}
	case out.Stdout == "" && out.Stderr == "":
		return verdict{outcome: "still_running", kind: "timeout", text: "No bash output found"}
	}
	return verdict{outcome: "still_running", kind: "timeout", text: "Command still running"}
}

// boxVerdict tells whether the box of a run is there to be asked; if not, what that says about the run.
func (w *Watchdog) boxVerdict(ctx context.Context, box *models.Sandbox) (verdict, bool) {
	backend := w.Backends[placeOf(box)]
	switch {
	case len(box.Identities) == 0 || box.URL == "":
		return unavailable("No sandbox_id available for verification"), true
	case backend == nil:
		v := verdict{outcome: "transient_error", kind: "transport", source: "automation_service", asked: "get_sandbox"}
		v.text = "this process does not serve backend " + box.Backend
		return v, true
	}
	obs, err := backend.Inspect(ctx, sandbox.RefOf(box))
	switch {
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrInvalid):
		return unavailable("Sandbox not available"), true
	case errors.Is(err, sandbox.ErrRefused):
		return verdict{outcome: "exception", kind: "unknown", code: "refused", text: "verification failed: " + err.Error()}, true
	case unknownToProvider(err):
		return unavailable("Sandbox not available"), true
	case err != nil:
		v := verdict{outcome: "transient_error", source: "sandbox_api", asked: "get_sandbox", text: err.Error()}
		v.kind, v.status = passing(err)
		if v.status != 0 {
			v.text = fmt.Sprintf("sandbox_api get_sandbox returned HTTP %d", v.status)
		}
		return v, true
	case obs.State != models.SeenRunning:
		return unavailable("Sandbox not available"), true
	}
	w.reachedAnew(ctx, box, obs.Identity)
	return verdict{}, false
}

// reachedAnew takes over where the box can be reached now: a box that was paused and resumed meanwhile has another key (S1-047).
func (w *Watchdog) reachedAnew(ctx context.Context, box *models.Sandbox, now sandbox.Identity) {
	if now.URL == "" || now.Key == "" || now.URL == box.URL && now.Key == box.SessionKey {
		return
	}
	box.URL, box.SessionKey = now.URL, now.Key
	err := w.Store.RecordIdentity(ctx, models.Identity{
		SandboxID: box.ID, Kind: now.Kind, ProviderID: now.ProviderID, URL: now.URL, SessionKey: now.Key,
	})
	if err != nil {
		w.Log.WarnContext(ctx, "new address of a box not recorded", "workspace_id", box.ID, "error", err)
	}
}

// unknownToProvider reports a 4xx that says that there is no such thing, or no such route: the box cannot be asked.
func unknownToProvider(err error) bool {
	answer, ok := errors.AsType[*sandbox.ProviderError](err)
	return ok && answer.Status >= 400 && answer.Status < 500 && answer.Status != http.StatusRequestTimeout &&
		answer.Status != http.StatusTooManyRequests
}

func unavailable(text string) verdict {
	return verdict{outcome: "environment_unavailable", kind: "environment_unavailable", text: text}
}

// agentVerdict classes an error of the box's agent server.
func agentVerdict(err error) verdict {
	v := verdict{source: "agent_server", asked: "verify_run", text: err.Error()}
	var answer *sandbox.AgentError
	if errors.As(err, &answer) && answer.Refused() {
		v.outcome, v.kind = "verification_error", "timeout"
		return v
	}
	v.outcome = "transient_error"
	v.kind, v.status = passing(err)
	if v.status != 0 {
		v.text = fmt.Sprintf("agent_server verify_run returned HTTP %d", v.status)
	}
	return v
}

// passing is sandbox.Passing for an error that is taken to pass in any case: a provider's other words say that it did not answer.
func passing(err error) (kind string, status int) {
	if kind, status = sandbox.Passing(err); kind == "" {
		kind = "transport"
	}
	return kind, status
}

// exited is how a run ends whose command has exited, as the contract words it.
func exited(run *models.Run, code int, out sandbox.CommandOutput, now time.Time) models.Outcome {
	if code == 0 {
		return models.Outcome{Status: models.RunCompleted, Reason: "exit"}
	}
	d := models.StatusDetail{
		Phase: "execution", Kind: "execution_error", Source: "agent_server", Operation: "verify_run", Code: strconv.Itoa(code),
	}
	reason := "exit"
	text := fmt.Sprintf("exit_code=%d%s%s", code, tail("stderr", out.Stderr, 1000), tail("stdout", out.Stdout, 500))
	d.Detail = text
	if code == -1 { // the box's own timeout, or a kill
		d.Kind, d.Detail, reason = "timeout", "command timed out or was killed"+tail("stderr", out.Stderr, 1000), "timed out"
		text = models.TimedOutPrefix + d.Detail
		d.FormattedDetail = text
	}
	return models.Outcome{Status: models.RunFailed, ErrorDetail: &text, StatusDetail: d.Seen(now, run.StatusDetail), Reason: reason}
}

// unverified is how a run ends that no exit was found of.
func unverified(run *models.Run, v verdict, now time.Time) models.Outcome {
	text := models.TimedOutPrefix + v.text
	kind := v.kind
	if v.outcome == "transient_error" {
		kind = "timeout"
	}
	d := models.StatusDetail{
		Phase: "verification", Kind: kind, Detail: v.text, Source: "automation_service", Operation: "verify_run",
		Code: v.code, VerificationOutcome: v.outcome,
	}
	return models.Outcome{Status: models.RunFailed, ErrorDetail: &text, StatusDetail: d.Seen(now, run.StatusDetail), Reason: "timed out"}
}

// tail is a line with the last n characters of an output, or "" when it is empty.
func tail(name, text string, n int) string {
	if text == "" {
		return ""
	}
	if r := []rune(text); len(r) > n {
		text = string(r[len(r)-n:])
	}
	return "\n" + name + ": " + text
}
