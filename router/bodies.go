package router

import (
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"automation/models"
)

// The tables of what the routes accept.

// bodies are the tables whose rules depend on settings.
type bodies struct {
	create, patch, prompt rule
}

func newBodies(longest time.Duration, validate func(schedule, timezone string) (field, text, reason string)) bodies {
	trigger := triggerRule(validate)
	timeout := also(integer, func(n int64) (int64, error) {
		switch most := int64(longest / time.Second); {
		case n < 1:
			return 0, says("timeout must be a positive number")
		case n > most:
			return 0, saysf("timeout must not exceed %d seconds (%d minutes)", most, most/60)
		}
		return n, nil
	}).like(schema{"type": "integer", "minimum": 1, "maximum": int64(longest / time.Second)})
	return bodies{
		create: object([]field{
			{name: "name", required: true, rule: text(1, 500)},
			{name: "description", rule: nullable(text(0, 2000))},
			{name: "trigger", required: true, rule: trigger},
			{name: "tarball_path", required: true, rule: tarballPath},
			{name: "entrypoint", required: true, rule: command("entrypoint")},
			{name: "setup_script_path", rule: nullable(command("setup_script_path"))},
			{name: "timeout", rule: nullable(timeout)},
			{name: "keep_alive", rule: nullable(boolean)},
			{name: "state", rule: nullable(publicState)},
			{name: "enabled", rule: boolean},
			{name: "tags", rule: tags},
			{name: "model", rule: nullable(modelName)},
			{name: "agent_profile_id", rule: nullable(identifier)},
			{name: "observability_associations", rule: nullable(associations)},
			{name: "template", rule: nullable(template)},
			{name: "overlap", absent: string(models.OverlapAllow), rule: overlap},
		}, enabledFitsState, keptForConversation),
		prompt: object([]field{
			{name: "name", required: true, rule: text(1, 500)},
			{name: "description", rule: nullable(text(0, 2000))},
			{name: "prompt", required: true, rule: text(1, 50000)},
			{name: "model", rule: nullable(modelName)},
			{name: "trigger", required: true, rule: trigger},
			{name: "observability_associations", rule: nullable(associations)},
			{name: "timeout", rule: nullable(timeout)},
			{name: "keep_alive", rule: nullable(boolean)},
			{name: "repos", rule: nullable(repoList)},
			{name: "template", rule: nullable(template)},
			{name: "enabled", rule: boolean},
			{name: "state", rule: nullable(publicState)},
		}, enabledFitsState, forcedForConversation),
		patch: object([]field{
			{name: "name", rule: notNull("name cannot be null", text(1, 500))},
			{name: "description", rule: nullable(text(0, 2000))},
			{name: "trigger", rule: notNull("trigger cannot be null", trigger)},
			{name: "tarball_path", rule: notNull("tarball_path cannot be null", tarballPath)},
			{name: "entrypoint", rule: notNull("entrypoint cannot be null", command("entrypoint"))},
			{name: "setup_script_path", rule: nullable(command("setup_script_path"))},
			{name: "timeout", rule: nullable(timeout)},
			{name: "keep_alive", rule: nullable(boolean)},
			{name: "state", rule: nullable(publicState)},
			{name: "enabled", rule: notNull("enabled cannot be null", boolean)},
			{name: "tags", rule: notNull("tags cannot be null; send [] to clear them", tags)},
			{name: "model", rule: nullable(modelName)},
			{name: "agent_profile_id", rule: nullable(identifier)},
			{name: "observability_associations", rule: nullable(associations)},
			{name: "overlap", rule: overlap},
			{name: "prompt", rule: nullable(text(0, 50000))},
			{name: "repos", rule: nullable(repoList)},
			{name: "plugin", rule: nullable(object([]field{
				{name: "source", required: true, rule: text(1, 0)},
				{name: "ref", rule: nullable(text(1, 0))},
				{name: "repo_path", rule: nullable(text(1, 0))},
			}))},
		}, enabledFitsState),
	}
}

