package bench

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// The Python service, openhands-automation 1.26.0, beside ours: the same stub of its provider, the same SQLite, alternating.

// peerPython is the variable that names the interpreter of an environment with that package, which bench.sh makes.
const peerPython = "AUTOMATION_BENCH_PYTHON"

// Sizes that the Python service can do in minutes: it sweeps 50 boxes a minute.
const (
	peerBoxes = 100
)

// BenchmarkBeside measures start, a sweep and idle memory of both, ours first.
func BenchmarkBeside(b *testing.B) {
	interpreter := os.Getenv(peerPython)
	if interpreter == "" {
		b.Skip(peerPython + " is not set")
	}
	b.Run("ours", func(b *testing.B) {
		stub := besideStub(b)
		db := newSQLite(b)
		db.due(db.automation(nil), "openhands", peerBoxes)
		began := time.Now()
		s := db.serve(append(cloud(stub), "AUTOMATION_LOCAL_API_KEY=")...)
		beside(b, stub, began, s.started, s.cmd.Process.Pid, peerBoxes)
	})
	b.Run("python", func(b *testing.B) {
		stub := besideStub(b)
		p := newPeer(b, interpreter, stub)
		p.migrate()
		p.due(peerBoxes)
		began := time.Now()
		started := p.serve()
		beside(b, stub, began, started, p.cmd.Process.Pid, peerBoxes)
	})
}

// besideStub is a provider that takes 20 ms for every answer, with paused boxes.
func besideStub(b *testing.B) *cloudstub.Stub {
	stub := cloudstub.New(b)
	stub.Latency(20 * time.Millisecond)
	for i := range peerBoxes {
		stub.Put(providerID(i), cloudstub.Alice, "PAUSED")
	}
	return stub
}

// beside waits until a service that was started at began has deleted all boxes, and reports what that took.
func beside(b *testing.B, stub *cloudstub.Stub, began time.Time, started time.Duration, pid, boxes int) {
	b.Helper()
	require.True(b, stub.Wait(patience, func() bool { return len(stub.Alive()) == 0 }), "every box is gone; calls: %v", stub.Calls())
	swept := time.Since(began)
	b.ReportMetric(inMilliseconds(started), "ready-ms")
	b.ReportMetric(swept.Seconds(), "sweep-s")
	b.ReportMetric(float64(boxes)/swept.Seconds(), "boxes/s")
	b.ReportMetric(float64(len(stub.Calls()))/float64(boxes), "calls/box")
	<-time.After(3 * time.Second)
	idle, _ := memoryOf(b, pid)
	b.ReportMetric(idle, "idle-MiB")
}

// peer is the Python service on a folder of its own.
type peer struct {
	b           *testing.B
	interpreter string
	dir         string
	env         []string
	cmd         *exec.Cmd
	log         bytes.Buffer
}

func newPeer(b *testing.B, interpreter string, stub *cloudstub.Stub) *peer {
	b.Helper()
	p := &peer{b: b, interpreter: interpreter, dir: b.TempDir()}
	p.env = []string{
		"HOME=" + p.dir, "PATH=" + filepath.Dir(interpreter) + ":" + os.Getenv("PATH"),
		"AUTOMATION_DB_URL=sqlite+aiosqlite:///" + filepath.Join(p.dir, "automation.db"), "AUTOMATION_RUN_MIGRATIONS_ON_STARTUP=true",
		"AUTOMATION_OPENHANDS_API_BASE_URL=" + stub.URL, "AUTOMATION_SERVICE_KEY=" + cloudstub.ServiceKey,
		"AUTOMATION_BASE_URL=http://automation.test", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600",
		"LOCAL_STORAGE_PATH=" + filepath.Join(p.dir, "storage"), "OPENHANDS_SUPPRESS_BANNER=1", "LITELLM_LOCAL_MODEL_COST_MAP=True", "DO_NOT_TRACK=1",
	}
	return p
}

