package router_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

// Each way to reach a conversation's box starts its TTL anew, and holds it while it lasts.
func TestS3_004_S3_011_S3_018_EveryKindOfAccessStartsTheTTLAnew(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		access := sandbox.NewAccess(sandbox.AccessConfig{Store: w.store})
		t.Cleanup(access.Close)
		w.deps.Access = access
		w.handler = router.New(w.deps)
		goOn := make(chan struct{})
		server := w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/stream":
				_, _ = io.WriteString(rw, "begun")
				_ = http.NewResponseController(rw).Flush()
				<-goOn
			case r.Header.Get("Upgrade") != "":
				conn, rest, err := http.NewResponseController(rw).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = rest.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_ = rest.Flush()
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			default:
				_, _ = io.WriteString(rw, `{"capabilities":["storage_reclaim_v1"],"freed_bytes":0}`)
			}
		})
		front := w.front()
		runtime := w.conversation()
		box := runtime.Box
		require.NoError(t, w.store.RecordIdentity(t.Context(), models.Identity{
			SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: "c", URL: server.URL, SessionKey: "inner-key", SeenAt: w.store.Now(),
		}))
		conversation := "runtimes/" + runtime.ConversationID.String()
		idle := func() bool {
			boxes, err := w.store.IdleBoxes(t.Context(), []models.Place{{Backend: modelstest.Backend}}, w.store.Now().Add(-time.Minute), 10)
			require.NoError(t, err)
			return len(boxes) == 1
		}
		get := func(path string) *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+base+"/v1/"+path, http.NoBody)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer tok-alice")
			answer, err := front.Client().Do(r)
			require.NoError(t, err)
			require.Equal(t, 200, answer.StatusCode)
			return answer
		}
		for kind, goIn := range map[string]func() (leave func()){
			"a request": func() func() {
				w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil)
				return func() {}
			},
			"a request by the conversation's id": func() func() {
				w.call("tok-alice", "POST", conversation+"/proxy/api/conversations", nil)
				return func() {}
			},
			"a stream": func() func() {
				answer := get(conversation + "/proxy/stream")
				begun := make([]byte, 5)
				_, err := io.ReadFull(answer.Body, begun)
				require.NoError(t, err)
				return func() {
					goOn <- struct{}{}
					require.NoError(t, answer.Body.Close())
				}
			},
			"a WebSocket": func() func() {
				s := w.dial(front.Listener.Addr().String(), conversation+"/proxy/sockets/x", "tok-alice")
				require.Equal(t, 101, s.answer.StatusCode)
				return func() { require.NoError(t, s.Close()) }
			},
			"a reclaim by hand": func() func() {
				w.call("tok-alice", "POST", sandboxPath(box, "/reclaim"), nil)
				return func() {}
			},
		} {
			access.Release(box.ID)
			w.clock.Advance(time.Hour)
			require.True(t, idle(), "before "+kind)
			leave := goIn()
			require.False(t, idle(), kind)
			require.WithinDuration(t, w.store.Now(), *w.box(box.ID).LastAccessAt, 0, kind)
			w.clock.Advance(30 * time.Second)
			require.False(t, idle(), "and while it lasts")
			leave()
			require.Eventually(t, func() bool { access.Release(box.ID); return !attached(w) }, 10*time.Second, time.Millisecond, kind)
			require.False(t, idle(), "the TTL begins when the last has left (S3-026)")
		}
		t.Run("S3-011 opening the conversation", func(t *testing.T) {
			w.clock.Advance(time.Hour)
			require.True(t, idle())
			w.call("tok-alice", "PUT", conversation, nil).is(200)
			require.False(t, idle())
		})
	})
}

// attached reports whether any attachment is stored.
func attached(w *world) bool {
	w.t.Helper()
	n, err := modelstest.Of(w.t, w.store).Raw().NewSelect().TableExpr("sandbox_attachments").Count(w.t.Context())
	require.NoError(w.t, err)
	return n > 0
}
