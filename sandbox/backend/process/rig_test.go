package process

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

// within bounds what these tests wait for.
const within = 30 * time.Second

// rig is a backend on an empty data directory and what makes a box in it.
type rig struct {
	*testing.T
	*Backend
	deployment uuid.UUID
}

func open(t *testing.T, hold string) *rig { return openIn(t, hold, t.TempDir(), nil) }

func openIn(t *testing.T, hold, data string, words map[string]string) *rig {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	env := map[string]string{"GORACE": "atexit_sleep_ms=0"} // else all that runs in a box lingers a second under -race
	maps.Copy(env, words)
	b, err := New(Config{Hold: hold, Path: "/usr/bin:/bin", Env: env}, Options{DataDir: data, Executable: program})
	require.NoError(t, err)
	r := &rig{T: t, Backend: b, deployment: uuid.New()}
	t.Cleanup(r.clear)
	return r
}

// clear deletes what a test has left, whosever it is.
func (r *rig) clear() {
	entries, err := os.ReadDir(r.dir)
	require.NoError(r, err)
	for _, e := range entries {
		if id, err := uuid.Parse(e.Name()); err == nil {
			require.NoError(r, r.Delete(r.ctx(), sandbox.Ref{WorkspaceID: id}))
		}
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	r.Cleanup(cancel)
	return ctx
}

func nothing(sandbox.Identity) error { return nil }

// create makes a box that serves.
func (r *rig) create() (sandbox.Ref, box) {
	r.Helper()
	ref := sandbox.Ref{WorkspaceID: uuid.Must(uuid.NewV7())}
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: ref.WorkspaceID}}
	require.NoError(r, r.Create(r.ctx(), spec, nothing))
	r.shows(ref, models.SeenRunning)
	return ref, r.box(ref.WorkspaceID)
}

// shows waits until Inspect shows the state.
func (r *rig) shows(ref sandbox.Ref, want models.Observed) (o sandbox.Observation) {
	r.Helper()
	require.NoError(r, until(r.ctx(), func() (bool, error) {
		var err error
		o, err = r.Inspect(r.ctx(), ref)
		return o.State == want, err
	}), "shown: %s", o.State)
	return o
}

// facts reads what is stored of the box's last start.
func (r *rig) facts(x box) start {
	r.Helper()
	s, err := x.readStart()
	require.NoError(r, err)
	require.NotZero(r, s.Server)
	return s
}

// run lets the agent server of a box start the test binary with the words.
func (r *rig) run(i sandbox.Identity, words ...string) {
	r.Helper()
	body, err := json.Marshal(words)
	require.NoError(r, err)
	request, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, i.URL+"/run", bytes.NewReader(body))
	require.NoError(r, err)
	request.Header.Set("X-Session-API-Key", i.Key)
	response, err := probeClient.Do(request)
	require.NoError(r, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(r, err)
	require.NoError(r, response.Body.Close())
	require.Equal(r, http.StatusOK, response.StatusCode, string(text))
}

// daemon starts a command in the box that daemonizes and counts, and waits until it does.
func (r *rig) daemon(x box, i sandbox.Identity) (counter proc, size func() int64) {
	r.Helper()
	path := filepath.Join(x.home(), "count")
	r.run(i, "daemonize", "first", path)
	require.NoError(r, until(r.ctx(), func() (bool, error) {
		text, err := os.ReadFile(path + ".pid")
		if err != nil {
			return false, ignore(err, os.ErrNotExist)
		}
		pid, err := strconv.Atoi(string(text))
		s, _ := readStatus(pid)
		counter = s.proc
		return err == nil, err
	}))
	size = func() int64 {
		info, err := os.Stat(path)
		require.NoError(r, err)
		return info.Size()
	}
	r.grows(size)
	return counter, size
}

func (r *rig) grows(size func() int64) {
	r.Helper()
	before := size()
	require.NoError(r, until(r.ctx(), func() (bool, error) { return size() > before, nil }), "the daemon runs")
}

// ends waits until a process is gone.
func (r *rig) ends(p proc) {
	r.Helper()
	require.NoError(r, until(r.ctx(), func() (bool, error) { return !p.alive(), nil }), "process %d ends", p.PID)
}

// empty requires that nothing carries the box's marker any more.
func (r *rig) empty(x box) {
	r.Helper()
	all, err := processes()
	require.NoError(r, err)
	require.Empty(r, treeHold{box: x}.strays(all))
}

// bash runs a command through the agent server's own route and returns its output.
func (r *rig) bash(i sandbox.Identity, command string) string {
	r.Helper()
	body, err := json.Marshal(map[string]any{"command": command})
	require.NoError(r, err)
	request, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, i.URL+"/api/bash/execute_bash_command", bytes.NewReader(body))
	require.NoError(r, err)
	request.Header.Set("X-Session-API-Key", i.Key)
	request.Header.Set("Content-Type", "application/json")
	response, err := probeClient.Do(request)
	require.NoError(r, err)
	defer response.Body.Close()
	var output struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
	}
	text, err := io.ReadAll(response.Body)
	require.NoError(r, err)
	require.NoError(r, json.Unmarshal(text, &output), string(text))
	require.Zero(r, output.ExitCode, string(text))
	return output.Stdout
}
