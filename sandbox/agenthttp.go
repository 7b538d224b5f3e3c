package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrUnreachable means that the agent server of a box gave no answer at all: no connection, a broken one, or none in time.
var ErrUnreachable = errors.New("agent server of the box is unreachable")

// AgentError is an answer of an agent server outside 2xx.
type AgentError struct {
	Op     string // what was asked: "POST /api/bash/start_bash_command"
	Status int
	Detail string // the useful text: `detail` of a 4xx, `exception` of a 5xx
}

// Error says what was asked and what the answer was.
func (e *AgentError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.Op, e.Status, e.Detail)
}

// Refused reports whether the server definitely refused the request, so that nothing was done and a repeat is no use.
func (e *AgentError) Refused() bool {
	return e.Status >= 400 && e.Status < 500 && e.Status != http.StatusRequestTimeout && e.Status != http.StatusTooManyRequests
}

// NeverDone reports whether err proves that the request had no effect: it was refused, or no connection was ever made.
// After anything else the request may have been carried out.
func NeverDone(err error) bool {
	if answer, ok := errors.AsType[*AgentError](err); ok {
		return answer.Refused()
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

var sharedAgentHTTP = &http.Client{
	Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		MaxIdleConnsPerHost:   2,
		IdleConnTimeout:       15 * time.Second,
		ResponseHeaderTimeout: agentUpload,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

type agentRequest struct {
	method      string
	path        string
	query       url.Values
	body        io.Reader
	contentType string
	within      time.Duration
	limit       int64
}

func (a Agent) get(ctx context.Context, path string, query url.Values, answer any) error {
	return a.do(ctx, agentRequest{method: http.MethodGet, path: path, query: query, within: agentCall}, answer)
}

func (a Agent) post(ctx context.Context, path string, body, answer any, within time.Duration) error {
	req := agentRequest{method: http.MethodPost, path: path, within: within}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		req.body, req.contentType = bytes.NewReader(text), "application/json"
	}
	return a.do(ctx, req, answer)
}

// do sends one request and decodes its JSON answer into answer (nil: ignored).
func (a Agent) do(ctx context.Context, r agentRequest, answer any) error {
	call, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	resp, err := a.send(call, ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	limit := r.limit
	if limit == 0 {
		limit = agentAnswerBytes
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return a.transportError(ctx, r, err)
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("%s %s: answer above %d bytes", r.method, r.path, limit)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: answer is no JSON: %w", r.method, r.path, err)
	}
	return nil
}

// send returns a 2xx response whose body the caller closes. call ends with the request's own deadline, ctx is the caller's.
func (a Agent) send(call, ctx context.Context, r agentRequest) (*http.Response, error) {
	target := strings.TrimRight(a.URL, "/") + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(call, r.method, target, r.body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %w", r.method, r.path, ErrUnreachable, err)
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if a.Key != "" {
		req.Header.Set("X-Session-API-Key", a.Key)
	}
	client := a.HTTP
	if client == nil {
		client = sharedAgentHTTP
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, a.transportError(ctx, r, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return nil, &AgentError{Op: r.method + " " + r.path, Status: resp.StatusCode, Detail: answerText(text)}
}

// transportError tells a caller that gave up from a box that did not answer.
func (a Agent) transportError(ctx context.Context, r agentRequest, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, ctx.Err())
	}
	if inner, ok := errors.AsType[*url.Error](err); ok { // its text repeats the whole URL, query included
		err = inner.Err
	}
	return fmt.Errorf("%s %s: %w: %w", r.method, r.path, ErrUnreachable, err)
}

// answerText digs the useful text out of an error answer: `exception` of a 5xx, `detail` otherwise, else the start of it.
func answerText(body []byte) string {
	var answer struct {
		Detail    json.RawMessage `json:"detail"`
		Exception string          `json:"exception"`
	}
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &answer) == nil {
		var detail string
		switch {
		case answer.Exception != "":
			text = answer.Exception
		case json.Unmarshal(answer.Detail, &detail) == nil:
			text = detail
		case len(answer.Detail) > 0:
			text = string(answer.Detail)
		}
	}
	return clip(text, 500)
}

// clip cuts a text to n bytes, and on a character's boundary.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// itoa is short for the decimal text of a query value.
func itoa(n int64) string { return strconv.FormatInt(n, 10) }
