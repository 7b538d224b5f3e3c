package bench

import (
	"bufio"
	"bytes"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"
)

// The built program as a whole process, on a database of its own.

// patience is how long a benchmark waits for what must happen.
const patience = 10 * time.Minute

// localKey is the login of the services that are measured.
const localKey = "the-key-of-the-benchmark"

// built builds the program once, as it is released, at a place where the next build finds it again.
var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), "automation-bench-"+strconv.Itoa(os.Getuid()), "automation")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "automation/cmd/automation")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		_, _ = os.Stderr.Write(out)
		return "", err
	}
	return path, nil
})

// database is one that a benchmark fills, and services are started on.
type database struct {
	b     testing.TB
	raw   *bun.DB
	dsn   string   // of models.Open
	env   []string // that chooses it
	data  string   // data folder of the services
	roles []string // arguments of serve
}

// eachDatabase runs measure on both engines. PostgreSQL is left out where TEST_POSTGRES_URL is not set.
func eachDatabase(b *testing.B, measure func(b *testing.B, db *database)) {
	b.Run("sqlite", func(b *testing.B) { measure(b, newSQLite(b)) })
	b.Run("postgres", func(b *testing.B) { measure(b, newPostgres(b)) })
}

func newSQLite(b testing.TB) *database {
	b.Helper()
	db := &database{b: b, data: filepath.Join(b.TempDir(), "data")}
	path := filepath.Join(db.data, "automation.db")
	db.dsn = "sqlite:" + path
	db.migrate()
	raw, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_timezone=UTC&_txlock=immediate")
	require.NoError(b, err)
	db.raw = bun.NewDB(raw, sqlitedialect.New())
	b.Cleanup(func() { _ = db.raw.Close() })
	return db
}

func newPostgres(b testing.TB) *database {
	b.Helper()
	admin := os.Getenv("TEST_POSTGRES_URL")
	if admin == "" {
		b.Skip("TEST_POSTGRES_URL is not set")
	}
	server, err := sql.Open("postgres", admin)
	require.NoError(b, err)
	name := "automation_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = server.Exec("CREATE DATABASE " + name)
	require.NoError(b, err)
	at, err := url.Parse(admin)
	require.NoError(b, err)
	at.Path = "/" + name
	db := &database{b: b, data: filepath.Join(b.TempDir(), "data"), dsn: at.String(), env: []string{
		"AUTOMATION_DB_URL=" + at.String(), "AUTOMATION_SECRET_KEY=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	}}
	b.Cleanup(func() {
		_, _ = server.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		_ = server.Close()
	})
	db.migrate()
	raw, err := sql.Open("postgres", db.dsn+"&timezone=UTC")
	require.NoError(b, err)
	db.raw = bun.NewDB(raw, pgdialect.New())
	b.Cleanup(func() { _ = db.raw.Close() })
	return db
}

// migrate makes the schema by the program itself.
func (db *database) migrate() {
	db.b.Helper()
	require.NoError(db.b, os.MkdirAll(db.data, 0o700))
	path, err := built()
	require.NoError(db.b, err)
	cmd := exec.Command(path, "migrate", "up")
	cmd.Env = db.environment()
	out, err := cmd.CombinedOutput()
	require.NoError(db.b, err, "%s", out)
}

func (db *database) environment(more ...string) []string {
	env := append([]string{
		"HOME=" + db.b.TempDir(), "PATH=" + os.Getenv("PATH"), "AUTOMATION_DATA_DIR=" + db.data, "AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=", "LOG_LEVEL=WARNING",
	}, db.env...)
	return append(env, more...)
}

// exec runs statements that must succeed.
func (db *database) exec(statement string, args ...any) {
	db.b.Helper()
	_, err := db.raw.NewRaw(statement, args...).Exec(db.b.Context())
	require.NoError(db.b, err, "%.300s", statement)
}

// insert stores rows, many in one statement.
func insert[T any](db *database, rows []T) {
	db.b.Helper()
	for len(rows) > 0 {
		n := min(len(rows), 500)
		part := rows[:n]
		_, err := db.raw.NewInsert().Model(&part).Exec(db.b.Context())
		require.NoError(db.b, err)
		rows = rows[n:]
	}
}

// service is a running process.
type service struct {
	b       testing.TB
	cmd     *exec.Cmd
	base    string        // http://host:port
	started time.Duration // from the start of the process until it was ready
	client  *http.Client
	log     *bytes.Buffer
	gone    chan struct{}
}

// serve starts the program on a database and waits until it is ready.
func (db *database) serve(env ...string) *service {
	db.b.Helper()
	path, err := built()
	require.NoError(db.b, err)
	cmd := exec.Command(path, append([]string{"serve"}, db.roles...)...)
	cmd.Env = db.environment(append([]string{"LOG_LEVEL=INFO"}, env...)...)
	s := &service{b: db.b, cmd: cmd, log: &bytes.Buffer{}, gone: make(chan struct{})}
	s.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 128, MaxConnsPerHost: 128}}
	stderr, err := cmd.StderrPipe()
	require.NoError(db.b, err)
	began := time.Now()
	require.NoError(db.b, cmd.Start())
	address := make(chan string, 1)
	go s.read(stderr, address)
	db.b.Cleanup(s.stop)
	select {
	case at := <-address:
		s.base = "http://" + at
	case <-s.gone:
		db.b.Fatalf("the service ended at its start:\n%s", s.log)
	case <-time.After(patience):
		db.b.Fatal("the service does not serve")
	}
	s.await("ready", func() bool { return s.status("GET", "/ready", "") == http.StatusOK }, time.Millisecond)
	s.started = time.Since(began)
	return s
}

