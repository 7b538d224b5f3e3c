package agentserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bodyLimit is the most of a JSON body that is read; a command above 128 KiB could not be started anyway.
const bodyLimit = 1 << 20

// fields checks the parts of one request, query or body, and collects what is wrong with them, in the shapes of the contract.
type fields struct {
	problems []invalid
}

func (f *fields) add(p invalid) { f.problems = append(f.problems, p) }

// answered writes the 422 if anything was wrong.
func (f *fields) answered(w http.ResponseWriter) bool {
	if len(f.problems) == 0 {
		return false
	}
	unprocessable(w, f.problems)
	return true
}

// path is the parameter of the file routes; it must be there.
func (f *fields) path(query url.Values) string {
	if !query.Has("path") {
		f.add(missing("query", "path"))
	}
	return query.Get("path")
}

// oneOf is a parameter with a closed list of values.
func (f *fields) oneOf(query url.Values, name, kind string, values ...string) string {
	value := query.Get(name)
	if !query.Has(name) {
		return ""
	}
	if slices.Contains(values, value) {
		return value
	}
	f.add(notOneOf([]any{"query", name}, value, kind, values))
	return ""
}

func notOneOf(loc []any, input any, kind string, values []string) invalid {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = "'" + value + "'"
	}
	expected := strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
	return invalid{kind, loc, "Input should be " + expected, input, map[string]any{"expected": expected}}
}

// integer is an integer parameter; ok is false when it is not there.
func (f *fields) integer(query url.Values, name string) (n int64, ok bool) {
	if !query.Has(name) {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(query.Get(name)), 10, 64)
	if err != nil {
		f.add(invalid{Type: "int_parsing", Loc: []any{"query", name}, Msg: "Input should be a valid integer, unable to parse string as an integer", Input: query.Get(name)})
	}
	return n, err == nil
}

// limit is the size of a page: 1…100, 100 when not given.
func (f *fields) limit(query url.Values) int {
	const most = 100
	n, ok := f.integer(query, "limit")
	switch {
	case !ok:
		return most
	case n > most:
		f.add(invalid{"less_than_equal", []any{"query", "limit"}, "Input should be less than or equal to 100", query.Get("limit"), map[string]any{"le": most}})
	case n <= 0:
		f.add(invalid{"greater_than", []any{"query", "limit"}, "Input should be greater than 0", query.Get("limit"), map[string]any{"gt": 0}})
	}
	return int(min(max(n, 1), most))
}

// boolean is a parameter that is false when not given.
func (f *fields) boolean(query url.Values, name string, fallback bool) bool {
	if !query.Has(name) {
		return fallback
	}
	switch strings.ToLower(query.Get(name)) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	case "0", "false", "f", "no", "n", "off":
		return false
	}
	f.add(invalid{Type: "bool_parsing", Loc: []any{"query", name}, Msg: "Input should be a valid boolean, unable to interpret input", Input: query.Get(name)})
	return fallback
}

// moment is a point in time; one without a zone is UTC. Zero when not given.
func (f *fields) moment(query url.Values, name string) time.Time {
	if !query.Has(name) {
		return time.Time{}
	}
	text := strings.ReplaceAll(query.Get(name), " ", "T") // an offset's + that was not escaped is none of our business
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC()
		}
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(seconds) < 1e11 {
		return time.UnixMicro(int64(seconds * 1e6)).UTC()
	}
	const cause = "input is not a moment"
	f.add(invalid{"datetime_from_date_parsing", []any{"query", name}, "Input should be a valid datetime or date, " + cause, query.Get(name), map[string]any{"error": cause}})
	return time.Time{}
}

// id is a command's id: 32 hexadecimal digits, with or without dashes, returned without.
func (f *fields) id(text string, loc ...any) string {
	plain := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	cause := ""
	for i, c := range text {
		if c != '-' && !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			cause = fmt.Sprintf("invalid character: found `%c` at %d", c, i)
			break
		}
	}
	if cause == "" && len(plain) != 32 {
		cause = fmt.Sprintf("invalid length: expected length 32 for simple format, found %d", len(plain))
	}
	if cause != "" {
		f.add(invalid{"uuid_parsing", loc, "Input should be a valid UUID, " + cause, text, map[string]any{"error": cause}})
	}
	return plain
}

