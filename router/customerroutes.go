package router

import "net/http"

// The routes of customers, and those that manage their keys.

// agentPath is where the server in a sandbox is started, watched and stopped (S2-001).
const agentPath = "/v1/customer/tenants/{tenantId}/sandboxes/{sandboxId}/agent"

// outputParameters are those of the output, for the document; agentOutput reads them, in the order of S2-010.
var outputParameters = []field{
	{name: "session_id", required: true, rule: rule{schema: sessionShape}},
	{name: "after", absent: int64(0), rule: rule{schema: schema{"type": "integer", "minimum": 0, "maximum": int64(largestPosition)}}},
	{name: "follow", absent: true, rule: boolean},
}

// customerRoutes returns the table of the routes at the root.
func (s *server) customerRoutes() []route {
	if s.Customers.Store == nil {
		return nil
	}
	read := pass{}
	write := pass{write: true}
	output := pass{form: func(r *http.Request) error {
		_, err := outputQuery(r.URL.Query())
		return err
	}}
	return []route{
		{method: "GET", path: agentPath, about: "agent", name: "getAgent", access: public,
			summary: "The server in a sandbox, by what is stored: asking wakes nothing", status: statusOK, answer: agentObject{}, shows: agentExample, handle: s.letIn(read, s.getAgent)},
		{method: "POST", path: agentPath, about: "agent", name: "startAgent", access: public,
			summary: "Start it; the one that runs is the answer where there is one", body: &nothing, bodyless: true, example: map[string]any{},
			status: statusAccepted, answer: agentObject{}, shows: agentExample, keyed: true, handle: s.letIn(write, s.startAgent)},
		{method: "DELETE", path: agentPath, about: "agent", name: "stopAgent", access: public,
			summary: "Stop it; its output stays", status: statusOK, answer: agentObject{}, shows: agentExample, handle: s.letIn(write, s.stopAgent)},
		{method: "GET", path: agentPath + "/output", about: "agent", name: "getAgentOutput", access: public, query: outputParameters,
			summary: "What it prints, line by line; a stream without an exit line is followed again with the last seq as after",
			status:  statusOK, gives: "application/x-ndjson", given: outputLine, shows: outputExample, handle: s.letIn(output, s.agentOutput)},
		{method: "POST", path: agentPath + "/tickets", about: "agent", name: "issueAgentTicket", access: public,
			summary: "A ticket for one relay into it within a minute", body: &nothing, bodyless: true, example: map[string]any{},
			status: statusCreated, answer: ticketObject{}, shows: ticketExample, handle: s.letIn(write, s.issueTicket)},
		{method: "GET", path: agentPath + "/relay", about: "agent", name: "relayAgent", access: public,
			summary: "For a ticket (Authorization: Ticket …) and Upgrade: automation-relay, a connection to it",
			status:  statusSwitching, gives: "*/*", handle: s.relay},
	}
}

// keyRoutes returns the table of what manages keys and switches.
func (s *server) keyRoutes() []route {
	if s.Customers.Store == nil {
		return nil
	}
	return []route{
		{method: "POST", path: "/v1/keys", about: "key", name: "createKey", summary: "A key for a customer; its secret is shown this once", access: own,
			body: &newKey, example: map[string]any{"name": "ci", "permissions": []string{"sandboxes:read", "sandboxes:write"}},
			status: statusCreated, answer: newKeyObject{}, secret: true, handle: s.createKey},
		{method: "GET", path: "/v1/keys", about: "key", name: "listKeys", summary: "The keys of a tenant, newest first", access: own,
			query: keyQuery, status: statusOK, answer: keyList{}, handle: s.listKeys},
		{method: "DELETE", path: "/v1/keys/{id}", about: "key", name: "revokeKey", summary: "End a key's validity at once", access: own,
			status: statusNoContent, handle: s.revokeKey},
		{method: "PUT", path: "/v1/sandboxes/{id}/agent-feature", about: "sandbox", name: "switchSandboxAgent", access: own,
			summary: "Turn agents of customers on or off for a sandbox", body: &agentSwitch, example: map[string]any{"enabled": true},
			status: statusOK, answer: switchObject{}, handle: s.switchSandbox},
		{method: "PUT", path: "/v1/tenants/{id}/agent-feature", about: "tenant", name: "switchTenantAgent", access: own,
			summary: "Turn them on or off for a tenant, where its sandboxes say nothing", body: &agentSwitch, example: map[string]any{"enabled": true},
			status: statusOK, answer: switchObject{}, handle: s.switchTenant},
	}
}
