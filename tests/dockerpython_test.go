package tests

import (
	"bytes"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/tests/dockerengine"
)

// pythonImage is the real agent server of OpenHands as an image: the environment of the runner, the Python below it, and the
// libraries that they link.
func pythonImage(t *testing.T) string {
	t.Helper()
	dockerengine.Host(t)
	interpreter := python(t)
	out, err := exec.Command(interpreter, "-c", "import sys; print(sys.base_prefix); print(sys.prefix)").Output()
	require.NoError(t, err)
	trees := strings.Fields(string(out))
	require.Len(t, trees, 2)
	list := exec.Command("sh", "-c", `find "$@" -type f \( -name '*.so' -o -name '*.so.*' -o -name python3* -perm /111 \) -print0 | xargs -0 ldd 2>/dev/null |
		sed -nE 's/^.* => (\/[^ ]+) .*/\1/p; s/^\t(\/[^ ]*ld-linux[^ ]+) .*/\1/p' | sort -u`, "sh", trees[0], trees[1])
	libraries, err := list.Output()
	require.NoError(t, err)
	image := &dockerengine.Image{
		Name: "automation-test:" + filepath.Base(trees[1]), Cached: true, Entrypoint: []string{interpreter, "-m", "openhands.agent_server"},
		Trees: trees, Files: map[string]string{"/bin/busybox": "/bin/busybox"}, Links: map[string]string{"/bin/sh": "busybox"},
	}
	for name := range strings.FieldsSeq(string(libraries)) {
		if !strings.HasPrefix(name, trees[0]) && !strings.HasPrefix(name, trees[1]) {
			image.Files[name] = name
		}
	}
	return image.Make(t)
}

// A conversation with the real agent server: created, evicted, reopened, with the events that it had. It is stored as that server
// stores it, and by it alone (S3-019).
func TestS3_001_S3_012_S3_019_AConversationOfTheRealAgentServerIsEvictedAndReopened(t *testing.T) {
	t.Parallel()
	s, engine := startDocker(t, "AUTOMATION_DOCKER_IMAGE="+pythonImage(t), "AUTOMATION_DOCKER_MEMORY_BYTES=2147483648",
		"AUTOMATION_DOCKER_ENV="+strings.Join(slices.Concat(quiet, []string{"OH_ENABLE_VSCODE=0", "OH_PRELOAD_TOOLS=0", "OH_ENABLE_BROWSER=0"}), ";"))
	id := uuid.NewString()
	box := s.boot(id)
	proxy := "/sandboxes/" + box + "/proxy"
	model := object{"model": "openai/none", "api_key": "none", "base_url": "http://127.0.0.1:9"}
	s.call(http.MethodPost, proxy+"/api/conversations", object{
		"conversation_id": id, "agent_settings": object{"llm": model, "tools": []string{}}, "workspace": object{"working_dir": "/box/workspace"},
		"tags": object{"kept": "yes"},
	}, http.StatusCreated)
	s.call(http.MethodPost, proxy+"/api/conversations/"+id+"/events", object{
		"role": "user", "content": []any{object{"type": "text", "text": "remember this"}}, "run": false,
	}, http.StatusOK)
	s.write(box, "/box/workspace/notes.txt", "mine")
	before := s.events(proxy, id)
	require.NotEmpty(t, before)

	s.evict(id)
	require.Equal(t, "exited", engine.containers()[containerOf(box)])
	histories, err := filepath.Glob(filepath.Join(s.data, "docker", box, "conversations", "*"))
	require.NoError(t, err)
	require.Len(t, histories, 1, "its history lies in the data root")

	require.Equal(t, box, s.boot(id))
	again := s.call(http.MethodGet, proxy+"/api/conversations/"+id, nil, http.StatusOK)
	require.Equal(t, id, again.text("id"))
	require.Equal(t, "yes", again.text("tags", "kept"))
	require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
	after := s.events(proxy, id)
	require.True(t, bytes.HasPrefix(after, before), "the events are as they were:\n%s\n%s", before, after)
}

// boot is reopen for a server that takes long to start.
func (s *server) boot(id string) (box string) {
	s.t.Helper()
	s.try(http.MethodPut, "/runtimes/"+id, nil)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for began := time.Now(); ; <-look.C {
		o := s.call(http.MethodGet, "/runtimes/"+id, nil, http.StatusOK)
		if o.text("state") == "running" {
			return o.text("sandbox", "id")
		}
		require.Less(s.t, time.Since(began), 5*patience, "the agent server does not start: %v", o)
	}
}

// events are the stored events of a conversation, one a line.
func (s *server) events(proxy, id string) []byte {
	s.t.Helper()
	found := s.call(http.MethodGet, proxy+"/api/conversations/"+id+"/events/search?limit=100", nil, http.StatusOK)
	items, _ := found.get("items").([]any)
	var lines bytes.Buffer
	for _, item := range items {
		event := object(item.(map[string]any)) //nolint:forcetypeassert // of the contract
		lines.WriteString(event.text("id") + " " + event.text("kind") + " " + event.text("timestamp") + "\n")
	}
	return lines.Bytes()
}
