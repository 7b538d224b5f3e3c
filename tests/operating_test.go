package tests

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// printed lists the commands that a page prints, in order: the lines of its indented blocks that begin with a small letter.
func printed(t *testing.T, page string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(document(t, page)) {
		if m := regexp.MustCompile(`^    ([a-z].*)\n$`).FindStringSubmatch(line); m != nil {
			all = append(all, m[1])
		}
	}
	require.NotEmpty(t, all)
	return all
}

// reader is somebody who follows a page on a fresh home, beside a service that has run something.
type reader struct {
	t            *testing.T
	served       *server
	own          []string // environment without a service
	client       []string // environment of the client commands
	run, box     string
	folder, data string // of a backup, and of what is restored from it
}

func newReader(t *testing.T) *reader {
	t.Helper()
	s := start(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600")
	run := s.running(s.automation("echo seen\nsleep 60\n", nil))
	r := &reader{
		t: t, served: s, run: run.text("id"), box: run.text("sandbox", "id"),
		folder: filepath.Join(t.TempDir(), "copy"), data: filepath.Join(t.TempDir(), "data"),
	}
	require.NoError(t, os.Mkdir(r.data, 0o700))
	s.call(http.MethodPost, "/runs/"+r.run+"/complete", object{"status": "FAILED", "error": "check failed"}, http.StatusOK)
	s.await("/runs/"+r.run, "the box pauses", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
	path := "PATH=" + filepath.Dir(build(t)) + ":" + os.Getenv("PATH")
	address := freeAddress(t)
	r.own = append(clean(t.TempDir()), path, "AUTOMATION_LISTEN="+address, "AUTOMATION_METRICS_LISTEN=", "AUTOMATION_BASE_URL=http://"+address)
	r.client = append(clean(t.TempDir()), path, "AUTOMATION_URL="+strings.TrimSuffix(s.base, "/v1"), "AUTOMATION_TOKEN="+s.key)
	return r
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// elsewhere are commands that need another machine than this, or that are how these tests were started.
var elsewhere = regexp.MustCompile(`^(make|docker|systemctl|install|useradd|go test) `)

// follow does what a line says.
func (r *reader) follow(line string) {
	r.t.Helper()
	line = strings.NewReplacer("bin/automation ", "automation ", "go run ./cmd/automation ", "automation ").Replace(line)
	switch {
	case elsewhere.MatchString(line):
	case strings.HasPrefix(line, "automation serve"):
		r.serve(line)
	case strings.HasPrefix(line, "automation backup"), strings.HasPrefix(line, "rm -f DATA"), strings.HasPrefix(line, "cp -a FOLDER"):
		r.shell(r.withServed(), line, 0)
	case regexp.MustCompile(`^automation (runs|box|sweep|healthcheck) `).MatchString(line):
		want := 0
		if strings.Contains(line, "--exit-status") {
			want = 1 // the run has failed
		}
		if strings.Contains(line, "box export") {
			want = 3 // there is no conversation in this box
		}
		if strings.Contains(line, "reclaim") {
			r.served.await("/sandboxes/"+r.box, "the box wakes", func(o object) bool { return o.text("observed") == "running" })
		}
		r.shell(r.client, line, want)
	case strings.HasPrefix(line, "automation storage "): // followed in cmd/automation/testdata; here that it is there
		r.shell(r.client, line+" --help", 0)
	case regexp.MustCompile(`^automation (doctor|demo|migrate|completion)\b`).MatchString(line):
		r.shell(r.own, line, 0)
	default:
		r.t.Errorf("%q is printed, and nothing here knows how to follow it", line)
	}
}

// withServed is the environment of somebody at the machine of the service.
func (r *reader) withServed() []string {
	return append(slices.Clone(r.own), "AUTOMATION_DATA_DIR="+r.served.data)
}

// shell runs a line with what it leaves open filled in.
func (r *reader) shell(env []string, line string, want int) {
	r.t.Helper()
	filled := regexp.MustCompile(`\b(RUN|BOX|PLAN|FOLDER|DATA)\b`).ReplaceAllStringFunc(line, func(word string) string {
		switch word {
		case "RUN":
			return r.run
		case "BOX":
			return r.box
		case "PLAN":
			return r.plan()
		case "FOLDER":
			return r.folder
		}
		return r.data
	})
	c := exec.CommandContext(r.t.Context(), "sh", "-c", filled)
	c.Env = env
	out, err := c.CombinedOutput()
	require.Equal(r.t, want, c.ProcessState.ExitCode(), "%s: %v\n%s", filled, err, out)
}

// plan is the newest sweep.
func (r *reader) plan() string {
	r.t.Helper()
	sweeps, _ := r.served.call(http.MethodGet, "/sweeps?limit=1", nil, http.StatusOK).get("sweeps").([]any)
	require.NotEmpty(r.t, sweeps)
	newest, _ := sweeps[0].(map[string]any)
	return object(newest).text("id")
}

// serve follows a line that goes on until it is stopped.
func (r *reader) serve(line string) {
	r.t.Helper()
	c := exec.Command(build(r.t), strings.Fields(line)[1:]...)
	c.Env = append(slices.Clone(r.own), "AUTOMATION_SANDBOX_BACKEND=process", "AUTOMATION_LOCAL_API_KEY=k")
	require.NoError(r.t, c.Start())
	defer func() { _ = c.Process.Kill() }()
	ready := func() bool { return command(r.t, r.own, "healthcheck", "ready").code == 0 }
	require.Eventually(r.t, ready, patience, 100*time.Millisecond, "%s is ready", line)
	require.NoError(r.t, c.Process.Signal(os.Interrupt))
	require.NoError(r.t, c.Wait(), line)
}

func TestEveryCommandThatIsPrintedWorks(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	require.Equal(t, 0, command(t, r.own, "migrate", "up").code) // for migrate status, which says no where there is no schema
	for _, page := range []string{"README.md", "docs/OPERATIONS.md"} {
		for _, line := range printed(t, page) {
			if line != "go run ./cmd/automation demo" { // TestTheDemo follows that
				r.follow(line)
			}
		}
	}
	r.restored()
}

// The first automation of API.md, on a service of its own: what is printed is one script.
func TestTheFirstAutomationThatIsPrintedRuns(t *testing.T) {
	t.Parallel()
	s := start(t)
	var printed strings.Builder
	for line := range strings.Lines(section(t, "docs/API.md", "## A first automation")) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			printed.WriteString(code)
		}
	}
	script := strings.NewReplacer("http://127.0.0.1:8000/api/automation/v1", s.base, "$(cat ~/.local/share/automation/api-key)", s.key).Replace("set -e\n" + printed.String())
	c := exec.CommandContext(t.Context(), "bash", "-c", script)
	c.Dir = t.TempDir()
	c.Env = append(clean(t.TempDir()), "PATH="+filepath.Dir(build(t))+":"+os.Getenv("PATH"),
		"AUTOMATION_URL="+strings.TrimSuffix(s.base, "/v1"), "AUTOMATION_TOKEN="+s.key)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "status      FAILED")
	require.Contains(t, string(out), "exit_code=3 stdout: collecting")
	require.True(t, strings.HasSuffix(string(out), "collecting\nexit code 3\n"), "%s", out)
}

