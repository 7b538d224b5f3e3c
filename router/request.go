package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

// largestJSON bounds a JSON body, in bytes.
const largestJSON = 1 << 20

// body reads the JSON body and checks it; the error tells all that the check has found so far, in the path too. An absent
// body is {} where it is optional, else it is missing.
func (s *server) body(c *check, w http.ResponseWriter, r *http.Request, table rule, optional bool) (values, error) {
	raw, err := s.readBody(w, r, largestJSON)
	if err != nil {
		return nil, err
	}
	kind, _, noKind := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case len(raw) == 0 && optional:
		raw = []byte("{}")
	case len(raw) == 0:
		c.add("missing", loc{"body"}, "Field required", nil, nil)
		return nil, c.err()
	case noKind != nil || !isJSON(kind):
		return nil, unsupportedMedia("Content-Type must be application/json")
	}
	v, broken := decode(raw)
	if broken != nil {
		c.issues = append(c.issues, *broken)
		return nil, c.err()
	}
	if v == nil && !optional {
		c.add("missing", loc{"body"}, "Field required", nil, nil)
		return nil, c.err()
	}
	out, _ := table.check(c, loc{"body"}, v).(values)
	return out, c.err()
}

func isJSON(kind string) bool {
	return kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")
}

// bodyWithin is how long a body may take to arrive: half a minute brings the largest one over a poor line.
const bodyWithin = 30 * time.Second

// readBody reads a body of at most limit bytes. What is wrong is the caller's: it is too large (*http.MaxBytesError), it broke
// off, or it did not arrive within the deadline that record has set.
func (s *server) readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	big := new(http.MaxBytesError)
	switch {
	case err == nil, errors.As(err, &big):
		return raw, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, tooSlow(s.bodyWithin())
	}
	return nil, badRequest("The body could not be read to its end")
}

func (s *server) bodyWithin() time.Duration {
	if s.BodyWithin > 0 {
		return s.BodyWithin
	}
	return bodyWithin
}

// limitBody sets the deadline by which the body must have arrived; one that no handler reads is given up by then too. The
// server itself lifts it at the end of the body, so that the answer may take longer.
func (s *server) limitBody(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyWithin())) // not of a test's recorder
	}
}

// steady is a body that may be long, but must not stall: each read has a deadline of its own.
type steady struct {
	io.ReadCloser
	control *http.ResponseController
	within  time.Duration
	stalled atomic.Bool // for the transport does not pass the error on
}

// Read implements io.Reader.
func (b *steady) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.within))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		b.stalled.Store(true)
	} else if err != nil {
		_ = b.control.SetReadDeadline(time.Time{}) // it was read again after its end
	}
	return n, err
}

// Close leaves the body to the server, which drains and closes it: a request that nobody took is sent again.
func (b *steady) Close() error { return nil }

// decode returns one JSON value with exact numbers, or where it is broken.
func decode(raw []byte) (any, *issue) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		at, syntax := int64(len(raw)), new(json.SyntaxError)
		if errors.As(err, &syntax) && syntax.Offset < at {
			at = max(0, syntax.Offset-1)
		}
		return nil, notJSON(at, err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, notJSON(d.InputOffset(), "extra data after the value")
	}
	return v, nil
}

func notJSON(at int64, why string) *issue {
	return &issue{
		Type: "json_invalid", Loc: loc{"body", at}, Msg: "JSON decode error", Input: map[string]any{},
		Ctx: map[string]any{"error": why},
	}
}

// query checks the named parameters; others are not looked at. Of a repeated one the last counts, or all where many may be
// given.
func (c *check) query(r *http.Request, fields ...field) values {
	given, out := r.URL.Query(), values{}
	for _, f := range fields {
		at, v := loc{"query", f.name}, given[f.name]
		switch {
		case len(v) > 0 && f.many:
			var all []string
			for _, one := range v {
				word, _ := f.rule.check(c, at, one).(string)
				all = append(all, word)
			}
			out[f.name] = all
		case len(v) > 0:
			out[f.name] = f.rule.check(c, at, strings.ToValidUTF8(v[len(v)-1], "\uFFFD"))
		case f.required:
			c.add("missing", at, "Field required", nil, nil)
		case f.absent != nil:
			out[f.name] = f.absent
		}
	}
	return out
}

// page returns the limit and the offset of a list.
func page(in values) (limit, offset int) {
	return int(get[int64](in, "limit")), int(get[int64](in, "offset"))
}

// paging are the query parameters of every list.
var paging = []field{
	{name: "limit", rule: between(1, 100), absent: int64(50)},
	{name: "offset", rule: between(0, math.MaxInt32), absent: int64(0)},
}

// idOf returns the {id} of the path, unescaped.
func idOf(r *http.Request) string {
	raw := chi.URLParam(r, "id")
	if r.URL.RawPath == "" { // chi has matched the path that is unescaped already
		return raw
	}
	if s, err := url.PathUnescape(raw); err == nil {
		return s
	}
	return raw
}

// pathID reads the UUID in the path, in any form that UUIDs are written; label is the contract's name of the parameter.
func (c *check) pathID(r *http.Request, label string) uuid.UUID {
	id, _ := identifier.check(c, loc{"path", label}, idOf(r)).(uuid.UUID)
	return id
}
