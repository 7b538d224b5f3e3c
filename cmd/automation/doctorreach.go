package main

import (
	"context"
	"net/http"
	"os"

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

// cloud is whether OpenHands Cloud answers and takes the service key. A key is asked for where there is nobody to make one for, so
// that nothing is made.
func (d *doctor) cloud(ctx context.Context) {
	const name, nobody = "backend", "00000000-0000-0000-0000-000000000000"
	base := d.config.Sandbox.APIBaseURL
	api := newClient(base, d.config.Auth.ServiceKey.Reveal())
	api.keyHeader = "X-Service-API-Key"
	defer api.close()
	got, err := api.exchange(ctx, http.MethodPost, "/api/service/users/"+nobody+"/orgs/"+nobody+"/api-keys", "application/json", []byte(`{"name":"automation"}`))
	switch {
	case err != nil:
		d.fail(name, "openhands: "+err.Error(), "correct AUTOMATION_OPENHANDS_API_BASE_URL, or let this machine reach it")
	case refused(got.code):
		d.fail(name, "openhands: "+base+" refuses the service key: "+got.status, "correct AUTOMATION_SERVICE_KEY")
	case got.code >= http.StatusInternalServerError:
		d.fail(name, "openhands: "+base+" answers "+got.status, "wait, or see its log; runs are tried again")
	default:
		d.ok(name, "openhands: %s answers and takes the service key", base)
	}
}

// refused reports whether a status says that a credential is not taken.
func refused(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// localMode is whether the one agent server of local mode answers and takes its key, and whether its workspaces are seen here.
func (d *doctor) localMode(ctx context.Context) {
	const name = "backend"
	url := d.config.Sandbox.AgentServerURL
	agent := newClient(url, d.config.Sandbox.AgentServerAPIKey.Reveal())
	agent.keyHeader = "X-Session-API-Key"
	defer agent.close()
	got, err := agent.exchange(ctx, http.MethodGet, "/api/bash/bash_events/search?limit=1", "", nil)
	switch {
	case err != nil:
		d.fail(name, err.Error(), "start the agent server, or correct AUTOMATION_AGENT_SERVER_URL")
	case refused(got.code):
		d.fail(name, "the agent server at "+url+" refuses the key: "+got.status, "correct AUTOMATION_AGENT_SERVER_API_KEY")
	case got.code != http.StatusOK:
		d.fail(name, "what is at "+url+" answers "+got.status+" and is no agent server", "correct AUTOMATION_AGENT_SERVER_URL, or see its log")
	default:
		d.ok(name, "local mode: the agent server at %s answers and takes its key; there are no boxes", url)
	}
	base, keep := d.config.Sandbox.WorkspaceBase, d.config.Cleanup.WorkspaceRetention
	switch info, err := os.Stat(base); {
	case keep == 0:
		d.ok("retention", "workspaces of runs are never removed")
	case err != nil || !info.IsDir():
		d.warn("retention", base+" is no folder here: the workspaces of runs are not removed",
			"let the agent server share its folder, and set AUTOMATION_WORKSPACE_BASE; or set AUTOMATION_WORKSPACE_RETENTION_SECONDS=0")
	default:
		d.ok("retention", "workspaces below %s are removed %s after their runs", base, span(keep))
	}
}
