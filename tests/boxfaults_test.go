package tests

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hasty are settings under which a box that says nothing more is given up soon.
var hasty = []string{
	"AUTOMATION_RUN_TIMEOUT_MARGIN=1", "AUTOMATION_RUN_TIMEOUT_HARD_GRACE=1", "AUTOMATION_SANDBOX_READY_TIMEOUT=5", "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0",
	"AUTOMATION_WATCHDOG_INTERVAL_SECONDS=1", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600",
}

// named lists the processes of boxes whose command line has a word.
func (s *server) named(word string) []int {
	var found []int
	for _, pid := range s.boxProcesses() {
		if line, _ := os.ReadFile(filepath.Join("/proc", itoa(pid), "cmdline")); strings.Contains(string(line), word) {
			found = append(found, pid)
		}
	}
	return found
}

// happened lists what the timeline of a box says.
func (s *server) happened(box string) string {
	s.t.Helper()
	var what []string
	events, _ := s.call(http.MethodGet, "/sandboxes/"+box+"/events?limit=100", nil, http.StatusOK).get("events").([]any)
	for _, e := range events {
		event, _ := e.(map[string]any)
		what = append(what, object(event).text("what")+" "+object(event).text("reason"))
	}
	return strings.Join(what, "\n")
}

func TestFault_ABoxIsKilledFromOutside(t *testing.T) {
	t.Parallel()
	s := start(t, hasty...)
	run := s.running(s.automation("sleep 600", object{"timeout": 3}))
	path, box := "/runs/"+run.text("id"), run.text("sandbox", "id")
	for _, pid := range s.boxProcesses() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	run = s.await(path, "the run is decided", func(o object) bool { return o.text("status") == "FAILED" })
	require.Equal(t, "Timed out: Sandbox not available", run.text("error_detail"))
	s.await("/sandboxes/"+box, "the box is shown at rest", func(o object) bool { return o.text("observed") == "suspended" })
	require.Empty(t, s.boxProcesses())
	s.call(http.MethodPost, "/sandboxes/"+box+"/resume", nil, http.StatusAccepted)
	s.await("/sandboxes/"+box, "its disk can be looked into", func(o object) bool { return o.text("observed") == "running" })
	s.call(http.MethodDelete, "/sandboxes/"+box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await("/sandboxes/"+box, "it is cleaned up", func(o object) bool { return o.text("observed") == "deleted" })
	require.NoDirExists(t, filepath.Join(s.data, "boxes", box))
}

func TestFault_TheDirectoryOfABoxIsRemoved(t *testing.T) {
	t.Parallel()
	s := start(t, hasty...)
	run := s.running(s.automation("sleep 600", object{"timeout": 3}))
	path, box := "/runs/"+run.text("id"), run.text("sandbox", "id")
	require.Eventually(t, func() bool { return len(s.named("sleep")) > 0 }, patience, 20*time.Millisecond, "its command runs")
	require.NoError(t, os.RemoveAll(filepath.Join(s.data, "boxes", box)))
	s.await(path, "the run is decided", func(o object) bool { return o.text("status") == "FAILED" })
	s.await("/sandboxes/"+box, "the box is shown missing", func(o object) bool { return o.text("observed") == "missing" || o.text("observed") == "deleted" })
	require.Contains(t, s.happened(box), "missing the provider does not show it any more")
	require.Eventually(t, func() bool { return len(s.boxProcesses()) == 0 }, patience, 50*time.Millisecond, "what ran in it is ended")
}

func TestFault_TheAgentServerOfABoxHangs(t *testing.T) {
	t.Parallel()
	s := start(t, hasty...)
	run := s.running(s.automation("sleep 600", object{"timeout": 3}))
	path, box := "/runs/"+run.text("id"), run.text("sandbox", "id")
	servers := s.named("agent-server")
	require.NotEmpty(t, servers)
	for _, pid := range servers {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	run = s.await(path, "the run is decided", func(o object) bool { return o.text("status") == "FAILED" })
	s.await("/sandboxes/"+box, "the box rests", func(o object) bool { return o.text("observed") == "suspended" })
	require.Contains(t, run.text("error_detail"), "agent server of the box is unreachable")
	require.Contains(t, s.happened(box), "unreachable", "what could not be saved before the pause")
	s.call(http.MethodDelete, "/sandboxes/"+box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await("/sandboxes/"+box, "it is cleaned up", func(o object) bool { return o.text("observed") == "deleted" })
	require.Eventually(t, func() bool { return len(s.boxProcesses()) == 0 }, patience, 50*time.Millisecond)
}
