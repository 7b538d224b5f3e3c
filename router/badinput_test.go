package router_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models/modelstest"
)

// Bad input on every route, made from the OpenAPI document: the answer is a 4xx that names the field, and nothing is written.

// rows is everything that is stored, as text.
func (w *world) rows() map[string]string {
	w.t.Helper()
	db, all := modelstest.Of(w.t, w.store).Raw(), map[string]string{}
	for _, table := range []string{"automations", "automation_runs", "sandboxes", "sandbox_identities", "sandbox_attachments", "sandbox_events",
		"uploads", "sweeps", "sweep_items", "customer_keys", "agent_features"} {
		var found []map[string]any
		require.NoError(w.t, db.NewSelect().TableExpr(table+" AS x").Scan(w.t.Context(), &found))
		var lines []string
		for _, row := range found {
			delete(row, "last_access_at") // looking is no write
			lines = append(lines, fmt.Sprint(row))
		}
		slices.Sort(lines)
		all[table] = fmt.Sprintf("%d rows\n%s", len(lines), strings.Join(lines, "\n"))
	}
	return all
}

// bad is one request that must be refused.
type bad struct {
	what  string
	id    string // instead of one that is fine
	query string
	body  string
	kind  string // content type; "": JSON
	field string // that the answer must name
	codes []int  // allowed; nil: any 4xx
}

// sample is the smallest value that a schema takes.
func (s spec) sample(schema map[string]any) any {
	schema = s.resolve(schema)
	if enum, has := schema["enum"].([]any); has {
		return enum[0]
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if choices, has := schema[key].([]any); has {
			return s.sample(object(choices[0]))
		}
	}
	if len(kinds(schema)) == 0 {
		return nil
	}
	switch kinds(schema)[0] {
	case "object":
		out := map[string]any{}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			out[name.(string)] = s.sample(object(object(schema["properties"])[name.(string)]))
		}
		return out
	case "array":
		return []any{}
	case "integer", "number":
		return max(1, number(schema["minimum"]))
	case "boolean":
		return true
	}
	switch schema["format"] {
	case "uuid":
		return uuid.NewString()
	case "date-time":
		return "2026-06-02T12:00:00Z"
	}
	return strings.Repeat("x", int(max(1, number(schema["minLength"]))))
}

func number(v any) float64 { n, _ := v.(float64); return n }

// allowed are the types that a schema takes; none: all.
func (s spec) allowed(schema map[string]any) []string {
	schema = s.resolve(schema)
	all := kinds(schema)
	for _, key := range []string{"anyOf", "oneOf"} {
		choices, _ := schema[key].([]any)
		for _, c := range choices {
			all = append(all, s.allowed(object(c))...)
		}
	}
	return all
}

// wrong are values that a schema does not take; a name says why.
func (s spec) wrong(schema map[string]any) map[string]any {
	schema = s.resolve(schema)
	out := map[string]any{}
	allowed := s.allowed(schema)
	if len(allowed) == 0 {
		return out
	}
	takes := func(kind string) bool { return slices.Contains(allowed, kind) }
	if !takes("null") {
		out["null"] = nil
	}
	if !takes("array") {
		out["a list"] = []any{}
	}
	if !takes("object") {
		out["an object"] = map[string]any{}
	}
	if !takes("number") && !takes("integer") && !takes("boolean") {
		out["a number"] = 7
	}
	if !takes("string") {
		out["a word"] = "perhaps"
	}
	if takes("integer") {
		out["a fraction"] = 1.5
	}
	if least, bounded := schema["minimum"].(float64); bounded {
		out["too small"] = least - 1
	}
	if most, bounded := schema["maximum"].(float64); bounded {
		out["too large"] = most + 1
	}
	if most, bounded := schema["maxLength"].(float64); bounded {
		out["too long"] = strings.Repeat("x", int(most)+1)
	}
	if number(schema["minLength"]) > 0 {
		out["empty"] = ""
	}
	if schema["enum"] != nil || schema["format"] != nil || schema["pattern"] != nil {
		out["another word"] = "!nope"
	}
	if takes("string") && !takes("null") {
		out["a NUL"] = "a\x00b"
	}
	return out
}

// bodies are bad bodies of an object schema: base is one that is fine, wrap puts it where it belongs.
func (s spec) bodies(schema map[string]any, fine map[string]any, at string, wrap func(map[string]any) any) []bad {
	var all []bad
	add := func(what, field string, v map[string]any) {
		all = append(all, bad{what: at + what, body: encode(wrap(v)), field: field})
	}
	with := func(name string, v any) map[string]any {
		out := maps.Clone(fine)
		out[name] = v
		return out
	}
	add("an unknown field", "surprise", with("surprise", 1))
	required, _ := schema["required"].([]any)
	for _, name := range required {
		out := maps.Clone(fine)
		delete(out, name.(string))
		add("without "+name.(string), name.(string), out)
	}
	for name, p := range object(schema["properties"]) {
		property := s.resolve(object(p))
		for why, v := range s.wrong(property) {
			if name == "phase" && why == "a NUL" {
				continue // control characters are white space there (contract section 3.7)
			}
			add(name+" is "+why, name, with(name, v))
		}
		choices := []any{property}
		for _, key := range []string{"anyOf", "oneOf"} {
			more, _ := property[key].([]any)
			choices = append(choices, more...)
		}
		for _, c := range choices {
			inner := s.resolve(object(c))
			if inner["properties"] == nil {
				continue
			}
			sample := object(s.sample(inner))
			if kind, tagged := object(object(inner["properties"])["type"])["enum"].([]any); tagged {
				sample["type"] = kind[0] // which alternative is meant
			}
			for _, b := range s.bodies(inner, sample, at+name+": ", func(v map[string]any) any { return wrap(with(name, v)) }) {
				if _, tagged := sample["type"]; !tagged || !strings.Contains(b.what, ": type is ") && !strings.Contains(b.what, "without type") {
					all = append(all, b)
				}
			}
		}
	}
	return all
}