// serve starts it and returns how long it took until it answered.
func (p *peer) serve() time.Duration {
	p.b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(p.b, err)
	address := l.Addr().(*net.TCPAddr)
	require.NoError(p.b, l.Close())
	p.cmd = exec.Command(p.interpreter, "-m", "uvicorn", "openhands.automation.app:app", "--host", "127.0.0.1", "--port", strconv.Itoa(address.Port), "--log-level", "warning")
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.env, p.dir, &p.log, &p.log
	began := time.Now()
	require.NoError(p.b, p.cmd.Start())
	gone := make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(gone) }()
	p.b.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			_ = p.cmd.Process.Kill()
			<-gone
		}
	})
	for over := time.After(2 * time.Minute); ; {
		ask, cancel := context.WithTimeout(p.b.Context(), time.Second)
		request, err := http.NewRequestWithContext(ask, http.MethodGet, "http://"+address.String()+"/api/automation/health", http.NoBody)
		require.NoError(p.b, err)
		answer, err := new(http.Client).Do(request)
		cancel()
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return time.Since(began)
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-gone:
			p.b.Fatalf("the Python service ended:\n%s", p.log.String())
		case <-over:
			p.b.Fatalf("the Python service does not answer:\n%s", p.log.String())
		}
	}
}

// migrate lets it make its schema: it is started and stopped once.
func (p *peer) migrate() {
	p.b.Helper()
	p.serve()
	require.NoError(p.b, p.cmd.Process.Signal(syscall.SIGTERM))
	_, _ = p.cmd.Process.Wait()
}

// due stores runs that have ended and whose paused boxes are due, in its own tables.
func (p *peer) due(n int) {
	p.b.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(p.dir, "automation.db")+"?_pragma=busy_timeout(60000)")
	require.NoError(p.b, err)
	defer func() { _ = db.Close() }()
	bare := func(id string) string { return strings.ReplaceAll(id, "-", "") } // as SQLAlchemy keeps them
	automation, ended := bare(uuid.NewString()), time.Now().UTC().Add(-2*time.Hour).Format("2006-01-02 15:04:05.000000")
	p.insert(db, "automations", map[string]any{
		"id": automation, "user_id": bare(cloudstub.Alice), "org_id": bare(cloudstub.Org), "name": "measured", "enabled": 1,
		"trigger": `{"type":"cron","schedule":"0 0 29 2 *","timezone":"UTC"}`, "tarball_path": "https://example.test/code.tar.gz",
		"entrypoint": "python main.py", "created_at": ended, "updated_at": ended,
	})
	for i := range n {
		p.insert(db, "automation_runs", map[string]any{
			"id": bare(uuid.NewString()), "automation_id": automation, "status": "COMPLETED", "sandbox_id": providerID(i),
			"created_at": ended, "started_at": ended, "completed_at": ended, "sandbox_cleanup_due_at": ended,
		})
	}
}

// insert fills what a column must have and is not given with an empty text, number or object.
func (p *peer) insert(db *sql.DB, table string, row map[string]any) {
	p.b.Helper()
	columns, err := db.Query("SELECT name, type FROM pragma_table_info(?) WHERE \"notnull\" = 1 AND dflt_value IS NULL", table)
	require.NoError(p.b, err)
	defer func() { _ = columns.Close() }()
	for columns.Next() {
		var name, kind string
		require.NoError(p.b, columns.Scan(&name, &kind))
		if _, given := row[name]; !given {
			row[name] = map[bool]any{true: 0, false: "[]"}[strings.Contains(kind, "INT") || kind == "BOOLEAN"]
		}
	}
	require.NoError(p.b, columns.Err())
	var names, marks []string
	var values []any
	for name, value := range row {
		names, marks, values = append(names, `"`+name+`"`), append(marks, "?"), append(values, value)
	}
	_, err = db.Exec(fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(names, ", "), strings.Join(marks, ", ")), values...)
	require.NoError(p.b, err)
}
