package tests

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The report: many containers of conversations that nobody had used for longer than the TTL went on running and filled the disk.
// One of them works for its user, who sends no request.
func TestS0_096_S3_001_S3_002_S3_008_S3_009_S3_015_S3_016_ManyUnusedConversationsAreEvictedAndComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	const conversations, cacheBytes = 8, 2 << 20
	s, engine := startDocker(t, "AUTOMATION_CONVERSATION_IDLE_TTL_SECONDS=15")
	boxes := map[string]string{}
	for n := range conversations {
		id, box := s.conversation(nil)
		boxes[id] = box
		s.write(box, "/box/workspace/notes.txt", fmt.Sprintf("notes %d", n))
		s.write(box, "/box/conversations/history/event-0.json", fmt.Sprintf("event %d", n))
		o := s.call(http.MethodPost, "/sandboxes/"+box+"/proxy/api/bash/execute_bash_command",
			object{"command": fmt.Sprintf("mkdir -p $HOME/.cache/x && head -c %d /dev/zero > $HOME/.cache/x/index", cacheBytes)}, http.StatusOK)
		require.EqualValues(t, 0, o.get("exit_code"))
	}
	busy, working := s.conversation(nil)
	s.call(http.MethodPost, "/sandboxes/"+working+"/proxy/api/bash/start_bash_command", object{"command": "sleep 600", "timeout": 600}, http.StatusOK)

	for id, box := range boxes {
		s.await("/runtimes/"+id, "it is evicted", func(o object) bool { return o.text("state") == "stopped" })
		require.Equal(t, "exited", engine.containers()[containerOf(box)])
		_, err := os.Stat(filepath.Join(s.data, "docker", box, "home", ".cache", "x", "index"))
		require.ErrorIs(t, err, os.ErrNotExist, "S3-028: the disk of its caches is freed")
	}
	s.await("/runtimes/"+busy, "it is asked at its deadline", func(o object) bool {
		return slices.Contains([]string{"command_running", "recently_active"}, o.text("not_evictable_because"))
	})
	require.Equal(t, "running", engine.containers()[containerOf(working)], "S3-003: what works is not evicted")

	n := 0
	for id, box := range boxes {
		notes, err := os.ReadFile(filepath.Join(s.data, "docker", box, "workspace", "notes.txt"))
		require.NoError(t, err)
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, string(notes), s.download(box, "/box/workspace/notes.txt"))
		require.Equal(t, "event"+string(notes[len("notes"):]), s.download(box, "/box/conversations/history/event-0.json"))
		n++
	}
	require.Equal(t, conversations, n)
}
