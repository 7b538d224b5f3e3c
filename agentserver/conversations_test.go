package agentserver

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/storage"
)

const (
	firstID  = "aaaaaaaa-0000-4000-8000-000000000001"
	secondID = "bbbbbbbb-0000-4000-8000-000000000002"
)

func withHistories(c *Config) { c.ConversationsPath = filepath.Join(c.Home, "histories") }

func withRuntimes(c *Config) {
	withHistories(c)
	c.Runtime, c.Storage = "docker", storage.Settings{Grace: archiveGrace, ArchiveLimit: archiveLimit}
}

func (b *box) create(id, more string) int {
	b.t.Helper()
	return b.send("POST", "/api/conversations", `{"conversation_id":"`+id+`","workspace":{"working_dir":"/workspace"}`+more+`}`).Code
}

// conversation is what the tests look at of one.
type conversationAnswer struct {
	ID        string `json:"id"`
	Status    string `json:"execution_status"`
	Archived  bool
	Retention struct {
		Policy string
		Days   *int
	}
	RuntimeInfo struct {
		Status    string `json:"runtime_status"`
		CanResume bool   `json:"can_resume"`
	} `json:"runtime_info"`
}

func TestS0_067_RetentionAtCreationAndAfterwards(t *testing.T) {
	b := newBox(t, withRuntimes)
	for body, status := range map[string]int{
		`{"policy":"default"}`: 200, `{"policy":"days","days":30}`: 200, `{"policy":"on_stop"}`: 200, `{"policy":"on_stop","days":null}`: 200,
		`{"policy":"days"}`: 400, `{"policy":"days","days":0}`: 400, `{"policy":"days","days":-1}`: 400, `{"policy":"days","days":1.5}`: 400,
		`{"policy":"days","days":"3"}`: 400, `{"policy":"default","days":3}`: 400, `{"policy":"never"}`: 400, `{"days":3}`: 400, `{}`: 400,
		`{"policy":"on_stop","more":1}`: 400, `{"policy":"days","days":99999999999999999999}`: 400,
	} {
		t.Run(body, func(t *testing.T) {
			b := newBox(t, withRuntimes)
			want := status
			if status == 200 {
				want = 201
			}
			require.Equal(t, want, b.create(firstID, `,"retention":`+body))
			require.Equal(t, 201, b.create(secondID, ""))
			require.Equal(t, status, b.send("PUT", "/api/conversations/"+secondID+"/retention", body).Code)
		})
	}
	require.Equal(t, 400, b.create(firstID, `,"retention":"on_stop"`))
	require.Equal(t, 404, b.send("GET", "/api/conversations/"+firstID, "").Code, "what was refused is not there")
	require.Equal(t, 201, b.create(firstID, `,"retention":{"policy":"days","days":3}`))
	got := decode[conversationAnswer](t, b.send("GET", "/api/conversations/"+firstID, ""))
	require.Equal(t, 3, *got.Retention.Days)
	require.Equal(t, 200, b.create(firstID, ""), "one that exists is answered as it is")
	require.Equal(t, 3, *decode[conversationAnswer](t, b.send("GET", "/api/conversations/"+firstID, "")).Retention.Days)
	require.Equal(t, 404, b.send("PUT", "/api/conversations/"+secondID+"/retention", `{"policy":"on_stop"}`).Code)
	require.Contains(t, b.send("GET", "/server_info", "").Body.String(), `"conversation_retention_v1"`)

	t.Run("S0-008 S0-047 where it has no effect the answer says so", func(t *testing.T) {
		b := newBox(t, withHistories)
		require.Equal(t, 201, b.create(firstID, ""))
		answer := b.send("PUT", "/api/conversations/"+firstID+"/retention", `{"policy":"on_stop"}`).Body.String()
		require.Contains(t, answer, `"effective":false`)
		require.Contains(t, answer, "retention has no effect")
	})
}

