package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// object is a JSON object of an answer.
type object map[string]any

// get follows names into nested objects; nil where there is none.
func (o object) get(path ...string) any {
	var at any = map[string]any(o)
	for _, name := range path {
		inner, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = inner[name]
	}
	return at
}

// text is a string in nested objects; "" where there is none.
func (o object) text(path ...string) string {
	s, _ := o.get(path...).(string)
	return s
}

// moment is a time in nested objects.
func (o object) moment(t *testing.T, path ...string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, o.text(path...))
	require.NoError(t, err, "%v of %v", path, o)
	return at
}

// call makes a request with the login and requires the status. body is nil, bytes, or what is sent as JSON.
func (s *server) call(method, path string, body any, status int) object {
	s.t.Helper()
	got, raw := s.try(method, path, body)
	require.Equal(s.t, status, got, "%s %s: %s", method, path, raw)
	var o object
	if len(raw) > 0 && raw[0] == '{' {
		require.NoError(s.t, json.Unmarshal(raw, &o))
	}
	return o
}

// try makes a request with the login.
func (s *server) try(method, path string, body any) (status int, answer []byte) {
	s.t.Helper()
	request := s.request(method, path, body)
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return response.StatusCode, answer
}

func (s *server) request(method, path string, body any) *http.Request {
	s.t.Helper()
	var sent io.Reader
	kind := ""
	switch b := body.(type) {
	case nil:
	case []byte:
		sent, kind = bytes.NewReader(b), "application/gzip"
	default:
		raw, err := json.Marshal(b)
		require.NoError(s.t, err)
		sent, kind = bytes.NewReader(raw), "application/json"
	}
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, sent)
	require.NoError(s.t, err)
	request.Header.Set("Authorization", "Bearer "+s.key)
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	return request
}

// await reads path until the answer is as wanted, and returns it.
func (s *server) await(path, what string, is func(object) bool) object {
	s.t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for {
		o := s.call(http.MethodGet, path, nil, http.StatusOK)
		if is(o) {
			return o
		}
		select {
		case <-ticker.C:
		case <-deadline:
			s.t.Fatalf("not seen in %v: %s; last answer: %v", patience, what, o)
		}
	}
}

// automation uploads a script and makes an automation that runs it when dispatched by hand.
func (s *server) automation(script string, more object) (id string) {
	s.t.Helper()
	upload := s.call(http.MethodPost, "/uploads?name=script", tarball(s.t, "main.sh", script), http.StatusCreated)
	body := object{
		"name": "black box", "entrypoint": "bash main.sh", "tarball_path": upload.text("tarball_path"), "timeout": 120,
		"trigger": object{"type": "cron", "schedule": "0 0 1 1 *"},
	}
	maps.Copy(body, more)
	return s.call(http.MethodPost, "", body, http.StatusCreated).text("id")
}

// running dispatches a run and waits until its command was started.
func (s *server) running(automation string) object {
	s.t.Helper()
	run := s.call(http.MethodPost, "/"+automation+"/dispatch", nil, http.StatusCreated)
	return s.await("/runs/"+run.text("id"), "the run executes", func(o object) bool {
		return o.text("status") == "RUNNING" && o.text("sandbox", "observed") == "running" && o.text("bash_command_id") != ""
	})
}

// tarball packs one file.
func tarball(t *testing.T, name, content string) []byte {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zip)
	require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}))
	_, err := archive.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, zip.Close())
	return packed.Bytes()
}

// fetch gets a page without a login; status 0: nobody answers.
func fetch(t *testing.T, address string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(raw)
}
