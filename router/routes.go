package router

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
)

// The table of routes: what is mounted, what the handlers check requests by, and what the OpenAPI document says are the same
// lines.

// access says who gets in, and in which shape a route tells errors.
type access int

const (
	open     access = iota // anybody: the probes
	contract               // a logged-in caller, on a route of the Python service: errors are {"detail": …}
	callback               // the same, and the run itself with its run token
	own                    // a logged-in caller, on a route of ours: errors are {"error": {…}, "detail": …}
	public                 // a customer, on a route at the root that checks who it is itself: errors as on own
)

// anyMethod stands for every method.
const anyMethod = "ANY"

// route is one line of the table.
type route struct {
	method, path string // the path is below the base path; {id} is what about says
	about        string // group, and what {id} names: automation, run, upload, sandbox, sweep, backend, service
	name         string // of the operation
	summary      string
	access       access
	query        []field
	body         *rule
	bodyless     bool     // the body may be absent
	example      any      // of a body
	takes        []string // content types of a body that is no JSON
	status       int      // of a success
	answer       any      // of the type that a success answers; nil: nothing
	gives        string   // content type of an answer that is no JSON
	given        schema   // of it; nil: anything
	shows        any      // example of an answer; nil: none
	keyed        bool     // a route of customers that honours an Idempotency-Key by itself
	secret       bool     // the answer has a secret, and is not kept
	inBrowser    bool     // the key may come as a password, which is what a browser asks for
	handle       handler
}

// routes returns the table.
func (s *server) routes() []route {
	return slices.Concat(s.openRoutes(), s.automationRoutes(), s.runRoutes(), s.uploadRoutes(), s.sandboxRoutes(), s.runtimeRoutes(), s.sweepRoutes(), s.telemetryRoutes(), s.keyRoutes())
}

func (s *server) openRoutes() []route {
	return []route{
		{method: "GET", path: "/health", about: "service", name: "health", summary: "Whether the process answers",
			status: statusOK, answer: healthObject{}, handle: s.health},
		{method: "GET", path: "/ready", about: "service", name: "ready", summary: "Whether it can work now; 503 names what fails, and ?verbose lists every check",
			status: statusOK, answer: readyObject{}, handle: s.ready},
		{method: "GET", path: "/healthz", about: "service", name: "healthz", summary: "The same as /health", status: statusOK, answer: healthObject{}, handle: s.health},
		{method: "GET", path: "/livez", about: "service", name: "livez", summary: "The same as /health", status: statusOK, answer: healthObject{}, handle: s.health},
		{method: "GET", path: "/readyz", about: "service", name: "readyz", summary: "The same as /ready", status: statusOK, answer: readyObject{}, handle: s.ready},
		{method: "GET", path: "/metrics", about: "service", name: "metrics", summary: "What the service counts, for Prometheus", access: own,
			status: statusOK, gives: "application/openmetrics-text", handle: s.metrics},
		{method: "GET", path: "/sdk-version", about: "service", name: "sdkVersion", summary: "The SDK that boxes should install",
			status: statusOK, answer: sdkVersionObject{}, handle: s.sdkVersion},
		{method: "GET", path: "/server_info", about: "service", name: "serverInfo", summary: "The versions of service and SDK",
			status: statusOK, answer: serverInfoObject{}, handle: s.serverInfo},
	}
}

