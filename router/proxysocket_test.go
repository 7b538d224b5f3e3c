package router_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
)

// socketBox is a box whose agent server takes WebSockets and sends back whatever comes.
func (w *world) socketBox(seen func(*http.Request)) {
	w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
		if seen != nil {
			seen(r)
		}
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			rw.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		conn, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			w.t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(rest, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: yes\r\n"+
			"Sec-WebSocket-Protocol: %s\r\nSet-Cookie: box=1\r\nX-Session-API-Key: inner-key\r\n\r\nhello", r.Header.Get("Sec-WebSocket-Protocol"))
		_ = rest.Flush()
		_, _ = io.Copy(conn, rest)
	})
}

// socket is a client's end of a WebSocket through the proxy.
type socket struct {
	net.Conn
	in     *bufio.Reader
	answer *http.Response
}

// dial opens a WebSocket at a path, with more header lines.
func (w *world) dial(address, path, as string, headers ...string) *socket {
	w.t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(w.t.Context(), "tcp", address)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(w.t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	lines := append([]string{
		"GET " + base + "/v1/" + path + " HTTP/1.1", "Host: automation.test", "Connection: keep-alive, Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Authorization: Bearer " + as,
	}, headers...)
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n")
	require.NoError(w.t, err)
	s := &socket{Conn: conn, in: bufio.NewReader(conn)}
	s.answer, err = http.ReadResponse(s.in, nil)
	require.NoError(w.t, err)
	return s
}

// reads requires text to come next.
func (s *socket) reads(t *testing.T, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_, err := io.ReadFull(s.in, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// ends requires the connection to end.
func (s *socket) ends(t *testing.T) {
	t.Helper()
	_, err := s.in.ReadByte()
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

func (w *world) left(n int64) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.door.left.Load() == n }, 10*time.Second, time.Millisecond)
}

func TestProxyJoinsWebSockets(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		var seen *http.Request
		w.socketBox(func(r *http.Request) { seen = r })
		_, box := w.finished()
		address := w.front().Listener.Addr().String()
		path := sandboxPath(box, "/proxy/sockets/events/7?resend_mode=all&session_api_key=tok-alice")
		s := w.dial(address, path, "tok-alice", "Sec-WebSocket-Protocol: openhands.v2, openhands.v1", "Cookie: openhands_auth=secret", "X-Org-Id: "+org.String())

		require.Equal(t, http.StatusSwitchingProtocols, s.answer.StatusCode)
		require.Equal(t, "yes", s.answer.Header.Get("Sec-WebSocket-Accept"))
		require.Equal(t, "openhands.v2, openhands.v1", s.answer.Header.Get("Sec-WebSocket-Protocol"))
		require.Equal(t, "2026-06-01T13:00:00Z", s.answer.Header.Get("X-Sandbox-Cleanup-Due-At"))
		for _, name := range []string{"Set-Cookie", "X-Session-API-Key"} {
			require.Empty(t, s.answer.Header.Get(name), name)
		}
		require.Equal(t, "/sockets/events/7?resend_mode=all", seen.RequestURI)
		require.Equal(t, "13", seen.Header.Get("Sec-WebSocket-Version"))
		require.Equal(t, "AAAAAAAAAAAAAAAAAAAAAA==", seen.Header.Get("Sec-WebSocket-Key"))
		require.Equal(t, "inner-key", seen.Header.Get("X-Session-API-Key"))
		for _, name := range []string{"Authorization", "Cookie", "X-Org-Id", "X-Forwarded-For"} {
			require.Empty(t, seen.Header.Get(name), name)
		}

		s.reads(t, "hello")
		long := strings.Repeat("0123456789", 5000) // more than any buffer
		_, err := io.WriteString(s, long)
		require.NoError(t, err)
		s.reads(t, long)
		require.Zero(t, w.door.left.Load(), "attached for as long as it is open")
		require.NoError(t, s.Close())
		w.left(1)
		require.Eventually(t, func() bool { return strings.Contains(w.logged(), `"status_code":101`) }, 10*time.Second, time.Millisecond)
		require.NotContains(t, w.logged(), "inner-key")
		require.NotContains(t, w.logged(), "tok-alice")
	})
}

func TestAWebSocketEndsWithEitherSideAndWithTheService(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		closing, begin := context.WithCancel(context.Background())
		w.door.closing = closing
		inside := make(chan context.CancelFunc, 1)
		server := w.boxServer(func(rw http.ResponseWriter, _ *http.Request) {
			conn, rest, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			inside <- func() { _ = conn.Close() }
			_, _ = rest.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_ = rest.Flush()
			_, _ = io.Copy(io.Discard, conn)
		})
		_, box := w.finished()
		address, path := w.front().Listener.Addr().String(), sandboxPath(box, "/proxy/sockets/x")
		s := w.dial(address, path, "tok-alice")
		(<-inside)() // the box
		s.ends(t)
		w.left(1)
		s = w.dial(address, path, "tok-alice")
		<-inside
		begin() // the service
		s.ends(t)
		w.left(2)
		server.CloseClientConnections()
	})
}

func TestAWebSocketThatIsNotTakenSaysWhy(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.boxServer(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wrong" { // another protocol than was asked for
				rw.Header().Set("Connection", "Upgrade")
				rw.Header().Set("Upgrade", "h2c")
				rw.WriteHeader(http.StatusSwitchingProtocols)
				return
			}
			http.Error(rw, "no such conversation", http.StatusNotFound)
		})
		_, box := w.finished()
		address := w.front().Listener.Addr().String()
		status := func(path, as string) int {
			s := w.dial(address, path, as)
			require.NoError(t, s.answer.Body.Close())
			return s.answer.StatusCode
		}
		path := sandboxPath(box, "/proxy/sockets/x")
		require.Equal(t, 404, status(path, "tok-alice"), "the box's own answer")
		require.Equal(t, 502, status(sandboxPath(box, "/proxy/wrong"), "tok-alice"))
		require.Equal(t, 401, status(path, "tok-wrong"))
		require.Equal(t, 404, status(path, "tok-eve"))
		w.door.err = models.ErrDeletionOrdered
		require.Equal(t, 409, status(path, "tok-alice"))
		w.left(w.door.entered.Load())
	})
}
