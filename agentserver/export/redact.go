// Package export writes what leaves a box before it goes: the history of a conversation as a zip without secrets (S0-072), and
// a workspace as a git patch or a tarball (S0-074). Everything is written to a file of its own and whole before the first byte
// is sent. It runs nothing that an agent can configure, and follows no link.
package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// hidden stands where a secret stood, as the contract's server writes it.
const hidden = "**********"

// leastKnown is how long a value must be to be looked for everywhere: a shorter one would hide half of a text.
const leastKnown = 8

// secretName matches the names of fields that carry a secret, in any spelling; tokens that are counted are numbers and stay.
var secretName = regexp.MustCompile(`(?i)(api[-_]?key|apikey|access[-_]?key|secret|token$|passw(or)?d|passphrase|^pass$|authorization|^auth$|` +
	`credential|private[-_]?key|session[-_]?key|encryption[-_]?key|cookie|signature|client[-_]?key|connection[-_]?string|dsn$)`)

// secretMap matches the names of objects and lists in which any value may be one.
var secretMap = regexp.MustCompile(`(?i)(secrets?|secret_sources|headers|env|environ(ment)?|environment_variables|env_vars|credentials|cookies)$`)

// harmless are fields beneath such a name that say only what kind of thing it is.
var harmless = []string{"kind", "type", "transport"}

// shapes match secrets by what they look like, wherever they stand. The last group is what is hidden.
var shapes = []*regexp.Regexp{
	regexp.MustCompile(`(gAAAAA[\w=-]{20,})`), // cipher text of this server
	regexp.MustCompile(`\b((?:sk|pk|rk)[-_][\w-]{16,})`),
	regexp.MustCompile(`\b((?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abeoprs]-|npm_|pypi-|dop_v1_|e2b_|dtn_|AIza|ya29\.|AKIA|ASIA)[\w.-]{12,})`),
	regexp.MustCompile(`\b(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)`),
	regexp.MustCompile(`(?i)\b(?:bearer|basic|token)\s+([\w.~+/=-]{12,})`),
	regexp.MustCompile(`\b[a-zA-Z][\w+.-]*://[^\s:/@"']*:([^\s@/"']+)@`),
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----\s*(.*?)\s*(?:-----END|$)`),
	regexp.MustCompile(`(?i)[?&](?:sig|signature|token|access_token|key|api_key|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature)=([^&\s"']+)`),
	regexp.MustCompile(`(?i)\b[\w-]*(?:api[-_]?key|secret|token|passw(?:or)?d|access[-_]?key|private[-_]?key)[\w-]*["']?\s*[:=]\s*["']?([^\s"',;&}{]{6,})`),
}

// Redactor takes secrets out of texts: by the name of their field, by their shape, and every further place of a value that was
// once found by its name.
type Redactor struct {
	known    map[string]bool
	replacer *strings.Replacer // made from known when first needed
}

// NewRedactor also hides these values wherever they stand.
func NewRedactor(values ...string) *Redactor {
	r := &Redactor{known: map[string]bool{}}
	for _, v := range values {
		r.learn(v)
	}
	return r
}

func (r *Redactor) learn(value string) {
	if len(value) >= leastKnown && value != hidden {
		r.known[value] = true
		r.replacer = nil
	}
}

// Learn remembers what is secret by the names of its fields. What is no JSON teaches nothing.
func (r *Redactor) Learn(document []byte) {
	_ = eachString(document, func(s field) {
		if s.secret && s.text != "" {
			r.learn(s.text)
		}
	})
}

// JSON is the document, or several one after the other, without secrets. Every byte that belongs to none is as it was. What is
// no JSON is treated as text.
func (r *Redactor) JSON(document []byte) []byte {
	var out bytes.Buffer
	copied := 0
	err := eachString(document, func(s field) {
		text := s.text
		if s.secret && text != "" {
			text = hidden
		} else {
			text = r.Text(text)
		}
		if text != s.text {
			quoted, _ := json.Marshal(text) // a string always can be
			out.Write(document[copied:s.from])
			out.Write(quoted)
			copied = s.to
		}
	})
	if err != nil {
		return []byte(r.Text(string(document)))
	}
	out.Write(document[copied:])
	return out.Bytes()
}

// Text is a text without what is known or looks like a secret.
func (r *Redactor) Text(text string) string {
	if len(r.known) > 0 {
		if r.replacer == nil {
			r.replacer = replacing(r.known)
		}
		text = r.replacer.Replace(text)
	}
	for _, shape := range shapes {
		text = shape.ReplaceAllStringFunc(text, func(found string) string {
			at := shape.FindStringSubmatchIndex(found)
			return found[:at[2]] + hidden + found[at[3]:]
		})
	}
	return text
}

// replacing looks for the longer values first, so that one that holds another goes whole.
func replacing(known map[string]bool) *strings.Replacer {
	values := make([]string, 0, len(known))
	for v := range known {
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(values))
	for _, v := range values {
		pairs = append(pairs, v, hidden)
	}
	return strings.NewReplacer(pairs...)
}

// field is one string of a document, a value or a name.
type field struct {
	text     string
	from, to int  // where it stands, with its quotes
	secret   bool // by the names above it
}

// nest is an object or a list that is being read.
type nest struct {
	object bool
	key    string // of the value that comes next
	named  bool   // the next token is a value
	all    bool   // every value in it is secret
}

// eachString calls f for every string, in order.
func eachString(document []byte, f func(field)) error {
	if !utf8.Valid(document) {
		return errors.New("not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var nests []*nest
	for {
		before := int(decoder.InputOffset())
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) && len(nests) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		in := &nest{}
		if len(nests) > 0 {
			in = nests[len(nests)-1]
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '}' || token == ']' {
				nests = nests[:len(nests)-1]
				break
			}
			nests = append(nests, &nest{object: token == '{', all: in.all && !in.exempt() || secretMap.MatchString(in.key)})
			if token == '[' {
				nests[len(nests)-1].key = in.key // a list of secrets is named once
			}
		case string:
			s := field{text: token, from: before + bytes.IndexByte(document[before:], '"'), to: int(decoder.InputOffset())}
			if in.object && !in.named {
				in.key, in.named = token, true
				f(s)
				continue
			}
			s.secret = secretName.MatchString(in.key) || in.all && !in.exempt()
			f(s)
		}
		in.named = false
	}
}

func (n *nest) exempt() bool { return n.object && slices.Contains(harmless, n.key) }
