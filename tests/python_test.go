package tests

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The real agent server and SDK of OpenHands, in a Python environment that the runner makes.

// python returns the interpreter of that environment.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("AUTOMATION_TEST_PYTHON")
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("AUTOMATION_TEST_PYTHON is not set")
		}
		t.Skip("AUTOMATION_TEST_PYTHON is not set")
	}
	return path
}

// quiet keeps the SDK from looking for things on the internet, and from its banner.
var quiet = []string{"LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1", "PYTHONUNBUFFERED=1"}

// agentServer is the one that runs of local mode share.
type agentServer struct {
	url, key, home string
	stop           func() // ends it and waits
}

func startAgentServer(t *testing.T) *agentServer { return startAgentServerIn(t, t.TempDir()) }

// startAgentServerIn starts OpenHands' own with a home that is there.
func startAgentServerIn(t *testing.T, home string, env ...string) *agentServer {
	t.Helper()
	return launchAgentServer(t, home, append(slices.Clone(quiet), env...), python(t), "-m", "openhands.agent_server")
}

// startOurAgentServer starts the one in the built program.
func startOurAgentServer(t *testing.T) *agentServer {
	t.Helper()
	return launchAgentServer(t, t.TempDir(), nil, build(t), "agent-server")
}

func launchAgentServer(t *testing.T, home string, env []string, command ...string) *agentServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	a := &agentServer{url: fmt.Sprintf("http://127.0.0.1:%d", port), key: "the-key-of-the-agent-server", home: home}
	cmd := exec.Command(command[0], append(command[1:], "--host", "127.0.0.1", "--port", itoa(port))...)
	cmd.Dir = a.home
	cmd.Env = append(clean(a.home, env...), "OH_SESSION_API_KEYS_0="+a.key)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	a.stop = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-gone
		}
	})
	t.Cleanup(func() {
		a.stop()
		if t.Failed() {
			t.Logf("log of the agent server:\n%s", log.String())
		}
	})
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(6 * patience) // its start takes long where little of a machine is left
	for !a.ready(t) {
		select {
		case <-ticker.C:
		case <-gone:
			t.Fatalf("the agent server ended at its start:\n%s", log.String())
		case <-deadline:
			t.Fatalf("the agent server is not ready")
		}
	}
	return a
}

