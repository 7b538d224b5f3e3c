package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/stretchr/testify/require"
)

// same compares an answer with the recorded one: all of it, but that times only have to be times, written alike, that names
// only have to be the same each time, that inputs and contexts of problems are ours, and that we may add fields.
func (p *player) same(at string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		return p.sameObject(at, w, got)
	case []any:
		g, isList := got.([]any)
		if !isList || len(g) != len(w) {
			return fmt.Errorf("%s has other entries", at)
		}
		for i := range w {
			if err := p.same(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); err != nil {
				return err
			}
		}
		return nil
	case string:
		return p.sameText(at, w, got)
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("%s is %v, not %v", at, got, want)
	}
	return nil
}

func (p *player) sameJSON(want any, raw []byte) error {
	var got any
	if err := json.Unmarshal(raw, &got); err != nil {
		return err
	}
	return p.same("", want, got)
}

func (p *player) sameObject(at string, want map[string]any, got any) error {
	g, isObject := got.(map[string]any)
	if !isObject {
		return fmt.Errorf("%s is no object", at)
	}
	_, isProblem := want["msg"]
	for k, v := range want {
		if isProblem && (k == "input" || k == "ctx") || k == "run_metadata" {
			continue // the finish response is read after the answer
		}
		if _, there := g[k]; !there {
			return fmt.Errorf("%s.%s is missing", at, k)
		}
		if err := p.same(at+"."+k, v, g[k]); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) sameText(at, want string, got any) error {
	g, isString := got.(string)
	if !isString {
		return fmt.Errorf("%s is %v, not %q", at, got, want)
	}
	if m := aTime.FindStringSubmatch(want); m != nil {
		ours, zone := aTime.FindStringSubmatch(g), m[2]
		if zone == "" && p.postgres { // recorded on SQLite: uploads write times as their database does
			zone = "+00:00"
		}
		if ours == nil || ours[2] != zone {
			return fmt.Errorf("%s is %q, not written as %q", at, g, want)
		}
		return nil
	}
	here := anID.FindAllString(g, -1)
	for i, id := range anID.FindAllString(want, -1) {
		if known := p.ids[id]; known == "" && i < len(here) {
			p.ids[id] = here[i]
		}
	}
	if p.ours(want) != g {
		return fmt.Errorf("%s is %q, not %q", at, g, want)
	}
	return nil
}

// send makes a request to the built program.
func (p *player) send(method, path string, headers map[string]string, body []byte) (int, http.Header, []byte) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), method, strings.TrimSuffix(p.s.base, "/api/automation/v1")+path, bytes.NewReader(body))
	require.NoError(p.t, err)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	client := http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	require.NoError(p.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(p.t, err)
	return response.StatusCode, response.Header, raw
}

func (p *player) body(recorded json.RawMessage) []byte {
	var file struct{ Bytes int }
	if json.Unmarshal(recorded, &file) == nil && file.Bytes > 0 {
		return filler(file.Bytes)
	}
	var text string
	if json.Unmarshal(recorded, &text) == nil {
		return []byte(text)
	}
	return []byte(p.ours(string(recorded)))
}

// filler is sent for a file that a recording gives the size of.
func filler(size int) []byte { return bytes.Repeat([]byte{'x'}, size) }
