package router_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/router"
)

const impatient = 50 * time.Millisecond

func quickBodies(d *router.Deps) { d.BodyWithin = impatient }

// front serves the router on a real port, where deadlines hold.
func (w *world) front() *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(w.handler)
	w.t.Cleanup(s.Close)
	return s
}

// trickle sends the beginning of a body and then nothing.
func (w *world) trickle(front *httptest.Server, method, path, kind string) (status int, answer string) {
	w.t.Helper()
	body, begun := io.Pipe()
	go func() { _, _ = begun.Write([]byte(`{"`)) }()
	w.t.Cleanup(func() { _ = body.Close() })
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, front.URL+path, body)
	require.NoError(w.t, err)
	r.Header.Set("Authorization", "Bearer tok-alice")
	r.Header.Set("Content-Type", kind)
	got, err := front.Client().Do(r)
	require.NoError(w.t, err, "%s %s", method, path)
	text, err := io.ReadAll(got.Body)
	require.NoError(w.t, err)
	require.NoError(w.t, got.Body.Close())
	return got.StatusCode, string(text)
}

func TestASlowBodyIsGivenUpOnEveryRoute(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.boxServer(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
		front, have, tried := w.front(), w.things(), 0
		before := w.rows()
		for _, op := range w.spec().operations() {
			if ofCustomers(op.path) || op.body == nil && op.raw == "" || strings.Contains(op.path, "/proxy") && op.method != "POST" {
				continue
			}
			kind, query := "application/json", ""
			if op.raw != "" {
				kind, query = "application/x-tar", "?name=x"
			}
			path := strings.NewReplacer("{id}", have.mine[op.about], "{path}", "x").Replace(op.path)
			status, answer := w.trickle(front, op.method, base+path+query, kind)
			require.Equal(t, http.StatusRequestTimeout, status, "%s %s: %s", op.method, op.path, answer)
			require.Contains(t, answer, "The body did not arrive within 50ms")
			tried++
		}
		require.Greater(t, tried, 15)
		require.Equal(t, before, w.rows(), "nothing is written")
		require.Equal(t, w.door.entered.Load(), w.door.left.Load())
	}, quickBodies)
}

// Fault: whoever has no login must not hold a connection with a body that never comes.
func TestABodyThatNobodyReadsIsGivenUpToo(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", w.front().Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = fmt.Fprintf(conn, "POST %s/v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{", base)
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		got, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, 401, got.StatusCode)
		_, err = io.Copy(io.Discard, in) // ends when the server hangs up
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
	}, quickBodies)
}

func TestAnAnswerMayTakeLongerThanTheBody(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			working, cancel := context.WithTimeout(r.Context(), 4*impatient)
			defer cancel()
			<-working.Done()
			if r.Context().Err() == nil {
				_, _ = rw.Write([]byte(`{"capabilities":["storage_reclaim_v1"]}`))
			}
		})
		_, box := w.running(w.automation())
		front := w.front()
		for _, tail := range []string{"/proxy/x", "/reclaim"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+base+"/v1/"+sandboxPath(box, tail), strings.NewReader("{}"))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer tok-alice")
			r.Header.Set("Content-Type", "application/json")
			got, err := front.Client().Do(r)
			require.NoError(t, err, tail)
			text, err := io.ReadAll(got.Body)
			require.NoError(t, err)
			require.NoError(t, got.Body.Close())
			require.JSONEq(t, `{"capabilities":["storage_reclaim_v1"]}`, string(text), tail)
		}
	}, quickBodies)
}

func TestAWrongMethodIsToldTheRightOnes(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		for path, want := range map[string]string{
			base + "/v1": "GET, POST", base + "/health": "GET", "/ready": "GET", base + "/v1/" + sandboxPath(box, ""): "GET, DELETE",
			base + "/v1/" + sandboxPath(box, "/keep"): "PUT, DELETE", base + "/v1/a%2Fb": "GET, PATCH, DELETE",
		} {
			got := w.call("tok-alice", "TRACE", path, nil)
			require.Equal(t, 405, got.Code, path)
			require.Equal(t, want, got.Header().Get("Allow"), path)
		}
	})
}
