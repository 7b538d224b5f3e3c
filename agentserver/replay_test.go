package agentserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exchange is one recorded request and its answer.
type exchange struct {
	method, target string
	arguments      []string // of curl
	status         int
	header         http.Header
	body           string
}

// readExchange reads a recorded file: the request line, the arguments as a shell would take them, the answer.
func readExchange(t *testing.T, name string) exchange {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "recorded", name+".txt"))
	require.NoError(t, err)
	lines := strings.SplitN(string(text), "\n", 4)
	var e exchange
	e.method, e.target, _ = strings.Cut(strings.TrimPrefix(lines[0], "> "), " ")
	e.arguments = shellWords(strings.TrimPrefix(lines[1], "> curl args: "))
	// Written by curl, with one newline at the end; the lengths are those from before the places were made anonymous.
	head := regexp.MustCompile(`(?m)^content-length: .*\n`).ReplaceAllString(strings.TrimSuffix(lines[3], "\n"), "")
	answer, err := http.ReadResponse(bufio.NewReader(strings.NewReader(head)), &http.Request{Method: e.method})
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	e.status, e.header, e.body = answer.StatusCode, answer.Header, string(body)
	return e
}

// shellWords splits what bash's printf %q wrote.
func shellWords(text string) []string {
	if text == "''" {
		return nil
	}
	var words []string
	var word strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
			word.WriteByte(text[i])
		case text[i] == ' ':
			words = append(words, word.String())
			word.Reset()
		default:
			word.WriteByte(text[i])
		}
	}
	return append(words, word.String())
}

// replayer sends recorded requests to a box, with the recorded places and ids put in terms of this box.
type replayer struct {
	*box
	ids map[string]string // recorded: ours
}

const (
	recordedHome    = "/srv/box/home"
	recordedProject = "/srv/box/ws/project"
)

func (p *replayer) ours(text string) string {
	text = strings.NewReplacer(
		recordedHome, p.home, recordedProject, filepath.Join(p.home, "project"),
		// A list of another route, for what the recording says of keys.
		"/api/conversations/search", "/api/bash/bash_events/search",
	).Replace(text)
	for recorded, ours := range p.ids {
		text = strings.ReplaceAll(text, recorded, ours)
	}
	return text
}

func (p *replayer) send(e exchange) *httptest.ResponseRecorder {
	p.t.Helper()
	var body io.Reader = http.NoBody
	header := http.Header{}
	for i := 0; i < len(e.arguments); i++ {
		switch flag := e.arguments[i]; flag {
		case "-I":
		case "-H":
			i++
			name, value, _ := strings.Cut(e.arguments[i], ": ")
			header.Set(name, value)
		case "-d":
			i++
			body = strings.NewReader(p.ours(e.arguments[i]))
		case "-F":
			i++
			require.Equal(p.t, "file=@tmp/up.txt", e.arguments[i])
			var form bytes.Buffer
			writer := multipart.NewWriter(&form)
			part, err := writer.CreateFormFile("file", "up.txt")
			require.NoError(p.t, err)
			_, err = io.WriteString(part, "hello upload\n")
			require.NoError(p.t, err)
			require.NoError(p.t, writer.Close())
			header.Set("Content-Type", writer.FormDataContentType())
			body = &form
		default:
			p.t.Fatalf("argument %q", flag)
		}
	}
	r := httptest.NewRequest(e.method, p.ours(e.target), body)
	r.Header = header
	return p.serve(r)
}

var (
	timePattern = regexp.MustCompile(`"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z"`)
	idPattern   = regexp.MustCompile(`"(id|command_id)":"([0-9a-f]{32})"`)
)

