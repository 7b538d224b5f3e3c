package tests

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The agents of customers in Docker boxes.

// homeOf is the home of a Docker box as this machine sees it; boxes see it at boxHome.
func (s *server) homeOf(box string) string {
	return filepath.Join(s.data, "docker", filepath.Base(box), "home")
}

const boxHome = "/box/home"

func TestS2_047_S2_057_S2_060_EveryByteOfADockerBoxArrivesAcrossDisconnectsRestartsAndAPause(t *testing.T) {
	t.Parallel()
	s, engine := startDocker(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400", "AUTOMATION_DOCKER_SUSPEND=pause", printer(boxHome+"/noise"))
	box := s.woken(byShell)
	s.everyByte(box, filepath.Join(s.homeOf(box), "noise"), s.disturbances(box)...)
	require.Equal(t, "running", engine.containers()[containerOf(filepath.Base(box))])
}

func TestS2_027_S2_035_S2_047_S2_061_S2_063_ADockerBoxThatStopsStopsItsAgent(t *testing.T) {
	t.Parallel()
	s, _ := startDocker(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400", "AUTOMATION_CUSTOMER_AGENT_COMMAND=echo up; exec sleep 600")
	box := s.woken(byShell)
	start := func() (output string) {
		output = "/output?session_id=" + s.agent(http.MethodPost, s.agentOf(box), http.StatusAccepted).text("session_id")
		for r := (&reading{}); len(r.data) == 0; {
			r.open(t.Context(), s, s.agentOf(box)+output, 1)
		}
		return output
	}
	ended := func(output, reason string) {
		t.Helper()
		var last object
		until(t, "the session ends", func() bool {
			last = s.agent(http.MethodGet, s.agentOf(box), http.StatusOK)
			return last.text("status") != "active"
		})
		require.Equal(t, "stopped", last.text("status"))
		require.Equal(t, reason, last.text("reason"))
		r := &reading{}
		r.open(t.Context(), s, s.agentOf(box)+output, 1<<20)
		require.Equal(t, "up\n", string(r.data))
		require.Equal(t, reason, r.exit.Reason)
	}

	paused := start()
	s.pause(box)
	ended(paused, "sandbox_paused")
	require.Equal(t, "sandbox_exec_unavailable", s.agent(http.MethodPost, s.agentOf(box), http.StatusServiceUnavailable).text("error", "code"))
	s.wake(box)

	blinked := start()
	require.Equal(t, "sandbox_agent_session_changed", s.agent(http.MethodGet, s.agentOf(box)+paused, http.StatusConflict).text("error", "code"))
	s.pause(box)
	s.wake(box) // sooner than the silence is noticed
	ended(blinked, "sandbox_paused")

	stopped := start()
	require.EqualValues(t, 143, s.agent(http.MethodDelete, s.agentOf(box), http.StatusOK).get("exit_code"))
	ended(stopped, "stopped_by_user")

	deleted := start()
	s.call(http.MethodDelete, box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await(box, "the box is gone", func(o object) bool { return o.text("observed") == "deleted" })
	ended(deleted, "sandbox_deleted")
}
