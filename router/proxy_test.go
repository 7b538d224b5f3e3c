package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

func bodyOf(r *http.Request) string {
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

// boxServer is an agent server that answers by handle.
func (w *world) boxServer(handle http.HandlerFunc) *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(handle)
	w.t.Cleanup(s.Close)
	w.door.url, w.door.key = s.URL, "inner-key"
	return s
}

func TestProxyIntoABox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var seen *http.Request
		var sent string
		attached := true
		w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			seen, sent = r, bodyOf(r)
			attached = w.door.left.Load() < w.door.entered.Load()
			rw.Header().Set("Set-Cookie", "box=1")
			rw.Header().Set("X-Session-API-Key", "inner-key")
			rw.Header().Set("Connection", "X-Hop")
			rw.Header().Set("X-Hop", "1")
			rw.WriteHeader(http.StatusTeapot)
			_, _ = fmt.Fprint(rw, "hello from the box")
		})
		_, box := w.finished()
		got := w.call("tok-alice", "PUT", sandboxPath(box, "/proxy/api/file%2Fx/a%20b?q=1&q=%2F"), strings.NewReader("payload"),
			"Cookie", "openhands_auth=secret", "X-Org-Id", org.String(), "Connection", "X-Mine", "X-Mine", "1", "X-Kept", "yes",
			"X-Forwarded-For", "1.2.3.4", "Upgrade", "websocket", "Content-Type", "text/plain")

		require.Equal(t, http.StatusTeapot, got.Code)
		require.Equal(t, "hello from the box", got.Body.String())
		require.True(t, attached, "attached while the request is open")
		require.EqualValues(t, 1, w.door.left.Load(), "and not after")
		require.Equal(t, "user:"+alice.String(), w.door.who)
		require.Equal(t, box.ID, w.door.box)
		require.Equal(t, org, w.door.org)

		require.Equal(t, "PUT", seen.Method)
		require.Equal(t, "/api/file%2Fx/a%20b?q=1&q=%2F", seen.RequestURI)
		require.Equal(t, "payload", sent)
		require.Equal(t, "inner-key", seen.Header.Get("X-Session-API-Key"))
		require.Equal(t, "yes", seen.Header.Get("X-Kept"))
		for _, name := range []string{"Authorization", "Cookie", "X-Org-Id", "X-Mine", "X-Forwarded-For", "Upgrade", "Connection"} {
			require.Empty(t, seen.Header.Get(name), name)
		}

		require.Equal(t, "2026-06-01T13:00:00Z", got.Header().Get("X-Sandbox-Cleanup-Due-At"))
		for _, name := range []string{"Set-Cookie", "X-Session-API-Key", "X-Hop"} {
			require.Empty(t, got.Header().Get(name), name)
		}
		require.NotContains(t, w.logs.String(), "inner-key")
		require.NotContains(t, w.logs.String(), "tok-alice")
		require.Equal(t, "2026-06-01T13:00:00Z", w.call("tok-alice", "GET", sandboxPath(box, ""), nil).is(200)["cleanup"].(map[string]any)["due_at"],
			"and does not move the due date (S1-046)")
	})
}

func TestProxyNeedsTheCallersLogin(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.boxServer(func(http.ResponseWriter, *http.Request) {})
		_, box := w.finished()
		for as, want := range map[string]int{"": 401, "inner-key": 401, "tok-nobody": 403, "tok-eve": 404} {
			require.Equal(t, want, w.call(as, "GET", sandboxPath(box, "/proxy/x"), nil).Code, as)
		}
		require.Equal(t, 401, w.call("", "GET", sandboxPath(box, "/proxy/x"), nil, "X-Session-API-Key", "inner-key").Code)
		require.Zero(t, w.door.entered.Load())
	})
}

func TestProxyKeepsToItsBox(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		var uris []string
		server := w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			uris = append(uris, r.RequestURI)
			if to := r.URL.Query().Get("to"); to != "" {
				http.Redirect(rw, r, to, http.StatusFound)
			}
		})
		w.door.url = server.URL + "/boxes/7" // a host shared by several, told apart by the path
		_, box := w.finished()
		proxy := base + "/v1/" + sandboxPath(box, "/proxy")
		for _, tail := range []string{"/../8/api", "/%2e%2e/8/api", "/a/..%2f..%2f8", "/.%2E/8", "/./x", "/..", "/a/..%5c..%5c8"} {
			require.Equal(t, 400, w.call("tok-alice", "GET", proxy+tail, nil).Code, tail)
		}
		require.Zero(t, w.door.entered.Load())
		for tail, want := range map[string]string{"": "/boxes/7", "/": "/boxes/7/", "/a..b/c": "/boxes/7/a..b/c"} {
			uris = nil
			require.Equal(t, 200, w.call("tok-alice", "GET", proxy+tail, nil).Code, tail)
			require.Equal(t, []string{want}, uris)
		}
		for to, want := range map[string]string{
			"/boxes/7/login?x=1":              proxy + "/login?x=1",
			server.URL + "/boxes/7/a%2Fb#top": proxy + "/a%2Fb#top",
			"https://elsewhere.test/x":        "https://elsewhere.test/x",
		} {
			got := w.call("tok-alice", "GET", proxy+"/go?to="+strings.NewReplacer("#", "%23", "?", "%3F", "%", "%25").Replace(to), nil)
			require.Equal(t, want, got.Header().Get("Location"))
		}
	})
}

