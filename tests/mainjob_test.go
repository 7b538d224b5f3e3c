package tests

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failing prints, leaves a cache and a file behind, goes on for a second after its callback, and fails.
const failing = `echo first
mkdir -p "$HOME/.cache/blackbox" && head -c 3000000 /dev/zero > "$HOME/.cache/blackbox/index"
echo '{"got": 41}' > result.json
sleep 2
for i in $(seq 100); do echo "line $i"; done
exit 3
`

// delaySeconds is long enough for a restart before the sweep.
const delaySeconds = "12"

// The main job from outside: a run fails by callback, its box is kept, looked into, survives a restart, and is swept when due.
func TestC_001_C_004_C_005_C_006_C_007_C_009_TheMainJobFromOutside(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		s := start(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="+delaySeconds)...)
		delay, err := time.ParseDuration(delaySeconds + "s")
		require.NoError(t, err)
		run := s.running(s.automation(failing, nil))
		path, box := "/runs/"+run.text("id"), "/sandboxes/"+run.text("sandbox", "id")

		s.call(http.MethodPost, path+"/complete", object{"status": "FAILED", "error": "check failed"}, http.StatusOK)
		run = s.call(http.MethodGet, path, nil, http.StatusOK)
		require.Equal(t, "FAILED", run.text("status"))
		due := run.moment(t, "cleanup", "due_at")
		require.Equal(t, run.moment(t, "completed_at").Add(delay), due, "C-004: stamped as the run ended")

		run = s.await(path, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
		require.Equal(t, "output, reclaimed, suspended", order(s, box), "C-008")
		require.EqualValues(t, 3, run.get("exit_code"))
		output := logs(t, s, path)
		require.Contains(t, output, "first\n")
		require.Equal(t, 100, strings.Count(output, "line "), "what came after the callback is kept")

		require.Equal(t, 0, s.stop())
		require.NotEmpty(t, s.boxProcesses(), "a paused box outlives the service")
		s.launch()
		home := s.call(http.MethodGet, box+"/proxy/api/file/home", nil, http.StatusOK).text("home")
		status, file := s.try(http.MethodGet, box+"/proxy/api/file/download?path="+home+"/project/result.json", nil)
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, `{"got": 41}`, string(file), "C-009: the box of a failed run is looked into")
		require.Equal(t, due, s.call(http.MethodGet, path, nil, http.StatusOK).moment(t, "cleanup", "due_at"), "looking in does not extend")

		run = s.await(path, "the sweep deletes the box", func(o object) bool { return o.text("cleanup", "state") == "deleted" })
		require.False(t, time.Now().Before(due), "not before it was due")
		require.Nil(t, run.get("cleanup", "due_at"), "C-007: the stamp is cleared")
		require.NoDirExists(t, filepath.Join(s.data, "boxes", run.text("sandbox", "id")), "C-006: by the backend itself")
		require.Equal(t, 100, strings.Count(logs(t, s, path), "line "), "the output outlives the box")
		require.Empty(t, s.boxProcesses())
	})
}

// order says in which order the steps before the pause were recorded.
func order(s *server, box string) string {
	s.t.Helper()
	at := map[string]int{}
	events, _ := s.call(http.MethodGet, box+"/events", nil, http.StatusOK).get("events").([]any)
	for i, e := range events {
		event, _ := e.(map[string]any)
		what, _ := event["what"].(string)
		at[what] = i + 1
	}
	if at["output"] > 0 && at["output"] < at["reclaimed"] && at["reclaimed"] < at["suspended"] {
		return "output, reclaimed, suspended"
	}
	raw, _ := json.Marshal(events)
	return string(raw)
}

// logs returns the text of a run's stored output.
func logs(t *testing.T, s *server, run string) string {
	t.Helper()
	status, raw := s.try(http.MethodGet, run+"/logs", nil)
	require.Equal(t, http.StatusOK, status, "%s", raw)
	return unframed(t, raw)
}