func (s *server) automationRoutes() []route {
	trigger := map[string]any{"type": "cron", "schedule": "0 3 * * *"}
	return []route{
		{method: "POST", path: "/v1", about: "automation", name: "createAutomation", access: contract,
			summary: "Create an automation; the one already made from the same template is answered with 200",
			body:    &s.bodies.create, status: statusCreated, answer: automationObject{}, handle: s.createAutomation,
			example: map[string]any{"name": "nightly", "trigger": trigger, "tarball_path": "https://example.com/code.tar.gz", "entrypoint": "python main.py"}},
		{method: "POST", path: "/v1/preset/prompt", about: "automation", name: "createPromptAutomation", access: contract,
			summary: "Create an automation from a prompt; its code is made here",
			body:    &s.bodies.prompt, status: statusCreated, answer: automationObject{}, handle: s.createPrompt,
			example: map[string]any{"name": "digest", "prompt": "Summarize the week", "trigger": trigger, "repos": []any{"https://github.com/octo/demo"}}},
		{method: "GET", path: "/v1/tags", about: "automation", name: "listTags", summary: "The tags in use, most used first", access: contract,
			status: statusOK, answer: tagList{}, handle: s.listTags},
		{method: "GET", path: "/v1", about: "automation", name: "listAutomations", summary: "Automations, newest first", access: contract,
			query: automationQuery, status: statusOK, answer: automationList{}, handle: s.listAutomations},
		{method: "GET", path: "/v1/{id}", about: "automation", name: "getAutomation", summary: "One automation", access: contract,
			status: statusOK, answer: automationObject{}, handle: s.getAutomation},
		{method: "PATCH", path: "/v1/{id}", about: "automation", name: "patchAutomation", summary: "Change the given fields", access: contract,
			body: &s.bodies.patch, example: map[string]any{"enabled": false}, status: statusOK, answer: automationObject{}, handle: s.patchAutomation},
		{method: "DELETE", path: "/v1/{id}", about: "automation", name: "deleteAutomation", access: contract,
			summary: "Delete; what is running goes on", status: statusNoContent, handle: s.deleteAutomation},
		{method: "POST", path: "/v1/{id}/dispatch", about: "automation", name: "dispatchAutomation", summary: "A run by hand", access: contract,
			status: statusCreated, answer: runObject{}, handle: s.dispatchAutomation},
		{method: "GET", path: "/v1/{id}/runs", about: "automation", name: "listAutomationRuns", summary: "Its runs, newest first", access: contract,
			query: paging, status: statusOK, answer: automationRunList{}, handle: s.listAutomationRuns},
		{method: "GET", path: "/v1/{id}/tarball", about: "automation", name: "getTarball", access: contract,
			summary: "Its code; 302 where it lies elsewhere", status: statusOK, gives: "application/x-tar", handle: s.getTarball},
	}
}

func (s *server) runRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/runs", about: "run", name: "listRuns", summary: "Runs of all automations, deleted ones too, newest first", access: own,
			query: runQuery, status: statusOK, answer: runList{}, handle: s.listRuns},
		{method: "GET", path: "/v1/runs/{id}", about: "run", name: "getRun", summary: "One run, with its sandbox and when that goes", access: own,
			status: statusOK, answer: runObject{}, handle: s.getRun},
		{method: "GET", path: "/v1/runs/{id}/logs", about: "run", name: "getRunLogs", summary: "Its stored output", access: own,
			status: statusOK, gives: "application/x-ndjson", handle: s.getLogs},
		{method: "POST", path: "/v1/runs/{id}/complete", about: "run", name: "completeRun", summary: "The callback of a run", access: callback,
			body: &completion, example: map[string]any{"status": "FAILED", "error": "tests failed"}, status: statusOK, answer: runObject{}, handle: s.completeRun},
		{method: "POST", path: "/v1/runs/{id}/phase", about: "run", name: "setRunPhase", summary: "What a run is doing", access: callback,
			body: &phaseReport, example: map[string]any{"phase": "cloning"}, status: statusOK, answer: runObject{}, handle: s.setPhase},
		{method: "POST", path: "/v1/runs/{id}/cancel", about: "run", name: "cancelRun", summary: "End a run and delete its sandbox", access: contract,
			body: &nothing, bodyless: true, status: statusOK, answer: runObject{}, handle: s.cancelRun},
	}
}

func (s *server) uploadRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/uploads", about: "upload", name: "createUpload", summary: "Store a tarball of at most 1 MiB", access: contract,
			query: uploadForm, takes: uploadKinds, status: statusCreated, answer: uploadObject{}, handle: s.createUpload},
		{method: "GET", path: "/v1/uploads", about: "upload", name: "listUploads", summary: "The caller's uploads, newest first", access: contract,
			query: uploadQuery, status: statusOK, answer: uploadList{}, handle: s.listUploads},
		{method: "GET", path: "/v1/uploads/{id}", about: "upload", name: "getUpload", summary: "One upload", access: contract,
			status: statusOK, answer: uploadObject{}, handle: s.getUpload},
		{method: "DELETE", path: "/v1/uploads/{id}", about: "upload", name: "deleteUpload", summary: "Delete an upload", access: contract,
			status: statusNoContent, handle: s.deleteUpload},
	}
}

