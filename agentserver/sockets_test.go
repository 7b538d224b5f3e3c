package agentserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// dial opens a socket of the box.
func (b *box) dial(path string, header http.Header) (*websocket.Conn, *http.Response, error) {
	b.t.Helper()
	web := httptest.NewServer(b.web)
	b.t.Cleanup(web.Close)
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	b.t.Cleanup(cancel)
	conn, answer, err := websocket.Dial(ctx, strings.Replace(web.URL, "http", "ws", 1)+path, &websocket.DialOptions{HTTPHeader: header})
	if err == nil {
		b.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, answer, err
}

var key = http.Header{"X-Session-Api-Key": []string{"key-two"}}

func (b *box) read(conn *websocket.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	_, text, err := conn.Read(ctx)
	return string(text), err
}

func (b *box) wantFrame(conn *websocket.Conn, frame string) {
	b.t.Helper()
	text, err := b.read(conn)
	require.NoError(b.t, err)
	require.JSONEq(b.t, frame, text)
}

func (b *box) wantClosed(conn *websocket.Conn, code websocket.StatusCode, reason string) {
	b.t.Helper()
	_, err := b.read(conn)
	var closed websocket.CloseError
	require.ErrorAs(b.t, err, &closed)
	require.Equal(b.t, code, closed.Code)
	require.Contains(b.t, closed.Reason, reason)
}

// event adds one to the conversation's history, as another server would: whole.
func (b *box) event(n int, at string) {
	b.t.Helper()
	dir := filepath.Join(b.home, "histories", strings.ReplaceAll(firstID, "-", ""), "events")
	name := filepath.Join(dir, fmt.Sprintf("event-%05d-x.json", n))
	b.write(name+".tmp", fmt.Sprintf(`{"n":%d,"timestamp":%q}`, n, at))
	require.NoError(b.t, os.Rename(name+".tmp", name))
}

func TestS0_049_ASocketOfAnArchivedConversationIsClosedWithACodeOfItsOwn(t *testing.T) {
	b := newBox(t, withRuntimes)
	require.Equal(t, 201, b.create(firstID, ""))
	data := filepath.Join(b.home, ".openhands/runtime-data", strings.ReplaceAll(firstID, "-", ""))
	require.NoError(t, os.MkdirAll(filepath.Join(data, "workspace"), 0o700))
	b.event(0, "2026-06-01T12:00:00")
	open, _, err := b.dial("/sockets/events/"+firstID+"?resend_mode=all", key)
	require.NoError(t, err)
	b.wantFrame(open, `{"n":0,"timestamp":"2026-06-01T12:00:00"}`)
	require.Contains(t, b.send("POST", "/api/storage/reclaim", `{"tier":"runtime","conversation_ids":["`+firstID+`"]}`).Body.String(), `"moved"`)
	b.wantClosed(open, 4010, "read-only")
	for _, path := range []string{"/sockets/events/", "/sockets/session/"} {
		late, _, err := b.dial(path+firstID, key)
		require.NoError(t, err)
		b.wantClosed(late, 4010, "read-only")
	}
	require.Equal(t, 410, b.send("POST", "/api/conversations/"+firstID+"/unarchive", "").Code, "its deletion has begun")
}

func TestSocketsLetInByHeaderQueryOrFirstFrame(t *testing.T) {
	b := newBox(t, withHistories)
	require.Equal(t, 201, b.create(firstID, ""))
	for name, frame := range map[string]string{"wrong": `{"type":"auth","session_api_key":"zz"}`, "no JSON": "x", "another type": `{"type":"x","session_api_key":"key-one"}`} {
		conn, _, err := b.dial("/sockets/events/"+firstID, nil)
		require.NoError(t, err, name)
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(frame)))
		b.wantClosed(conn, 4001, "Authentication failed")
	}
	for _, path := range []string{"?session_api_key=zz"} {
		_, answer, err := b.dial("/sockets/events/"+firstID+path, nil)
		require.Error(t, err)
		require.Equal(t, 403, answer.StatusCode)
	}
	b.event(0, "2026-06-01T12:00:00")
	first, _, err := b.dial("/sockets/events/"+firstID+"?resend_mode=all", nil)
	require.NoError(t, err)
	require.NoError(t, first.Write(t.Context(), websocket.MessageText, []byte(`{"type":"auth","session_api_key":"key-one"}`)))
	b.wantFrame(first, `{"n":0,"timestamp":"2026-06-01T12:00:00"}`)
	query, _, err := b.dial("/sockets/events/"+firstID+"?resend_mode=all&session_api_key=key-one", nil)
	require.NoError(t, err)
	b.wantFrame(query, `{"n":0,"timestamp":"2026-06-01T12:00:00"}`)
	unknown, _, err := b.dial("/sockets/events/"+secondID, key)
	require.NoError(t, err)
	b.wantClosed(unknown, 4004, "Conversation not found")
}

func TestSocketsResumeAndFollow(t *testing.T) {
	b := newBox(t, withHistories)
	require.Equal(t, 201, b.create(firstID, ""))
	for n := range 3 {
		b.event(n, fmt.Sprintf("2026-06-01T12:00:0%d", n))
	}
	since, _, err := b.dial("/sockets/events/"+firstID+"?resend_mode=since&after_timestamp=2026-06-01T12:00:01", key)
	require.NoError(t, err)
	b.wantFrame(since, `{"n":2,"timestamp":"2026-06-01T12:00:02"}`)
	session, _, err := b.dial("/sockets/session/"+firstID+"?after_seq=1", key)
	require.NoError(t, err)
	b.wantFrame(session, `{"type":"sync","from_seq":1,"through_seq":2}`)
	b.wantFrame(session, `{"type":"durable","seq":2,"event":{"n":2,"timestamp":"2026-06-01T12:00:02"}}`)
	fresh, _, err := b.dial("/sockets/session/"+firstID, key)
	require.NoError(t, err)
	b.wantFrame(fresh, `{"type":"sync","through_seq":2}`)
	b.event(3, "2026-06-01T12:00:03")
	for _, conn := range []*websocket.Conn{session, fresh} {
		text, err := b.read(conn)
		require.NoError(t, err)
		var frame struct{ Seq int }
		require.NoError(t, json.Unmarshal([]byte(text), &frame))
		require.Equal(t, 3, frame.Seq)
	}
	b.wantFrame(since, `{"n":3,"timestamp":"2026-06-01T12:00:03"}`)
	b.clock.advance(7 * time.Second)
	require.Equal(t, 7, b.idleSeconds(), "following is no activity")
	b.Stop()
	b.wantClosed(since, websocket.StatusGoingAway, "")
}