// completion is the callback of a run (contract section 3.6).
var completion = object([]field{
	{name: "status", required: true, rule: oneOf("literal_error", string(models.RunCompleted), string(models.RunFailed))},
	{name: "run_id", rule: nullable(forgiving)},
	{name: "conversation_id", rule: nullable(forgiving)},
	{name: "error", rule: nullable(textOrObject)},
	{name: "cost", rule: nullable(number)},
	{name: "blocking_factor", rule: nullable(anyObject)},
	{name: "task_outcome", rule: nullable(anyObject)},
})

// phaseReport is POST …/phase: control characters and runs of white space become one space before the length counts.
var phaseReport = object([]field{{name: "phase", required: true, rule: rule{func(c *check, at loc, v any) any {
	if s, isString := v.(string); isString {
		v = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }), " ")
	}
	return text(1, 200).check(c, at, v)
}, text(1, 200).schema}}})

// extension is POST /sandboxes/{id}/extend: either of the two.
var extension = object([]field{
	{name: "seconds", rule: between(1, 1<<40)},
	{name: "until", rule: instant},
}, func(v values) error {
	if v.has("seconds") == v.has("until") {
		return says(`give either "seconds" or "until"`)
	}
	return nil
})

// keeping is PUT /sandboxes/{id}/keep.
var keeping = object([]field{
	{name: "reason", rule: nullable(text(0, 500))},
	{name: "until", rule: nullable(instant)},
})

// runtimeWish is PUT /runtimes/{conversation_id}.
var runtimeWish = object([]field{{name: "workspace", rule: nullable(text(1, 4096))}})

// sweepFilter is POST /sweeps/plan: nothing means what is due now, everywhere.
var sweepFilter = object([]field{
	{name: "due_within_seconds", rule: between(0, 1<<33)},
	{name: "backend", rule: text(1, 100)},
})

// confirmation is POST /sweeps/{id}/apply.
var confirmation = object([]field{{name: "confirm", rule: oneOf("literal_error", historyLost)}})

// nothing is the body of routes that take none.
var nothing = object(nil)

var (
	overlap   = oneOf("enum", string(models.OverlapAllow), string(models.OverlapForbid), string(models.OverlapReplace))
	modelWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	slug      = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	assocKey  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
)

// instant is an RFC 3339 time.
var instant = rule{checkInstant, schema{"type": "string", "format": "date-time"}}

func checkInstant(c *check, at loc, v any) any {
	s, _ := v.(string)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		c.add("datetime_from_date_parsing", at, "Input should be a valid datetime, as RFC 3339 writes it", v, nil)
		return nil
	}
	return t.UTC().Truncate(time.Microsecond)
}

// forgiving is a string that a run reports: what no column takes is replaced, for a callback comes only once.
var forgiving = rule{func(c *check, at loc, v any) any { return text(0, 0).check(c, at, withoutNUL(v)) }, schema{"type": "string"}}

var textOrObject = rule{checkTextOrObject, schema{"anyOf": []schema{{"type": "string"}, {"type": "object"}}}}

func checkTextOrObject(c *check, at loc, v any) any {
	switch v.(type) {
	case string, map[string]any:
		return withoutNUL(v)
	}
	c.add("string_type", at.at("str"), "Input should be a valid string", v, nil)
	c.add("dict_type", at.at("dict[str,any]"), "Input should be a valid dictionary", v, nil)
	return nil
}

var (
	publicWords = oneOf("enum", string(models.AutomationActive), string(models.AutomationInactive))
	publicState = rule{checkPublicState, publicWords.schema}
)

func checkPublicState(c *check, at loc, v any) any {
	if v == string(models.AutomationDraft) {
		c.refuse(at, v, says("state=DRAFT is reserved for automation draft test artifacts. "+
			"Use the /v1/drafts API endpoints to create drafts."))
		return nil
	}
	return publicWords.check(c, at, v)
}

