package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// agentExport bounds the download of one history.
const agentExport = 10 * time.Minute

// conversationsMost bounds how many conversations of a box are read.
const conversationsMost = 10_000

// Conversations returns the ids of every conversation in the box, the oldest first. It does not move the idle clock.
func (a Agent) Conversations(ctx context.Context) ([]string, error) {
	var ids []string
	query := url.Values{"sort_order": {"CREATED_AT"}, "limit": {"100"}}
	for len(ids) < conversationsMost {
		var page struct {
			Items []struct {
				ID string `json:"id"`
			} `json:"items"`
			Next *string `json:"next_page_id"`
		}
		if err := a.get(ctx, "/api/conversations/search", query, &page); err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			ids = append(ids, item.ID)
		}
		if page.Next == nil || *page.Next == "" {
			return ids, nil
		}
		query.Set("page_id", *page.Next)
	}
	return nil, fmt.Errorf("the box lists more than %d conversations", conversationsMost)
}

// EventCount returns how many events a conversation has.
func (a Agent) EventCount(ctx context.Context, conversationID string) (int, error) {
	var n int
	err := a.get(ctx, "/api/conversations/"+url.PathEscape(conversationID)+"/events/count", nil, &n)
	return n, err
}

// Trajectory writes the history of a conversation, a zip, to w: at most limit bytes, else ErrHistoryTooLarge. It does not move
// the idle clock.
func (a Agent) Trajectory(ctx context.Context, conversationID string, w io.Writer, limit int64) (int64, error) {
	call, cancel := context.WithTimeout(ctx, agentExport)
	defer cancel()
	request := agentRequest{method: http.MethodGet, path: "/api/file/download-trajectory/" + url.PathEscape(conversationID)}
	response, err := a.send(call, ctx, request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.ContentLength > limit {
		return 0, fmt.Errorf("%w: %d bytes of %d", ErrHistoryTooLarge, response.ContentLength, limit)
	}
	body := &broken{Reader: io.LimitReader(response.Body, limit+1)}
	n, err := io.Copy(w, body)
	switch {
	case body.err != nil:
		return n, a.transportError(ctx, request, body.err)
	case err != nil:
		return n, err
	case n > limit:
		return n, fmt.Errorf("%w: more than %d bytes", ErrHistoryTooLarge, limit)
	}
	return n, nil
}

// broken remembers why its reader broke off, so that it is told from a writer's error.
type broken struct {
	io.Reader
	err error
}

// Read reads on.
func (b *broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// notThere reports whether the agent server answered that there is no such thing.
func notThere(err error) bool {
	answer, ok := errors.AsType[*AgentError](err)
	return ok && answer.Status == http.StatusNotFound
}
