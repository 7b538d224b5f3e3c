package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// difference is where we do something else than was recorded, and why; the reasons are in docs/API.md too.
type difference struct {
	skip    bool // not played: why
	status  int  // our status; the body is not compared then, but with body
	body    any  // our answer, where it is compared
	run     func(object) error
	without []string // calls that are not compared
	why     string
}

// ends is a run that ends in a status, with a text that starts alike and a kind.
func ends(status, text, kind string) func(object) error {
	return func(run object) error {
		if run.text("status") != status || !strings.HasPrefix(run.text("error_detail"), text) || run.text("status_detail", "kind") != kind {
			return fmt.Errorf("want %s %q %s: %v", status, text, kind, run)
		}
		return nil
	}
}

const (
	httpxWords = "the words are those of another HTTP client"
	addedCalls = "a deletion that failed is repeated until the box is gone"
)

var differences = map[string]map[int]difference{
	"auth":               {12: {skip: true, why: "the recorded list of logins alone; the login's calls are compared in its own tests"}},
	"automations-create": {16: {status: 422, why: "the words after \"Invalid filter expression\" are those of another parser"}},
	"automations-patch": {
		4: {status: 422, body: nullRefused("trigger"), why: "the recorded answer is a server error"},
		8: {status: 422, body: nullRefused("name"), why: "the recorded answer is a server error"},
	},
	"automations-read": {
		3:  {status: 200, body: listed(3, "list-2", "list-1"), why: "made within one second there, and listed in any order; newest first here"},
		4:  {status: 200, body: listed(3, "list-0"), why: "the same"},
		14: {status: 200, body: tagCounts("alpha", 3.0, "beta", 1.0), why: "tags of an earlier scenario are counted there"},
	},
	"open-routes": {
		6: {status: 200, body: map[string]any{"package_version": "dev", "sdk_version": "1.58.1"}, why: "the version is our own"},
		7: {status: 200, body: map[string]any{"package_version": "dev", "sdk_version": "1.58.1"}, why: "the version is our own"},
	},
	"complete-errors": {2: {skip: true, why: "the run may be running by then"}},
	"presets": merged(laterSteps(14, 21), map[int]difference{
		8:  {status: 201, why: "keep_alive is forced, or every follow-up would find its box gone"},
		13: {status: 200, why: "the files of the tarball are our own"},
	}),
	"provision-retry": {3: {without: []string{"delete"}, why: "boxes of the recording that no answer names"}},
	"cleanup-delay-delete-fails": {
		5: {skip: true, why: addedCalls},
		6: {skip: true, why: addedCalls},
	},
	"cleanup-delay-watchdog": {
		11: {skip: true, why: "a box that the provider does not show is not paused"},
		12: {skip: true, why: "the same, and two runs' boxes in any order"},
	},
	"cleanup-delay-pause-fails": {5: {without: []string{"delete"}, why: "the sweep's delete is compared with the box"}},
	"watchdog-agent-error":      {3: {run: ends("FAILED", "Timed out: ", "timeout"), why: httpxWords}},
	"watchdog-key-refused":      {3: {run: ends("FAILED", "Timed out: verification failed: ", "unknown"), why: httpxWords}, 4: {skip: true, why: "the box is decided, and deleted"}},
	"watchdog-mint-fails": {
		3: {run: ends("FAILED", "Timed out: ", "timeout"), why: "a mint that fails may pass: the run is verified again up to its hard cap, and its box is decided"},
		4: {skip: true, why: "the same"},
	},
	"watchdog-sandbox-gone": {4: {without: []string{"delete"}, why: "a box that is not shown is deleted once more all the same"}},
	"dispatch-failures": {
		4: {run: ends("FAILED", "Failed to get execution context", "unknown"), why: httpxWords},
		6: {run: ends("FAILED", "Failed to get execution context", "server_error"), why: "a mint that fails may pass"},
		8: {run: ends("FAILED", "Failed to download tarball (exit=-1): ", "execution_error"), why: httpxWords},
		10: {run: func(run object) error {
			return ends("FAILED", "Failed to upload the environment file", "execution_error")(run)
		}, why: "a failed upload fails the run"},
		11: {skip: true, why: "the same"},
	},
}

func nullRefused(field string) any {
	return map[string]any{"detail": []any{map[string]any{
		"type": "value_error", "loc": []any{"body", field}, "msg": "Value error, " + field + " cannot be null",
	}}}
}

