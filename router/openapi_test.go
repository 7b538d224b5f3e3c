package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/router"
)

// spec is the OpenAPI document as a client reads it.
type spec struct {
	t    *testing.T
	root map[string]any
}

func (w *world) spec() spec {
	w.t.Helper()
	return spec{w.t, w.call("tok-alice", "GET", base+"/v1/openapi.json", nil).is(200)}
}

// operation is one method of one path.
type operation struct {
	method, path string
	about        string
	open, own    bool
	query        []map[string]any // parameters
	body         map[string]any   // schema of the JSON body; nil: none
	required     bool             // the body
	raw          string           // content type of a body that is no JSON
	example      any
	status       int
	answer       map[string]any // schema; nil: no JSON
}

// ofCustomers reports whether a path is one of the public routes, which lie at the root and have tests of their own.
func ofCustomers(path string) bool { return strings.HasPrefix(path, "/v1/customer/") }

func object(v any) map[string]any { o, _ := v.(map[string]any); return o }

func (s spec) operations() []operation {
	var all []operation
	for path, methods := range object(s.root["paths"]) {
		for method, v := range object(methods) {
			o := object(v)
			if method == "servers" { // of a path that lies elsewhere
				continue
			}
			op := operation{method: strings.ToUpper(method), path: path, about: o["tags"].([]any)[0].(string)}
			security, given := o["security"].([]any)
			op.open = given && len(security) == 0
			parameters, _ := o["parameters"].([]any)
			for _, p := range parameters {
				if object(p)["in"] == "query" {
					op.query = append(op.query, object(p))
				}
			}
			if request := object(o["requestBody"]); request != nil {
				op.required, _ = request["required"].(bool)
				for kind, c := range object(request["content"]) {
					if kind == "application/json" {
						op.body, op.example = object(object(c)["schema"]), object(c)["example"]
					} else {
						op.raw = kind
					}
				}
			}
			for code, answer := range object(o["responses"]) {
				content := object(object(answer)["content"])
				switch code {
				case "4XX":
					op.own = strings.HasSuffix(object(object(content["application/json"])["schema"])["$ref"].(string), "/Problem")
				case "5XX":
				default:
					_, err := fmt.Sscan(code, &op.status)
					require.NoError(s.t, err)
					op.answer = object(object(content["application/json"])["schema"])
				}
			}
			all = append(all, op)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

// resolve follows references.
func (s spec) resolve(schema map[string]any) map[string]any {
	ref, isRef := schema["$ref"].(string)
	if !isRef {
		return schema
	}
	found := object(object(object(s.root["components"])["schemas"])[strings.TrimPrefix(ref, "#/components/schemas/")])
	require.NotNil(s.t, found, "%s is not there", ref)
	return found
}

func TestTheDocumentAndTheRoutesAreTheSame(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		served := map[string]bool{}
		require.NoError(t, chi.Walk(w.handler.(chi.Routes), func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
			if method != "CONNECT" && method != "QUERY" { // which OpenAPI 3.1 cannot name
				path = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(path, base), "/"), "*", "{path}")
				served[method+" "+path] = true
			}
			return nil
		}))
		documented, names := map[string]bool{}, map[string]bool{}
		s := w.spec()
		for path, methods := range object(s.root["paths"]) {
			for method, o := range object(methods) {
				if method == "servers" {
					require.True(t, ofCustomers(path))
					continue
				}
				documented[strings.ToUpper(method)+" "+path] = true
				name := object(o)["operationId"].(string)
				require.False(t, names[name], "%s twice", name)
				names[name] = true
				require.NotEmpty(t, object(o)["summary"], name)
			}
		}
		require.Equal(t, served, documented)
		require.Equal(t, "3.1.0", s.root["openapi"])
		require.Equal(t, base, object(s.root["servers"].([]any)[0])["url"])
		for _, path := range []string{"/openapi.json", base + "/openapi.json"} {
			require.Equal(t, s.root, w.call("tok-bob", "GET", path, nil).is(200))
			require.Equal(t, 401, w.call("", "GET", path, nil).Code, "nothing but probes answers without a login")
		}
	})
}

func TestTheDocumentKnowsTheBasePath(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		got := w.call("tok-bob", "GET", "/agents/api/automation/v1/openapi.json", nil).is(200)
		require.Equal(t, "/agents/api/automation", object(got["servers"].([]any)[0])["url"])
	}, func(d *router.Deps) { d.Config.HTTP.BasePath = "/agents/api/automation" })
}

// check says where a value is not what its schema says; "" when it is. A property that the schema does not name is wrong too.
func (s spec) check(schema map[string]any, v any, at string) string {
	schema = s.resolve(schema)
	for _, key := range []string{"anyOf", "oneOf"} {
		if choices, has := schema[key].([]any); has {
			var why []string
			for _, c := range choices {
				wrong := s.check(object(c), v, at)
				if wrong == "" {
					return ""
				}
				why = append(why, wrong)
			}
			return strings.Join(why, " and ")
		}
	}
	if enum, has := schema["enum"].([]any); has && !slices.Contains(enum, v) {
		return fmt.Sprintf("%s: %v is none of %v", at, v, enum)
	}
	kind := map[string]string{"<nil>": "null", "bool": "boolean", "float64": "number", "string": "string", "[]interface {}": "array",
		"map[string]interface {}": "object"}[fmt.Sprintf("%T", v)]
	if number, isNumber := v.(float64); isNumber && number == float64(int64(number)) && !slices.Contains(kinds(schema), "number") {
		kind = "integer"
	}
	if want := kinds(schema); len(want) > 0 && !slices.Contains(want, kind) {
		return fmt.Sprintf("%s: %v is a %s, not %v", at, v, kind, want)
	}
	switch t := v.(type) {
	case []any:
		for n, entry := range t {
			if wrong := s.check(object(schema["items"]), entry, fmt.Sprintf("%s[%d]", at, n)); wrong != "" {
				return wrong
			}
		}
	case map[string]any:
		return s.checkObject(schema, t, at)
	}
	return ""
}

