package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// scriptedModel answers the agent with a call of the finish tool: without a message at first, which the hook refuses. It counts
// how often it did; what asks without tools wants a title.
func scriptedModel(t *testing.T) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks, _ := io.ReadAll(r.Body)
		answer := object{"role": "assistant", "content": "The week"}
		if bytes.Contains(asks, []byte(`"tools"`)) {
			n, message := asked.Add(1), ""
			if n > 1 {
				message = "The week is summed up"
			}
			arguments, _ := json.Marshal(map[string]string{"message": message})
			answer = object{"role": "assistant", "content": "", "tool_calls": []any{object{
				"id": "call_" + itoa(int(n)), "type": "function", "function": object{"name": "finish", "arguments": string(arguments)},
			}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object{
			"id": "chatcmpl-1", "object": "chat.completion", "created": 1764500000, "model": "scripted",
			"choices": []any{object{"index": 0, "finish_reason": "stop", "message": answer}},
			"usage":   object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
		})
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1", asked
}

// useModel tells the agent server which model its user has chosen.
func (a *agentServer) useModel(t *testing.T, url string) {
	t.Helper()
	body, err := json.Marshal(object{"agent_settings_diff": object{"llm": object{"model": "openai/scripted", "base_url": url, "api_key": "any"}}})
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, a.url+"/api/settings", bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Session-API-Key", a.key)
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(answer))
}

// withEnvironment repacks a preset's tarball with the test's Python environment in place of the one that its setup would make.
func withEnvironment(t *testing.T, code []byte, venv string) []byte {
	t.Helper()
	unzip, err := gzip.NewReader(bytes.NewReader(code))
	require.NoError(t, err)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	from, to := tar.NewReader(unzip), tar.NewWriter(zip)
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.NoError(t, to.WriteHeader(header))
		_, err = io.Copy(to, from)
		require.NoError(t, err)
	}
	require.NoError(t, to.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: ".venv", Linkname: venv, Mode: 0o777}))
	require.NoError(t, to.Close())
	require.NoError(t, zip.Close())
	return packed.Bytes()
}

// A prompt becomes a conversation on the real agent server: phases, cost and result come back.
func TestAPresetCarriesOutItsPromptOnTheRealAgentServer(t *testing.T) {
	t.Parallel()
	venv := filepath.Dir(filepath.Dir(python(t)))
	a := startAgentServer(t)
	model, asked := scriptedModel(t)
	a.useModel(t, model)
	s := localMode(t, a)
	preset := s.call(http.MethodPost, "/preset/prompt", object{
		"name": "digest", "prompt": "Summarize the week", "trigger": object{"type": "cron", "schedule": "0 0 1 1 *"},
	}, http.StatusCreated)
	status, code := s.try(http.MethodGet, "/"+preset.text("id")+"/tarball", nil)
	require.Equal(t, http.StatusOK, status)
	upload := s.call(http.MethodPost, "/uploads?name=ready", withEnvironment(t, code, venv), http.StatusCreated)
	s.call(http.MethodPatch, "/"+preset.text("id"), object{"tarball_path": upload.text("tarball_path")}, http.StatusOK)

	run := s.call(http.MethodPost, "/"+preset.text("id")+"/dispatch", nil, http.StatusCreated)
	path := "/runs/" + run.text("id")
	for _, phase := range []string{"Starting the agent", "Agent is working"} { // each is waited for: Python takes its time
		s.await(path, phase, func(o object) bool { return o.text("current_phase") == phase || o.text("completed_at") != "" })
	}
	run = s.await(path, "the run ends", func(o object) bool { return o.text("completed_at") != "" })
	require.Equal(t, "COMPLETED", run.text("status"), "%v", run)
	require.Equal(t, "Agent is working", run.text("current_phase"))
	require.NotEmpty(t, run.text("conversation_id"))
	require.EqualValues(t, 2, asked.Load(), "a finish without a message was sent back")
	run = s.await(path, "the finish response is stored", func(o object) bool { return o.get("run_metadata") != nil })
	require.Equal(t, "The week is summed up", run.text("run_metadata", "finish_tool_response", "message"))
	_, err := os.Stat(filepath.Join(a.home, "workspace", "automation-runs", run.text("id"), "prompt.txt"))
	require.NoError(t, err)
}