func tagCounts(counts ...any) any {
	tags := []any{}
	for i := 0; i < len(counts); i += 2 {
		tags = append(tags, map[string]any{"tag": counts[i], "count": counts[i+1]})
	}
	return map[string]any{"tags": tags}
}

// listed is a page of automations.
func listed(total float64, names ...string) any {
	automations := []any{}
	for _, name := range names {
		automations = append(automations, map[string]any{"name": name})
	}
	return map[string]any{"automations": automations, "total": total}
}

// laterSteps are of routes that come later, both ends included.
func laterSteps(first, last int) map[int]difference {
	steps := map[int]difference{}
	for n := first; n <= last; n++ {
		steps[n] = difference{skip: true, why: "a route that comes later"}
	}
	return steps
}

func merged(a, b map[int]difference) map[int]difference {
	maps.Copy(a, b)
	return a
}

// box is the newest box of the stub.
func (p *player) box() string {
	all := p.stub.Boxes()
	require.NotEmpty(p.t, all)
	return all[len(all)-1].ID
}

func exits(code int, stdout, stderr string) func(*player) {
	return func(p *player) { p.stub.Exit(p.box(), code, stdout, stderr) }
}

func fails(op string, faults ...cloudstub.Fault) func(*player) {
	return func(p *player) { p.stub.Fail(op, faults...) }
}

func heal(p *player) { p.stub.Heal() }

// gone waits until nothing is left at the provider.
func gone(p *player) {
	p.until("every box is deleted in the end", func() error {
		if left := p.stub.Alive(); len(left) > 0 {
			return fmt.Errorf("alive: %v", left)
		}
		return nil
	})
}

// stages are what happened around the service, by scenario and the step before which it did.
var stages = map[string]map[int]func(*player){
	"cron": {1: func(p *player) {
		require.True(p.t, p.stub.Wait(2*patience, func() bool { return len(p.stub.Calls("bash_start")) >= 2 }), "a minute begins within a minute")
		p.until("the command's id is stored", func() error {
			_, _, raw := p.send(http.MethodGet, "/api/automation/v1/runs?status=RUNNING", map[string]string{"Authorization": "Bearer tok-alice"}, nil)
			if !strings.Contains(string(raw), `"bash_command_id":"`) {
				return fmt.Errorf("%w: %s", errNotYet, raw)
			}
			return nil
		})
	}},
	"auth": {11: fails("users_me", cloudstub.Fault{Status: http.StatusInternalServerError})},
	"run-callback-delay-0": {8: func(p *player) {
		p.stub.Finish(p.box(), json.RawMessage(`{"message":"done","outcome":"success"}`))
	}},
	"cleanup-delay-delete-fails": {3: fails("delete", cloudstub.Fault{Status: 500})},
	"cleanup-delay-pause-fails":  {3: fails("pause", cloudstub.Fault{Status: 500})},
	"cleanup-delay-watchdog":     {3: exits(0, "", ""), 9: func(p *player) { p.stub.Vanish(p.box()) }},
	"watchdog-exit-0":            {3: exits(0, "some output", "some error")},
	"watchdog-exit-3":            {3: exits(3, "some output", "some error")},
	"watchdog-exit-minus-1":      {3: exits(-1, "some output", "some error")},
	"local-mode": {11: func(p *player) {
		require.True(p.t, p.stub.Wait(patience, func() bool { return len(p.stub.Calls("bash_start")) >= 4 }))
		p.stub.Exit("local", 2, "", "boom")
	}},
	"watchdog-keep-alive":     {3: exits(0, "", "")},
	"watchdog-partial-output": {3: func(p *player) { p.stub.Prints(p.box(), "so far") }},
	"watchdog-sandbox-gone":   {3: func(p *player) { p.stub.Vanish(p.box()) }},
	"watchdog-sandbox-paused": {3: func(p *player) { p.stub.Set(p.box(), "PAUSED") }},
	"watchdog-agent-error":    {3: func(p *player) { p.stub.FailAlways("bash_search", cloudstub.Fault{Status: 404}) }},
	"watchdog-transient": {
		3: func(p *player) { p.stub.FailAlways("get", cloudstub.Fault{Status: 503}) },
		5: func(p *player) { heal(p); exits(0, "", "")(p) },
	},
	"watchdog-key-refused": {3: func(p *player) { p.stub.FailAlways("get", cloudstub.Fault{Status: 401}) }},
	"watchdog-mint-fails": {3: func(p *player) {
		p.stub.Revoke(cloudstub.Alice)
		p.stub.FailAlways("mint", cloudstub.Fault{Status: 500})
	}},
	"provision-gives-up": {1: func(p *player) { p.stub.Broken("image_pull_error: ErrImagePull registry.corp/x") }},
	"provision-never-ready": {1: func(p *player) {
		p.stub.NeverReady(true)
		p.stub.Broken("ImagePullBackOff registry.corp/x")
	}},
	"provision-retry": {
		1: func(p *player) { p.stub.Broken("image_pull_error") },
		2: func(p *player) {
			require.True(p.t, p.stub.Wait(patience, func() bool { return len(p.stub.Calls("create")) > 0 }))
			p.stub.Broken("")
		},
	},
	"quota": {
		1: fails("create", cloudstub.Fault{Status: 429, Body: `{"detail":{"error":"CONCURRENCY_LIMIT_REACHED","message":"x"}}`}),
		3: fails("create", cloudstub.Fault{Status: 429, Body: `{"detail":{"error":"DAILY_SANDBOX_LIMIT_REACHED","message":"x"}}`}),
		5: func(p *player) { p.stub.FailAlways("create", cloudstub.Fault{Status: 429}) },
	},
	"dispatch-failures": {
		1: fails("create", cloudstub.Fault{Status: 500}),
		3: fails("create", cloudstub.Fault{Status: 403}, cloudstub.Fault{Status: 403}),
		5: func(p *player) { // the kept key is refused, and the mint of another fails
			p.s.stop()
			p.s.launch() // a refusal just after a mint would hold the next one up for a minute
			p.stub.Revoke(cloudstub.Alice)
			p.stub.Fail("mint", cloudstub.Fault{Status: 500})
		},
		7: fails("bash_start", cloudstub.Fault{Status: 500}),
		9: fails("upload", cloudstub.Fault{Status: 500}),
	},
	"tarball-missing": {
		1: func(p *player) { p.stub.Curl(22, "curl: (22) The requested URL returned error: 404") },
		5: func(p *player) { p.stub.Curl(22, "curl: (22) The requested URL returned error: 503") },
	},
}

