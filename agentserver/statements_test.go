package agentserver

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestS0_158_StatusReclaimAndRetentionAreAnnouncedAndServed(t *testing.T) {
	b := newBox(t, withRuntimes)
	info := b.send("GET", "/server_info", "").Body.String()
	for _, capability := range []string{"storage_status_v1", "storage_reclaim_v1", "conversation_retention_v1"} {
		require.Contains(t, info, `"`+capability+`"`)
	}
	require.Equal(t, 201, b.create(firstID, ""))
	require.Equal(t, 200, b.send("GET", "/api/storage", "").Code)
	require.Equal(t, 200, b.send("POST", "/api/storage/reclaim", "{}").Code)
	require.Equal(t, 200, b.send("PUT", "/api/conversations/"+firstID+"/retention", `{"policy":"on_stop"}`).Code)
}

func TestS0_077_EveryRouteOfOurOwnIsDocumentedOnceAndHasAVersion(t *testing.T) {
	page, err := os.ReadFile("../docs/API.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Inside a box")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| `[A-Z]+ (/api/[^`?]+)[^`]*` \\| `([a-z_]+_v\\d+)` \\|").FindAllStringSubmatch(section, -1)
	announced := map[string]bool{}
	seen := map[string]bool{}
	for _, row := range rows {
		require.Contains(t, newBox(t).api(), row[1], "documented and not served")
		require.False(t, seen[row[1]], "documented twice: "+row[1])
		seen[row[1]], announced[row[2]] = true, true
	}
	for _, capability := range capabilities {
		require.Regexp(t, `_v\d+$`, capability)
		require.True(t, announced[capability], capability)
	}
	for _, route := range []string{"/api/storage", "/api/storage/reclaim", "/api/conversations/{id}/retention", "/api/conversations/{id}/unarchive", "/api/processes/{id}/output"} {
		require.True(t, seen[route], route)
	}
}

func TestS0_078_NoHistoryCanBeImported(t *testing.T) {
	b := newBox(t, withHistories)
	for route := range b.api() {
		require.NotContains(t, route, "import")
	}
	require.Equal(t, 405, b.send("POST", "/api/conversations/import", "{}").Code, "the name of no conversation either")
	page, err := os.ReadFile("../docs/API.md")
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(page)), " "), "An exported history cannot be imported")
}

func TestS0_071_TheActivityOfTheBoxAndOfAConversationAreTwoThings(t *testing.T) {
	b := newBox(t, withRuntimes)
	require.Equal(t, 201, b.create(firstID, ""))
	plain := strings.ReplaceAll(firstID, "-", "")
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".openhands/runtime-data", plain, "workspace"), 0o700))
	lastActive := func() time.Time {
		t.Helper()
		for _, c := range decode[struct {
			Conversations []struct {
				ID         string
				LastActive time.Time `json:"last_active"`
			}
		}](t, b.send("GET", "/api/storage", "")).Conversations {
			if c.ID == firstID {
				return c.LastActive
			}
		}
		require.Fail(t, "not in the status")
		return time.Time{}
	}
	state := filepath.Join(b.home, "histories", plain, "base_state.json")
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	require.NoError(t, os.Chtimes(state, at, at))
	b.clock.advance(7 * time.Second)
	require.Equal(t, at, lastActive())
	require.Equal(t, 7, b.idleSeconds(), "the conversation's activity is not the box's")
	b.run("true")
	require.Zero(t, b.idleSeconds())
	require.Equal(t, at, lastActive(), "nor the box's the conversation's")
}
