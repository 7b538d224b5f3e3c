package tests

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// conversationID is that of the conversation in the boxes of these tests.
const conversationID = "0198c0de-0000-4000-8000-00000000abcd"

// secret is what must not come out of a box with its history.
const secret = "sk-ant-REDACT-ME-0123456789abcdef"

// converse makes a conversation with events in a box, through the proxy.
func converse(s *server, box string, events int) {
	s.t.Helper()
	home := s.call(http.MethodGet, box+"/proxy/api/file/home", nil, http.StatusOK).text("home")
	s.call(http.MethodPost, box+"/proxy/api/conversations", object{
		"conversation_id": conversationID, "workspace": object{"working_dir": home + "/project"},
	}, http.StatusCreated)
	folder := filepath.Join(home, ".openhands/conversations", strings.ReplaceAll(conversationID, "-", ""), "events")
	for n := range events {
		name := "event-0000" + itoa(n) + "-x.json"
		put(s, box, filepath.Join(folder, name), `{"kind":"MessageEvent","n":`+itoa(n)+`,"llm":{"api_key":"`+secret+`"}}`)
	}
	count := s.call(http.MethodGet, box+"/proxy/api/conversations/search", nil, http.StatusOK)
	require.Len(s.t, count.get("items"), 1)
}

// put writes a file in a box.
func put(s *server, box, path, content string) {
	s.t.Helper()
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, err := parts.CreateFormFile("file", "f")
	require.NoError(s.t, err)
	_, err = io.WriteString(file, content)
	require.NoError(s.t, err)
	require.NoError(s.t, parts.Close())
	request := s.request(http.MethodPost, box+"/proxy/api/file/upload?path="+path, form.Bytes())
	request.Header.Set("Content-Type", parts.FormDataContentType())
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, response.StatusCode, "%s", answer)
}

// exported downloads the history of a box, checks it against its digest, and returns its files by name.
func exported(s *server, box string) map[string]string {
	s.t.Helper()
	client := http.Client{Timeout: patience}
	response, err := client.Do(s.request(http.MethodGet, box+"/export", nil))
	require.NoError(s.t, err)
	defer response.Body.Close()
	packed, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, response.StatusCode, "%s", packed)
	sum := sha256.Sum256(packed)
	require.Equal(s.t, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":", response.Header.Get("Repr-Digest"))
	return unzip(s.t, packed)
}

func unzip(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	require.NoError(t, err)
	files := map[string]string{}
	for _, entry := range archive.File {
		file, err := entry.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		files[entry.Name] = string(content)
	}
	return files
}

// eventsIn counts the events among the files of a history.
func eventsIn(files map[string]string) (n int) {
	for name := range files {
		if strings.Contains(name, "/events/event-") {
			n++
		}
	}
	return n
}

// happened lists "what outcome" of a box, in order.
func happened(s *server, box string) (all []string) {
	s.t.Helper()
	events, _ := s.call(http.MethodGet, box+"/events", nil, http.StatusOK).get("events").([]any)
	for _, e := range events {
		event := object(e.(map[string]any))
		all = append(all, event.text("what")+" "+event.text("outcome"))
	}
	return all
}