// attention waits until so many boxes are shown as unaccounted, and no other one needs attention.
func (p *player) attention(n int) {
	p.t.Helper()
	p.until("boxes that need attention", func() error {
		_, _, raw := p.send(http.MethodGet, "/api/automation/v1/sandboxes?needs_attention=true", map[string]string{"Authorization": "Bearer tok-alice"}, nil)
		var list object
		require.NoError(p.t, json.Unmarshal(raw, &list))
		if list["total"] != float64(n) || strings.Count(string(raw), `"unaccounted"`) != n {
			return fmt.Errorf("%w: %s", errNotYet, raw)
		}
		return nil
	})
}

var errNotYet = errors.New("not yet")

// endings are what must be true after a scenario.
var endings = map[string]func(*player){
	"run-callback-delay-0": func(p *player) {
		p.until("the finish response is stored", func() error {
			run := p.look(p.run.text("id"))
			if run.text("run_metadata", "finish_tool_response", "outcome") != "success" {
				return fmt.Errorf("%w: %v", errNotYet, run.get("run_metadata"))
			}
			return nil
		})
	},
	"cleanup-delay-delete-fails": gone,
	"cleanup-delay-pause-fails":  gone,
	"cleanup-delay-watchdog":     gone,
	"watchdog-key-refused":       gone,
	"watchdog-mint-fails":        func(p *player) { heal(p); gone(p) },
	"watchdog-agent-error":       gone,
	"watchdog-still-running":     gone,
	"watchdog-transient":         gone,
	"provision-gives-up":         gone,
	"provision-never-ready":      gone,
	"dispatch-failures": func(p *player) {
		gone(p)
		p.attention(1) // the create that answered 500 may have made a box
	},
	"tarball-missing": gone,
	"quota": func(p *player) {
		require.Len(p.t, p.stub.Calls("create"), 7, "two quotas, and five tries against a plain 429")
		p.attention(0) // none of them made anything
	},
}
