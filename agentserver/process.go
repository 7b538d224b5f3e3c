package agentserver

import (
	"errors"
	"net/http"
	"time"

	"automation/agentserver/command"
)

// Timing of a reader of process output: a keepalive line after so much silence (S2-069), and how long a write may take.
const (
	keepaliveAfter = 15 * time.Second
	writeBudget    = 30 * time.Second
)

// processOutput streams what a command prints as NDJSON, from the line after `after` on, until its exit line, or, with
// follow=false, what there is. The stream ends without an exit line when the server stops: the reader comes back with the
// last seq it has. Reading is no activity.
func (s *Server) processOutput(w http.ResponseWriter, r *http.Request) {
	var check fields
	params := r.URL.Query()
	after, given := check.integer(params, "after")
	if given && after < 0 {
		check.add(invalid{"greater_than_equal", []any{"query", "after"}, "Input should be greater than or equal to 0", params.Get("after"), map[string]any{"ge": 0}})
	}
	follow := check.boolean(params, "follow", true)
	id := check.id(r.PathValue("id"), "path", "id")
	if check.answered(w) {
		return
	}
	newest, err := s.commands.NewestSeq(id)
	if errors.Is(err, command.ErrUnknown) {
		notFound(w)
		return
	}
	if after > newest {
		refuse(w, http.StatusBadRequest, "after is beyond the newest line")
		return
	}
	cursor, err := s.commands.Output(id, after)
	if err != nil {
		notFound(w)
		return
	}
	defer cursor.Close()
	header := w.Header()
	header.Set("Content-Type", "application/x-ndjson")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	s.stream(w, r, cursor, follow)
}

// stream writes lines until the end, or until there is nothing more to wait for.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, cursor *command.Cursor, follow bool) {
	out := http.NewResponseController(w)
	quiet := time.NewTimer(keepaliveAfter)
	defer quiet.Stop()
	write := func(line []byte) error {
		_ = out.SetWriteDeadline(time.Now().Add(writeBudget)) // a writer without deadlines is a test's
		_, err := w.Write(line)
		return err
	}
	for {
		done, changed, err := cursor.Read(write)
		if err != nil {
			panic(http.ErrAbortHandler) // cut, so that nobody takes it for an orderly end
		}
		_ = out.Flush() // an error shows at the next write
		if done || !follow {
			break
		}
		quiet.Reset(keepaliveAfter)
		select {
		case <-changed:
		case <-quiet.C:
			if err := write([]byte("{\"type\":\"keepalive\"}\n")); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.stopping.Done():
			return
		}
	}
	_ = out.SetWriteDeadline(time.Time{})
}
