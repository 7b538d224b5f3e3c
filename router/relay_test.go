package router_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/router"
)

// relayTo opens a relay and returns its connection, or the refusal.
func (o *office) relayTo(server *httptest.Server, authorization string) (net.Conn, *bufio.Reader, *http.Response) {
	o.t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = conn.Close() })
	r, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, server.URL+o.path("/relay"), nil)
	require.NoError(o.t, err)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "automation-relay")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	require.NoError(o.t, r.Write(conn))
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, r)
	require.NoError(o.t, err)
	return conn, from, response
}

func TestS2_007_S2_008_ARelayIsOpenedByATicketAndNothingElse(t *testing.T) {
	customers(t, func(o *office) {
		box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Header.Get("X-Session-API-Key")+" "+r.Header.Get("Authorization")+r.URL.Path)
		}))
		defer box.Close()
		o.door.url, o.door.key = box.URL, "box-key"
		server := httptest.NewServer(o.handler)
		defer server.Close()
		write := o.key("sandboxes:write")
		issue := func() string {
			return o.call(write, "POST", o.path("/tickets"), nil).is(http.StatusCreated)["ticket"].(string)
		}
		require.Equal(o.t, "sandbox_agent_not_started", code(o.call(write, "POST", o.path("/tickets"), nil)), "there is no session to relay into")
		o.call(write, "POST", o.path(""), nil).is(http.StatusAccepted)
		require.Equal(o.t, http.StatusForbidden, o.call(o.key("sandboxes:read"), "POST", o.path("/tickets"), nil).Code)

		ticket := issue()
		require.Equal(o.t, http.StatusUnauthorized, o.call(ticket, "GET", o.path(""), nil).Code, "a ticket is no bearer")
		for _, authorization := range []string{"", "Bearer " + write, "Bearer " + ticket, "Ticket " + ticket + "x"} {
			_, _, refused := o.relayTo(server, authorization)
			require.Equal(o.t, http.StatusUnauthorized, refused.StatusCode, authorization)
		}
		conn, from, opened := o.relayTo(server, "Ticket "+ticket)
		require.Equal(o.t, http.StatusSwitchingProtocols, opened.StatusCode)
		for range 2 { // one connection, as many requests as wanted
			_, err := io.WriteString(conn, "GET /ready HTTP/1.1\r\nHost: box\r\nAuthorization: Bearer mine\r\n\r\n")
			require.NoError(o.t, err)
			got, err := http.ReadResponse(from, nil)
			require.NoError(o.t, err)
			body, err := io.ReadAll(got.Body)
			require.NoError(o.t, err)
			require.Equal(o.t, "box-key /ready", string(body), "the box's key is added inside, the caller's is left outside")
		}
		require.Positive(o.t, o.door.entered.Load()-o.door.left.Load(), "the box is held meanwhile")
		require.NoError(o.t, conn.Close())
		require.Eventually(o.t, func() bool { return o.door.entered.Load() == o.door.left.Load() }, 10*time.Second, 5*time.Millisecond)

		_, _, again := o.relayTo(server, "Ticket "+ticket)
		require.Equal(o.t, http.StatusUnauthorized, again.StatusCode, "once")
		old := issue()
		o.call(write, "DELETE", o.path(""), nil).is(http.StatusOK)
		o.call(write, "POST", o.path(""), nil).is(http.StatusAccepted)
		_, _, other := o.relayTo(server, "Ticket "+old)
		require.Equal(o.t, http.StatusConflict, other.StatusCode, "of another session")
		require.NotContains(o.t, o.logs.String(), ticket)
	})
}

func TestS2_007_ARelayThatIsSilentBothWaysIsClosedAndOneWithTrafficIsNot(t *testing.T) {
	const idle, ticks = 300 * time.Millisecond, 12
	customers(t, func(o *office) {
		box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(idle / 4)
			defer tick.Stop()
			for range ticks { // longer than a silence may be
				<-tick.C
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
			}
		}))
		defer box.Close()
		o.door.url = box.URL
		server := httptest.NewServer(o.handler)
		defer server.Close()
		write := o.key("sandboxes:write")
		o.call(write, "POST", o.path(""), nil).is(http.StatusAccepted)
		ticket := o.call(write, "POST", o.path("/tickets"), nil).is(http.StatusCreated)["ticket"].(string)
		conn, from, opened := o.relayTo(server, "Ticket "+ticket)
		require.Equal(o.t, http.StatusSwitchingProtocols, opened.StatusCode)
		_, err := io.WriteString(conn, "GET /slow HTTP/1.1\r\nHost: box\r\n\r\n")
		require.NoError(o.t, err)
		got, err := http.ReadResponse(from, nil)
		require.NoError(o.t, err)
		body, err := io.ReadAll(got.Body)
		require.NoError(o.t, err, "what the box sends is traffic")
		require.Len(o.t, body, ticks)
		require.NoError(o.t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = from.ReadByte()
		require.ErrorIs(o.t, err, io.EOF, "then it was silent")
		require.Eventually(o.t, func() bool { return o.door.entered.Load() == o.door.left.Load() }, 10*time.Second, 5*time.Millisecond, "the box is let go")
	}, func(c *router.Customers) { c.RelayIdle = idle })
}
