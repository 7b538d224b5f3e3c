package tests

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// binary is the built program, the same for all tests; hookedBinary has the test hooks, and does not count what it runs.
var binary, hookedBinary program

// program is built once, at its first use.
type program struct {
	once sync.Once
	path string
	err  error
}

// coverage names the folder into which the program counts the statements that it runs; unset: it does not count.
const coverage = "GOCOVERDIR"

// sideBySide is how many tests a core runs: they wait for other processes and for times more than they compute.
const sideBySide = 4

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(sideBySide*runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	for _, path := range []string{binary.path, hookedBinary.path} {
		if path != "" {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

// build builds the program once and returns its path.
func build(t *testing.T) string {
	t.Helper()
	if os.Getenv(coverage) != "" {
		return binary.build(t, "-cover", "-covermode=atomic", "-coverpkg="+module+"/...")
	}
	return binary.build(t)
}

// buildHooked builds the program with the test hooks once and returns its path.
func buildHooked(t *testing.T) string {
	t.Helper()
	return hookedBinary.build(t, "-tags", "testhooks")
}

func (p *program) build(t *testing.T, flags ...string) string {
	t.Helper()
	p.once.Do(func() {
		dir, err := os.MkdirTemp("", "automation-tests-") //nolint:usetesting // outlives the test that is first
		if err != nil {
			p.err = err
			return
		}
		p.path = filepath.Join(dir, "automation")
		args := append([]string{"build", "-o", p.path}, flags...)
		c := exec.Command("go", append(args, "../cmd/automation")...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as it is released
		out, err := c.CombinedOutput()
		if err != nil {
			p.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, p.err)
	return p.path
}

// eachDatabase runs test on both engines; its environment chooses a fresh database.
func eachDatabase(t *testing.T, test func(t *testing.T, database []string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, nil)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, postgres(t))
	})
}

// postgres makes an empty database and returns the variables that choose it.
func postgres(t *testing.T) []string {
	t.Helper()
	admin := os.Getenv("TEST_POSTGRES_URL")
	if admin == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("TEST_POSTGRES_URL is not set")
		}
		t.Skip("TEST_POSTGRES_URL is not set")
	}
	db, err := sql.Open("postgres", admin)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	name := "automation_blackbox_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = db.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		require.NoError(t, err)
	})
	u, err := url.Parse(admin)
	require.NoError(t, err)
	u.Path = "/" + name
	return []string{
		"AUTOMATION_DB_URL=" + u.String(),
		"AUTOMATION_RUN_MIGRATIONS_ON_STARTUP=true",
		"AUTOMATION_SECRET_KEY=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	}
}

// clean is an environment with a home of its own and nothing of ours in it.
func clean(home string, more ...string) []string {
	env := []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	if dir := os.Getenv(coverage); dir != "" {
		env = append(env, coverage+"="+dir)
	}
	return append(env, more...)
}

// result is what one command did.
type result struct {
	code     int
	out, err string
}

// command runs the program to its end.
func command(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, build(t), args...)
	var out, errs bytes.Buffer
	c.Env, c.Stdout, c.Stderr = env, &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{code: c.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
}

// server is a running service.
type server struct {
	t     *testing.T
	under []string // a command that every start is made by; nil: none
	path  string   // of the program
	args  []string // of every start
	env   []string // of every start
	data  string
	key   string
	base  string // of the API: …/api/automation/v1

	mu   sync.Mutex
	cmd  *exec.Cmd
	logs []string
	gone chan struct{} // closed when the process has ended
}

// start starts the service with process boxes on a fresh data folder. It is stopped with the test, and what it left is removed.
func start(t *testing.T, env ...string) *server {
	t.Helper()
	return startRoles(t, nil, env...)
}

// startRoles is start with only some of the service's roles; none means all.
func startRoles(t *testing.T, roles []string, env ...string) *server {
	t.Helper()
	s := prepare(t, build(t), t.TempDir(), env...)
	if len(roles) > 0 {
		s.args = append(s.args, "--roles", strings.Join(roles, ","))
	}
	s.launch()
	return s
}

// prepare is a service that is not started yet, with its data below home.
func prepare(t *testing.T, path, home string, env ...string) *server {
	t.Helper()
	s := &server{t: t, path: path, args: []string{"serve"}, data: filepath.Join(home, "data"), key: "the-key-of-this-test"}
	s.env = clean(home, append([]string{
		"AUTOMATION_DATA_DIR=" + s.data,
		"AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=",
		"AUTOMATION_LOCAL_API_KEY=" + s.key,
		"AUTOMATION_SANDBOX_BACKEND=process",
		"AUTOMATION_SANDBOX_POLL_INTERVAL=1",
		"AUTOMATION_RUN_EXIT_GRACE_SECONDS=5",
	}, env...)...)
	t.Cleanup(func() {
		s.stop()
		s.killBoxes()
		if t.Failed() {
			t.Logf("log of the service, without requests:\n%s", s.story())
		}
	})
	return s
}

// launch starts the process and waits until it serves.
func (s *server) launch() {
	s.t.Helper()
	line := slices.Concat(s.under, []string{s.path}, s.args)
	s.cmd = exec.Command(line[0], line[1:]...)
	s.cmd.Env = s.env
	stderr, err := s.cmd.StderrPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.cmd.Start())
	s.gone = make(chan struct{})
	serving := make(chan string, 1)
	go s.read(s.cmd, stderr, serving, s.gone)
	select {
	case address := <-serving:
		s.at(address)
	case <-s.gone:
		select {
		case address := <-serving: // it has served, and was killed
			s.at(address)
		default:
			s.t.Fatalf("the service ended at its start:\n%s", s.log())
		}
	case <-time.After(patience):
		s.t.Fatalf("the service does not serve:\n%s", s.log())
	}
}

func (s *server) at(address string) { s.base = "http://" + address + "/api/automation/v1" }

// read keeps the log and tells the address when the service says it.
func (s *server) read(cmd *exec.Cmd, stderr io.Reader, serving chan<- string, gone chan<- struct{}) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			serving <- line.Address
		}
		s.mu.Lock()
		s.logs = append(s.logs, lines.Text())
		s.mu.Unlock()
	}
	_ = cmd.Wait()
	close(gone)
}

// log is what the service has written so far.
func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.logs, "\n")
}

// story is the log without the lines of requests.
func (s *server) story() string {
	var told []string
	for line := range strings.Lines(s.log()) {
		if !strings.Contains(line, `"msg":"request"`) {
			told = append(told, line)
		}
	}
	return strings.Join(told, "")
}

// stop ends the service as systemd would, and returns its exit code.
func (s *server) stop() int { return s.signal(syscall.SIGTERM) }

// kill ends the service as the kernel would.
func (s *server) kill() { s.signal(syscall.SIGKILL) }

func (s *server) signal(sig os.Signal) int {
	s.t.Helper()
	if s.cmd == nil || s.gone == nil {
		return 0
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.gone:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.gone
		s.t.Errorf("the service did not stop within %v", patience)
	}
	return s.cmd.ProcessState.ExitCode()
}

// killBoxes ends what boxes of this test's data folder still run: every process whose command line or environment names it.
func (s *server) killBoxes() {
	for _, pid := range s.boxProcesses() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// boxProcesses lists the processes that belong to boxes of this test.
func (s *server) boxProcesses() []int {
	entries, err := os.ReadDir("/proc")
	require.NoError(s.t, err)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || s.cmd != nil && pid == s.cmd.Process.Pid {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if bytes.Contains(line, []byte(s.data)) || bytes.Contains(environ, []byte(s.data)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
