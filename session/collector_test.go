package session_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/customer"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/session"
)

// held is a session that the test itself collects, in a box whose agent server is handler.
type held struct {
	*rig
	s     *session.Sessions
	id    string
	token uuid.UUID
}

func newHeld(t *testing.T, handler http.HandlerFunc) *held {
	t.Helper()
	r := newRig(t, modelstest.NewSQLite(t))
	box := httptest.NewServer(handler)
	t.Cleanup(box.Close)
	identity := *r.box.Identities[0]
	identity.URL, identity.SessionKey = box.URL, key
	require.NoError(t, r.store.RecordIdentity(t.Context(), identity))
	s := session.New(session.Config{
		Store: r.store, Agents: r.agents, Command: "serve", HTTP: box.Client(),
		Capabilities: func(string) sandbox.Capabilities { return r.can },
	})
	t.Cleanup(s.Close)
	h := &held{rig: r, s: s, token: uuid.New()}
	queued, err := r.agents.StartSession(t.Context(), r.box.OrgID, r.box.ID, "key:test")
	require.NoError(t, err)
	h.id = queued.ID
	_, err = r.agents.ClaimSessions(t.Context(), []models.Place{{Backend: modelstest.Backend}}, h.token, r.clock.now().Add(time.Hour), 1)
	require.NoError(t, err)
	return h
}

// send records that the start was sent; what became of it is not known.
func (h *held) send() {
	h.Helper()
	_, err := h.agents.SendStart(h.Context(), h.id, h.token, h.row().AwakeEpoch)
	require.NoError(h, err)
}

// step takes one step of a collector whose box has not answered for long.
func (h *held) step(silentFor time.Duration) (silent time.Time, err error) {
	h.Helper()
	return h.s.Step(h.Context(), h.session(h.id), h.token, time.Now().Add(-silentFor))
}

func TestS2_034_AStartThatIsNotFoundIsNotSentAgain(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == startPath {
			t.Error("it is sent again")
		}
		_, _ = io.WriteString(w, `{"items":[]}`)
	})
	h.send()
	_, err := h.agents.StopSession(t.Context(), h.box.ID)
	require.NoError(t, err)
	_, err = h.step(0)
	require.ErrorContains(t, err, "not known yet", "it may still arrive")
	require.False(t, h.session(h.id).Closed())
	h.clock.advance(2 * time.Minute)
	_, err = h.step(0)
	require.NoError(t, err)
	last := h.session(h.id)
	require.True(t, last.Closed())
	require.Equal(t, customer.Stopped, last.State)
	require.Equal(t, customer.ReasonStopped, last.Reason)
}

func TestS2_046_ABoxThatOnlyFailsIsGivenUpInTheEnd(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) })
	silent, err := h.step(time.Minute)
	require.Error(t, err)
	require.False(t, silent.IsZero())
	require.False(t, h.session(h.id).Closed())
	_, err = h.step(time.Hour)
	require.NoError(t, err)
	require.Equal(t, customer.Failed, h.session(h.id).State)
	require.Equal(t, customer.ReasonLost, h.session(h.id).Reason)
}

func TestS2_047_ABoxThatAnswersBetweenTwoBrokenStreamsIsNotLost(t *testing.T) {
	h := newHeld(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"keepalive"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	require.NoError(t, h.agents.SessionStarted(t.Context(), h.id, "command"))
	silent, err := h.step(time.Hour)
	require.ErrorIs(t, err, sandbox.ErrUnreachable)
	require.WithinDuration(t, time.Now(), silent, time.Minute)
	require.False(t, h.session(h.id).Closed())
}

func TestS2_047_ABoxThatSleepsIsNotExpectedToAnswer(t *testing.T) {
	h := newHeld(t, func(http.ResponseWriter, *http.Request) { t.Error("it is asked") })
	modelstest.Set(t, h.store, h.box, "observed = ?", models.SeenSuspended)
	silent, err := h.step(time.Hour)
	require.ErrorIs(t, err, session.ErrNotRunning)
	require.True(t, silent.IsZero())
	require.False(t, h.session(h.id).Closed())
}

func TestS2_031_S2_071_AStopNeedsNoPlaceAmongTheReaders(t *testing.T) {
	r := newRig(t, modelstest.NewSQLite(t))
	s, _ := r.replica("sleep 600")
	started := r.start(s)
	r.eventually(started.ID, func(s *customer.Session) bool { return s.State == customer.Active })
	begun, leaving := make(chan struct{}, session.MostReaders), make(chan error, session.MostReaders)
	reading, leave := context.WithCancel(t.Context())
	defer leave()
	what := session.Reading{SessionID: started.ID, Follow: true, Until: time.Now().Add(time.Hour)}
	for range session.MostReaders {
		go func() {
			leaving <- s.Read(reading, what, func(lines []byte) error {
				if lines == nil {
					begun <- struct{}{}
				}
				return nil
			})
		}()
	}
	for range session.MostReaders {
		<-begun
	}
	require.ErrorIs(t, s.Read(t.Context(), what, func([]byte) error { return nil }), session.ErrTooManyReaders)
	stopped, err := s.Stop(t.Context(), r.row())
	require.NoError(t, err)
	require.True(t, stopped.Closed())
	for range session.MostReaders {
		require.NoError(t, <-leaving)
	}
}
