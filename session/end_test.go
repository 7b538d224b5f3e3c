package session_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/models/customer"
	"automation/sandbox"
)

func TestS2_042_AReasonIsOneOfTheContractWhateverTheBoxSays(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"exit","seq":1,"exit_code":0,"reason":"done\u0000\u0007"}`+"\n")
	})
	h.send()
	require.NoError(t, h.agents.SessionStarted(t.Context(), h.id, "command"))
	_, err := h.step(0)
	require.NoError(t, err)
	require.Equal(t, customer.Failed, h.session(h.id).State)
	require.Equal(t, customer.ReasonLost, h.session(h.id).Reason)
}

func TestS2_041_AnExitCodeBeyondAllExitCodesIsNone(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"exit","seq":1,"exit_code":4294967296,"reason":"exited"}`+"\n")
	})
	h.send()
	require.NoError(t, h.agents.SessionStarted(t.Context(), h.id, "command"))
	_, err := h.step(0)
	require.NoError(t, err)
	require.Equal(t, customer.Failed, h.session(h.id).State)
	require.Nil(t, h.session(h.id).ExitCode)
}

func TestS2_047_AStartThatAReplicaOfTheVersionBeforeHasSentIsLookedFor(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"items":[]}`) })
	h.can = sandbox.Capabilities{Suspend: sandbox.SuspendDisk}
	_, err := h.agents.SendStart(t.Context(), h.id, h.token, 0) // as it leaves the row
	require.NoError(t, err)
	_, err = h.step(0)
	require.ErrorContains(t, err, "not known yet")
	require.False(t, h.session(h.id).Closed(), "its box did not pause since")
}
