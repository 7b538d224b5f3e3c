package scheduler

import (
	"errors"
	"fmt"
	"strings"

	"automation/models"
	"automation/sandbox"
)

// failure is why a run ends in dispatch: what is written on it (contract section 3.5).
type failure struct {
	status  models.RunStatus
	text    string // error_detail; "" for none
	detail  models.StatusDetail
	disable string // not empty: the automation is switched off with this reason
	cause   error
}

// Error makes a failure travel as an error inside this package.
func (f *failure) Error() string {
	if f.cause != nil {
		return f.cause.Error()
	}
	return f.text
}

func (f *failure) Unwrap() error { return f.cause }

// provisioning is a box that did not come up. Another attempt may follow.
type provisioning struct {
	code     string // sandbox_error, sandbox_missing, sandbox_ready_timeout
	observed models.Observed
	class    string // of the provider's own words
	waited   string // "not ready after 300s, ", or ""
}

// Error is the contract's text, without the count of attempts.
func (p *provisioning) Error() string {
	text := fmt.Sprintf("Sandbox failed to start: %sstatus=%s", p.waited, contractStatus(p.observed))
	if p.class != "" {
		text += ", status_detail=" + p.class
	}
	return text
}

// failure ends the run after the last of attempts.
func (p *provisioning) failure(attempts int) *failure {
	return &failure{
		status: models.RunFailed,
		text:   fmt.Sprintf("%s (attempts: %d)", p.Error(), attempts),
		detail: models.StatusDetail{
			Phase: "dispatch", Kind: "environment_unavailable", Detail: p.Error(), Transient: true,
			Source: "sandbox_api", Operation: "get_execution_context", Code: p.code,
			SandboxStatus: contractStatus(p.observed), SandboxStatusDetail: p.class, Attempts: attempts,
		},
		cause: p,
	}
}

// contractStatus names an observed state as the contract does.
func contractStatus(o models.Observed) string {
	switch o {
	case models.SeenProvisioning:
		return "STARTING"
	case models.SeenRunning:
		return "RUNNING"
	case models.SeenSuspended:
		return "PAUSED"
	case models.SeenFailed:
		return "ERROR"
	default:
		return "MISSING"
	}
}

// contextFailure is what a call to the provider that was to give us a box says about the run.
func contextFailure(err error) *failure {
	f := &failure{status: models.RunFailed, text: "Failed to get execution context", cause: err}
	f.detail = models.StatusDetail{
		Phase: "dispatch", Kind: "unknown", Detail: err.Error(), Source: "sandbox_api", Operation: "get_execution_context",
	}
	d := &f.detail
	switch kind, status := sandbox.Passing(err); {
	case errors.Is(err, sandbox.ErrQuota):
		f.status, f.text = models.RunSkipped, ""
		d.Kind, d.Detail, d.Transient = "concurrency_limit", "Concurrent sandbox limit reached", true
		if strings.Contains(strings.ToLower(err.Error()), "daily") {
			d.Kind, d.Detail = "daily_sandbox_limit", "Daily sandbox limit reached"
		}
	case errors.Is(err, sandbox.ErrRefused):
		d.Code = "refused"
	case errors.Is(err, sandbox.ErrInvalid):
		d.Code = "invalid"
	case kind != "" && status != 0:
		d.Kind, d.StatusCode, d.Transient = kind, status, true
		d.Detail = fmt.Sprintf("sandbox_api get_execution_context returned HTTP %d", status)
	case kind != "":
		d.Kind, d.Transient = kind, true
	}
	return f
}

// executionFailure is an error between a box that runs and the start of the command in it.
func executionFailure(text string, cause error) *failure {
	return &failure{
		status: models.RunFailed, text: text, cause: cause,
		detail: models.StatusDetail{
			Phase: "execution", Kind: "execution_error", Detail: text, Source: "sandbox_api", Operation: "execute_in_context",
		},
	}
}

// tarballGone is a tarball that will not come back: the automation is switched off.
func tarballGone(text string) *failure {
	return &failure{
		status: models.RunFailed, text: text, disable: text,
		detail: models.StatusDetail{
			Phase: "execution", Kind: "unknown", Detail: text, Source: "automation_service",
			Operation: "execute_in_context", Code: "TarballNotFoundError",
		},
	}
}