// unframed is the text in the frames of stored output.
func unframed(t *testing.T, raw []byte) string {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(string(raw)) {
		var frame object
		require.NoError(t, json.Unmarshal([]byte(line), &frame))
		data, err := base64.StdEncoding.DecodeString(frame.text("data"))
		require.NoError(t, err)
		text.Write(data)
	}
	return text.String()
}

func TestS1_016_S1_023_DelayZeroAndCancelDeleteAtOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		s := start(t, database...)
		automation := s.automation("sleep 300\n", nil)
		for _, end := range []struct {
			name, path string
			body       any
		}{
			{"S1-016 callback", "/complete", object{"status": "COMPLETED"}},
			{"S1-023 cancel", "/cancel", nil},
		} {
			run := s.running(automation)
			path := "/runs/" + run.text("id")
			s.call(http.MethodPost, path+end.path, end.body, http.StatusOK)
			run = s.await(path, end.name+" deletes the box", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
			require.Nil(t, run.get("cleanup", "due_at"), end.name)
			require.Nil(t, run.get("sandbox", "suspended_at"), end.name)
		}
		require.Empty(t, s.boxProcesses())
	})
}

func TestAKilledServiceLeavesItsRunGoingAndFindsItAgain(t *testing.T) {
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")
	run := s.running(s.automation("sleep 4\necho survived\nexit 3\n", nil))
	path := "/runs/" + run.text("id")
	s.kill()
	require.NotEmpty(t, s.boxProcesses(), "the box goes on")
	s.launch()
	run = s.await(path, "the run ends without a callback", func(o object) bool { return o.text("status") != "RUNNING" })
	require.Equal(t, "FAILED", run.text("status"), "the command's exit was asked for")
	s.await(path, "its box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
	require.Contains(t, logs(t, s, path), "survived")
	s.call(http.MethodDelete, "/sandboxes/"+run.text("sandbox", "id")+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await(path, "the box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
}

func TestS0_129_StorageStatusAndReclaimNeverMoveTheIdleClock(t *testing.T) {
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")
	run := s.running(s.automation("exit 3\n", nil))
	path, proxy := "/runs/"+run.text("id"), "/sandboxes/"+run.text("sandbox", "id")+"/proxy"
	s.call(http.MethodPost, path+"/complete", object{"status": "FAILED"}, http.StatusOK)
	s.await(path, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
	idle := func() float64 {
		seconds, ok := s.call(http.MethodGet, proxy+"/server_info", nil, http.StatusOK).get("idle_time").(float64)
		require.True(t, ok)
		return seconds
	}
	before, began := idle(), time.Now()
	for time.Since(began) < 3*time.Second {
		for range 20 {
			s.call(http.MethodGet, proxy+"/api/storage", nil, http.StatusOK)
		}
		s.call(http.MethodPost, proxy+"/api/storage/reclaim", object{"dry_run": true}, http.StatusOK)
		s.call(http.MethodPost, proxy+"/api/storage/reclaim", object{}, http.StatusOK)
	}
	require.InDelta(t, time.Since(began).Seconds(), idle()-before, 1.1, "it has only grown, by the time that passed (in whole seconds)")
	s.call(http.MethodDelete, "/sandboxes/"+run.text("sandbox", "id")+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await(path, "the box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
}

func TestS0_010_S0_016_S0_031_TheServiceOwnsCredentialsAndTheRecordOfTheBox(t *testing.T) {
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600", "E2B_API_KEY=provider-secret")
	run := s.running(s.automation("env; sleep 300\n", nil))
	for _, pid := range s.boxProcesses() {
		environ, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "environ"))
		if err != nil {
			continue // it has ended meanwhile
		}
		require.NotContains(t, string(environ), s.key)
		require.NotContains(t, string(environ), "provider-secret")
	}
	box := s.call(http.MethodGet, "/sandboxes/"+run.text("sandbox", "id"), nil, http.StatusOK)
	require.NotEmpty(t, box.text("created_by"), "every box records who created it")
	require.Nil(t, box.get("session_key"), "the key of the box stays with the service")
	s.call(http.MethodPost, "/runs/"+run.text("id")+"/cancel", nil, http.StatusOK)
	s.await("/runs/"+run.text("id"), "the box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
}