func TestProxySaysWhyItCannot(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		code := func(a answer, status int) string {
			t.Helper()
			return a.is(status)["error"].(map[string]any)["code"].(string)
		}
		_, box := w.finished()
		path := sandboxPath(box, "/proxy/x")
		for err, want := range map[error]struct {
			status int
			code   string
		}{
			models.ErrDeletionOrdered: {409, "deletion_ordered"}, sandbox.ErrGone: {410, "sandbox_gone"},
			sandbox.ErrNotReady: {503, "sandbox_starting"}, sandbox.ErrUnreachable: {503, "sandbox_starting"},
			context.DeadlineExceeded: {503, "sandbox_starting"},
		} {
			w.door.err = err
			got := w.call("tok-alice", "GET", path, nil)
			require.Equal(t, want.code, code(got, want.status))
			if want.status == 503 {
				require.Equal(t, "5", got.Header().Get("Retry-After"))
			}
		}
		w.door.err = errBroken
		require.Equal(t, 500, w.call("tok-alice", "GET", path, nil).Code)
		w.door.err = nil

		server := w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/cut" {
				panic(http.ErrAbortHandler)
			}
			rw.WriteHeader(http.StatusUnauthorized)
		})
		require.Equal(t, "sandbox_agent_failed", code(w.call("tok-alice", "GET", path, nil), 502), "the box's 401 is not the caller's")
		require.Equal(t, "sandbox_agent_failed", code(w.call("tok-alice", "GET", sandboxPath(box, "/proxy/cut"), nil), 502))
		server.Close()
		require.Equal(t, "sandbox_agent_unavailable", code(w.call("tok-alice", "GET", path, nil), 503))
		require.EqualValues(t, 1, w.door.doubts.Load(), "after the box was asked whether it is there")
		w.door.url = ""
		require.Equal(t, "sandbox_agent_failed", code(w.call("tok-alice", "GET", path, nil), 502))
		require.Equal(t, w.door.entered.Load(), w.door.left.Load(), "each way that was opened was left")

		modelstest.Set(t, w.store, box, "observed = ?", models.SeenMissing)
		require.Equal(t, "sandbox_gone", code(w.call("tok-alice", "GET", path, nil), 410))
		modelstest.Set(t, w.store, box, "desired = ?", models.WantDeleted)
		require.Equal(t, "deletion_ordered", code(w.call("tok-alice", "GET", path, nil), 409))
		modelstest.Set(t, w.store, box, "observed = ?", models.SeenDeleted)
		require.Equal(t, "sandbox_archived", code(w.call("tok-alice", "GET", path, nil), 410))
	})
}

// Fault: the box went to sleep after it was last asked. Nothing was sent, so that the request, with its body, is sent again.
func TestProxySendsAgainWhatNobodyTook(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		var sent string
		server := w.boxServer(func(_ http.ResponseWriter, r *http.Request) { sent = bodyOf(r) })
		_, box := w.finished()
		w.door.url = closedPort(t)
		w.door.onDoubt = func() { w.door.url = server.URL } // it was woken
		got := w.call("tok-alice", "POST", sandboxPath(box, "/proxy/x"), strings.NewReader("payload"))
		require.Equal(t, 200, got.Code, got.Body)
		require.Equal(t, "payload", sent)
		require.EqualValues(t, 2, w.door.left.Load())
	})
}

// closedPort is the address of a server that is gone.
func closedPort(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	return s.URL
}

func TestProxyKeepsACallersKeyOutOfTheBox(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		var uri string
		w.boxServer(func(_ http.ResponseWriter, r *http.Request) { uri = r.RequestURI })
		_, box := w.finished()
		for query, want := range map[string]string{
			"?a=1&session_api_key=tok-alice&b=%2F": "?a=1&b=%2F", "?session%5Fapi%5Fkey=tok-alice": "", "?a=session_api_key": "?a=session_api_key",
			"?resend_mode=all": "?resend_mode=all", "?a=%zz": "?a=%zz",
		} {
			require.Equal(t, 200, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"+query), nil).Code, query)
			require.Equal(t, "/x"+want, uri)
		}
	})
}

// Fault: a page of another site has the browser of a logged-in person send a form, or open a WebSocket, into the box.
func TestProxyRefusesPagesOfOtherSitesThatUseACookie(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		reached := 0
		w.boxServer(func(http.ResponseWriter, *http.Request) { reached++ })
		_, box := w.finished()
		path := sandboxPath(box, "/proxy/x")
		w.deps.Cloud = cookies{}
		w.deps.Config.HTTP.CORSOrigins = []string{"https://app.test"}
		w.handler = router.New(w.deps)
		for origin, want := range map[string]int{
			"https://evil.test": 403, "null": 403, "https://app.test": 200, "http://example.com": 200, "": 200,
		} {
			require.Equal(t, want, w.call("", "POST", path, nil, "Cookie", "openhands_auth=alices", "Origin", origin).Code, origin)
		}
		require.Equal(t, 200, w.call("tok-alice", "POST", path, nil, "Origin", "https://evil.test").Code, "no browser sends a key by itself")
		require.Equal(t, 4, reached)
	})
}

