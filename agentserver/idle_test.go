package agentserver

import (
	"bufio"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestS0_070_S0_028_IdleTimeIsTheTimeSinceRealWork(t *testing.T) {
	b := newBox(t)
	b.clock.advance(7 * time.Second)
	require.Equal(t, 7, b.idleSeconds())
	b.run("true")
	require.Zero(t, b.idleSeconds())
}

func TestS0_075_StatusAndReclaimNeverMoveTheIdleClock(t *testing.T) {
	b := newBox(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.home, ".cache/pip"), 0o700))
	calls := 0
	call := func(method, target, body string) {
		require.Equal(t, 200, b.send(method, target, body).Code)
		b.clock.advance(time.Second)
		calls++
		require.Equal(t, calls, b.idleSeconds())
	}
	for i := range 100 {
		call("GET", "/api/storage", "")
		if i%10 == 0 {
			call("POST", "/api/storage/reclaim", `{"dry_run":false}`)
		}
	}
	call("POST", "/api/storage/reclaim", `{"dry_run":true}`)
}

// TestS0_076_OnlyRealWorkMovesTheIdleClock goes through the recorded table of the contract, as far as this server has the
// routes, and through what it adds.
func TestS0_076_OnlyRealWorkMovesTheIdleClock(t *testing.T) {
	b := newBox(t)
	work := filepath.Join(b.home, "w")
	require.NoError(t, os.MkdirAll(filepath.Join(work, "dir"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(work, "dir/up.txt"), []byte("x"), 0o600))
	check := func(name string, moves bool, request func() *httptest.ResponseRecorder, status int) {
		t.Run(name, func(t *testing.T) {
			b.clock.advance(2 * time.Second)
			before := b.idleSeconds()
			require.GreaterOrEqual(t, before, 2)
			answer := request()
			require.Equal(t, status, answer.Code, answer.Body.String())
			require.Eventually(t, func() bool { return b.commands.Running() == 0 }, 20*time.Second, time.Millisecond)
			if moves {
				require.Zero(t, b.idleSeconds())
			} else {
				require.Equal(t, before, b.idleSeconds())
			}
		})
	}

	table, err := os.Open("testdata/recorded/idle_time_table.txt")
	require.NoError(t, err)
	defer table.Close()
	bodies := map[string]string{ // the recorded requests had them
		"200 POST /api/bash/start_bash_command":   `{"command":"true"}`,
		"200 POST /api/bash/execute_bash_command": `{"command":"true"}`,
	}
	lines := bufio.NewScanner(table)
	seen := 0
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		verdict, status, method, target := words[0], words[1], words[2], words[3]
		name := status + " " + method + " " + target
		if strings.Contains(target, "conversations") || strings.HasPrefix(target, "/api/git") || strings.HasPrefix(target, "/api/settings") ||
			strings.HasPrefix(target, "/api/tools") || strings.Contains(target, "archive") || strings.Contains(target, "trajectory") {
			continue // not a route of this server yet
		}
		seen++
		// The recorded server moved the clock when a command began only; here its end counts as well.
		moves := verdict == "RESETS" || target == "/api/bash/execute_bash_command"
		code := map[string]int{"200": 200, "401": 401, "404": 404, "422": 422}[status]
		check(name, moves, func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, strings.ReplaceAll(target, "$W", work), strings.NewReader(bodies[name]))
			if code != 401 {
				r.Header.Set("X-Session-API-Key", "key-one")
			}
			return b.serve(r)
		}, code)
	}
	require.Equal(t, 17, seen)

	for _, c := range []struct {
		method, target, body string
		status               int
		moves                bool
	}{
		{"GET", "/api/storage", "", 200, false},
		{"POST", "/api/storage/reclaim", `{"dry_run":true}`, 200, false},
		{"POST", "/api/storage/reclaim", `{}`, 200, false},
		{"POST", "/api/storage/reclaim", `{"plan_id":"no"}`, 404, false},
		{"GET", "/api/processes/00000000000000000000000000000000/output", "", 404, false},
		{"GET", "/api/file/download?path=relative", "", 400, true},
		{"GET", "/api/file/download", "", 422, false},
		{"GET", "/nope", "", 404, false},
		{"PUT", "/health", "", 405, false},
	} {
		check(c.method+" "+c.target+" "+c.body, c.moves, func() *httptest.ResponseRecorder { return b.send(c.method, c.target, c.body) }, c.status)
	}
	check("upload", true, func() *httptest.ResponseRecorder {
		return b.serve(uploadRequest(t, "/api/file/upload?path="+work+"/new", "x"))
	}, 200)
	check("upload that fails", true, func() *httptest.ResponseRecorder {
		return b.serve(uploadRequest(t, "/api/file/upload?path=relative", "x"))
	}, 400)
	check("upload that is not valid", false, func() *httptest.ResponseRecorder {
		return b.send("POST", "/api/file/upload?path="+work+"/new", "")
	}, 422)
}

func TestARunningCommandIsActivityUntilItsEnd(t *testing.T) {
	b := newBox(t)
	started := decode[map[string]any](t, b.send("POST", "/api/bash/start_bash_command", `{"command":"sleep 100"}`))
	for range 5 {
		b.clock.advance(10 * time.Minute)
		require.Zero(t, b.idleSeconds())
	}
	require.Equal(t, 200, b.send("POST", "/api/bash/bash_commands/"+started["id"].(string)+"/stop", "").Code)
	b.clock.advance(3 * time.Second)
	require.Equal(t, 3, b.idleSeconds(), "it counts from the end of the command")
	// Reading its output is none.
	require.Equal(t, 200, b.send("GET", "/api/processes/"+started["id"].(string)+"/output", "").Code)
	require.Equal(t, 3, b.idleSeconds())
}
