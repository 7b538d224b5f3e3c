package router

import "automation/models/customer"

// The closed lists of words in what customers are answered, and the shapes of the document that no type says.

// agentStatus is what a server in a sandbox is (S2-039).
type agentStatus string

const (
	agentIdle    agentStatus = "idle" // none was ever started
	agentActive              = agentStatus(customer.Active)
	agentStopped             = agentStatus(customer.Stopped)
	agentFailed              = agentStatus(customer.Failed)
)

// agentReason is why it is so (S2-042).
type agentReason string

// reasonQueued is that of a server whose start is still to be made (S2-046).
const reasonQueued = agentReason(customer.Queued)

// agentReasons are all that are answered.
var agentReasons = []agentReason{
	customer.ReasonNone, reasonQueued, customer.ReasonExited, customer.ReasonStopped, customer.ReasonKilled, customer.ReasonPaused,
	customer.ReasonDeleted, customer.ReasonStartFailed, customer.ReasonLost,
}

// taskRefusal is why the caller can give the server no tasks (S2-043). Of the contract's words this service says the first two;
// docs/API.md says why.
type taskRefusal string

const (
	tasksTaken         taskRefusal = ""
	permissionRequired taskRefusal = "permission_required"
	modelProxyRequired taskRefusal = "model_proxy_required"
	modelLimit         taskRefusal = "model_limit"
)

// readiness is what is known of whether the server can work (S2-044).
type readiness string

const unverified readiness = "unverified"

// sessionName is the public id of a session (S2-040).
type sessionName string

var sessionShape = schema{"type": "string", "pattern": "^sxe_[0-9a-f]{24}$"}

// outputLine is a line of an agent's output (S2-052…054, S2-069).
var outputLine = func() schema {
	position := schema{"type": "integer", "minimum": 1}
	line := func(kinds []string, properties schema) schema {
		required := []string{"type"}
		for name := range properties {
			required = append(required, name)
		}
		properties["type"] = schema{"type": "string", "enum": kinds}
		return schema{"type": "object", "properties": properties, "required": required, "additionalProperties": true}
	}
	return schema{"oneOf": []schema{
		line([]string{"stdout", "stderr"}, schema{"seq": position, "data": schema{"type": "string", "contentEncoding": "base64"}}),
		line([]string{"gap"}, schema{"seq": position, "from_seq": position, "to_seq": position, "bytes": schema{"type": "integer", "minimum": 0}}),
		line([]string{"keepalive"}, schema{}),
		line([]string{"exit"}, schema{
			"seq": position, "exit_code": schema{"type": []string{"integer", "null"}}, "reason": words(agentReasons...), "output_truncated": schema{"type": "boolean"},
		}),
	}}
}()

// Examples of answers.
var (
	agentExample = map[string]any{
		"enabled": true, "status": agentActive, "session_id": "sxe_85e9da7457ce18af71ba40f1", "exit_code": nil, "reason": "", "tasks_available": true,
		"task_unavailable_reason": "", "readiness": unverified, "updated_at": "2026-11-30T22:40:41.011958Z",
	}
	outputExample = `{"type":"stdout","seq":1,"data":"dXAK"}` + "\n" +
		`{"type":"gap","seq":9,"from_seq":2,"to_seq":9,"bytes":70000}` + "\n" + `{"type":"keepalive"}` + "\n" +
		`{"type":"exit","seq":10,"exit_code":0,"reason":"exited","output_truncated":true}` + "\n"
	ticketExample = map[string]any{
		"ticket": "sxt_…", "session_id": "sxe_85e9da7457ce18af71ba40f1", "expires_at": "2026-11-30T22:41:41.011958Z",
	}
)