// cookies are alice's.
type cookies struct{ people }

func (cookies) Verify(ctx context.Context, c router.Credential) (router.Caller, error) {
	if c.Cookie != "" {
		c = router.Credential{Key: "tok-alice"}
	}
	return people{}.Verify(ctx, c)
}

// Fault: a caller that goes away must not keep the box attached.
func TestProxyLeavesWhenTheCallerGoes(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		inside, gone := make(chan struct{}), make(chan struct{})
		w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			rw.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(rw).Flush()
			close(inside)
			<-r.Context().Done()
			close(gone)
		})
		_, box := w.finished()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }() // the connection is cut
			r := request(t, "GET", base+"/v1/"+sandboxPath(box, "/proxy/stream"), "tok-alice").WithContext(ctx)
			w.serve(r)
		}()
		<-inside
		require.Zero(t, w.door.left.Load())
		cancel()
		<-done
		<-gone
		require.EqualValues(t, 1, w.door.left.Load())
	})
}

func TestProxyHoldsTheBoxWhileARequestIsOpen(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		access := sandbox.NewAccess(sandbox.AccessConfig{Store: w.store})
		t.Cleanup(access.Close)
		w.deps.Access = access
		w.handler = router.New(w.deps)

		run, box := w.running(w.automation())
		w.complete("tok-alice", run.ID, completed).is(200)
		w.call("tok-alice", "POST", sandboxPath(box, "/resume"), nil).is(202)
		w.clock.Advance(delay) // due now, and looked into all the same (S1-046)
		seen := w.store.Now().Add(-time.Minute)
		modelstest.Set(t, w.store, box, "observed = ?, observed_at = ?, ordered_at = ?", models.SeenRunning, seen, seen)
		due := func() []uuid.UUID {
			return must(w.store.OrderDue(t.Context(), []models.Place{{Backend: box.Backend}}, 10, time.Hour))
		}
		var swept []uuid.UUID
		server := w.boxServer(func(http.ResponseWriter, *http.Request) { swept = due() })
		require.NoError(t, w.store.RecordIdentity(t.Context(), models.Identity{
			SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: box.Identities[0].ProviderID, URL: server.URL, SessionKey: "inner",
			SeenAt: w.store.Now(),
		}))

		require.Equal(t, 200, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil).Code)
		require.Empty(t, swept, "the sweep waits for who is inside")
		require.WithinDuration(t, w.store.Now(), *w.box(box.ID).LastAccessAt, 0, "counts as access")
		require.Equal(t, []uuid.UUID{box.ID}, due(), "and goes on when the last has left, the stamp unmoved")
		got := w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil).is(409)
		require.Equal(t, "deletion_ordered", got["error"].(map[string]any)["code"])
	})
}

func TestAnAnswerThatBreaksOffIsCut(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.boxServer(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = rw.Write([]byte("half"))
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		})
		_, box := w.finished()
		front := httptest.NewServer(w.handler)
		t.Cleanup(front.Close)
		r := request(t, "GET", front.URL+base+"/v1/"+sandboxPath(box, "/proxy/x"), "tok-alice")
		r.RequestURI = ""
		client := front.Client()
		answer, err := client.Do(r)
		require.NoError(t, err)
		_, err = io.ReadAll(answer.Body)
		require.NoError(t, answer.Body.Close())
		require.Error(t, err, "half an answer is not taken for whole")
		client.CloseIdleConnections()
		require.EqualValues(t, 1, w.door.left.Load())
	})
}

func TestS1_047_ABoxThatHasAnotherKeyNowIsLookedAtAndAskedAgain(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		calls := 0
		w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			if calls++; r.Header.Get("X-Session-API-Key") != "new-key" {
				rw.WriteHeader(http.StatusUnauthorized)
			}
		})
		_, box := w.finished()
		refusals := 0
		w.door.onRefused = func() { refusals++ }
		require.Equal(t, 502, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil).Code, "it has no other key")
		require.Equal(t, 2, calls, "asked twice, not more")

		w.door.onRefused = func() { w.door.key = "new-key" }
		require.Equal(t, 200, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil).Code)

		w.door.key = "old-key"
		got := w.call("tok-alice", "POST", sandboxPath(box, "/proxy/x"), strings.NewReader("sent once"))
		require.Equal(t, 503, got.Code, "a body is not sent twice")
		require.Equal(t, "1", got.Header().Get("Retry-After"))
		require.Equal(t, 200, w.call("tok-alice", "POST", sandboxPath(box, "/proxy/x"), strings.NewReader("sent again")).Code)
		require.Equal(t, 1, refusals)
	})
}
