package sandbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/sandbox"
)

// roundTrip answers requests without a listener.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// clientOf is a client whose every path answers with the status that status says.
func clientOf(status func(path string) int) *http.Client {
	return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status(r.URL.Path), Body: io.NopCloser(strings.NewReader("{}")), Header: http.Header{}, Request: r}, nil
	})}
}

// recorded serves one answer as the Python server gave it, and remembers the request.
func recorded(t *testing.T, status int, body string) (sandbox.Agent, *http.Request, *string) {
	t.Helper()
	var seen http.Request
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		seen, sent = *r, string(text)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return sandbox.Agent{URL: server.URL + "/", Key: "key-one", HTTP: server.Client()}, &seen, &sent
}

func TestServerInfoAsRecorded(t *testing.T) {
	agent, seen, _ := recorded(t, 200, `{"uptime":25.0,"idle_time":25.5,"title":"OpenHands Agent Server","version":"1.58.2","capabilities":["tool_catalog_v1","process_output_v1"]}`)
	info, err := agent.ServerInfo(t.Context())
	require.NoError(t, err)
	require.Equal(t, 25500*time.Millisecond, info.IdleTime)
	require.Equal(t, "1.58.2", info.Version)
	require.True(t, info.Has(sandbox.FeatureProcessOutput))
	require.False(t, info.Has(sandbox.FeatureStorageReclaim))
	require.Equal(t, "/server_info", seen.URL.Path)
	require.Equal(t, "key-one", seen.Header.Get("X-Session-API-Key"))
}

func TestS0_031_ABoxIsToldNoCredentialButItsOwnKey(t *testing.T) {
	agent, seen, _ := recorded(t, 200, `{"freed_bytes":7}`)
	freed, err := agent.Reclaim(t.Context(), false, sandbox.ReclaimCaches)
	require.NoError(t, err)
	require.EqualValues(t, 7, freed.FreedBytes)
	for name := range seen.Header {
		require.Contains(t, []string{"X-Session-Api-Key", "Content-Type", "Content-Length", "User-Agent", "Accept-Encoding"}, name)
	}
}

func TestHomeAsRecorded(t *testing.T) {
	agent, _, _ := recorded(t, 200, `{"home":"/srv/box/home","favorites":[],"locations":[{"label":"/","path":"/"}]}`)
	home, err := agent.Home(t.Context())
	require.NoError(t, err)
	require.Equal(t, "/srv/box/home", home)
}

func TestUploadIsAMultipartField(t *testing.T) {
	var name, text, path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, header, err := r.FormFile("file")
		if err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		body, _ := io.ReadAll(file)
		name, text, path = header.Filename, string(body), r.URL.Query().Get("path")
		fmt.Fprintf(w, `{"success":true,"file_size":%d}`, len(body))
	}))
	defer server.Close()
	agent := sandbox.Agent{URL: server.URL, HTTP: server.Client()}
	content := strings.Repeat("x", 1<<20)
	require.NoError(t, agent.Upload(t.Context(), "/tmp/a b&c.tar.gz", strings.NewReader(content)))
	require.Equal(t, []string{"upload", content, "/tmp/a b&c.tar.gz"}, []string{name, text, path})
}

func TestUploadWithoutSuccessIsAnError(t *testing.T) {
	agent, _, _ := recorded(t, 200, `{"success":false}`)
	require.Error(t, agent.Upload(t.Context(), "/tmp/x", strings.NewReader("x")), "peer defect 20: a failed upload is not ignored")
}

func TestStartCommandAsRecorded(t *testing.T) {
	agent, seen, sent := recorded(t, 200, `{"command":"echo hi","cwd":null,"timeout":10,"id":"91689c238749401e80797208ca415c4f","timestamp":"2026-11-30T13:14:14.544663Z","kind":"BashCommand"}`)
	id, err := agent.StartCommand(t.Context(), "echo hi", 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, "91689c238749401e80797208ca415c4f", id)
	require.Equal(t, "/api/bash/start_bash_command", seen.URL.Path)
	require.JSONEq(t, `{"command":"echo hi","timeout":10}`, *sent)
}

func TestLastOutputAsRecorded(t *testing.T) {
	agent, seen, _ := recorded(t, 200, `{"items":[{"id":"7ddf3501dbb6421a977de4f6e8e85e18","timestamp":"2026-11-30T13:14:14.571250Z","command_id":"91689c238749401e80797208ca415c4f","order":0,"exit_code":3,"stdout":"hello\n","stderr":"err\n","kind":"BashOutput"}],"next_page_id":null}`)
	out, err := agent.LastOutput(t.Context(), "91689c238749401e80797208ca415c4f")
	require.NoError(t, err)
	require.Equal(t, 3, *out.ExitCode)
	require.Equal(t, "hello\n", out.Stdout)
	require.Equal(t, "err\n", out.Stderr)
	require.Equal(t, "TIMESTAMP_DESC", seen.URL.Query().Get("sort_order"))

	running, _, _ := recorded(t, 200, `{"items":[],"next_page_id":null}`)
	out, err = running.LastOutput(t.Context(), "x")
	require.NoError(t, err)
	require.Nil(t, out.ExitCode)
}