// body reads a JSON object. false: the answer has been written. An empty body is nil.
func readBody(w http.ResponseWriter, r *http.Request) (object map[string]any, ok bool) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		refuse(w, http.StatusRequestEntityTooLarge, "Request body is too large")
		return nil, false
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "There was an error parsing the body")
		return nil, false
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, true
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err == nil {
		_, err = decoder.Token()
		if !errors.Is(err, io.EOF) {
			unprocessable(w, []invalid{badJSON(int(decoder.InputOffset()), "Extra data")})
			return nil, false
		}
	} else {
		unprocessable(w, []invalid{syntaxProblem(err, len(text))})
		return nil, false
	}
	object, isObject := value.(map[string]any)
	if !isObject {
		unprocessable(w, []invalid{{
			Type: "model_attributes_type", Loc: []any{"body"},
			Msg: "Input should be a valid dictionary or object to extract fields from", Input: value,
		}})
	}
	return object, isObject
}

func badJSON(at int, cause string) invalid {
	return invalid{"json_invalid", []any{"body", at}, "JSON decode error", map[string]any{}, map[string]any{"error": cause}}
}

// syntaxProblem says in the contract's words what is wrong with a JSON text, and where.
func syntaxProblem(err error, length int) invalid {
	at, text := length, err.Error()
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = max(0, int(syntax.Offset)-1)
	}
	for _, phrase := range []struct{ ours, theirs string }{
		{"looking for beginning of object key", "Expecting property name enclosed in double quotes"},
		{"after object key:value pair", "Expecting ',' delimiter"},
		{"after object key", "Expecting ':' delimiter"},
		{"after array element", "Expecting ',' delimiter"},
		{"in string", "Invalid control character at"},
	} {
		if strings.Contains(text, phrase.ours) {
			return badJSON(at, phrase.theirs)
		}
	}
	return badJSON(at, "Expecting value")
}

// text is a member of a body that must be a text; ok is false when it is not there or null.
func (f *fields) text(body map[string]any, name string) (text string, ok bool) {
	value := body[name]
	if value == nil {
		return "", false
	}
	text, ok = value.(string)
	if !ok {
		f.add(invalid{Type: "string_type", Loc: []any{"body", name}, Msg: "Input should be a valid string", Input: value})
	}
	return text, ok
}

// whole is a member of a body that must be an integer, also as a text or as 3.0; fallback when it is not there.
func (f *fields) whole(body map[string]any, name string, fallback int) int {
	value, there := body[name]
	if !there {
		return fallback
	}
	problem := invalid{Type: "int_type", Loc: []any{"body", name}, Msg: "Input should be a valid integer", Input: value}
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return int(n)
		}
		x, err := v.Float64()
		if err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return int(x)
		}
		problem.Type, problem.Msg = "int_from_float", "Input should be a valid integer, got a number with a fractional part"
	case string:
		if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
			return n
		}
		problem.Type, problem.Msg = "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
	}
	f.add(problem)
	return fallback
}

// flag is a member of a body that must be true or false; false when it is not there or null.
func (f *fields) flag(body map[string]any, name string) bool {
	value := body[name]
	if value == nil {
		return false
	}
	flag, ok := value.(bool)
	if !ok {
		f.add(invalid{Type: "bool_type", Loc: []any{"body", name}, Msg: "Input should be a valid boolean", Input: value})
	}
	return flag
}

// texts is a member of a body that must be a list of texts; nil when it is not there or null.
func (f *fields) texts(body map[string]any, name string) []string {
	value := body[name]
	if value == nil {
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		f.add(invalid{Type: "list_type", Loc: []any{"body", name}, Msg: "Input should be a valid list", Input: value})
		return nil
	}
	texts := make([]string, 0, len(list))
	for i, item := range list {
		text, ok := item.(string)
		if !ok {
			f.add(invalid{Type: "string_type", Loc: []any{"body", name, i}, Msg: "Input should be a valid string", Input: item})
		}
		texts = append(texts, text)
	}
	return texts
}