// A conversation is in a box, its run ends, its history is stored, the box is swept, and the history can still be had.
func TestS0_044_S0_048_S0_052_S0_072_S0_073_S1_049_TheHistoryOutlivesTheBox(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		s := start(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="+delaySeconds)...)
		run := s.running(s.automation("sleep 300\n", nil))
		path, box := "/runs/"+run.text("id"), "/sandboxes/"+run.text("sandbox", "id")
		converse(s, box, 3)
		s.call(http.MethodPost, path+"/complete", object{"status": "COMPLETED", "conversation_id": conversationID}, http.StatusOK)
		s.await(path, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
		story := happened(s, box)
		require.Less(t, slices.Index(story, "reclaimed ok"), slices.Index(story, "exported ok"), "%v", story)
		require.Less(t, slices.Index(story, "exported ok"), slices.Index(story, "suspended ok"), "%v", story)
		shown := s.call(http.MethodGet, box, nil, http.StatusOK)
		require.Equal(t, true, shown.get("export", "current"))
		require.Equal(t, []any{map[string]any{"id": conversationID, "events": 3.0}}, shown.get("export", "conversations"))
		require.NotNil(t, shown.get("storage_as_of"), "what is known of its disk")

		s.await(path, "the sweep deletes the box", func(o object) bool { return o.text("cleanup", "state") == "deleted" })
		require.NotContains(t, happened(s, box), "woken ok", "what is current is not taken again")
		require.Nil(t, s.call(http.MethodGet, box, nil, http.StatusOK).get("needs_attention"))
		require.NoDirExists(t, filepath.Join(s.data, "boxes", run.text("sandbox", "id")))
		status, _ := s.try(http.MethodPost, box+"/proxy/api/conversations/"+conversationID+"/events", object{"role": "user"})
		require.Equal(t, http.StatusGone, status, "S0-044: nothing can be prompted any more, as in an archived conversation")
		files := exported(s, box)
		require.Equal(t, 3, eventsIn(files), "%v", files)
		for name, content := range files {
			require.NotContains(t, content, secret, name)
		}

		to := filepath.Join(t.TempDir(), "history.zip")
		command := exec.Command(build(t), "box", "export", run.text("sandbox", "id"), "--to", to)
		command.Env = append(os.Environ(), "AUTOMATION_URL="+strings.TrimSuffix(s.base, "/api/automation/v1"), "AUTOMATION_TOKEN="+s.key)
		said, err := command.CombinedOutput()
		require.NoError(t, err, "%s", said)
		packed, err := os.ReadFile(to)
		require.NoError(t, err)
		require.Equal(t, files, unzip(t, packed))
		staged, err := os.ReadDir(filepath.Join(s.data, "staging"))
		require.NoError(t, err)
		require.Empty(t, staged)
	})
}

// By hand, what would be lost is asked about; what is stored is not. A box that goes on after its export has none that is current.
func TestS0_042_S0_050_S0_089_S0_155_ADeleteByHandAsksWhereTheHistoryWouldBeLost(t *testing.T) {
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")
	run := s.running(s.automation("sleep 300\n", nil))
	path, box := "/runs/"+run.text("id"), "/sandboxes/"+run.text("sandbox", "id")
	converse(s, box, 2)
	s.call(http.MethodPost, path+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	s.await(path, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
	seen := func(state string) func(object) bool {
		return func(o object) bool { return o.text("observed") == state }
	}

	s.call(http.MethodPost, box+"/resume", nil, http.StatusAccepted)
	s.await(box, "the box wakes", seen("running"))
	s.call(http.MethodDelete, box, nil, http.StatusConflict)
	made := s.call(http.MethodPost, box+"/export", nil, http.StatusOK)
	require.Equal(t, false, made.get("current"), "of a running box none is")
	s.call(http.MethodDelete, box, nil, http.StatusConflict)
	put(s, box, filepath.Join(s.data, "boxes", run.text("sandbox", "id"), "home/.openhands/conversations",
		strings.ReplaceAll(conversationID, "-", ""), "events/event-00002-x.json"), `{"n":2}`)
	s.call(http.MethodPost, box+"/pause", nil, http.StatusAccepted)
	shown := s.await(box, "the box pauses", seen("suspended"))
	require.Equal(t, []any{map[string]any{"id": conversationID, "events": 3.0}}, shown.get("export", "conversations"), "taken anew")
	s.call(http.MethodDelete, box, nil, http.StatusAccepted)
	s.await(box, "the box is deleted", seen("deleted"))
	require.Equal(t, 3, eventsIn(exported(s, box)))
	require.Empty(t, s.boxProcesses())
}