func (s *server) sandboxRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/sandboxes", about: "sandbox", name: "listSandboxes", summary: "Sandboxes, newest first", access: own,
			query: sandboxQuery, status: statusOK, answer: sandboxList{}, handle: s.listSandboxes},
		{method: "GET", path: "/v1/sandboxes/{id}", about: "sandbox", name: "getSandbox", summary: "One sandbox", access: own,
			status: statusOK, answer: sandboxObject{}, handle: s.getSandbox},
		{method: "DELETE", path: "/v1/sandboxes/{id}", about: "sandbox", name: "deleteSandbox", access: own,
			summary: "Order it deleted; 409 without confirm while its history would be lost", query: deletion,
			body: &nothing, bodyless: true, status: statusAccepted, answer: sandboxObject{}, handle: s.deleteSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/pause", about: "sandbox", name: "pauseSandbox", summary: "Order it paused", access: own,
			body: &nothing, bodyless: true, status: statusAccepted, answer: sandboxObject{}, handle: s.pauseSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/resume", about: "sandbox", name: "resumeSandbox", access: own,
			summary: "Order it resumed; its due date does not move", body: &nothing, bodyless: true,
			status: statusAccepted, answer: sandboxObject{}, handle: s.resumeSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/extend", about: "sandbox", name: "extendSandbox", access: own,
			summary: "Move its due date, by seconds or to a date", body: &extension, example: map[string]any{"seconds": 3600},
			status: statusOK, answer: extendedObject{}, handle: s.extendSandbox},
		{method: "PUT", path: "/v1/sandboxes/{id}/keep", about: "sandbox", name: "keepSandbox", access: own,
			summary: "Keep it until it is let go, or until a date", body: &keeping, bodyless: true, example: map[string]any{"reason": "looking into it"},
			status: statusOK, answer: sandboxObject{}, handle: s.keepSandbox},
		{method: "DELETE", path: "/v1/sandboxes/{id}/keep", about: "sandbox", name: "unkeepSandbox", access: own,
			summary: "Let it go: it is due after the delay, from now", body: &nothing, bodyless: true,
			status: statusOK, answer: sandboxObject{}, handle: s.unkeepSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/reclaim", about: "sandbox", name: "reclaimSandbox", access: own,
			summary: "Let it free what can be rebuilt; the answer is its own", query: reclaimQuery, body: &nothing, bodyless: true,
			status: statusOK, answer: map[string]any{}, handle: s.reclaimSandbox},
		{method: "POST", path: "/v1/sandboxes/{id}/export", about: "sandbox", name: "exportSandbox", access: own,
			summary: "Store the history in it, a running one; what is stored of a paused one is the answer", body: &nothing, bodyless: true,
			status: statusOK, answer: exportObject{}, handle: s.exportSandbox},
		{method: "GET", path: "/v1/sandboxes/{id}/export", about: "sandbox", name: "getSandboxExport", access: own,
			summary: "Its stored history, after it is gone too", status: statusOK, gives: "application/zip", handle: s.getExport},
		{method: "GET", path: "/v1/sandboxes/{id}/events", about: "sandbox", name: "listSandboxEvents", access: own,
			summary: "What happened to it, who did it and why, oldest first", query: paging, status: statusOK, answer: eventList{}, handle: s.listSandboxEvents},
		{method: anyMethod, path: "/v1/sandboxes/{id}/proxy", about: "sandbox", name: "proxySandboxRoot", summary: "HTTP to the root of its agent server",
			access: own, takes: anything, status: statusOK, gives: "*/*", handle: s.proxySandbox},
		{method: anyMethod, path: "/v1/sandboxes/{id}/proxy/*", about: "sandbox", name: "proxySandbox", summary: "HTTP, streams and WebSockets to its agent server; it is resumed for it",
			access: own, takes: anything, status: statusOK, gives: "*/*", handle: s.proxySandbox},
		{method: "GET", path: "/v1/backends", about: "backend", name: "listBackends", summary: "What every provider can do, and its sandboxes by state",
			access: own, status: statusOK, answer: backendList{}, handle: s.listBackends},
	}
}

