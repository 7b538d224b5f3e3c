package tests

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sample is the value of one line of a scrape; "" when there is none.
func sample(scrape, series string) string {
	for line := range strings.Lines(scrape) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A run, its box, its clean-up and the requests for them are seen in /metrics, and every loop in /ready, on both databases.
func TestARunIsSeenFromOutside(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		address := freeAddress(t)
		s := start(t, append(database, "AUTOMATION_METRICS_LISTEN="+address, "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600")...)
		status, before := fetch(t, "http://"+address+"/metrics")
		require.Equal(t, http.StatusOK, status)
		for _, series := range []string{
			`automation_runs_finished_total{outcome="failed",trigger="manual"}`, `automation_sandbox_operations_total{operation="pause",provider="process",result="ok"}`,
			`automation_sandbox_deletes_total{provider="process",reason="manual",result="ok"}`, `automation_reclaim_passes_total{result="ok",trigger="stop"}`,
			`automation_schedule_fires_total{result="created"}`,
		} {
			require.Equal(t, "0", sample(before, series), "%s is there from the start", series)
		}
		run := s.running(s.automation("sleep 60", nil))
		path, box := "/runs/"+run.text("id"), "/sandboxes/"+run.text("sandbox", "id")
		s.call(http.MethodPost, path+"/complete", object{"status": "FAILED", "error": "no"}, http.StatusOK)
		s.await(path, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
		s.call(http.MethodDelete, box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
		s.await(box, "the box goes", func(o object) bool { return o.text("observed") == "deleted" })

		_, after := fetch(t, "http://"+address+"/metrics")
		for series, want := range map[string]string{
			`automation_runs_finished_total{outcome="failed",trigger="manual"}`:                                 "1",
			`automation_run_duration_seconds_count{outcome="failed"}`:                                           "1",
			`automation_run_queue_seconds_count`:                                                                "1",
			`automation_sandbox_operations_total{operation="create",provider="process",result="ok"}`:            "1",
			`automation_sandbox_deletes_total{provider="process",reason="manual",result="ok"}`:                  "1",
			`automation_reclaim_passes_total{result="ok",trigger="stop"}`:                                       "1",
			`automation_http_requests_total{code="201",method="POST",route="/api/automation/v1/{id}/dispatch"}`: "1",
			`automation_migration_dirty`:                                                                        "0",
		} {
			require.Equal(t, want, sample(after, series), series)
		}
		require.NotRegexp(t, run.text("id")+"|"+run.text("sandbox", "id"), after, "ids are no labels")
		loops := regexp.MustCompile(`automation_loop_iterations_total\{loop="([^"]+)"`).FindAllStringSubmatch(after, -1)

		for _, probe := range []string{"/ready?verbose", "/readyz?verbose"} {
			status, text := s.probe(probe)
			require.Equal(t, http.StatusOK, status, text)
			var ready struct {
				Checks []struct{ Name, Problem string }
			}
			require.NoError(t, json.Unmarshal([]byte(text), &ready))
			var names []string
			for _, c := range ready.Checks {
				require.Empty(t, c.Problem, c.Name)
				names = append(names, c.Name)
			}
			for _, name := range append([]string{"database", "migrations", "clock"}, named(loops)...) {
				require.Contains(t, names, name)
			}
		}
		for _, probe := range []string{"/health", "/healthz", "/livez"} {
			status, _ := s.probe(probe)
			require.Equal(t, http.StatusOK, status)
		}
		require.NotContains(t, s.log(), `/ready`, "probes are not logged")
	})
}

// named are the checks of loops.
func named(loops [][]string) []string {
	var all []string
	for _, m := range loops {
		all = append(all, "loop "+m[1])
	}
	return all
}

// systemd hears when the service serves, that it lives, and when it stops.
func TestSystemdIsTold(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	defer socket.Close()
	require.NoError(t, socket.SetReadDeadline(time.Now().Add(patience)))
	s := start(t, "NOTIFY_SOCKET="+name, "WATCHDOG_USEC=600000")
	hears := func(want string) {
		t.Helper()
		for text := make([]byte, 100); ; {
			n, err := socket.Read(text)
			require.NoError(t, err, want)
			if string(text[:n]) == want {
				return
			}
		}
	}
	hears("READY=1")
	hears("WATCHDOG=1")
	hears("WATCHDOG=1")
	require.Equal(t, 0, s.stop())
	hears("STOPPING=1")
	require.NotContains(t, s.log(), "systemd not told")
}

// A log is lines of JSON with the common keys, one run of which can be followed by its id.
func TestEveryLineOfTheLogIsOneObject(t *testing.T) {
	t.Parallel()
	s := start(t)
	run := s.running(s.automation("exit 3", nil)).text("id")
	s.call(http.MethodPost, "/runs/"+run+"/cancel", nil, http.StatusOK)
	s.stop()
	told := 0
	lines := bufio.NewScanner(strings.NewReader(s.log()))
	for lines.Scan() {
		var line map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line), lines.Text())
		for _, key := range []string{"time", "level", "msg", "event"} {
			require.NotEmpty(t, line[key], lines.Text())
		}
		if line["run_id"] == run {
			told++
		}
	}
	require.GreaterOrEqual(t, told, 2)
}