var modelName = rule{checkModelName, schema{"type": "string", "minLength": 1, "maxLength": 64, "pattern": modelWord.String()}}

func checkModelName(c *check, at loc, v any) any {
	before := len(c.issues)
	s, _ := text(1, 64).check(c, at, v).(string)
	if len(c.issues) == before && !modelWord.MatchString(s) {
		c.add("string_pattern_mismatch", at, "String should match pattern '"+modelWord.String()+"'", v,
			map[string]any{"pattern": modelWord.String()})
	}
	return s
}

func enabledFitsState(v values) error {
	state := get[string](v, "state")
	if v.has("enabled") && state != "" && get[bool](v, "enabled") != (state == string(models.AutomationActive)) {
		return says("enabled must be true only when state is ACTIVE")
	}
	return nil
}

// keptText is why keep_alive cannot be false for conversations that go on (S1-021).
const keptText = "keep_alive cannot be false when destination is 'continue_conversation': " +
	"deleting the sandbox would destroy the conversation the next event continues"

func keptForConversation(v values) error {
	if !continues(get[values](v, "trigger")) {
		return nil
	}
	if keep := opt[bool](v, "keep_alive"); keep != nil && !*keep {
		return says(keptText)
	}
	v["keep_alive"] = true
	return nil
}

// forcedForConversation is the same for presets, which the contract lets say false: it is overruled, or every follow-up would
// find its box gone (fault 32 of the Python service).
func forcedForConversation(v values) error {
	if continues(get[values](v, "trigger")) {
		v["keep_alive"] = true
	}
	return nil
}

func continues(trigger values) bool {
	return get[string](trigger, "destination") == "continue_conversation"
}

var tarballPath = also(text(0, 0), func(s string) (string, error) {
	for _, scheme := range []string{"s3://", "gs://", "http://", "https://", internalScheme} {
		if strings.HasPrefix(s, scheme) {
			return s, nil
		}
	}
	return "", says("tarball_path must start with s3://, gs://, http://, or https://")
})

// command is a relative command line without anything that a shell would act on.
func command(name string) rule {
	return also(text(0, 0), func(s string) (string, error) {
		switch {
		case strings.TrimSpace(s) == "":
			return "", says(name + " must not be blank")
		case strings.HasPrefix(strings.TrimSpace(s), "/"):
			return "", says(name + " must be a relative path, not an absolute path")
		case hasParentSegment(s):
			return "", says(name + " must not contain path traversal (..)")
		case strings.ContainsAny(s, ";&|`$(){}<>!\\\r\n"):
			return "", says(name + " must not contain shell metacharacters (;&|`$(){}<>!\\\\)")
		}
		return s, nil
	})
}

func hasParentSegment(s string) bool {
	return slices.Contains(strings.FieldsFunc(s, func(r rune) bool { return r == '/' || unicode.IsSpace(r) }), "..")
}

// tags are trimmed, lower-cased slugs without repeats.
var tags = also(list[string](text(0, 0)), func(in []string) ([]string, error) {
	out, seen := []string{}, map[string]bool{}
	for _, t := range in {
		t, err := tag(t)
		if err != nil {
			return nil, err
		}
		if !seen[t] {
			seen[t], out = true, append(out, t)
		}
	}
	if len(out) > 10 {
		return nil, says("an automation supports at most 10 tags")
	}
	return out, nil
})

func tag(s string) (string, error) {
	s = strings.Join(strings.Fields(strings.ToLower(s)), "-")
	switch {
	case s == "":
		return "", says("tags must not be blank")
	case len(s) > 50:
		return "", says("tags must be at most 50 characters long")
	case !slug.MatchString(s):
		return "", says("tags may only contain lowercase letters, numbers, and single hyphens between them")
	}
	return s, nil
}