// compare holds an answer against the recorded one: status, the headers that mean something, and the body with the ids
// that were learned and without the times.
func (p *replayer) compare(e exchange, answer *httptest.ResponseRecorder) {
	p.t.Helper()
	require.Equal(p.t, e.status, answer.Code, answer.Body.String())
	for _, name := range []string{"Content-Type", "Allow", "Content-Disposition", "Content-Range", "Accept-Ranges"} {
		require.Equal(p.t, e.header.Get(name), answer.Header().Get(name), name)
	}
	for _, name := range []string{"Etag", "Last-Modified"} {
		require.Equal(p.t, e.header.Get(name) != "", answer.Header().Get(name) != "", name)
	}
	if e.method == http.MethodHead {
		return
	}
	recorded, ours := idPattern.FindAllStringSubmatch(e.body, -1), idPattern.FindAllStringSubmatch(answer.Body.String(), -1)
	require.Len(p.t, ours, len(recorded), answer.Body.String())
	for i := range recorded {
		p.ids[recorded[i][2]] = ours[i][2]
	}
	normal := func(body string) string { return timePattern.ReplaceAllString(body, `"timestamp":"T"`) }
	require.Equal(p.t, normal(p.ours(e.body)), normal(answer.Body.String()))
}

// finished waits until a command has ended.
func (p *replayer) finished(recorded string) {
	p.t.Helper()
	_, err := p.commands.Wait(p.t.Context(), p.ids[recorded])
	require.NoError(p.t, err)
}

func TestRecordedExchanges(t *testing.T) {
	outer := t
	p := &replayer{box: newBox(t), ids: map[string]string{}}
	p.clock.advance(25 * time.Second)
	replayed := map[string]bool{"idle_time_table": true}
	replay := func(names ...string) {
		for _, name := range names {
			replayed[name] = true
			t.Run(name, func(t *testing.T) {
				p.t = t
				defer func() { p.t = outer }()
				e := readExchange(t, name)
				p.compare(e, p.send(e))
			})
		}
	}
	replay("home") // before there is a directory in it
	replay("alive", "health", "ready", "method_bad", "notfound")
	replay("auth_missing", "auth_wrong", "auth_bearer", "auth_query", "auth_lowercase", "auth_second_key")
	for _, name := range []string{"server_info", "root"} {
		replayed[name] = true
		t.Run(name, func(t *testing.T) {
			e := readExchange(t, name)
			answer := p.send(e)
			require.Equal(t, e.status, answer.Code)
			require.Equal(t, keys(t, e.body), keys(t, answer.Body.String()), "the fields and their order")
			require.True(t, strings.HasPrefix(answer.Body.String(), `{"uptime":25.0,"idle_time":25.0,`), answer.Body.String())
		})
	}

	replay("bash_start")
	p.finished("91689c238749401e80797208ca415c4f")
	replay("bash_search", "bash_search_all", "bash_get", "bash_get_hex", "bash_get_missing", "bash_search_kind_bad", "bash_search_limit_bad")
	replay("bash_exec", "bash_timeout", "bash_badcwd")
	p.finished("d35cc4e4382b4f31b04763369af2a472")
	replay("bash_badcwd_events", "bash_badjson", "bash_nobody")
	replay("bash_stop_start", "bash_running_search", "bash_stop", "bash_stopped_search", "bash_stop_missing")

	replay("file_upload", "file_upload_isdir", "file_upload_nofile", "file_upload_nopath", "file_upload_parentfile",
		"file_upload_pathstyle", "file_upload_relative")
	replay("file_download", "file_download_range", "file_download_head", "file_download_dir", "file_download_missing", "file_download_rel")

	all, err := filepath.Glob("testdata/recorded/*.txt")
	require.NoError(t, err)
	for _, file := range all {
		require.True(t, replayed[strings.TrimSuffix(filepath.Base(file), ".txt")], file)
	}
}

// keys lists the names of an object in their order.
func keys(t *testing.T, object string) []string {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(object))
	_, err := decoder.Token()
	require.NoError(t, err)
	var names []string
	for decoder.More() {
		name, err := decoder.Token()
		require.NoError(t, err)
		names = append(names, name.(string))
		var value any
		require.NoError(t, decoder.Decode(&value))
	}
	return names
}
