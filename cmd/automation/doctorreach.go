package main

import (
	"context"
	"net/http"

	"automation/sandbox"
)

// baseURL is the address that people and boxes are told.
func (d *doctor) baseURL(context.Context) {
	listen := d.config.HTTP.Listen
	switch {
	case d.config.Loopback() && d.config.IsSet("AUTOMATION_BASE_URL") && !isLocal(d.config.HTTP.BaseURL):
		d.warn("address", "listens on "+listen+", and is called "+d.config.HTTP.BaseURL+": only a proxy on this machine reaches it",
			"set AUTOMATION_LISTEN where there is none")
	default:
		d.ok("address", "listens on %s", listen)
	}
}

// reachable is whether boxes reach the service to call back: those of another machine do not reach its loopback.
func (d *doctor) reachable(name string, can sandbox.Capabilities) {
	base := d.config.HTTP.BaseURL
	switch {
	case name == dockerBackend && d.config.Loopback():
		d.fail("callback", "containers cannot reach a service that listens on "+d.config.HTTP.Listen,
			"set AUTOMATION_LOCAL_API_KEY, whose default is to listen everywhere, or AUTOMATION_LISTEN")
	case can.Placed:
		d.ok("callback", "boxes of %s are on this machine, and call back to it", name)
	case !isLocal(base):
		d.ok("callback", "boxes call back to %s", base)
	case d.config.IsSet("AUTOMATION_BASE_URL"):
		d.fail("callback", "boxes of "+name+" are elsewhere and cannot reach "+base, "set AUTOMATION_BASE_URL to a URL that they reach")
	default:
		d.fail("callback", "boxes of "+name+" are elsewhere, and AUTOMATION_BASE_URL is not set", "set it to a URL that they reach")
	}
}

// localMode is whether the one agent server of local mode answers.
func (d *doctor) localMode(ctx context.Context) {
	agent := newClient(d.config.Sandbox.AgentServerURL, "")
	defer agent.close()
	got, err := agent.exchange(ctx, http.MethodGet, "/health", "", nil)
	switch {
	case err != nil:
		d.fail("backend", err.Error(), "start the agent server, or correct AUTOMATION_AGENT_SERVER_URL")
	case got.code != http.StatusOK:
		d.fail("backend", "the agent server answers "+got.status, "see its log")
	default:
		d.ok("backend", "local mode: the agent server at %s answers; there are no boxes", d.config.Sandbox.AgentServerURL)
	}
}
