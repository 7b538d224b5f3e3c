package router

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// The OpenAPI 3.1 document, made from the table of routes, the tables of bodies and the types of the answers.

// openapi is GET /openapi.json.
func (s *server) openapi(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	if s.undocumented != nil {
		return s.undocumented
	}
	return ok(w, json.RawMessage(s.document))
}

// proxied are the methods that a document can name, for routes of any method.
var proxied = []string{"GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"}

// document writes the document for a service below base.
func document(table []route, base, version string) ([]byte, error) {
	types := shapes{}
	paths := map[string]map[string]any{}
	for _, line := range table {
		path := strings.ReplaceAll(line.path, "*", "{path}")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		if line.access == public {
			paths[path]["servers"] = []any{map[string]any{"url": "/"}}
		}
		methods := []string{line.method}
		if line.method == anyMethod {
			methods = proxied
		}
		for _, method := range methods {
			name := line.name
			if len(methods) > 1 {
				name += method
			}
			paths[path][strings.ToLower(method)] = types.operation(line, name)
		}
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "automation", "version": version,
			"description": "Runs agent automations in sandboxes. health, ready, sdk-version, server_info, openapi.json and metrics also answer at the root.",
		},
		"servers":  []any{map[string]any{"url": "/" + strings.Trim(base, "/")}},
		"security": []any{map[string]any{"bearer": []string{}}, map[string]any{"key": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": types.with(problemShapes),
			"securitySchemes": map[string]any{
				"bearer": map[string]any{"type": "http", "scheme": "bearer"},
				"key":    map[string]any{"type": "apiKey", "in": "header", "name": "X-Session-API-Key"},
			},
		},
	})
}

// operation describes one method of one path.
func (types shapes) operation(line route, name string) map[string]any {
	success := map[string]any{"description": line.summary}
	switch {
	case line.gives != "":
		success["content"] = content(line.gives, line.given).showing(line.gives, line.shows)
	case line.answer != nil:
		success["content"] = content("application/json", types.of(reflect.TypeOf(line.answer))).showing("application/json", line.shows)
	}
	kind := "ContractProblem"
	if line.access == own || line.access == public {
		kind = "Problem"
	}
	problem := map[string]any{"description": "What is wrong", "content": content("application/json", reference(kind))}
	o := map[string]any{
		"operationId": name, "summary": line.summary, "tags": []string{line.about},
		"responses": map[string]any{strconv.Itoa(line.status): success, "4XX": problem, "5XX": map[string]any{"description": "Not the caller's fault"}},
	}
	if line.access == open {
		o["security"] = []any{}
		o["responses"] = map[string]any{strconv.Itoa(line.status): success, "5XX": map[string]any{"description": "It cannot work now"}}
	}
	if line.access == public { // a key of a customer is a bearer only, and a relay has its ticket
		o["security"] = []any{map[string]any{"bearer": []string{}}}
	}
	if parameters := parametersOf(line); len(parameters) > 0 {
		o["parameters"] = parameters
	}
	switch {
	case line.body != nil:
		body := content("application/json", line.body.schema).showing("application/json", line.example)
		o["requestBody"] = map[string]any{"required": !line.bodyless, "content": body}
	case line.takes != nil:
		kinds := map[string]any{}
		for _, kind := range line.takes {
			maps.Copy(kinds, content(kind, schema{}))
		}
		o["requestBody"] = map[string]any{"content": kinds}
	}
	return o
}

// contents are the bodies that there may be, by content type.
type contents map[string]any

func content(kind string, s schema) contents {
	if s == nil {
		s = schema{}
	}
	return contents{kind: map[string]any{"schema": s}}
}

// showing adds an example where there is one.
func (c contents) showing(kind string, example any) contents {
	if example != nil {
		c[kind].(map[string]any)["example"] = example
	}
	return c
}

func reference(name string) schema { return schema{"$ref": "#/components/schemas/" + name} }

func parametersOf(line route) []any {
	var all []any
	if strings.Contains(line.path, "{id}") {
		all = append(all, map[string]any{
			"name": "id", "in": "path", "required": true, "description": "Of the " + line.about, "schema": identifier.schema,
		})
	}
	for _, name := range []string{"tenantId", "sandboxId"} {
		if strings.Contains(line.path, "{"+name+"}") {
			all = append(all, map[string]any{"name": name, "in": "path", "required": true, "schema": identifier.schema})
		}
	}
	if strings.Contains(line.path, "*") {
		all = append(all, map[string]any{
			"name": "path", "in": "path", "required": true, "description": "In the sandbox, with slashes", "schema": schema{"type": "string"},
		})
	}
	if line.repeatable() || line.keyed {
		all = append(all, header("Idempotency-Key", "For a day the same request with the same key is answered, not done again", keyShape))
	}
	if line.changes() {
		all = append(all, header("If-Match", "ETag of the object that is to be changed; 412 when it is another by now", schema{"type": "string"}))
	}
	for _, f := range line.query {
		shape := f.rule.schema
		if f.absent != nil {
			shape = maps.Clone(shape)
			shape["default"] = f.absent
		}
		if f.many {
			shape = schema{"type": "array", "items": shape}
		}
		all = append(all, map[string]any{"name": f.name, "in": "query", "required": f.required, "schema": shape})
	}
	return all
}

