package agentserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
)

// encodeJSON encodes like the contract's server: compact, and with < > & as they are.
func encodeJSON(value any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}

// respond writes a JSON answer.
func respond(w http.ResponseWriter, status int, value any) {
	body, err := encodeJSON(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error","exception":"answer cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON by its content type; a reader that is gone needs no answer
}

// success is the answer of a call that has nothing else to say.
type success struct {
	Success bool `json:"success"`
}

// detail is the body of every 4xx but 422.
type detail struct {
	Detail string `json:"detail"`
}

func refuse(w http.ResponseWriter, status int, text string) { respond(w, status, detail{text}) }

func notFound(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "Not Found") }

// internalError is the contract's 5xx: the useful text is in exception.
func internalError(w http.ResponseWriter, exception string) {
	respond(w, http.StatusInternalServerError, struct {
		Detail    string `json:"detail"`
		Exception string `json:"exception"`
	}{"Internal Server Error", exception})
}

// invalid is one problem of a 422.
type invalid struct {
	Type    string         `json:"type"`
	Loc     []any          `json:"loc"`
	Msg     string         `json:"msg"`
	Input   any            `json:"input"`
	Context map[string]any `json:"ctx,omitempty"`
}

func unprocessable(w http.ResponseWriter, problems []invalid) {
	respond(w, http.StatusUnprocessableEntity, struct {
		Detail []invalid `json:"detail"`
	}{problems})
}

func missing(loc ...any) invalid {
	return invalid{Type: "missing", Loc: loc, Msg: "Field required"}
}

// recovered turns a panic of a handler into a 500, so that one bad request ends no other (http.ErrAbortHandler goes on).
func recovered(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(cause)
			}
			log.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "error", cause)
			internalError(w, "500: unexpected error")
		}()
		next.ServeHTTP(w, r)
	})
}
