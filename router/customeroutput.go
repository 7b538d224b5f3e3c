package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"automation/models/customer"
	"automation/session"
)

// Timing of readers of an agent's output.
const (
	rotateAfter = 110 * time.Second // a reader comes back then (S2-056)
	lineWithin  = 30 * time.Second  // for a write to a reader, who is cut off later
)

// largestPosition is the largest whole number that every client can tell from its neighbours.
const largestPosition = 1 << 53

// largestEmptyBody bounds the bodies of customers, which say nothing (S2-019).
const largestEmptyBody = 1 << 10

// emptyObject checks that a body is absent or {}.
func (s *server) emptyObject(w http.ResponseWriter, r *http.Request) error {
	raw, err := s.readBody(w, r, largestEmptyBody)
	if tooBig := new(http.MaxBytesError); errors.As(err, &tooBig) {
		return badRequest("The body must be absent or {}")
	}
	if err != nil || len(raw) == 0 {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil || len(fields) > 0 {
		return badRequest("The body must be absent or {}")
	}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !isJSON(strings.TrimSpace(kind)) {
		return badRequest("Content-Type must be application/json")
	}
	return nil
}

// outputQuery reads what a reader asks for (S2-049, S2-050, S2-073).
func outputQuery(query url.Values) (session.Reading, error) {
	what := session.Reading{Follow: true}
	for _, name := range []string{"session_id", "after", "follow"} {
		if len(query[name]) > 1 {
			return what, badRequest(name + " must be given once")
		}
	}
	what.SessionID = query.Get("session_id")
	if !customer.IsSessionID(what.SessionID) {
		return what, badRequest("session_id must be sxe_ and 24 lower-case hexadecimal digits")
	}
	if query.Has("after") {
		n, err := strconv.ParseUint(query.Get("after"), 10, 64)
		if err != nil || n > largestPosition || strings.HasPrefix(query.Get("after"), "+") {
			return what, badRequest("after must be a whole number from 0 to 2^53")
		}
		what.After = int64(n)
	}
	if query.Has("follow") {
		follow, err := strconv.ParseBool(query.Get("follow"))
		if err != nil {
			return what, badRequest("follow must be true or false")
		}
		what.Follow = follow
	}
	return what, nil
}

// agentOutput is GET …/agent/output (S2-048…073).
func (s *server) agentOutput(w http.ResponseWriter, r *http.Request, v visit) error {
	what, err := outputQuery(r.URL.Query())
	if err != nil {
		return err
	}
	present, err := s.present(r.Context(), v)
	switch {
	case err != nil:
		return err
	case present == nil:
		return agentNotStarted()
	case present.ID != what.SessionID:
		return sessionChanged()
	}
	what.Until = time.Now().Add(rotateAfter)
	control := http.NewResponseController(w)
	header := w.Header()
	err = s.Customers.Agents.Read(r.Context(), what, func(lines []byte) error {
		header.Set("Content-Type", "application/x-ndjson")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Accel-Buffering", "no")
		// It holds for the end of the answer too; the server lifts it afterwards. Not of a test's recorder.
		_ = control.SetWriteDeadline(time.Now().Add(lineWithin))
		if _, err := w.Write(lines); err != nil {
			return fmt.Errorf("send output: %w", err)
		}
		return control.Flush()
	})
	switch {
	case left(r): // who is gone needs no answer
		return nil
	case errors.Is(err, session.ErrAhead):
		return badRequest("after is beyond the newest line: give only what an answer gave")
	case errors.Is(err, session.ErrTooManyReaders):
		return agentUnavailable("sandbox_agent_unavailable", "The session has too many readers", 5*time.Second)
	}
	return err
}

// left reports whether the one who asked has gone.
func left(r *http.Request) bool { return r.Context().Err() != nil }
