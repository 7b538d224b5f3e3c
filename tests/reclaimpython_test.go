package tests

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inBox is our agent server on directories that are there.
type inBox struct{ url, key string }

func startInBox(t *testing.T, home string, env ...string) inBox {
	t.Helper()
	portFile := filepath.Join(t.TempDir(), "port")
	cmd := exec.Command(build(t), "agent-server", "--port", "0", "--port-file", portFile)
	cmd.Env = append(append(clean(home), "OH_SESSION_API_KEYS_0=in-box-key"), env...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	var port []byte
	require.Eventually(t, func() bool {
		var err error
		port, err = os.ReadFile(portFile)
		return err == nil
	}, patience, 20*time.Millisecond)
	return inBox{"http://127.0.0.1:" + strings.TrimSpace(string(port)), "in-box-key"}
}

// ask calls an agent server, ours or OpenHands' own, and returns what it answers.
func ask(t *testing.T, method, address, key, body string, status int) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", key)
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, status, response.StatusCode, method+" "+address+": "+string(answer))
	return answer
}

// trajectory is the content of an exported history, all files one after the other, and how many of them are events.
func trajectory(t *testing.T, address, key, id string) (text string, events int) {
	t.Helper()
	whole := ask(t, http.MethodGet, address+"/api/file/download-trajectory/"+id, key, "", http.StatusOK)
	archive, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	require.NoError(t, err)
	var all strings.Builder
	for _, f := range archive.File {
		in, err := f.Open()
		require.NoError(t, err)
		_, err = io.Copy(&all, in)
		require.NoError(t, err)
		if strings.Contains(f.Name, "/events/event-") {
			events++
		}
	}
	return all.String(), events
}

func TestS0_046_S0_048_S0_072_AConversationOfTheRealAgentServerIsReclaimedAndStillReadByIt(t *testing.T) {
	t.Parallel()
	const id, secret = "aaaaaaaa-0000-4000-8000-000000000001", "sk-planted-model-key-0123456789"
	base := t.TempDir()
	plain := strings.ReplaceAll(id, "-", "")
	runtime := filepath.Join(base, "state/runtime-data", plain)
	project := filepath.Join(runtime, "workspace")
	for name, text := range map[string]string{
		"workspace/.gitignore": "node_modules/\n.env\n", "workspace/package.json": "{}", "workspace/.env": "KEY=1",
		"workspace/node_modules/x/index.js": "x", "persistence/.cache/pip/wheel": "x", "persistence/.bashrc": "x",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(runtime, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(runtime, name), []byte(text), 0o600))
	}
	for _, arguments := range [][]string{{"init", "-q"}, {"add", "."}} {
		call := exec.Command("git", arguments...)
		call.Dir = project
		require.NoError(t, call.Run())
	}
	places := []string{"OH_CONVERSATIONS_PATH=" + filepath.Join(base, "history"), "OH_PERSISTENCE_DIR=" + filepath.Join(base, "state"), "OH_SECRET_KEY=a-secret-of-the-server"}

	theirs := startAgentServerIn(t, base, places...)
	ask(t, http.MethodPost, theirs.url+"/api/conversations", theirs.key, `{"conversation_id":"`+id+`","workspace":{"working_dir":"`+project+
		`"},"agent_settings":{"llm":{"model":"openai/fake","api_key":"`+secret+`","base_url":"http://127.0.0.1:9","num_retries":0},"tools":[]},"autotitle":false,"secrets":{"MINE":{"kind":"StaticSecret","value":"`+secret+`-2"}}}`, http.StatusCreated)
	ask(t, http.MethodPost, theirs.url+"/api/conversations/"+id+"/events", theirs.key,
		`{"role":"user","content":[{"type":"text","text":"remember the word walrus"}],"run":false}`, http.StatusOK)
	count := string(ask(t, http.MethodGet, theirs.url+"/api/conversations/"+id+"/events/count", theirs.key, "", http.StatusOK))

	home := t.TempDir()
	ours := startInBox(t, home, append(places, "OH_CONVERSATION_RUNTIME=docker")...)
	reclaim := func(tier string) string {
		return string(ask(t, http.MethodPost, ours.url+"/api/storage/reclaim", ours.key, `{"tier":"`+tier+`","conversation_ids":["`+id+`"]}`, http.StatusOK))
	}
	require.Contains(t, reclaim("runtime"), `"outcome":"skipped"`, "their server has it open")
	require.FileExists(t, filepath.Join(project, "node_modules/x/index.js"))

	theirs.stop()
	require.Eventually(t, func() bool { // a lease that was left runs out
		var status struct {
			Conversations []struct{ ID, State string }
		}
		require.NoError(t, json.Unmarshal(ask(t, http.MethodGet, ours.url+"/api/storage", ours.key, "", http.StatusOK), &status))
		for _, c := range status.Conversations {
			if c.ID == id {
				return c.State == "stopped"
			}
		}
		return false
	}, 2*time.Minute, 500*time.Millisecond)
	require.Contains(t, reclaim("dependencies"), `"outcome":"moved"`)
	require.NoDirExists(t, filepath.Join(project, "node_modules"))
	require.NoDirExists(t, filepath.Join(runtime, "persistence/.cache/pip"))
	require.FileExists(t, filepath.Join(project, ".env"))
	require.Contains(t, reclaim("runtime"), `"outcome":"moved"`)
	require.NoDirExists(t, runtime)

	require.Equal(t, count, string(ask(t, http.MethodGet, ours.url+"/api/conversations/"+id+"/events/count", ours.key, "", http.StatusOK)))
	text, events := trajectory(t, ours.url, ours.key, id)
	require.Equal(t, count, itoa(events))
	require.Contains(t, text, "remember the word walrus")
	require.NotContains(t, text, "planted-model-key")
	require.NotContains(t, text, "gAAAA", "nor in cipher text")
	require.Contains(t, string(ask(t, http.MethodPost, ours.url+"/api/conversations/"+id+"/run", ours.key, "{}", http.StatusGone)), "read-only")

	again := startAgentServerIn(t, base, places...)
	require.Contains(t, string(ask(t, http.MethodGet, again.url+"/api/conversations/"+id, again.key, "", http.StatusOK)), id)
	require.Contains(t, string(ask(t, http.MethodGet, again.url+"/api/conversations/"+id+"/events/search?limit=100", again.key, "", http.StatusOK)), "remember the word walrus")
	text, _ = trajectory(t, again.url, again.key, id)
	require.Contains(t, text, "remember the word walrus")
}