func TestS0_048_S0_049_AnArchivedConversationIsReadOnly(t *testing.T) {
	b := newBox(t, withRuntimes)
	require.Equal(t, 201, b.create(firstID, ""))
	plain := strings.ReplaceAll(firstID, "-", "")
	events := filepath.Join(b.home, "histories", plain, "events")
	for i := range 3 {
		require.NoError(t, os.WriteFile(filepath.Join(events, fmt.Sprintf("event-%05d-x.json", i)), []byte(fmt.Sprintf(`{"n":%d}`, i)), 0o600))
	}
	data := filepath.Join(b.home, ".openhands/runtime-data", plain)
	require.NoError(t, os.MkdirAll(filepath.Join(data, "workspace/work"), 0o700))
	require.Equal(t, 501, b.send("POST", "/api/conversations/"+firstID+"/run", "{}").Code)

	answer := b.send("POST", "/api/storage/reclaim", `{"tier":"runtime","conversation_ids":["`+firstID+`"]}`)
	require.Contains(t, answer.Body.String(), `"tier":"runtime","path":".openhands/runtime-data/`+plain+`"`)
	require.Contains(t, answer.Body.String(), `"outcome":"moved"`)
	require.NoDirExists(t, data)

	got := decode[conversationAnswer](t, b.send("GET", "/api/conversations/"+firstID, ""))
	require.True(t, got.Archived)
	require.Equal(t, "missing", got.RuntimeInfo.Status)
	require.False(t, got.RuntimeInfo.CanResume)
	require.JSONEq(t, `{"items":[{"n":0},{"n":1}],"next_page_id":"event-00002-x.json"}`,
		b.send("GET", "/api/conversations/"+firstID+"/events/search?limit=2", "").Body.String())
	require.JSONEq(t, `{"items":[{"n":2}],"next_page_id":null}`,
		b.send("GET", "/api/conversations/"+firstID+"/events/search?limit=2&page_id=event-00002-x.json", "").Body.String())
	require.Equal(t, "3", b.send("GET", "/api/conversations/"+firstID+"/events/count", "").Body.String())
	require.Contains(t, b.send("GET", "/api/conversations/search", "").Body.String(), firstID)

	for _, call := range [][2]string{
		{"POST", "/events"}, {"POST", "/run"}, {"POST", "/pause"}, {"POST", "/interrupt"}, {"PATCH", ""}, {"POST", "/runtime/reprovision"},
	} {
		answer := b.send(call[0], "/api/conversations/"+firstID+call[1], "{}")
		require.Equal(t, 410, answer.Code, call)
		require.Contains(t, answer.Body.String(), "read-only")
	}
	require.Equal(t, 410, b.send("PUT", "/api/conversations/"+firstID+"/retention", `{"policy":"default"}`).Code)
	require.Equal(t, 410, b.create(firstID, ""), "created again")
	require.Equal(t, 200, b.send("DELETE", "/api/conversations/"+firstID, "").Code)
	require.Equal(t, 404, b.send("DELETE", "/api/conversations/"+firstID, "").Code)
	require.Equal(t, 201, b.create(firstID, ""), "nothing of it is left")
}

func TestConversationsAreListedSearchedAndDeleted(t *testing.T) {
	b := newBox(t, withRuntimes)
	require.Equal(t, "0", b.send("GET", "/api/conversations/count", "").Body.String())
	require.Equal(t, 201, b.create(firstID, ""))
	b.clock.advance(time.Second)
	require.Equal(t, 201, b.create(secondID, ""))
	type found struct {
		Items []conversationAnswer
		Next  *string `json:"next_page_id"`
	}
	first := decode[found](t, b.send("GET", "/api/conversations/search?limit=1", ""))
	require.Equal(t, secondID, first.Items[0].ID, "the newest first")
	second := decode[found](t, b.send("GET", "/api/conversations/search?limit=1&page_id="+*first.Next, ""))
	require.Equal(t, firstID, second.Items[0].ID)
	require.Nil(t, second.Next)
	require.Equal(t, firstID, decode[found](t, b.send("GET", "/api/conversations/search?sort_order=CREATED_AT", "")).Items[0].ID)
	require.Empty(t, decode[found](t, b.send("GET", "/api/conversations/search?status=running", "")).Items)
	require.Equal(t, 422, b.send("GET", "/api/conversations/search?status=zzz", "").Code)
	batch := decode[[]*conversationAnswer](t, b.send("GET", "/api/conversations?ids="+firstID+"&ids=aaaaaaaa-0000-4000-8000-0000000000ff", ""))
	require.Equal(t, firstID, batch[0].ID)
	require.Nil(t, batch[1])
	require.Equal(t, 422, b.send("GET", "/api/conversations/nope", "").Code)
	require.Equal(t, 404, b.send("GET", "/api/conversations/aaaaaaaa-0000-4000-8000-0000000000ff", "").Code)

	plain := strings.ReplaceAll(firstID, "-", "")
	state := filepath.Join(b.home, "histories", plain, "base_state.json")
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".openhands/runtime-data", plain, "workspace"), 0o700))
	require.NoError(t, os.WriteFile(state, []byte(`{"execution_status":"running"}`), 0o600))
	require.Equal(t, 409, b.send("DELETE", "/api/conversations/"+firstID, "").Code)
	require.DirExists(t, filepath.Join(b.home, ".openhands/runtime-data", plain, "workspace"))
	require.NoError(t, os.WriteFile(state, []byte(`{"execution_status":"paused"}`), 0o600))
	require.Equal(t, `{"success":true}`, b.send("DELETE", "/api/conversations/"+firstID, "").Body.String())
	require.NoDirExists(t, filepath.Join(b.home, ".openhands/runtime-data", plain))
	require.NoDirExists(t, filepath.Join(b.home, "histories", plain))
	require.Equal(t, "1", b.send("GET", "/api/conversations/count", "").Body.String())
}