func (s *service) read(stderr io.Reader, address chan<- string) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Msg, Level, Address string }
		_ = json.Unmarshal(lines.Bytes(), &line)
		if line.Msg == "serving" {
			address <- line.Address
		}
		if line.Level != "INFO" && s.log.Len() < 1<<16 {
			s.log.Write(append(lines.Bytes(), '\n'))
		}
	}
	_ = s.cmd.Wait()
	close(s.gone)
}

// stop ends the process as its manager would.
func (s *service) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.gone:
	case <-time.After(40 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.gone
	}
	s.client.CloseIdleConnections()
}

// call makes a request with the login and returns the status and the answer.
func (s *service) call(method, path, body string) (status int, answer []byte) {
	request, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	require.NoError(s.b, err)
	request.Header.Set("Authorization", "Bearer "+localKey)
	switch {
	case strings.HasPrefix(body, "\x1f\x8b"):
		request.Header.Set("Content-Type", "application/gzip")
	case body != "":
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return response.StatusCode, answer
}

func (s *service) status(method, path, body string) int {
	status, _ := s.call(method, path, body)
	return status
}

// await waits until a condition holds, looked at every so often.
func (s *service) await(what string, holds func() bool, every time.Duration) {
	s.b.Helper()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for over := time.After(patience); !holds(); {
		select {
		case <-ticks.C:
		case <-s.gone:
			s.b.Fatalf("waiting for %s, the service ended:\n%s", what, s.log)
		case <-over:
			s.b.Fatalf("not seen: %s\n%s", what, s.log)
		}
	}
}

// memory is what the process has resident now and had at most, in MiB.
func (s *service) memory() (now, most float64) {
	s.b.Helper()
	return memoryOf(s.b, s.cmd.Process.Pid)
}

func memoryOf(b testing.TB, pid int) (now, most float64) {
	b.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	require.NoError(b, err)
	for line := range strings.Lines(string(status)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(words[1], 64)
		switch words[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			most = kib / 1024
		}
	}
	return now, most
}

// processor is the time that a process has used so far.
func (s *service) processor() time.Duration {
	s.b.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/stat")
	require.NoError(s.b, err)
	words := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, word := range words[11:13] { // user and system, in hundredths of a second
		n, err := strconv.ParseInt(word, 10, 64)
		require.NoError(s.b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
