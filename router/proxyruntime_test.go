package router_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// conversation is one of alice's whose box runs; edit changes what is asked for.
func (w *world) conversation(edit ...func(*models.Runtime)) *models.Runtime {
	w.t.Helper()
	want := models.Runtime{OrgID: org, UserID: alice, ConversationID: uuid.New(), Backend: modelstest.Backend, SessionKey: "inner-key"}
	for _, change := range edit {
		change(&want)
	}
	runtime, _, err := w.store.OpenRuntime(w.t.Context(), want, "user:"+want.UserID.String())
	require.NoError(w.t, err)
	modelstest.Set(w.t, w.store, runtime.Box, "observed = ?, observed_at = ?, next_step_at = NULL", models.SeenRunning, w.store.Now())
	return runtime
}

func TestProxyIntoTheBoxOfAConversation(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var seen *http.Request
		w.boxServer(func(_ http.ResponseWriter, r *http.Request) { seen = r })
		runtime := w.conversation()
		path := "runtimes/" + runtime.ConversationID.String() + "/proxy"
		require.Equal(t, 200, w.call("tok-alice", "POST", path+"/api/conversations/a%2Fb?q=1", nil).Code)
		require.Equal(t, "/api/conversations/a%2Fb?q=1", seen.RequestURI)
		require.Equal(t, "inner-key", seen.Header.Get("X-Session-API-Key"))
		require.Equal(t, runtime.Box.ID, w.door.box)
		for as, want := range map[string]int{"": 401, "tok-eve": 404, "tok-bob": 403} {
			require.Equal(t, want, w.call(as, "GET", path, nil).Code, as)
		}
		require.Equal(t, 404, w.call("tok-alice", "GET", "runtimes/"+uuid.NewString()+"/proxy/x", nil).Code)

		s := w.dial(w.front().Listener.Addr().String(), path+"/sockets/x", "tok-alice")
		require.Equal(t, 200, s.answer.StatusCode, "and a WebSocket gets there too")
		require.Equal(t, "websocket", seen.Header.Get("Upgrade"))
	})
}

func TestS3_005_ABoxThatWasLostIsMadeAnewAtTheNextAccess(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.boxServer(func(http.ResponseWriter, *http.Request) {})
		runtime := w.conversation()
		path := "runtimes/" + runtime.ConversationID.String() + "/proxy/x"
		modelstest.Set(t, w.store, runtime.Box, "observed = ?", models.SeenMissing)
		settles := w.settles.Load()
		require.Equal(t, 200, w.call("tok-alice", "GET", path, nil).Code)
		require.Greater(t, w.settles.Load(), settles)
		require.NotEqual(t, runtime.Box.ID, w.door.box)
		require.Equal(t, models.WantDeleted, w.box(runtime.Box.ID).Desired, "what may be left of the old one is removed")

		again, err := w.store.Runtime(t.Context(), org, runtime.ConversationID)
		require.NoError(t, err)
		require.Equal(t, w.door.box, again.Box.ID)
		require.Equal(t, "inner-key", again.SessionKey, "its keys are as they were (S3-017)")
		require.Equal(t, 200, w.call("tok-alice", "GET", path, nil).Code)
		require.Equal(t, again.Box.ID, w.door.box, "made once")

		modelstest.Set(t, w.store, again.Box, "desired = ?", models.WantDeleted)
		require.Equal(t, 409, w.call("tok-alice", "GET", path, nil).Code, "its deletion is decided")
		modelstest.Set(t, w.store, again.Box, "observed = ?, next_step_at = NULL", models.SeenDeleted)
		require.Equal(t, 410, w.call("tok-alice", "GET", path, nil).Code)
	})
}