// cases are all bad requests for an operation.
func (s spec) cases(op operation, have things) []bad {
	var all []bad
	fine := object(op.example)
	if fine == nil {
		fine = map[string]any{}
	}
	body := ""
	if op.example != nil {
		body = encode(op.example)
	}
	if strings.Contains(op.path, "{id}") {
		foreign, unknown := []int{403, 404}, []int{403, 404, 405, 422}
		if op.own {
			unknown = append(unknown, 400)
		}
		if op.method+op.path == "PUT/v1/runtimes/{id}" { // makes what the id names, but for the workspace that another one has
			foreign, unknown = []int{409}, []int{400, 404, 409}
		}
		all = append(all, bad{what: "a foreign id", id: have.foreign[op.about], body: body, codes: foreign})
		for _, id := range []string{uuid.NewString(), "x", "..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "%00", "%ff", "a%2Fb", "%25", strings.Repeat("a", 5000), "-1", "%F0%9F%92%A5"} {
			all = append(all, bad{what: "the id " + id, id: id, body: body, codes: unknown})
		}
	}
	for _, p := range op.query {
		name, schema := p["name"].(string), object(p["schema"])
		if items := object(schema["items"]); items != nil {
			schema = items
		}
		for why, v := range s.wrong(schema) {
			switch given := v.(type) {
			case string:
				all = append(all, bad{what: name + " is " + why, query: name + "=" + url.QueryEscape(given), field: name, body: body})
			case float64:
				all = append(all, bad{what: name + " is " + why, query: fmt.Sprintf("%s=%.15g", name, given), field: name, body: body})
			}
		}
		if required, _ := p["required"].(bool); required {
			all = append(all, bad{what: "without " + name, query: "other=1", field: name, body: body})
		}
	}
	if op.body == nil {
		return all
	}
	all = append(all, s.bodies(s.resolve(op.body), fine, "", func(v map[string]any) any { return v })...)
	for _, text := range []string{"{", `{"a"`, "[]", "7", `"text"`, "nul", `{"a":1}}`, `{"a":1} {"b":2}`, "\xff\xfe", `{"a":NaN}`, strings.Repeat("[", 20_000), "{}\x00", `{'a':1}`} {
		all = append(all, bad{what: fmt.Sprintf("the body %.20q", text), body: text, codes: []int{400, 422}})
	}
	if op.required {
		all = append(all, bad{what: "no body", codes: []int{400, 422}}, bad{what: "null", body: "null", codes: []int{400, 422}})
	}
	return append(all,
		bad{what: "a huge body", body: `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, codes: []int{413}},
		bad{what: "another content type", body: encode(fine), kind: "text/plain", codes: []int{415}},
		bad{what: "no content type", body: encode(fine), kind: " ", codes: []int{415}})
}

func TestBadInputOnEveryRoute(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.boxServer(func(http.ResponseWriter, *http.Request) { t.Error("nothing bad gets into a box") })
		s, have, tried := w.spec(), w.things(), 0
		before := w.rows()
		for _, op := range s.operations() {
			if ofCustomers(op.path) {
				continue
			}
			target := func(b bad) string {
				id := have.mine[op.about]
				if b.id != "" {
					id = b.id
				}
				path := base + strings.NewReplacer("{id}", id, "{path}", "x").Replace(op.path)
				if b.query != "" {
					path += "?" + b.query
				}
				return path
			}
			send := func(as string, b bad) answer {
				headers := []string{}
				if b.kind != "" {
					headers = []string{"Content-Type", strings.TrimSpace(b.kind)}
				}
				var body any
				switch {
				case op.raw != "" && !strings.Contains(op.path, "/proxy"):
					body, headers = strings.NewReader("tar"), []string{"Content-Type", "application/x-tar"}
				case b.body != "":
					body = b.body
				}
				return w.call(as, op.method, target(b), body, headers...)
			}
			if !op.open {
				require.Equal(t, 401, send("", bad{}).Code, "%s %s", op.method, op.path)
				require.Equal(t, 401, send("wrong", bad{}).Code, "%s %s", op.method, op.path)
			}
			for _, b := range s.cases(op, have) {
				got := send("tok-alice", b)
				where := fmt.Sprintf("%s %s with %s: %d %.300s", op.method, op.path, b.what, got.Code, got.Body)
				require.GreaterOrEqual(t, got.Code, 400, where)
				require.Less(t, got.Code, 500, where)
				if b.codes != nil {
					require.Contains(t, b.codes, got.Code, where)
				}
				if b.field != "" {
					require.Contains(t, got.Body.String(), b.field, where)
				}
				if b.id == "" && op.own {
					require.Contains(t, []int{400, 413, 415}, got.Code, where)
				}
				require.True(t, json.Valid(got.Body.Bytes()), where)
				tried++
			}
			require.Equal(t, before, w.rows(), "%s %s wrote something", op.method, op.path)
		}
		require.Greater(t, tried, 800)
		require.Zero(t, w.door.entered.Load())
	})
}
