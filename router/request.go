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
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

// largestJSON bounds a JSON body, in bytes.
const largestJSON = 1 << 20

// body reads the JSON body and checks it; the error tells all that the check has found so far, in the path too. An absent
// body is {} where it is optional, else it is missing.
func (c *check) body(w http.ResponseWriter, r *http.Request, table rule, optional bool) (values, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestJSON))
	if err != nil {
		return nil, readError(err)
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

// readError tells a body that is too large from one that broke off or came too slowly: both are the caller's.
func readError(err error) error {
	if big := new(http.MaxBytesError); errors.As(err, &big) {
		return err
	}
	return badRequest("The body could not be read to its end")
}

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

// pathParam returns a path parameter unescaped.
func pathParam(r *http.Request, name string) string {
	raw := chi.URLParam(r, name)
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
	id, _ := identifier.check(c, loc{"path", label}, pathParam(r, "id")).(uuid.UUID)
	return id
}
