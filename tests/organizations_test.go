package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// operation is one line of the route table, as the program's own document tells it.
type operation struct {
	method, path, about string
	body                json.RawMessage // an example; nil: none
}

// documented lists every operation with an id in its path, from the built program's OpenAPI document.
func (c caller) documented() []operation {
	c.t.Helper()
	_, _, raw := c.send(http.MethodGet, "/openapi.json", map[string]string{"Authorization": "Bearer tok-eve"}, nil)
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	require.NoError(c.t, json.Unmarshal(raw, &document))
	var all []operation
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(document.Paths[path])) {
			var o struct {
				Tags        []string
				RequestBody struct {
					Content map[string]struct{ Example json.RawMessage }
				}
			}
			if json.Unmarshal(document.Paths[path][method], &o) != nil || len(o.Tags) == 0 || !strings.Contains(path, "{") {
				continue
			}
			all = append(all, operation{strings.ToUpper(method), path, o.Tags[0], o.RequestBody.Content["application/json"].Example})
		}
	}
	return all
}

// answer is what eve is told: status, headers and body, without what differs with every request.
func (c caller) answer(method, path string, body []byte) string {
	c.t.Helper()
	status, header, raw := c.send(method, "/api/automation"+path, map[string]string{
		"Authorization": "Bearer tok-eve", "Content-Type": "application/json",
	}, body)
	header.Del("Date")
	header.Del("X-Request-Id")
	var o object
	if json.Unmarshal(raw, &o) == nil {
		if problem, ok := o["error"].(map[string]any); ok {
			delete(problem, "request_id")
		}
		delete(o, "request_id")
		raw, _ = json.Marshal(o)
	}
	return fmt.Sprint(status, header, string(raw))
}

// belongings are alice's, by what a route is about, and how each is seen by her.
func (c caller) belongings() (ids map[string]string, seen map[string]string) {
	c.t.Helper()
	run := c.running("tok-alice", 60)
	_, _, raw := c.send(http.MethodPost, "/api/automation/v1/uploads?name=code", map[string]string{
		"Authorization": "Bearer tok-alice", "Content-Type": "application/gzip",
	}, tarball(c.t, "main.sh", "true"))
	var upload object
	require.NoError(c.t, json.Unmarshal(raw, &upload))
	sweep := c.call("tok-alice", http.MethodPost, "/sweeps/plan", nil, http.StatusCreated)
	ids = map[string]string{
		"automation": run.text("automation_id"), "run": run.text("id"), "sandbox": run.text("sandbox", "id"), "runtime": run.text("sandbox", "id"),
		"upload": upload.text("id"), "sweep": sweep.text("id"), "key": "", "tenant": cloudstub.Org,
	}
	return ids, map[string]string{
		"automation": "/" + ids["automation"], "run": "/runs/" + ids["run"], "sandbox": "/sandboxes/" + ids["sandbox"],
		"events": "/sandboxes/" + ids["sandbox"] + "/events", "upload": "/uploads/" + ids["upload"], "sweep": "/sweeps/" + ids["sweep"],
	}
}

// The contract itself tells another organization's run: complete, phase and cancel are 403 there.
func TestEveryRouteAnswersTheWrongOrganizationAsForAnUnknownID(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database []string) {
		c := newCaller(t, "delay", database...)
		ids, paths := c.belongings()
		look := func() map[string]object {
			all := map[string]object{}
			for what, path := range paths {
				all[what] = c.call("tok-alice", http.MethodGet, path, nil, http.StatusOK)
			}
			return all
		}
		before, calls := look(), len(c.providerCalls())
		const unknown = "00000000-0000-4000-8000-000000000009"
		told := 0
		for _, o := range c.documented() {
			id, known := ids[o.about]
			customer := strings.Contains(o.path, "{tenantId}")
			if customer {
				id, known = ids["sandbox"], true
			}
			require.True(t, known, "%s %s is about a %s: give this test one of alice's", o.method, o.path, o.about)
			if id == "" || o.method == http.MethodTrace {
				continue // keys are made by the command line; TRACE is refused before it is read
			}
			with := func(id, tenant string) string {
				path := strings.NewReplacer("{id}", id, "{sandboxId}", id, "{tenantId}", tenant, "{path}", "api/file/home").Replace(o.path)
				if o.method == http.MethodDelete && o.about == "sandbox" {
					path += "?confirm=history-will-be-lost"
				}
				return path
			}
			if contract403(o) {
				require.Contains(t, c.answer(o.method, with(id, ""), o.body), "403 ", "%s %s", o.method, o.path)
				require.Contains(t, c.answer(o.method, with(unknown, ""), o.body), "404 ", "%s %s", o.method, o.path)
				continue
			}
			tenants := []string{""}
			if customer {
				tenants = []string{cloudstub.Org, cloudstub.OtherOrg}
			}
			for _, tenant := range tenants {
				foreign, nobody := c.answer(o.method, with(id, tenant), o.body), c.answer(o.method, with(unknown, tenant), o.body)
				require.Equal(t, strings.ReplaceAll(nobody, unknown, "ID"), strings.ReplaceAll(foreign, id, "ID"), "%s %s", o.method, o.path)
				require.NotRegexp(t, `^2`, foreign, "%s %s", o.method, o.path)
			}
			told++
		}
		require.Greater(t, told, 30)
		for _, list := range []string{"", "/runs", "/sandboxes", "/uploads", "/sweeps", "/tags"} {
			_, _, raw := c.send(http.MethodGet, "/api/automation/v1"+list, map[string]string{"Authorization": "Bearer tok-eve"}, nil)
			for what, id := range ids {
				require.False(t, id != "" && strings.Contains(string(raw), id), "GET %s shows a %s", list, what)
			}
		}
		require.Equal(t, before, look(), "nothing has changed")
		require.Len(t, c.providerCalls(), calls, "the provider is not called")
	})
}

// contract403 are the routes whose answer to another organization the contract names.
func contract403(o operation) bool {
	return o.about == "run" && (strings.HasSuffix(o.path, "/complete") || strings.HasSuffix(o.path, "/phase") || strings.HasSuffix(o.path, "/cancel"))
}

// providerCalls are those that are about sandboxes: of the provider, and of the agent servers in them.
func (c caller) providerCalls() []cloudstub.Call {
	return slices.DeleteFunc(c.stub.Calls(), func(call cloudstub.Call) bool { return call.Op == "users_me" || call.Op == "bash_search" })
}