func TestS0_151_RetentionIsOffUnlessItIsConfigured(t *testing.T) {
	environment := func(pairs ...string) (Config, error) {
		return configure(nil, append([]string{"HOME=/home/x"}, pairs...), &strings.Builder{})
	}
	config, err := environment()
	require.NoError(t, err)
	require.Zero(t, config.Storage.RetentionDays)
	require.Zero(t, config.Storage.DiskBudget)
	config, err = environment("OH_CONVERSATION_STORAGE_RETENTION_DAYS=7", "OH_CONVERSATION_STORAGE_DISK_BUDGET=0.8", "OH_CONVERSATION_RUNTIME=docker")
	require.NoError(t, err)
	require.Equal(t, storage.Settings{RetentionDays: 7, DiskBudget: 0.8, Grace: archiveGrace, ArchiveLimit: archiveLimit}, config.Storage)
	for _, pair := range []string{
		"OH_CONVERSATION_STORAGE_RETENTION_DAYS=0", "OH_CONVERSATION_STORAGE_RETENTION_DAYS=1.5", "OH_CONVERSATION_STORAGE_RETENTION_DAYS=x",
		"OH_CONVERSATION_STORAGE_DISK_BUDGET=0", "OH_CONVERSATION_STORAGE_DISK_BUDGET=1.1", "OH_CONVERSATION_STORAGE_DISK_BUDGET=NaN",
		"OH_CONVERSATION_RUNTIME=podman",
	} {
		_, err := environment(pair)
		name, _, _ := strings.Cut(pair, "=")
		require.ErrorContains(t, err, name)
	}
}

func TestS0_153_MaintenanceNeverMovesTheIdleClock(t *testing.T) {
	b := newBox(t, withRuntimes)
	require.Equal(t, 201, b.create(firstID, ""))
	for range 10 {
		b.clock.advance(time.Minute)
		require.NoError(t, b.storage.Maintain(t.Context()))
		b.send("GET", "/api/storage", "")
		b.send("POST", "/api/storage/reclaim", `{"tier":"runtime"}`)
		b.send("GET", "/api/conversations/search", "")
		b.send("GET", "/api/conversations/"+firstID, "")
		b.send("GET", "/api/conversations/"+firstID+"/events/search", "")
		b.send("PUT", "/api/conversations/"+firstID+"/retention", `{"policy":"on_stop"}`)
	}
	require.Contains(t, b.send("GET", "/server_info", "").Body.String(), `"idle_time":600.0`)
}

func TestS0_065_OneDocumentedCurlIsTheMaintenanceScript(t *testing.T) {
	page, err := os.ReadFile("../docs/API.md")
	require.NoError(t, err)
	script := regexp.MustCompile(`(?m)^    (curl .*/api/storage/reclaim".*)$`).FindStringSubmatch(string(page))
	require.Len(t, script, 2, "one curl call in the page")
	b := newBox(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".cache/pip/x"), 0o700))
	web := httptest.NewServer(b.web)
	defer web.Close()
	call := exec.Command("sh", "-c", script[1])
	call.Env = []string{"PATH=" + os.Getenv("PATH"), "KEY=key-one", "BOX=" + web.URL}
	output, err := call.CombinedOutput()
	require.NoError(t, err, string(output))
	require.Contains(t, string(output), `"outcome":"moved"`)
	require.NoDirExists(t, filepath.Join(b.home, ".cache/pip"))
}
