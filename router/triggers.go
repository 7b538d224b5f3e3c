package router

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"unicode/utf8"

	jmespath "github.com/jmespath-community/go-jmespath"
)

// What automations are triggered by, and the expressions that are evaluated on events.

// associations name values to be taken from an event by JMESPath.
var associations = rule{checkAssociations, schema{
	"type": "object", "maxProperties": 20, "propertyNames": schema{"pattern": assocKey.String()},
	"additionalProperties": schema{"type": "string", "minLength": 1, "maxLength": 1000},
}}

func checkAssociations(c *check, at loc, v any) any {
	in, isObject := checkAnyObject(c, at, v).(map[string]any)
	if !isObject {
		return nil
	}
	if len(in) > 20 {
		c.refuse(at, v, says("observability_associations supports at most 20 entries"))
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(in)) {
		expression, isString := in[key].(string)
		if !isString {
			c.add("string_type", at.at(key), "Input should be a valid string", in[key], nil)
			continue
		}
		if err := checkAssociation(key, expression); err != nil {
			c.refuse(at, v, err)
			break
		}
	}
	return in
}

func checkAssociation(key, expression string) error {
	switch {
	case key == "":
		return says("observability association keys must be non-empty strings")
	case utf8.RuneCountInString(key) > 128:
		return says("observability association keys must be at most 128 characters")
	case !assocKey.MatchString(key):
		return says("observability association keys may only contain letters, numbers, underscore, hyphen, and dot")
	case expression == "":
		return says("observability association expressions must be non-empty strings")
	case utf8.RuneCountInString(expression) > 1000:
		return says("observability association expressions must be at most 1000 characters")
	}
	if err := parses(expression); err != nil {
		return saysf("Invalid observability association JMESPath for %s: %v", key, err)
	}
	return nil
}

// compile reports whether the JMESPath expression of a trigger can be used; none at all can.
func compile(what, expression string) error {
	if expression == "" {
		return nil
	}
	if err := parses(expression); err != nil {
		return saysf("Invalid %s expression: Invalid jmespath expression: %v", what, err)
	}
	return nil
}

// parses compiles a JMESPath expression. The parser panics on some malformed ones.
func parses(expression string) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not JMESPath")
		}
	}()
	_, err = jmespath.Compile(expression)
	return err
}

// template says what an automation was made from.
var template = object([]field{
	{name: "id", required: true, rule: text(1, 100)},
	{name: "version", required: true, rule: text(1, 50)},
	{name: "config", rule: nullable(also(anyObject, func(config map[string]any) (map[string]any, error) {
		if encoded, err := json.Marshal(config); err != nil || len(encoded) > 16384 {
			return nil, says("config must serialize to at most 16384 bytes")
		}
		return config, nil
	}))},
})

// triggerRule checks a trigger and fills in all its defaults, for it is stored and returned with them.
func triggerRule(validate func(schedule, timezone string) (field, text, reason string)) rule {
	cron := object([]field{
		{name: "type", absent: "cron", rule: oneOf("literal_error", "cron")},
		{name: "schedule", required: true, rule: text(0, 0)},
		{name: "timezone", absent: "UTC", rule: also(text(0, 0), func(zone string) (string, error) {
			if zone == "" {
				return "", says("Invalid timezone: ")
			}
			return zone, nil
		})},
	})
	event := object([]field{
		{name: "type", absent: "event", rule: oneOf("literal_error", "event")},
		{name: "source", required: true, rule: text(0, 0)},
		{name: "on", required: true, rule: eventKeys},
		{name: "filter", rule: nullable(expression("filter"))},
		{name: "destination", absent: "dispatch_run", rule: oneOf("literal_error", "dispatch_run", "continue_conversation")},
		{name: "subject_key_expr", rule: nullable(expression("subject_key_expr"))},
		{name: "turn_text_expr", rule: nullable(expression("turn_text_expr"))},
		{name: "wake_agent", absent: true, rule: boolean},
	})
	check := func(c *check, at loc, v any) any {
		in, _ := v.(map[string]any)
		kind, isString := in["type"].(string)
		switch {
		case isString && kind == "cron":
			at, before := at.at("cron"), len(c.issues)
			out, _ := cron.check(c, at, v).(values)
			if len(c.issues) > before {
				return nil
			}
			if name, text, reason := validate(get[string](out, "schedule"), get[string](out, "timezone")); text != "" {
				c.refuse(at.at(name), out[name], &refusal{text: text, reason: reason})
			}
			return out
		case isString && kind == "event":
			out, _ := event.check(c, at.at("event"), v).(values)
			for _, name := range []string{"filter", "subject_key_expr", "turn_text_expr"} {
				if out != nil && !out.has(name) {
					out[name] = nil
				}
			}
			return out
		case !isString:
			kind = "__missing_trigger_type__"
		}
		c.add("union_tag_invalid", at, "Input tag '"+kind+"' found using _get_trigger_discriminator() does not match "+
			"any of the expected tags: 'cron', 'event'", v,
			map[string]any{"discriminator": "_get_trigger_discriminator()", "tag": kind, "expected_tags": "'cron', 'event'"})
		return nil
	}
	return rule{check, schema{"oneOf": []schema{cron.schema, event.schema}}}
}

func expression(name string) rule {
	return also(text(0, 0), func(s string) (string, error) { return s, compile(name, s) })
}

// eventKeys is one pattern or several.
var eventKeys = rule{func(c *check, at loc, v any) any {
	if _, isList := v.([]any); isList {
		return list[string](text(0, 0)).check(c, at.at("list[str]"), v)
	}
	if _, isText := v.(string); !isText { // each of the two forms says what it misses
		c.add("string_type", at.at("str"), "Input should be a valid string", v, nil)
		c.add("list_type", at.at("list[str]"), "Input should be a valid list", v, nil)
		return nil
	}
	return text(0, 0).check(c, at, v)
}, schema{"anyOf": []schema{{"type": "string"}, {"type": "array", "items": schema{"type": "string"}}}}}
