package session_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models/customer"
	"automation/models/modelstest"
	"automation/sandbox"
)

const startPath = "/api/bash/start_bash_command"

// lossy is a held session in a real box, whose first start is lost on its way until the test lets it arrive.
type lossy struct {
	*held
	lost atomic.Bool
	sent chan []byte // the start that is still on its way
}

func newLossy(t *testing.T) *lossy {
	t.Helper()
	l := &lossy{sent: make(chan []byte, 1)}
	l.held = newHeld(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != startPath || l.lost.Swap(true) {
			l.web.Config.Handler.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		l.sent <- body
		panic(http.ErrAbortHandler)
	})
	return l
}

// arrive lets that start reach the box.
func (l *lossy) arrive() {
	l.Helper()
	request, err := http.NewRequestWithContext(l.Context(), http.MethodPost, l.web.URL+startPath, bytes.NewReader(<-l.sent))
	require.NoError(l, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Session-API-Key", key)
	response, err := l.web.Client().Do(request)
	require.NoError(l, err)
	require.NoError(l, response.Body.Close())
	require.Equal(l, http.StatusOK, response.StatusCode)
}

// started is what the box's commands have written, one line for each time the server was started.
func (l *lossy) started() string {
	l.Helper()
	content, err := os.ReadFile(filepath.Join(l.home, "started"))
	if !os.IsNotExist(err) {
		require.NoError(l, err)
	}
	return string(content)
}

func TestS2_021_AStartWhoseAnswerIsLostStartsOneServerWheneverItArrives(t *testing.T) {
	for _, row := range []struct {
		name          string
		before, after bool // it arrives before, or after it was sent again
	}{{name: "never"}, {name: "before", before: true}, {name: "after", after: true}} {
		t.Run(row.name, func(t *testing.T) {
			l := newLossy(t)
			l.s.Command = `echo x >> "$HOME/started"; echo up`
			_, err := l.step(0)
			require.ErrorIs(t, err, sandbox.ErrUnreachable)
			require.NotNil(t, l.session(l.id).StartSentAt)
			if row.before {
				l.arrive()
			}
			_, err = l.step(0)
			require.NoError(t, err)
			if row.after {
				l.arrive()
			}
			last := l.session(l.id)
			require.Equal(t, customer.ReasonExited, last.Reason)
			require.Equal(t, "x\n", l.started())
			require.EqualValues(t, 2, last.LastSeq, "its own output was read: a line and the exit")
		})
	}
}

func TestS2_034_AStartThatArrivesAfterTheStopStartsNothing(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			l := newLossy(t)
			l.s.Command = `echo x >> "$HOME/started"; exec sleep 600`
			_, err := l.step(0)
			require.ErrorIs(t, err, sandbox.ErrUnreachable)
			_, err = l.agents.StopSession(t.Context(), l.box.ID)
			require.NoError(t, err)
			if late {
				_, err = l.step(0)
				require.NoError(t, err)
				require.Nil(t, l.session(l.id).ExitCode)
				l.arrive()
			} else { // it runs already: it is found, and stopped as any other
				l.arrive()
				until := l.collect()
				defer until()
			}
			last := l.eventually(l.id, ended)
			require.Equal(t, customer.Stopped, last.State)
			require.Equal(t, customer.ReasonStopped, last.Reason)
			if late {
				require.Empty(t, l.started())
			} else {
				require.Equal(t, 143, *last.ExitCode)
			}
		})
	}
}

// collect gives the session to a process that collects.
func (h *held) collect() (stop func()) {
	h.Helper()
	require.NoError(h, h.agents.ReleaseSession(h.Context(), h.id, h.token))
	_, stop = h.replica(h.s.Command)
	return stop
}

func TestS2_047_AServerThatGoesWithItsAgentServerEndsAsItsBoxDoes(t *testing.T) {
	soon := time.Now().UTC().Add(3 * time.Second)
	for _, row := range []struct {
		name    string
		suspend sandbox.SuspendKind
		reason  string // that the box gives
		box     string // what becomes of it; empty: nobody has looked at it since
		state   customer.SessionState
		end     string
	}{
		{"not looked at since", sandbox.SuspendDisk, "stopped", "", "", ""},
		{"looked at while it goes down", sandbox.SuspendDisk, "stopped", "observed_at = '" + soon.Format(time.RFC3339) + "'", "", ""},
		{"paused for a moment only", sandbox.SuspendDisk, "lost", "awake_epoch = awake_epoch + 1", customer.Stopped, customer.ReasonPaused},
		{"its records are gone too", sandbox.SuspendDisk, "", "awake_epoch = awake_epoch + 1", customer.Stopped, customer.ReasonPaused},
		{"a pause is ordered", sandbox.SuspendDisk, "stopped", "desired = 'suspended', observed_at = '2099-01-01 00:00:00+00:00'", "", ""},
		{"paused", sandbox.SuspendDisk, "stopped", "observed = 'suspended'", customer.Stopped, customer.ReasonPaused},
		{"deleted", sandbox.SuspendMemory, "stopped", "observed = 'deleted'", customer.Stopped, customer.ReasonDeleted},
		{"it runs on", sandbox.SuspendDisk, "lost", "observed_at = '2099-01-01 00:00:00+00:00'", customer.Failed, customer.ReasonLost},
		{"it runs on with its memory", sandbox.SuspendMemory, "lost", "awake_epoch = awake_epoch + 1, observed_at = '2099-01-01 00:00:00+00:00'", customer.Failed, customer.ReasonLost},
	} {
		t.Run(row.name, func(t *testing.T) {
			var h *held
			h = newHeld(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.URL.Path, "/api/processes/") {
					t.Error("it asks for " + r.URL.Path)
				}
				if row.box != "" { // while it answers
					modelstest.Set(t, h.store, h.box, row.box)
				}
				if row.reason == "" {
					http.NotFound(w, r)
					return
				}
				fmt.Fprintf(w, `{"type":"exit","seq":1,"exit_code":-15,"reason":%q}`+"\n", row.reason)
			})
			h.can.Suspend = row.suspend
			h.send()
			require.NoError(t, h.agents.SessionStarted(t.Context(), h.id, "command"))
			_, err := h.step(0)
			last := h.session(h.id)
			if row.end == "" {
				require.ErrorContains(t, err, "not looked at since")
				require.False(t, last.Closed())
				require.NotNil(t, h.row().NextStepAt, "it is to be looked at")
				return
			}
			require.NoError(t, err)
			require.Equal(t, row.state, last.State)
			require.Equal(t, row.end, last.Reason)
		})
	}
}

func TestS2_047_AStartThatWasSentBeforeAPauseIsOverWithIt(t *testing.T) {
	h := newHeld(t, func(http.ResponseWriter, *http.Request) { t.Error("it is asked") })
	h.can = sandbox.Capabilities{Suspend: sandbox.SuspendDisk}
	h.send()
	modelstest.Set(t, h.store, h.box, "awake_epoch = awake_epoch + 1")
	_, err := h.step(0)
	require.NoError(t, err)
	require.Equal(t, customer.Stopped, h.session(h.id).State)
	require.Equal(t, customer.ReasonPaused, h.session(h.id).Reason)
}
