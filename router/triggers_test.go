package router_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExpressionsAndTriggersAreRefusedInTheContractsWords(t *testing.T) {
	event := func(edit ...any) map[string]any {
		trigger := map[string]any{"type": "event", "source": "github", "on": "push"}
		for i := 0; i < len(edit); i += 2 {
			trigger[edit[i].(string)] = edit[i+1]
		}
		return trigger
	}
	associations := func(key, expression string) map[string]any {
		return newAutomation("observability_associations", map[string]any{key: expression})
	}
	once(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			body map[string]any
			want string // the first problem
		}{
			{associations("", "a"), "observability association keys must be non-empty strings"},
			{associations(strings.Repeat("k", 129), "a"), "observability association keys must be at most 128 characters"},
			{associations("a b", "a"), "observability association keys may only contain letters, numbers, underscore, hyphen, and dot"},
			{associations("a", ""), "observability association expressions must be non-empty strings"},
			{associations("a", strings.Repeat("x", 1001)), "observability association expressions must be at most 1000 characters"},
			{associations("a", "["), "Invalid observability association JMESPath for a: "},
			{newAutomation("template", map[string]any{"id": "x", "version": "1", "config": map[string]any{"a": strings.Repeat("b", 17000)}}), "config must serialize to at most 16384 bytes"},
			{newAutomation("trigger", map[string]any{"type": "cron", "schedule": "0 9 * * 1", "timezone": ""}), "Invalid timezone: "},
			{newAutomation("trigger", event("filter", "[")), "Invalid filter expression: "},
		} {
			problems := w.call("tok-alice", "POST", base+"/v1", c.body).is(422)["detail"].([]any)
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].(map[string]any)["msg"], "Value error, "+c.want)
		}
		made := w.call("tok-alice", "POST", base+"/v1", newAutomation("trigger", event("filter", "", "turn_text_expr", ""))).is(201)
		require.Empty(t, made["trigger"].(map[string]any)["filter"], "an empty expression is none")

		problems := w.call("tok-alice", "POST", base+"/v1", newAutomation("trigger", event("on", 1))).is(422)["detail"].([]any)
		require.Len(t, problems, 2, "neither a text nor a list")
		require.Equal(t, []any{"body", "trigger", "event", "on", "str"}, problems[0].(map[string]any)["loc"])
		require.Equal(t, "list_type", problems[1].(map[string]any)["type"])
	})
}