// header is an optional header of a request.
func header(name, about string, s schema) map[string]any {
	return map[string]any{"name": name, "in": "header", "required": false, "description": about, "schema": s}
}

// shapes are the named schemas, by name.
type shapes map[string]schema

// problemShapes are the two shapes of an error.
var problemShapes = func() shapes {
	issue := schema{"type": "object", "required": []string{"type", "loc", "msg"}, "properties": schema{
		"type": schema{"type": "string"}, "loc": schema{"type": "array", "items": schema{"type": []string{"string", "integer"}}},
		"msg": schema{"type": "string"}, "input": schema{}, "ctx": schema{"type": "object"},
	}}
	return shapes{
		"Issue": issue,
		"ContractProblem": {"type": "object", "required": []string{"detail"}, "properties": schema{
			"detail": schema{"anyOf": []schema{{"type": "string"}, {"type": "array", "items": reference("Issue")}}},
		}},
		"Problem": {"type": "object", "required": []string{"error", "detail"}, "properties": schema{
			"detail": schema{"type": "string"},
			"error": schema{"type": "object", "required": []string{"code", "message", "details", "request_id"}, "properties": schema{
				"code": schema{"type": "string"}, "message": schema{"type": "string"}, "request_id": schema{"type": "string"},
				"details": schema{"type": "object"},
			}},
		}},
	}
}()

func (types shapes) with(more shapes) shapes {
	all := maps.Clone(types)
	maps.Copy(all, more)
	return all
}

// plain are the types that are one JSON value.
var plain = map[reflect.Type]schema{
	reflect.TypeFor[stamp]():           {"type": "string", "format": "date-time"},
	reflect.TypeFor[uuid.UUID]():       {"type": "string", "format": "uuid"},
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[any]():             {},

	reflect.TypeFor[models.AutomationState](): words(models.AutomationActive, models.AutomationInactive, models.AutomationDraft),
	reflect.TypeFor[models.Overlap]():         words(models.OverlapAllow, models.OverlapForbid, models.OverlapReplace),
	reflect.TypeFor[models.RunStatus](): words(models.RunPending, models.RunRunning, models.RunCompleted, models.RunFailed,
		models.RunCancelled, models.RunSkipped),
	reflect.TypeFor[models.UploadStatus](): words(models.UploadUploading, models.UploadCompleted, models.UploadFailed),
	reflect.TypeFor[models.Desired]():      words(models.WantRunning, models.WantSuspended, models.WantDeleted),
	reflect.TypeFor[models.Observed](): words(models.SeenProvisioning, models.SeenRunning, models.SeenSuspended, models.SeenDeleting,
		models.SeenDeleted, models.SeenMissing, models.SeenFailed),
	reflect.TypeFor[models.IdentityKind](): words(models.IdentityBox, models.IdentitySnapshot, models.IdentityConfig),
	reflect.TypeFor[models.SweepKind]():    words(models.SweepPlan, models.SweepJanitor),
	reflect.TypeFor[models.SweepOutcome](): words(models.SweepPlanned, models.SweepOrdered, models.SweepKept, models.SweepAttached,
		models.SweepChanged, models.SweepGone),
	reflect.TypeFor[sandbox.SuspendKind](): words(sandbox.SuspendNone, sandbox.SuspendMemory, sandbox.SuspendDisk, sandbox.SuspendSnapshot, ""),
	reflect.TypeFor[agentStatus]():         words(agentIdle, agentActive, agentStopped, agentFailed),
	reflect.TypeFor[agentReason]():         words(agentReasons...),
	reflect.TypeFor[taskRefusal]():         words(tasksTaken, permissionRequired, modelProxyRequired, modelLimit),
	reflect.TypeFor[readiness]():           words(unverified),
	reflect.TypeFor[sessionName]():         sessionShape,
	reflect.TypeFor[cleanupState]():        words(cleanupNone, cleanupPending, cleanupDue, cleanupDeleted, cleanupFailed),
	reflect.TypeFor[sweepState]():          words(sweepPlanned, sweepApplied, sweepExpired),
	reflect.TypeFor[sweepExport]():         words(exportNone, exportProvider, exportFirst),
}

func words[T ~string](all ...T) schema {
	list := make([]string, len(all))
	for i, w := range all {
		list[i] = string(w)
	}
	return schema{"type": "string", "enum": list}
}

// of returns the schema of a type; structs become named ones.
func (types shapes) of(t reflect.Type) schema {
	if s, known := plain[t]; known {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return types.of(t.Elem()).orNull()
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return schema{"type": "integer"}
	case reflect.Float64:
		return schema{"type": "number"}
	case reflect.Slice:
		return schema{"type": "array", "items": types.of(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": types.of(t.Elem())}
	case reflect.Struct:
		name := strings.TrimSuffix(strings.ToUpper(t.Name()[:1])+t.Name()[1:], "Object")
		if _, done := types[name]; !done {
			types[name] = schema{} // a type may hold itself
			types[name] = types.object(t)
		}
		return reference(name)
	default:
		return schema{}
	}
}

// object is the schema of a struct: every field without omitempty is always written, and more may come (S2-045).
func (types shapes) object(t reflect.Type) schema {
	properties, required := map[string]any{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue // its fields are visited by themselves
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = types.of(f.Type)
		if options != "omitempty" && !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	return schema{"type": "object", "properties": properties, "required": required, "additionalProperties": true}
}