func (a *agentServer) ready(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/ready", nil)
	require.NoError(t, err)
	client := http.Client{Timeout: patience}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// localMode starts the service with the agent server of local mode.
func localMode(t *testing.T, a *agentServer, env ...string) *server {
	t.Helper()
	return start(t, append([]string{
		"AUTOMATION_SANDBOX_BACKEND=", "AUTOMATION_AGENT_SERVER_URL=" + a.url, "AUTOMATION_AGENT_SERVER_API_KEY=" + a.key,
		"AUTOMATION_WORKSPACE_BASE=" + filepath.Join(a.home, "workspace"), "AUTOMATION_WATCHDOG_INTERVAL_SECONDS=1",
		"AUTOMATION_RUN_TIMEOUT_MARGIN=1", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=5",
	}, env...)...)
}

// started dispatches a run of local mode and waits until its command works in its workspace.
func (s *server) started(a *agentServer, automation string) (run object, workspace string) {
	s.t.Helper()
	run = s.call(http.MethodPost, "/"+automation+"/dispatch", nil, http.StatusCreated)
	workspace = filepath.Join(a.home, "workspace", "automation-runs", run.text("id"))
	run = s.await("/runs/"+run.text("id"), "the command works", func(o object) bool {
		_, err := os.Stat(filepath.Join(workspace, "begun"))
		return err == nil && o.text("bash_command_id") != ""
	})
	return run, workspace
}

// report ends a run as its script may, with what is in its environment.
const report = `curl -fsS -X POST "$AUTOMATION_CALLBACK_URL" -H "Authorization: Bearer $AUTOMATION_CALLBACK_API_KEY" \
	-H 'Content-Type: application/json' -d "{\"status\":\"COMPLETED\",\"run_id\":\"$AUTOMATION_RUN_ID\"}"
`

func TestLocalMode_OnTheRealAgentServer(t *testing.T) {
	t.Parallel()
	localModeWorks(t, startAgentServer(t))
}

func TestLocalMode_OnOurOwnAgentServer(t *testing.T) {
	t.Parallel()
	localModeWorks(t, startOurAgentServer(t))
}

func localModeWorks(t *testing.T, a *agentServer) {
	s := localMode(t, a)
	t.Run("a tarball run goes to its end", func(t *testing.T) {
		run, workspace := s.started(a, s.automation("touch begun\npwd > where\n"+report, nil))
		run = s.await("/runs/"+run.text("id"), "the callback", func(o object) bool { return o.text("status") == "COMPLETED" })
		require.Nil(t, run.get("sandbox"))
		require.Nil(t, run.get("sandbox_id"))
		require.Nil(t, run.get("cleanup", "due_at"), "S1-053: never stamped")
		where, err := os.ReadFile(filepath.Join(workspace, "where"))
		require.NoError(t, err)
		require.Equal(t, workspace, strings.TrimSpace(string(where)))
		left, err := filepath.Glob("/tmp/automation-" + run.text("id") + "*")
		require.NoError(t, err)
		require.Empty(t, left, "neither the tarball nor the environment is left")
	})
	t.Run("one killed in the middle is found by the watchdog", func(t *testing.T) {
		run, workspace := s.started(a, s.automation("echo $$ > pid\ntouch begun\nexec sleep 300\n", nil))
		pid, err := os.ReadFile(filepath.Join(workspace, "pid"))
		require.NoError(t, err)
		require.NoError(t, exec.Command("kill", "-9", strings.TrimSpace(string(pid))).Run())
		run = s.await("/runs/"+run.text("id"), "the watchdog", func(o object) bool { return o.text("status") == "FAILED" })
		require.Contains(t, run.text("error_detail"), "exit_code=")
		require.Equal(t, "verify_run", run.text("status_detail", "operation"))
	})
	t.Run("one that takes too long is killed there and verified here", func(t *testing.T) {
		run, _ := s.started(a, s.automation("touch begun\nsleep 300\n", object{"timeout": 2}))
		run = s.await("/runs/"+run.text("id"), "the watchdog", func(o object) bool { return o.text("status") == "FAILED" })
		require.Contains(t, run.text("error_detail"), "Timed out: command timed out or was killed")
		require.Equal(t, "-1", run.text("status_detail", "code"))
	})
	t.Run("a cancelled one is stopped", func(t *testing.T) {
		run, workspace := s.started(a, s.automation("echo $$ > pid\ntouch begun\nsleep 300\n", nil))
		pid, err := os.ReadFile(filepath.Join(workspace, "pid"))
		require.NoError(t, err)
		run = s.call(http.MethodPost, "/runs/"+run.text("id")+"/cancel", nil, http.StatusOK)
		require.Equal(t, "CANCELLED", run.text("status"))
		s.await("/runs/"+run.text("id"), "its command has ended", func(o object) bool { return o.get("exit_code") != nil })
		_, err = os.Stat("/proc/" + strings.TrimSpace(string(pid)))
		require.ErrorIs(t, err, os.ErrNotExist, "the process is gone")
	})
}

// workspaceScript reports a phase and its end with the SDK's workspace for boxes of OpenHands Cloud.
const workspaceScript = `import os, sys
import httpx
from openhands.workspace import OpenHandsCloudWorkspace

key = os.environ["AUTOMATION_CALLBACK_API_KEY"]
with OpenHandsCloudWorkspace(local_agent_server_mode=True, cloud_api_url="http://127.0.0.1:9", cloud_api_key=key) as workspace:
    phase = httpx.post(os.environ["AUTOMATION_PHASE_URL"], json={"phase": "Summing up"}, headers={"Authorization": f"Bearer {key}"})
    phase.raise_for_status()
    workspace.register_conversation("conversation-7")
    workspace.register_cost(0.25)
    if sys.argv[1] == "fails":
        raise RuntimeError("the numbers do not add up")
`

func TestTheRealSDKReportsPhasesAndCompletionFromABox(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")
	for end, status := range map[string]string{"works": "COMPLETED", "fails": "FAILED"} {
		t.Run(end, func(t *testing.T) {
			script := "cat > report.py <<'END'\n" + workspaceScript + "END\n" + strings.Join(quiet, " ") + " " + interpreter + " report.py " + end + "\n"
			id := s.automation(script, nil)
			run := s.call(http.MethodPost, "/"+id+"/dispatch", nil, http.StatusCreated)
			run = s.await("/runs/"+run.text("id"), "the run ends", func(o object) bool { return o.text("completed_at") != "" })
			require.Equal(t, status, run.text("status"), "%v", run)
			require.Equal(t, "conversation-7", run.text("conversation_id"))
			require.InDelta(t, 0.25, run.get("cost"), 0)
			require.Equal(t, "Summing up", run.text("current_phase"))
			if status == "FAILED" {
				require.Equal(t, "the numbers do not add up", run.text("error_detail"))
			}
			s.call(http.MethodDelete, "/sandboxes/"+run.text("sandbox", "id")+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
			s.await("/runs/"+run.text("id"), "the box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
		})
	}
}