func TestErrorsOfAnAgentServerAreTyped(t *testing.T) {
	var answer *sandbox.AgentError
	agent, _, _ := recorded(t, 502, `{"detail":"Internal Server Error","exception":"502: Could not start conversation container"}`)
	_, err := agent.StartCommand(t.Context(), "x", time.Second)
	require.ErrorAs(t, err, &answer)
	require.Equal(t, 502, answer.Status)
	require.Equal(t, "502: Could not start conversation container", answer.Detail, "the useful text of a 5xx is in exception")
	require.False(t, sandbox.NeverDone(err), "a 5xx may have started it")

	agent, _, _ = recorded(t, 422, `{"detail":[{"type":"missing","loc":["body","command"],"msg":"Field required"}]}`)
	_, err = agent.StartCommand(t.Context(), "x", time.Second)
	require.ErrorAs(t, err, &answer)
	require.Contains(t, answer.Detail, "Field required")
	require.True(t, sandbox.NeverDone(err))

	agent, _, _ = recorded(t, 401, `{"detail":"Unauthorized"}`)
	_, err = agent.Home(t.Context())
	require.ErrorAs(t, err, &answer)
	require.True(t, answer.Refused())
	require.NotErrorIs(t, err, sandbox.ErrUnreachable)

	agent, _, _ = recorded(t, 429, `{"detail":"busy"}`)
	_, err = agent.Home(t.Context())
	require.ErrorAs(t, err, &answer)
	require.False(t, answer.Refused())
}

func TestABoxThatDoesNotAnswerIsUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close()
	_, err := sandbox.Agent{URL: url}.Home(t.Context())
	require.ErrorIs(t, err, sandbox.ErrUnreachable)
	require.True(t, sandbox.NeverDone(err), "no connection was made")

	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer broken.Close()
	_, err = sandbox.Agent{URL: broken.URL, HTTP: broken.Client()}.StartCommand(t.Context(), "x", time.Second)
	require.ErrorIs(t, err, sandbox.ErrUnreachable)
	require.False(t, sandbox.NeverDone(err), "the answer was lost, not the request")

	_, err = sandbox.Agent{URL: ""}.Home(t.Context())
	require.ErrorIs(t, err, sandbox.ErrUnreachable)
}

func TestACallerThatGivesUpIsNotAnUnreachableBox(t *testing.T) {
	blocked := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer blocked.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := sandbox.Agent{URL: blocked.URL, HTTP: blocked.Client()}.Home(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, sandbox.ErrUnreachable)
}

func TestEveryCallHasADeadlineOfItsOwn(t *testing.T) {
	synctestHang(t, func(agent sandbox.Agent) error { _, err := agent.Home(context.Background()); return err })
	synctestHang(t, func(agent sandbox.Agent) error {
		return agent.Upload(context.Background(), "/x", strings.NewReader("x"))
	})
	synctestHang(t, func(agent sandbox.Agent) error {
		_, err := agent.Reclaim(context.Background(), true, sandbox.ReclaimPolicy)
		return err
	})
}

func TestTheKeyFollowsNoRedirect(t *testing.T) {
	var stolen string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen = r.Header.Get("X-Session-API-Key") }))
	defer thief.Close()
	server := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusFound))
	defer server.Close()
	_, err := sandbox.Agent{URL: server.URL, Key: "key-one"}.Home(t.Context())
	require.Error(t, err)
	require.Empty(t, stolen)
}

func TestAnAnswerIsReadUpToABound(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 20 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	_, err := sandbox.Agent{URL: server.URL, HTTP: server.Client()}.Storage(t.Context())
	require.ErrorContains(t, err, "above")
}

func TestFindCommandTurnsPages(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := map[string]any{"items": []any{map[string]any{"id": "a", "command": "ls", "kind": "BashCommand"}}, "next_page_id": "p2"}
		if r.URL.Query().Get("page_id") == "p2" {
			page = map[string]any{"items": []any{map[string]any{"id": "b", "command": "run 4711 now", "kind": "BashCommand"}}, "next_page_id": nil}
		}
		_ = json.NewEncoder(w).Encode(page)
	}))
	defer server.Close()
	agent := sandbox.Agent{URL: server.URL, HTTP: server.Client()}
	id, err := agent.FindCommand(t.Context(), "4711")
	require.NoError(t, err)
	require.Equal(t, "b", id)
	id, err = agent.FindCommand(t.Context(), "4712")
	require.NoError(t, err)
	require.Empty(t, id)
}

func TestProcessOutputReadsFramesAndSkipsWhatItDoesNotKnow(t *testing.T) {
	agent, seen, _ := recorded(t, 200, `{"type":"stdout","seq":1,"data":"AP8="}`+"\n"+`{"type":"keepalive"}`+"\n\n"+`{"type":"gap","from_seq":2,"to_seq":4,"bytes":99,"seq":4}`+"\n"+`{"type":"exit","seq":5,"exit_code":0,"reason":"exited"}`+"\n")
	var frames []sandbox.Frame
	for f, err := range agent.ProcessOutput(t.Context(), "id/1", 7) {
		require.NoError(t, err)
		frames = append(frames, f)
	}
	require.Len(t, frames, 4)
	require.Equal(t, []byte{0, 255}, frames[0].Data, "raw bytes survive")
	require.EqualValues(t, 99, frames[2].Bytes)
	require.Equal(t, 0, *frames[3].ExitCode)
	require.Equal(t, "/api/processes/id%2F1/output", seen.URL.EscapedPath())
	require.Equal(t, "7", seen.URL.Query().Get("after"))
}
