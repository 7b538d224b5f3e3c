package router

import (
	"bytes"
	_ "embed"
	"encoding/json"
	html "html/template"
	"net/http"
	"slices"
	"strings"
)

// The page that shows the OpenAPI document to people: one file without scripts, so that it works wherever the API does.

//go:embed docs.html
var docsPage string

var docsTemplate = html.Must(html.New("docs").Parse(docsPage))

// chapter is what the page says of one group of routes.
type chapter struct {
	Name   string
	Routes []entry
}

// entry is what the page says of one route.
type entry struct {
	Method, Path, Summary, Access, Answer string
	Status                                int
	Parameters                            []parameter
	Body, Example                         string // JSON Schema and JSON; "": none
}

type parameter struct {
	Name, In, Type, About string
	Required              bool
}

// accessWords say who gets in.
var accessWords = map[access]string{open: "anybody", contract: "login", callback: "login or the run's own token", own: "login", public: "customer key; at the root"}

// docsOf writes the page for the table of routes.
func docsOf(table []route, base, version string) ([]byte, error) {
	var chapters []chapter
	for _, line := range table {
		at := slices.IndexFunc(chapters, func(c chapter) bool { return c.Name == line.about })
		if at < 0 {
			at = len(chapters)
			chapters = append(chapters, chapter{Name: line.about})
		}
		e, err := line.entry()
		if err != nil {
			return nil, err
		}
		chapters[at].Routes = append(chapters[at].Routes, e)
	}
	var text bytes.Buffer
	err := docsTemplate.Execute(&text, map[string]any{"Base": "/" + strings.Trim(base, "/"), "Version": version, "Chapters": chapters})
	return text.Bytes(), err
}

func (line route) entry() (entry, error) {
	e := entry{
		Method: line.method, Path: line.path, Summary: line.summary, Access: accessWords[line.access], Status: line.status, Answer: "application/json",
	}
	if line.gives != "" {
		e.Answer = line.gives
	}
	for _, v := range parametersOf(line) {
		p := v.(map[string]any) //nolint:forcetypeassert // made above
		about, _ := p["description"].(string)
		e.Parameters = append(e.Parameters, parameter{
			Name: p["name"].(string), In: p["in"].(string), Required: p["required"].(bool), Type: p["schema"].(schema).words(), About: about, //nolint:forcetypeassert // made above
		})
	}
	var err error
	if line.body != nil {
		e.Body, err = indented(line.body.schema)
	}
	if line.example != nil && err == nil {
		e.Example, err = indented(line.example)
	}
	if line.takes != nil {
		e.Body = strings.Join(line.takes, ", ")
	}
	return e, err
}

func indented(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text), err
}

// words says a schema in a few words.
func (s schema) words() string {
	text, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	return strings.NewReplacer("{", "", "}", "", `"`, "", ",", ", ", ":", ": ").Replace(string(text))
}

// docs is GET /docs.
func (s *server) docs(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	if s.undocumented != nil {
		return s.undocumented
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	w.Header().Set("Cache-Control", "no-store")
	_, err := w.Write(s.docsPage)
	return err
}

// asKey lets a browser, which can only ask for a name and a password, send the key as the password.
func asKey(r *http.Request) *http.Request {
	if _, key, ok := r.BasicAuth(); ok {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}