func (s *server) runtimeRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/runtimes", about: "runtime", name: "listRuntimes", summary: "Conversations that have a sandbox of their own, newest first",
			access: own, query: paging, status: statusOK, answer: runtimeList{}, handle: s.listRuntimes},
		{method: "PUT", path: "/v1/runtimes/{id}", about: "runtime", name: "putRuntime", access: own,
			summary: "Open the sandbox of a conversation: make it, or wake it as it was; its id is the conversation's", body: &runtimeWish, bodyless: true,
			example: map[string]any{"workspace": "/srv/checkouts/project"}, status: statusOK, answer: runtimeObject{}, handle: s.putRuntime},
		{method: "GET", path: "/v1/runtimes/{id}", about: "runtime", name: "getRuntime", summary: "One of them", access: own,
			status: statusOK, answer: runtimeObject{}, handle: s.getRuntime},
		{method: "POST", path: "/v1/runtimes/{id}/evict", about: "runtime", name: "evictRuntime", access: own,
			summary: "Suspend its sandbox now; 409 while somebody is in it", body: &nothing, bodyless: true,
			status: statusAccepted, answer: runtimeObject{}, handle: s.evictRuntime},
		{method: anyMethod, path: "/v1/runtimes/{id}/proxy", about: "runtime", name: "proxyRuntimeRoot", summary: "HTTP to the root of its agent server",
			access: own, takes: anything, status: statusOK, gives: "*/*", handle: s.proxyRuntime},
		{method: anyMethod, path: "/v1/runtimes/{id}/proxy/*", about: "runtime", name: "proxyRuntime",
			summary: "HTTP, streams and WebSockets to its agent server; it is resumed, or made anew where it was lost",
			access:  own, takes: anything, status: statusOK, gives: "*/*", handle: s.proxyRuntime},
	}
}

func (s *server) sweepRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/sweeps", about: "sweep", name: "listSweeps", summary: "Plans, and passes of the janitor, newest first", access: own,
			query: paging, status: statusOK, answer: sweepList{}, handle: s.listSweeps},
		{method: "POST", path: "/v1/sweeps/plan", about: "sweep", name: "planSweep", summary: "List what is due; nothing is ordered", access: own,
			body: &sweepFilter, bodyless: true, example: map[string]any{"due_within_seconds": 86400}, status: statusCreated, answer: sweepObject{}, handle: s.planSweep},
		{method: "GET", path: "/v1/sweeps/{id}", about: "sweep", name: "getSweep", summary: "One sweep with its sandboxes", access: own,
			status: statusOK, answer: sweepObject{}, handle: s.getSweep},
		{method: "POST", path: "/v1/sweeps/{id}/apply", about: "sweep", name: "applySweep", access: own,
			summary: "Order deleted what the plan showed and is still so; again: the first result", body: &confirmation, bodyless: true,
			example: map[string]any{"confirm": historyLost}, status: statusOK, answer: sweepObject{}, handle: s.applySweep},
		{method: "GET", path: "/v1/openapi.json", about: "service", name: "openapi", summary: "This document", access: own,
			status: statusOK, answer: map[string]any{}, handle: s.openapi},
		{method: "GET", path: "/openapi.json", about: "service", name: "openapiAtBase", summary: "This document", access: own,
			status: statusOK, answer: map[string]any{}, handle: s.openapi},
		{method: "GET", path: "/docs", about: "service", name: "docs", summary: "This document for people; a browser asks for the key as a password",
			access: own, inBrowser: true, status: statusOK, gives: "text/html", handle: s.docs},
	}
}

var anything = []string{"*/*"}

// mount puts routes on r.
func (s *server) mount(r chi.Router, routes []route) {
	for _, line := range routes {
		h := s.serve(line)
		switch {
		case line.method == anyMethod:
			r.HandleFunc(line.path, h)
		case line.path == "/v1": // with and without the slash
			r.Method(line.method, line.path+"/", h)
			fallthrough
		default:
			r.Method(line.method, line.path, h)
		}
	}
}

// handler answers one route. The caller is logged in, but on open routes.
type handler func(w http.ResponseWriter, r *http.Request, who Caller) error

// serve lets in who the route is for and tells errors in its shape.
func (s *server) serve(line route) http.HandlerFunc {
	handle := line.handle
	if line.changes() {
		handle = s.ifMatch(line.about, handle)
	}
	if line.repeatable() {
		handle = s.once(handle)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var who Caller
		var err error
		if line.inBrowser {
			r = asKey(r)
		}
		if line.access != open && line.access != public {
			who, err = s.login(r, line.access == callback)
		}
		if err == nil {
			err = handle(w, r, who)
		}
		if err != nil {
			if line.inBrowser {
				w.Header().Set("WWW-Authenticate", `Basic realm="automation: the key is the password", charset="UTF-8"`)
			}
			if line.access == public && asProblem(err) == nil && r.Context().Err() == nil && s.Store.Ping(r.Context()) != nil {
				err = sandboxesUnavailable("The service cannot reach its database")
			}
			s.fail(w, r, line.access == own || line.access == public, err)
		}
	}
}
