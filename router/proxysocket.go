package router

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
)

// errJoined ends the way of an answer through the proxy: its connection and the caller's have been joined.
var errJoined = errors.New("the connections are joined")

// isSocket reports whether a request asks for a WebSocket, the only other protocol that goes through.
func isSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// join joins the caller's connection with the box's, whose answer takes the WebSocket, and returns while it goes on, so that a
// quiet one keeps two small goroutines and nothing of its request. It ends with either side, and when Access is closed, which
// waits for it; ended is called then.
func (s *server) join(w http.ResponseWriter, answer *http.Response, ended func()) error {
	box, ok := answer.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(answer.Header.Get("Upgrade"), "websocket") {
		return errors.New("the box has changed to another protocol than was asked for")
	}
	conn, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	answer.Body = http.NoBody // it is not the answer's any more
	if rec, ok := w.(*recorder); ok {
		rec.status = statusSwitching
	}
	var head bytes.Buffer
	header := w.Header().Clone()
	maps.Copy(header, answer.Header)
	_, _ = fmt.Fprintf(&head, "HTTP/1.1 %d Switching Protocols\r\n", answer.StatusCode)
	_ = header.Write(&head)
	_, _ = head.WriteString("\r\n")
	first := make([]byte, early.Reader.Buffered()) // what the caller sent without waiting for the answer
	_, _ = io.ReadFull(early.Reader, first)
	if _, err = conn.Write(head.Bytes()); err == nil {
		_, err = box.Write(first)
	}
	s.relayBoth(conn, box, ended)
	if err != nil {
		_ = conn.Close()
	}
	return errJoined
}

// relayBoth copies both ways until either side ends.
func (s *server) relayBoth(conn net.Conn, box io.ReadWriteCloser, ended func()) {
	end := func() {
		_ = conn.Close()
		_ = box.Close()
	}
	forget := s.Access.OnClose(end)
	done := make(chan struct{})
	go func() {
		defer close(done)
		copySlim(conn, box)
		end()
	}()
	go func() {
		copySlim(box, conn)
		end()
		<-done
		forget()
		ended()
	}()
}

// socketBuffer is the size of the buffers, in bytes: two a WebSocket. Most of the time there is nothing to copy.
const socketBuffer = 2 << 10

func copySlim(w io.Writer, r io.Reader) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, socketBuffer))
}
