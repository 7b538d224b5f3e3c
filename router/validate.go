package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The one body checker. A body is a table of fields (bodies.go), a field has a rule, and a rule checks one JSON value and
// turns it into its final type. All problems of a request are found together, in the words of the contract (its section 1):
// type, loc, msg and input. What the contract takes leniently is taken so here: numeric strings are numbers, the usual words
// are booleans.

// issue is one problem of a request.
type issue struct {
	Type  string         `json:"type"`
	Loc   []any          `json:"loc"`
	Msg   string         `json:"msg"`
	Input any            `json:"input"`
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// summary says in one line what is wrong, naming the fields.
func summary(issues []issue) string {
	var lines []string
	for _, i := range issues {
		var at []string
		for _, l := range i.Loc[1:] {
			at = append(at, fmt.Sprint(l))
		}
		lines = append(lines, strings.TrimPrefix(strings.Join(at, ".")+": "+i.Msg, ": "))
	}
	return strings.Join(lines, "; ")
}

// loc is where a value stands: body, path or query, then names and indexes.
type loc []any

func (l loc) at(step any) loc { return append(slices.Clip(l), step) }

// check gathers the problems of one request.
type check struct{ issues []issue }

func (c *check) add(kind string, at loc, msg string, input any, ctx map[string]any) {
	c.issues = append(c.issues, issue{Type: kind, Loc: at, Msg: msg, Input: input, Ctx: ctx})
}

// refuse adds what the contract calls a value error.
func (c *check) refuse(at loc, input any, err error) {
	ctx := map[string]any{"error": map[string]any{}}
	if r := new(refusal); errors.As(err, &r) && r.reason != "" {
		ctx["reason"] = r.reason
	}
	c.add("value_error", at, "Value error, "+err.Error(), input, ctx)
}

// refusal is a value error with a reason beyond the contract's text.
type refusal struct{ text, reason string }

// Error returns the text, which is the contract's or written like it: a sentence for a person.
func (r *refusal) Error() string { return r.text }

func says(text string) error { return &refusal{text: text} }

func saysf(format string, args ...any) error { return says(fmt.Sprintf(format, args...)) }

// err is nil when the request is fine.
func (c *check) err() error {
	if len(c.issues) == 0 {
		return nil
	}
	return invalid(c.issues)
}

// rule is what one JSON value must be: check adds what is wrong with v and returns it in its final type; schema says the same
// in the words of JSON Schema, for the OpenAPI document.
type rule struct {
	check  func(c *check, at loc, v any) any
	schema schema
}

// schema is a JSON Schema.
type schema map[string]any

// like replaces what the document says of a rule.
func (r rule) like(s schema) rule { r.schema = s; return r }

// values are the checked fields of an object; what was absent and has no default is absent here too.
type values map[string]any

// has reports whether the field was given (or has a default).
func (v values) has(name string) bool { _, ok := v[name]; return ok }

// get returns a field of type T, or its zero value when it is absent or null.
func get[T any](v values, name string) T { t, _ := v[name].(T); return t }

// opt returns a field that may be null: nil when it is absent or null.
func opt[T any](v values, name string) *T {
	if t, ok := v[name].(T); ok {
		return &t
	}
	return nil
}

// field is one line of a table.
type field struct {
	name     string
	required bool
	absent   any  // the default; nil leaves the field out
	many     bool // a query parameter that may be given several times, as []string
	rule     rule
}

// object checks an object of exactly these fields, and then, when each of them is fine, the rules between them.
func object(fields []field, between ...func(values) error) rule {
	check := func(c *check, at loc, v any) any {
		in, isObject := v.(map[string]any)
		if !isObject {
			c.add("model_attributes_type", at, "Input should be a valid dictionary or object to extract fields from", v, nil)
			return nil
		}
		before := len(c.issues)
		out, known := values{}, map[string]bool{}
		for _, f := range fields {
			known[f.name] = true
			if given, ok := in[f.name]; ok {
				out[f.name] = f.rule.check(c, at.at(f.name), given)
			} else if f.required {
				c.add("missing", at.at(f.name), "Field required", v, nil)
			} else if f.absent != nil {
				out[f.name] = f.absent
			}
		}
		for _, name := range slices.Sorted(maps.Keys(in)) {
			if !known[name] {
				c.add("extra_forbidden", at.at(name), "Extra inputs are not permitted", in[name], nil)
			}
		}
		for _, fits := range between {
			if len(c.issues) > before {
				break
			}
			if err := fits(out); err != nil {
				c.refuse(at, v, err)
			}
		}
		return out
	}
	return rule{check, objectSchema(fields)}
}

// objectSchema is the schema of an object of exactly these fields.
func objectSchema(fields []field) schema {
	properties, required := map[string]any{}, []string{}
	for _, f := range fields {
		property := f.rule.schema
		if f.absent != nil {
			property = maps.Clone(property)
			property["default"] = f.absent
		}
		properties[f.name] = property
		if f.required {
			required = append(required, f.name)
		}
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// nullable lets null pass.
func nullable(r rule) rule {
	return rule{func(c *check, at loc, v any) any {
		if v == nil {
			return nil
		}
		return r.check(c, at, v)
	}, r.schema.orNull()}
}

// notNull refuses null in the given words, where the contract's own answer is a server error.
func notNull(text string, r rule) rule {
	return rule{func(c *check, at loc, v any) any {
		if v == nil {
			c.refuse(at, nil, says(text))
			return nil
		}
		return r.check(c, at, v)
	}, r.schema}
}

// also runs a further check on what r has let pass.
func also[T any](r rule, more func(T) (T, error)) rule {
	return rule{func(c *check, at loc, v any) any {
		before := len(c.issues)
		t, isT := r.check(c, at, v).(T)
		if len(c.issues) > before || !isT {
			return nil
		}
		t, err := more(t)
		if err != nil {
			c.refuse(at, v, err)
			return nil
		}
		return t
	}, r.schema}
}

// orNull is the schema with null added.
func (s schema) orNull() schema {
	if kind, isOne := s["type"].(string); isOne {
		s = maps.Clone(s)
		s["type"] = []string{kind, "null"}
		if words, isEnum := s["enum"].([]string); isEnum {
			s["enum"] = append(anys(words), nil)
		}
		return s
	}
	return schema{"anyOf": []schema{s, {"type": "null"}}}
}

func anys(words []string) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = w
	}
	return out
}
