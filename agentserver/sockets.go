package agentserver

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"automation/agentserver/conversation"
)

// Codes with which a socket is closed: those of the contract, and one of ours for an archived conversation, which the
// contract's server closes like any failure (S0-049).
const (
	closeUnauthorized websocket.StatusCode = 4001
	closeUnknown      websocket.StatusCode = 4004
	closeArchived     websocket.StatusCode = 4010
)

// Timing of a socket: how long a client may take to say its key, how often the history is looked at for more, and how long a
// frame may take to be written.
const (
	authBudget  = 10 * time.Second
	socketLook  = 500 * time.Millisecond
	frameBudget = 30 * time.Second
)

// socket is one client that follows a conversation.
type socket struct {
	*websocket.Conn
	id    string                                   // of the conversation, as on disk
	frame func(seq int, event json.RawMessage) any // how an event is sent
	sent  int                                      // events that have been sent or were not asked for
}

// eventSocket follows the events of a conversation: all there are with resend_mode=all, those after a moment with since, and
// in any case those that come.
func (s *Server) eventSocket(w http.ResponseWriter, r *http.Request) {
	var check fields
	mode := check.oneOf(r.URL.Query(), "resend_mode", "enum", "all", "since")
	after := check.moment(r.URL.Query(), "after_timestamp")
	if check.answered(w) {
		return
	}
	s.follow(w, r, func(c *socket) error {
		c.frame = func(_ int, event json.RawMessage) any { return event }
		names, err := s.histories.Events(c.id)
		if err != nil || mode == "all" {
			return err
		}
		c.sent = len(names)
		for mode == "since" && c.sent > 0 && s.happenedAfter(c.id, names[c.sent-1], after) {
			c.sent--
		}
		return nil
	})
}

// happenedAfter reports whether an event is later than a moment; one without a time counts as later.
func (s *Server) happenedAfter(id, name string, moment time.Time) bool {
	var event struct {
		Timestamp string `json:"timestamp"`
	}
	text, err := s.histories.Event(id, name)
	if err != nil || json.Unmarshal(text, &event) != nil {
		return true
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999"} { // the contract's events carry no zone
		if at, err := time.Parse(layout, event.Timestamp); err == nil {
			return at.After(moment)
		}
	}
	return true
}

// sessionSocket follows a conversation by the numbers of its events, from the one after after_seq on.
func (s *Server) sessionSocket(w http.ResponseWriter, r *http.Request) {
	var check fields
	after, given := check.integer(r.URL.Query(), "after_seq")
	if check.answered(w) {
		return
	}
	s.follow(w, r, func(c *socket) error {
		c.frame = func(seq int, event json.RawMessage) any {
			return map[string]any{"type": "durable", "seq": seq, "event": event}
		}
		names, err := s.histories.Events(c.id)
		if err != nil {
			return err
		}
		sync := map[string]any{"type": "sync", "through_seq": len(names) - 1}
		c.sent = len(names)
		if given {
			sync["from_seq"] = after
			c.sent = int(min(max(after+1, 0), int64(len(names))))
		}
		return c.send(r.Context(), sync)
	})
}

// follow accepts a socket, lets it in, and sends events until it is closed, by the client, by the server's stop, or because
// the conversation is archived or gone. begin says where to start.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, begin func(*socket) error) {
	header, query := r.Header.Get("X-Session-API-Key"), r.URL.Query().Get("session_api_key")
	asked := header == "" && query == "" && len(s.keys) > 0 // then the first frame says it
	if !asked && !s.keys.open(header) && !s.keys.open(query) {
		refuse(w, http.StatusForbidden, "Forbidden")
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: len(s.keys) > 0}) // a key is no cookie
	if err != nil {
		return // answered
	}
	defer conn.CloseNow() //nolint:errcheck // closed before, or gone
	c := &socket{Conn: conn, id: conversation.Plain(r.PathValue("id"))}
	if asked && !s.authenticated(r.Context(), conn) {
		c.end(closeUnauthorized, "Authentication failed")
		return
	}
	if !s.stillOpen(r, c) {
		return
	}
	// What a client sends beside its key would have an agent work, and this server runs none. Reading ends with the client.
	gone := conn.CloseRead(r.Context())
	if err := begin(c); err != nil {
		c.end(websocket.StatusInternalError, "the history cannot be read")
		return
	}
	s.sendEvents(r.WithContext(gone), c)
}

func (s *Server) sendEvents(r *http.Request, c *socket) {
	look := time.NewTicker(socketLook)
	defer look.Stop()
	for s.stillOpen(r, c) {
		if err := s.sendNew(r.Context(), c); err != nil {
			c.end(websocket.StatusInternalError, "the history cannot be read")
			return
		}
		select {
		case <-look.C:
		case <-r.Context().Done():
			return
		case <-s.stopping.Done():
			c.end(websocket.StatusGoingAway, "the server stops")
			return
		}
	}
}

// sendNew sends the events that have come.
func (s *Server) sendNew(ctx context.Context, c *socket) error {
	names, err := s.histories.Events(c.id)
	if err != nil {
		return err
	}
	for ; c.sent < len(names); c.sent++ {
		event, err := s.histories.Event(c.id, names[c.sent])
		if err != nil {
			s.log.Warn("event left out", "conversation_id", conversation.Dashed(c.id), "error", err)
			continue
		}
		if err := c.send(ctx, c.frame(c.sent, event)); err != nil {
			return err
		}
	}
	return nil
}

// stillOpen reports whether the conversation can be followed, and closes the socket if not.
func (s *Server) stillOpen(r *http.Request, c *socket) bool {
	if r.Context().Err() != nil {
		return false
	}
	_, err := s.histories.Get(c.id, s.now())
	switch {
	case s.storage.Archived(c.id):
		c.end(closeArchived, readOnly)
	case errors.Is(err, fs.ErrNotExist):
		c.end(closeUnknown, "Conversation not found")
	case err != nil:
		c.end(websocket.StatusInternalError, "the conversation cannot be read")
	default:
		return true
	}
	return false
}

// authenticated reads the first frame, which must bring one of the session keys.
func (s *Server) authenticated(ctx context.Context, conn *websocket.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, authBudget)
	defer cancel()
	_, text, err := conn.Read(ctx)
	var frame struct {
		Type string `json:"type"`
		Key  string `json:"session_api_key"`
	}
	return err == nil && json.Unmarshal(text, &frame) == nil && frame.Type == "auth" && s.keys.open(frame.Key)
}

func (c *socket) send(ctx context.Context, frame any) error {
	text, err := encodeJSON(frame)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, frameBudget)
	defer cancel()
	return c.Write(ctx, websocket.MessageText, text)
}

// end closes the socket with a code; a client that is gone needs none.
func (c *socket) end(code websocket.StatusCode, reason string) { _ = c.Close(code, reason) }

// sockets is the table of the routes that check the session key themselves: it may come in the first frame.
func (s *Server) sockets() map[string]methods {
	return map[string]methods{
		"/sockets/events/{id}":  {"GET": s.eventSocket},
		"/sockets/session/{id}": {"GET": s.sessionSocket},
	}
}
