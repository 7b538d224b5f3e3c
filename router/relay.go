package router

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"automation/models/customer"
)

// relayProtocol is what a connection is upgraded to: HTTP to the server in the sandbox, as if it were dialled.
const relayProtocol = "automation-relay"

// Tickets of relays are shown as `Authorization: Ticket …`, and nothing else gets a relay (S2-007).
const ticketScheme = "Ticket"

// ticketObject is a ticket for one relay.
type ticketObject struct {
	Ticket    string      `json:"ticket"` // shown this once, good for one relay
	SessionID sessionName `json:"session_id"`
	ExpiresAt stamp       `json:"expires_at"`
}

// issueTicket is POST …/agent/tickets: for one relay into the server of the session that runs.
func (s *server) issueTicket(w http.ResponseWriter, r *http.Request, v visit) error {
	if err := s.emptyObject(w, r); err != nil {
		return err
	}
	present, err := s.present(r.Context(), v)
	switch {
	case err != nil:
		return err
	case present == nil || present.Closed():
		return agentNotStarted()
	}
	secret, expires, err := s.Customers.Store.IssueTicket(r.Context(), present, v.name)
	if err != nil {
		return err
	}
	return created(w, ticketObject{secret, sessionName(present.ID), stamp(expires)})
}

// relay is GET …/agent/relay: for a ticket, the connection becomes one to the server in the sandbox. HTTP goes through it,
// streams and WebSockets too; the box's own key is added inside.
func (s *server) relay(w http.ResponseWriter, r *http.Request, _ Caller) error {
	org, sandboxID, err := named(r)
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), relayProtocol) {
		return badRequest("Upgrade must be " + relayProtocol)
	}
	kind, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, ticketScheme) || secret == "" {
		return unauthorized("A ticket is required")
	}
	name, sessionID, err := s.Customers.Store.UseTicket(r.Context(), strings.TrimSpace(secret), org, sandboxID)
	if errors.Is(err, customer.ErrTicket) {
		return unauthorized("The ticket is unknown, used or too old")
	}
	if err != nil {
		return err
	}
	b, err := s.Store.Sandbox(r.Context(), org, sandboxID)
	if err != nil {
		return err
	}
	present, err := s.present(r.Context(), visit{box: b})
	switch {
	case err != nil:
		return err
	case present == nil || present.ID != sessionID || present.Closed():
		return sessionChanged()
	}
	inside, leave, err := s.enter(r.Context(), b, name)
	if err != nil {
		return err
	}
	defer leave()
	target, err := url.Parse(inside.URL)
	if err != nil || target.Host == "" {
		return badGateway("The sandbox has no usable address")
	}
	return s.serveRelay(w, target, inside.SessionKey)
}

// serveRelay serves the connection of a request as one to target, until either side ends it.
func (s *server) serveRelay(w http.ResponseWriter, target *url.URL, key string) error {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return badGateway("This connection cannot be relayed")
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, switching(relayProtocol)); err != nil {
		return nil // the caller has gone
	}
	inner := &http.Server{
		ReadHeaderTimeout: bodyWithin, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Handler: s.record(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := s.forward(w, r, target, r.URL.EscapedPath(), key, func() {}); err != nil {
				s.fail(w, r, true, err)
			}
		})),
	}
	defer inner.Close()
	forget := s.Access.OnClose(func() { _ = conn.Close() })
	defer forget()
	idle := s.Customers.relayIdle()
	silent := time.AfterFunc(idle, func() { _ = conn.Close() })
	defer silent.Stop()
	_ = inner.Serve(&single{
		conn: &relayed{Conn: conn, first: buffered.Reader, traffic: func() { silent.Reset(idle) }}, over: make(chan struct{}),
	})
	return nil
}

// relayIdle is how long a relay may bring nothing in either direction before it is closed: it holds its box awake.
const relayIdle = 15 * time.Minute

func (c Customers) relayIdle() time.Duration {
	if c.RelayIdle > 0 {
		return c.RelayIdle
	}
	return relayIdle
}

// single is a listener with one connection: Accept gives it, and then waits for its end.
type single struct {
	conn  *relayed
	given bool
	over  chan struct{}
	once  sync.Once
}

// Accept implements net.Listener.
func (l *single) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		l.conn.closed = l.end
		return l.conn, nil
	}
	<-l.over
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *single) Close() error {
	l.end()
	return nil
}

// Addr implements net.Listener.
func (l *single) Addr() net.Addr { return l.conn.LocalAddr() }

func (l *single) end() { l.once.Do(func() { close(l.over) }) }

// relayed is a hijacked connection: what was read ahead of it comes first, and its traffic and its end are told.
type relayed struct {
	net.Conn
	first   io.Reader
	traffic func()
	closed  func()
}

// Read implements net.Conn.
func (c *relayed) Read(p []byte) (int, error) {
	n, err := c.first.Read(p) // the buffer reads on from the connection
	if n > 0 {
		c.traffic()
	}
	return n, err
}

// Write implements net.Conn.
func (c *relayed) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.traffic()
	}
	return n, err
}

// Close implements net.Conn.
func (c *relayed) Close() error {
	c.closed()
	return c.Conn.Close()
}