func (s spec) checkObject(schema, v map[string]any, at string) string {
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, there := v[name.(string)]; !there {
			return fmt.Sprintf("%s: %s is missing", at, name)
		}
	}
	properties, named := schema["properties"].(map[string]any)
	for name, entry := range v {
		inner := object(schema["additionalProperties"])
		if named {
			var known bool
			if inner, known = properties[name].(map[string]any); !known {
				return fmt.Sprintf("%s: %s is not documented", at, name)
			}
		}
		if wrong := s.check(inner, entry, at+"."+name); wrong != "" {
			return wrong
		}
	}
	return ""
}

// kinds are the types that a schema allows; none: all.
func kinds(schema map[string]any) []string {
	switch t := schema["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, one := range t {
			all = append(all, one.(string))
		}
		return all
	}
	return nil
}

// things are one object of each kind in alice's organization, and one in eve's.
type things struct{ mine, foreign map[string]string }

func (w *world) things() things {
	w.t.Helper()
	upload := func(as string) string {
		return w.call(as, "POST", "uploads?name=x", strings.NewReader("tar"), "Content-Type", "application/x-tar").is(201)["id"].(string)
	}
	mine := w.automation()
	run, _ := w.running(mine)
	_, rested := w.finished()
	theirs := w.automation(func(a *models.Automation) { a.OrgID, a.UserID = otherOrg, eve })
	foreignRun, foreignBox := w.running(theirs)
	checkout := w.conversation(func(r *models.Runtime) { r.Workspace = "/srv/checkouts/project" })
	foreignTalk := w.conversation(func(r *models.Runtime) { r.OrgID, r.UserID = otherOrg, eve })
	key := func(as string) string {
		return w.call(as, "POST", "keys", map[string]any{"name": "k", "permissions": []string{"all:all"}}).is(201)["id"].(string)
	}
	sweep := func(as string) string { return w.call(as, "POST", "sweeps/plan", nil).is(201)["id"].(string) }
	return things{
		mine: map[string]string{"automation": mine.ID.String(), "run": run.ID.String(), "sandbox": rested.ID.String(),
			"upload": upload("tok-alice"), "sweep": sweep("tok-alice"), "key": key("tok-alice"), "tenant": org.String(), "runtime": checkout.ConversationID.String()},
		foreign: map[string]string{"automation": theirs.ID.String(), "run": foreignRun.ID.String(), "sandbox": foreignBox.ID.String(),
			"upload": upload("tok-eve"), "sweep": sweep("tok-eve"), "key": key("tok-eve"), "tenant": otherOrg.String(), "runtime": foreignTalk.ConversationID.String()},
	}
}

func TestAnswersAreWhatTheDocumentSays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.boxServer(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = rw.Write([]byte(`{"capabilities":["storage_reclaim_v1"]}`))
		})
		s := w.spec()
		have := w.things()
		checked := 0
		for _, last := range []bool{false, true} { // what deletes comes last
			for _, op := range s.operations() {
				if op.answer == nil || ofCustomers(op.path) || strings.Contains(op.path, "reclaim") || strings.HasSuffix(op.path, "/export") || strings.Contains(op.path, "telemetry") || (op.method == "DELETE" || strings.HasSuffix(op.path, "cancel")) != last {
					continue
				}
				id := have.mine[op.about]
				path := base + strings.ReplaceAll(op.path, "{id}", id)
				var body any
				if op.example != nil {
					body = op.example
				}
				switch {
				case op.path == "/v1/uploads" && op.method == "POST":
					path, body = path+"?name=y", strings.NewReader("tar")
				case op.path == "/v1/sandboxes/{id}" && last:
					path += confirmed
				case strings.HasSuffix(op.path, "cancel"):
					run, _ := w.running(w.automation())
					path = strings.ReplaceAll(path, id, run.ID.String())
				case strings.HasSuffix(op.path, "extend"):
					_, box := w.finished()
					path = strings.ReplaceAll(path, id, box.ID.String())
				}
				headers := []string{}
				if op.raw != "" {
					headers = []string{"Content-Type", op.raw}
				}
				if op.path == "/v1/runs/{id}/complete" {
					run, _ := w.running(w.automation())
					path = strings.ReplaceAll(path, id, run.ID.String())
				}
				got := w.call("tok-alice", op.method, path, body, headers...)
				require.Equal(t, op.status, got.Code, "%s %s: %s", op.method, path, got.Body)
				var v any
				require.NoError(t, json.Unmarshal(got.Body.Bytes(), &v))
				require.Empty(t, s.check(op.answer, v, op.method+" "+op.path), "%s", got.Body)
				checked++
			}
		}
		require.Greater(t, checked, 30)
		for path, shape := range map[string]string{"sandboxes/" + uuid.NewString(): "Problem", uuid.NewString(): "ContractProblem", "x": "ContractProblem", "runs?limit=x": "Problem"} {
			got := w.call("tok-alice", "GET", path, nil)
			require.Empty(t, s.check(map[string]any{"$ref": "#/components/schemas/" + shape}, got.json(), path))
		}
	})
}
