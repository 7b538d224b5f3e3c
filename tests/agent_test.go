package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The agents of customers from outside: a real server in a real box, and clients who lose their connection.

// tenant is the organization of the local login.
var tenant = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org")).String()

// customers calls as customers do; the contexts of its requests have deadlines.
var customers http.Client

// agentOf is the public path of the agent in a box, whose path is that of the API.
func (s *server) agentOf(box string) string {
	root := strings.TrimSuffix(s.base, "/api/automation/v1")
	return root + "/v1/customer/tenants/" + tenant + box + "/agent"
}

// agent asks a public route and requires the status.
func (s *server) agent(method, url string, status int) object {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(s.t, err)
	request.Header.Set("Authorization", "Bearer "+s.key)
	response, err := customers.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, status, response.StatusCode, "%s %s: %s", method, url, raw)
	var o object
	require.NoError(s.t, json.Unmarshal(raw, &o))
	return o
}

// agentLine is a line of an agent's output.
type agentLine struct {
	Type     string `json:"type"`
	Seq      int64  `json:"seq"`
	Data     []byte `json:"data"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
}

// reading is a client as docs/API.md tells it to be. It is cut off by its own side after most bytes, and comes back.
type reading struct {
	seq    int64
	data   []byte
	exit   *agentLine
	opened int
}

// open follows the output until it ends, or is cut: by the service, or after so many bytes.
func (r *reading) open(ctx context.Context, s *server, url string, most int) {
	r.opened++
	opened, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(opened, http.MethodGet, fmt.Sprintf("%s&after=%d", url, r.seq), nil)
	if err != nil {
		return
	}
	request.Header.Set("Authorization", "Bearer "+s.key)
	response, err := customers.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return
	}
	lines := bufio.NewReader(response.Body)
	for got := 0; got < most; {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return // what is not a whole line was not received
		}
		var line agentLine
		if json.Unmarshal(text, &line) != nil || line.Type == "keepalive" {
			continue
		}
		r.seq = line.Seq
		got += len(line.Data)
		r.data = append(r.data, line.Data...)
		if line.Type == "exit" {
			r.exit = &line
			return
		}
	}
}

// woken makes a box whose run has ended, and wakes it: nothing but the agent is in it.
func (s *server) woken(more object) (box string) {
	s.t.Helper()
	run := s.running(s.automation("true\n", more))
	s.call(http.MethodPost, "/runs/"+run.text("id")+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	box = "/sandboxes/" + run.text("sandbox", "id")
	s.await(box, "the box pauses", func(o object) bool { return o.text("observed") == "suspended" })
	s.wake(box)
	s.call(http.MethodPut, box+"/agent-feature", object{"enabled": true}, http.StatusOK)
	return box
}

// pause suspends a box and waits for it, wake lets it run again.
func (s *server) pause(box string) {
	s.t.Helper()
	s.call(http.MethodPost, box+"/pause", nil, http.StatusAccepted)
	s.await(box, "the box pauses", func(o object) bool { return o.text("observed") == "suspended" })
}

func (s *server) wake(box string) {
	s.t.Helper()
	s.call(http.MethodPost, box+"/resume", nil, http.StatusAccepted)
	s.await(box, "the box runs", func(o object) bool { return o.text("observed") == "running" })
}

// What a printer prints: stages, each within what is kept of its output, in pieces.
const printerStages, printerStage, printerPiece = 5, 4 << 20, 256 << 10

// printer is the setting of a server that prints what lies at path in its box: the stage n as soon as there is path.n.
func printer(path string) string {
	return fmt.Sprintf(`AUTOMATION_CUSTOMER_AGENT_COMMAND=i=0; while [ $i -lt %d ]; do while [ ! -e %s.$((i/%d)) ]; do sleep 0.05; done; `+
		`dd if=%s bs=%d skip=$i count=1 2>/dev/null; i=$((i+1)); done`, printerStages*printerStage/printerPiece, path, printerStage/printerPiece, path, printerPiece)
}

// everyByte has a printer print bytes that no encoding survives, which it puts at path, and reads them as a client who loses its
// connection every megabyte, while what disturb does happens between the stages.
func (s *server) everyByte(box, path string, disturb ...func()) {
	s.t.Helper()
	content := make([]byte, printerStages*printerStage)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(content)
	require.NoError(s.t, os.WriteFile(path, content, 0o644))
	id := s.agent(http.MethodPost, s.agentOf(box), http.StatusAccepted).text("session_id")
	output := "/output?session_id=" + id // the service's address changes
	r := &reading{}
	for n := range printerStages {
		require.NoError(s.t, os.WriteFile(fmt.Sprintf("%s.%d", path, n), nil, 0o644))
		for len(r.data) < n*printerStage+printerStage/2 {
			r.open(s.t.Context(), s, s.agentOf(box)+output, printerStage/4)
		}
		if n < len(disturb) {
			disturb[n]()
		}
	}
	for r.exit == nil {
		r.open(s.t.Context(), s, s.agentOf(box)+output, printerStage/4)
	}
	require.GreaterOrEqual(s.t, r.opened, 10)
	require.True(s.t, bytes.Equal(content, r.data), "%d of %d bytes", len(r.data), len(content))
	require.Equal(s.t, 0, *r.exit.ExitCode)
	require.Equal(s.t, "stopped", s.agent(http.MethodGet, s.agentOf(box), http.StatusOK).text("status"))
}

// disturbances are what befalls a session on whose box memory is kept: the service is killed, the box paused, the service
// stopped.
func (s *server) disturbances(box string) []func() {
	return []func(){
		func() {},
		func() { s.kill(); s.launch() },
		func() {
			s.pause(box)
			require.Equal(s.t, "active", s.agent(http.MethodGet, s.agentOf(box), http.StatusOK).text("status"), "its memory is kept")
			s.call(http.MethodPost, box+"/resume", nil, http.StatusAccepted)
		},
		func() { require.Equal(s.t, 0, s.stop()); s.launch() },
	}
}

func TestS2_029_S2_047_S2_057_S2_060_EveryByteArrivesAcrossDisconnectsRestartsAndAPause(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		path := filepath.Join(t.TempDir(), "noise")
		s := start(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400", printer(path))...)
		box := s.woken(nil)
		s.everyByte(box, path, s.disturbances(box)...)
	})
}

func TestS2_021_S2_035_S2_055_S2_061_OneServerWhichStopsAndWhoseOutputOutlivesItsBox(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		s := start(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400",
			`AUTOMATION_CUSTOMER_AGENT_COMMAND=trap "" TERM; echo started; while :; do sleep 0.1; done`)...)
		box := s.woken(nil)
		var ids sync.Map
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				ids.Store(s.agent(http.MethodPost, s.agentOf(box), http.StatusAccepted).text("session_id"), true)
			})
		}
		all.Wait()
		var id string
		ids.Range(func(one, _ any) bool {
			require.Empty(t, id, "one session, however many callers")
			id = one.(string)
			return true
		})
		r := &reading{}
		for len(r.data) == 0 {
			r.open(t.Context(), s, s.agentOf(box)+"/output?session_id="+id, 1)
		}
		began := time.Now()
		stopped := s.agent(http.MethodDelete, s.agentOf(box), http.StatusOK)
		require.Equal(t, "stopped", stopped.text("status"))
		require.Greater(t, time.Since(began), 9*time.Second, "what ignores the SIGTERM has its grace")
		require.Less(t, time.Since(began), 16*time.Second)
		require.EqualValues(t, 128+int(syscall.SIGKILL), stopped.get("exit_code"))

		s.call(http.MethodDelete, box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
		s.await(box, "the box is gone", func(o object) bool { return o.text("observed") == "deleted" })
		gone := &reading{}
		gone.open(t.Context(), s, s.agentOf(box)+"/output?session_id="+id, 1<<20)
		require.Equal(t, "started\n", string(gone.data))
		require.Equal(t, "stopped_by_user", gone.exit.Reason)
		require.Equal(t, "sandbox_exec_unavailable", s.agent(http.MethodPost, s.agentOf(box), http.StatusServiceUnavailable).text("error", "code"))
	})
}

func TestS2_047_ASecondReplicaCollectsWhenTheFirstIsKilled(t *testing.T) {
	t.Parallel()
	database := postgres(t)
	const lines = 400
	env := slices.Concat(database, []string{"AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400",
		fmt.Sprintf(`AUTOMATION_CUSTOMER_AGENT_COMMAND=i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; sleep 0.05; done`, lines)})
	first := start(t, env...)
	box := first.woken(nil)
	id := first.agent(http.MethodPost, first.agentOf(box), http.StatusAccepted).text("session_id")
	r := &reading{}
	for len(r.data) < 100 {
		r.open(t.Context(), first, first.agentOf(box)+"/output?session_id="+id, 100)
	}
	second := prepare(t, build(t), filepath.Dir(first.data), env...)
	second.launch()
	first.kill()
	for r.exit == nil {
		r.open(t.Context(), second, second.agentOf(box)+"/output?session_id="+id, 1<<20)
	}
	require.Equal(t, lines, strings.Count(string(r.data), "\n"))
	require.True(t, strings.HasSuffix(string(r.data), fmt.Sprintf("line %d\n", lines)))
	require.Equal(t, 0, *r.exit.ExitCode)
}