// restored serves what was restored from the backup.
func (r *reader) restored() {
	r.t.Helper()
	s := &server{t: r.t, path: build(r.t), args: []string{"serve"}, data: r.data, key: r.served.key}
	s.env = append(slices.Clone(r.served.env), "AUTOMATION_DATA_DIR="+r.data)
	r.t.Cleanup(func() { s.stop() })
	s.launch()
	require.Equal(r.t, "FAILED", s.call(http.MethodGet, "/runs/"+r.run, nil, http.StatusOK).text("status"))
	require.Contains(r.t, logs(r.t, s, "/runs/"+r.run), "seen\n", "stored files are restored too")
	doctor := command(r.t, append(slices.Clone(s.env), "PATH="+os.Getenv("PATH")), "doctor", "-o", "json")
	require.Equal(r.t, 0, doctor.code, "%s", doctor.out)
	var report struct {
		Checks []struct{ Name, State string }
	}
	require.NoError(r.t, json.Unmarshal([]byte(doctor.out), &report))
	for _, check := range report.Checks {
		require.NotEqual(r.t, "fail", check.State, "%s", doctor.out)
	}
}

func TestOperationsSaysWhatToDoForEveryReasonForAttention(t *testing.T) {
	reasons := section(t, "docs/OPERATIONS.md", "## What needs attention")
	constant := regexp.MustCompile(`\bAttention\w+\s*=\s*"(\w+)"`)
	found := 0
	for _, f := range code(t) {
		for _, m := range constant.FindAllStringSubmatch(f.text, -1) {
			require.Contains(t, reasons, "| `"+m[1]+"` |", f.path)
			found++
		}
	}
	require.Equal(t, found, strings.Count(reasons, "\n| `"), "the page names only reasons that exist")
}
