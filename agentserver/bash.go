package agentserver

import (
	"errors"
	"net/http"
	"time"

	"automation/agentserver/command"
)

// defaultTimeout is the time in seconds that a command gets when the request names none.
const defaultTimeout = 300

// mostKey is the longest key of a start, in bytes.
const mostKey = 255

// bashRequest reads and checks the body of a start. false: the answer has been written.
func bashRequest(w http.ResponseWriter, r *http.Request) (command.Spec, bool) {
	body, ok := readBody(w, r)
	if !ok {
		return command.Spec{}, false
	}
	if body == nil {
		unprocessable(w, []invalid{missing("body")})
		return command.Spec{}, false
	}
	var check fields
	var spec command.Spec
	if _, there := body["command"]; there {
		if spec.Command, ok = check.text(body, "command"); !ok && body["command"] == nil {
			check.add(invalid{Type: "string_type", Loc: []any{"body", "command"}, Msg: "Input should be a valid string"})
		}
	} else {
		problem := missing("body", "command")
		problem.Input = body
		check.add(problem)
	}
	if cwd, there := check.text(body, "cwd"); there {
		spec.Cwd = &cwd
	}
	spec.Timeout = check.whole(body, "timeout", defaultTimeout)
	if spec.Key, _ = check.text(body, "idempotency_key"); len(spec.Key) > mostKey { // ours: start_once_v1
		check.add(invalid{"string_too_long", []any{"body", "idempotency_key"}, "String should have at most 255 characters", spec.Key, map[string]any{"max_length": mostKey}})
	}
	return spec, !check.answered(w)
}

// startBash starts a command and answers at once.
func (s *Server) startBash(w http.ResponseWriter, r *http.Request) {
	if started, ok := s.begin(w, r); ok {
		respond(w, http.StatusOK, started)
	}
}

// executeBash starts a command, waits for its end and answers with all of its output. The command goes on when the caller
// gives up.
func (s *Server) executeBash(w http.ResponseWriter, r *http.Request) {
	started, ok := s.begin(w, r)
	if !ok {
		return
	}
	whole, err := s.commands.Wait(r.Context(), started.ID)
	if err != nil {
		internalError(w, "500: "+err.Error())
		return
	}
	respond(w, http.StatusOK, whole)
}

func (s *Server) begin(w http.ResponseWriter, r *http.Request) (command.Started, bool) {
	spec, ok := bashRequest(w, r)
	if !ok {
		return command.Started{}, false
	}
	started, err := s.commands.Start(spec)
	if err != nil {
		respond(w, http.StatusServiceUnavailable, detail{"Server is stopping"})
	}
	return started, err == nil
}

// mostGrace is the longest grace that a stop may give, in seconds.
const mostGrace = 60

// stopBash ends a command and everything that came from it; ?grace= is for how many seconds it may take its time after the
// SIGTERM.
func (s *Server) stopBash(w http.ResponseWriter, r *http.Request) {
	var check fields
	id := check.id(r.PathValue("id"), "path", "command_id")
	grace := command.StopGrace
	if n, given := check.integer(r.URL.Query(), "grace"); given && n >= 0 && n <= mostGrace {
		grace = time.Duration(n) * time.Second
	} else if given {
		check.add(invalid{"less_than_equal", []any{"query", "grace"}, "Input should be from 0 to 60", r.URL.Query().Get("grace"), map[string]any{"ge": 0, "le": mostGrace}})
	}
	if check.answered(w) {
		return
	}
	s.idle.touch()
	err := s.commands.Stop(r.Context(), id, grace)
	switch {
	case errors.Is(err, command.ErrUnknown):
		notFound(w)
	case err != nil:
		internalError(w, "500: "+err.Error())
	default:
		respond(w, http.StatusOK, success{true})
	}
}

// searchBash lists events, a page at a time. The page is written event by event: together they may hold many MiB of text.
func (s *Server) searchBash(w http.ResponseWriter, r *http.Request) {
	var check fields
	params := r.URL.Query()
	query := command.Query{
		Kind:       check.oneOf(params, "kind__eq", "literal_error", command.KindCommand, command.KindOutput),
		Since:      check.moment(params, "timestamp__gte"),
		Before:     check.moment(params, "timestamp__lt"),
		Descending: check.oneOf(params, "sort_order", "enum", "TIMESTAMP", "TIMESTAMP_DESC") == "TIMESTAMP_DESC",
		PageID:     params.Get("page_id"),
		Limit:      check.limit(params),
	}
	if params.Has("command_id__eq") {
		query.CommandID = check.id(params.Get("command_id__eq"), "query", "command_id__eq")
	}
	if order, ok := check.integer(params, "order__gt"); ok {
		above := int(order)
		query.OrderAbove = &above
	}
	if check.answered(w) {
		return
	}
	page, next := s.commands.Search(query)
	w.Header().Set("Content-Type", "application/json")
	separator := `{"items":[`
	for _, event := range page {
		item, err := encodeJSON(event.Wire())
		if err == nil {
			_, err = w.Write(append([]byte(separator), item...))
		}
		if err != nil {
			panic(http.ErrAbortHandler) // cut, so that nobody takes half a page for a whole one
		}
		separator = ","
	}
	if len(page) > 0 {
		separator = ""
	}
	tail := []byte("null")
	if next != "" {
		tail, _ = encodeJSON(next) // a text can always be encoded
	}
	_, _ = w.Write([]byte(separator + `],"next_page_id":` + string(tail) + "}")) // a reader that is gone needs no answer
}

// getBash is one event. Its id matches as it was given out only, without dashes.
func (s *Server) getBash(w http.ResponseWriter, r *http.Request) {
	event, ok := s.commands.Event(r.PathValue("id"))
	if !ok {
		notFound(w)
		return
	}
	respond(w, http.StatusOK, event.Wire())
}

// clearBash forgets the finished commands; like every maintenance it is no activity.
func (s *Server) clearBash(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, map[string]int{"cleared_count": s.commands.Clear()})
}
