package tests

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // for holding the file's lock
)

// outage takes the database away from a service, and gives it back.
type outage struct {
	take func(s *server)
	back func()
	gone bool // in between nothing is answered; else nothing is written
}

// crashing is a PostgreSQL server that dies and comes back.
func crashing(t *testing.T) (outage, []string) {
	c := newCluster(t)
	return outage{take: func(*server) { c.crash() }, back: c.start, gone: true}, c.database("automation")
}

// locked is a SQLite file that another process writes to for longer than anybody waits.
func locked(t *testing.T) outage {
	var holder *sql.Conn
	take := func(s *server) {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(s.data, "automation.db")+"?_pragma=busy_timeout(20000)")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		holder, err = db.Conn(context.Background())
		require.NoError(t, err)
		_, err = holder.ExecContext(context.Background(), "BEGIN IMMEDIATE")
		require.NoError(t, err)
	}
	back := func() {
		_, err := holder.ExecContext(context.Background(), "ROLLBACK")
		require.NoError(t, err)
		require.NoError(t, holder.Close())
	}
	return outage{take: take, back: back}
}

// batch is a number of runs at once, in boxes of the stub.
type batch struct {
	caller
	outage
	runs []string
}

// try makes a request and returns what came back, faults too.
func (b *batch) try(method, path, body string) (status int, answer string) {
	b.t.Helper()
	status, header, raw := b.send(method, "/api/automation/v1"+path,
		map[string]string{"Authorization": "Bearer tok-alice", "Content-Type": "application/json"}, []byte(body))
	if status == http.StatusServiceUnavailable {
		require.NotEmpty(b.t, header.Get("Retry-After"))
		require.Contains(b.t, string(raw), "The database does not answer")
	}
	return status, string(raw)
}

// insists repeats a request until its answer is one of those.
func (b *batch) insists(method, path, body string, statuses ...int) {
	b.t.Helper()
	b.until(method+" "+path, func() error {
		status, answer := b.try(method, path, body)
		if slices.Contains(statuses, status) {
			return nil
		}
		if status != http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s", status, answer)
		}
		return fmt.Errorf("the database stays away")
	})
}

// without takes the database away, waits until somebody has noticed, and gives it back.
func (b *batch) without() {
	b.t.Helper()
	b.take(b.s)
	b.until("the fault is told", func() error {
		if b.gone {
			if status, answer := b.try(http.MethodGet, "/runs", ""); status != http.StatusServiceUnavailable {
				return fmt.Errorf("%d %s", status, answer)
			}
		} else if status, answer := b.try(http.MethodPost, "/sweeps/plan", "{}"); status != http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
	b.back()
	b.until("the service is ready again", func() error {
		response, err := http.Get(b.s.base[:len(b.s.base)-len("/v1")] + "/ready?verbose") //nolint:forbidigo // a prober
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// newBatch dispatches 16 runs, and takes the database away while their boxes are being made if early says so.
func newBatch(t *testing.T, o outage, database []string, early bool) (b *batch, automation string) {
	t.Helper()
	b = &batch{caller: newCaller(t, "cloud", database...), outage: o}
	automation = b.call("tok-alice", http.MethodPost, "", object{
		"name": "x", "entrypoint": "python main.py", "tarball_path": "https://example.test/code.tar.gz", "timeout": 600,
		"trigger": object{"type": "cron", "schedule": "0 0 29 2 *"},
	}, http.StatusCreated).text("id")
	for range 16 {
		b.runs = append(b.runs, b.call("tok-alice", http.MethodPost, "/"+automation+"/dispatch", nil, http.StatusCreated).text("id"))
	}
	if early {
		require.True(t, b.stub.Wait(patience, func() bool { return len(b.stub.Calls("create")) >= 6 }), "boxes are being made")
		b.without()
	}
	return b, automation
}

// goesAway lets the runs of a batch end while the database is away.
func (b *batch) goesAway(automation string) {
	b.t.Helper()
	for _, run := range b.runs {
		b.becomes(run, "RUNNING", func(o object) bool { return o.text("bash_command_id") != "" })
	}
	var ends sync.WaitGroup
	for _, run := range b.runs {
		ends.Go(func() {
			// 409: an earlier try was done, and its answer lost
			b.insists(http.MethodPost, "/runs/"+run+"/complete", `{"status":"COMPLETED"}`, http.StatusOK, http.StatusConflict)
		})
	}
	b.without()
	ends.Wait()
	for _, run := range b.runs {
		b.becomes(run, "COMPLETED", nil)
	}
	gone(b.player)
	b.noneLost(automation)
	require.Contains(b.t, b.s.log(), `"error_kind":"database_unavailable"`)
	require.Less(b.t, strings.Count(b.s.log(), `"event":"request_failed"`), 2*len(b.runs), "what repeats is counted")
}

// The database dies and comes back, in the middle of a batch of starts and in the middle of a batch of ends: no run is lost, none has
// two ends, no box is left.
func TestFault_PostgreSQLCrashesInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	o, database := crashing(t)
	b, automation := newBatch(t, o, database, true) // what was being started goes on when its lease has ended
	b.goesAway(automation)
}

// Another process writes to the file for longer than anybody waits.
func TestFault_SQLiteIsLockedInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	b, automation := newBatch(t, locked(t), nil, false)
	b.goesAway(automation)
}

// noneLost checks what is written of the batch in the end.
func (b *batch) noneLost(automation string) {
	b.t.Helper()
	runs := b.call("tok-alice", http.MethodGet, "/"+automation+"/runs?limit=1", nil, http.StatusOK)
	require.EqualValues(b.t, len(b.runs), runs.get("total"))
	require.EqualValues(b.t, len(b.runs), runs.get("status_counts", "COMPLETED"))
	b.until("every box is shown deleted", func() error {
		boxes := b.call("tok-alice", http.MethodGet, "/sandboxes?limit=100&state=running&state=provisioning&state=suspended&state=deleting&state=missing", nil, http.StatusOK)
		if boxes.get("total") != 0.0 {
			return fmt.Errorf("left: %v", boxes)
		}
		return nil
	})
	for _, run := range b.runs {
		box := b.look(run).text("sandbox", "id")
		events, _ := b.call("tok-alice", http.MethodGet, "/sandboxes/"+box+"/events?limit=100", nil, http.StatusOK).get("events").([]any)
		ordered := 0
		for _, e := range events {
			if event, _ := e.(map[string]any); event["what"] == "ordered" {
				ordered++
			}
		}
		require.Equal(b.t, 1, ordered, "the box of a run is ordered deleted once: %v", events)
	}
	for _, box := range b.stub.Boxes() {
		require.False(b.t, box.DeletedAt.IsZero())
	}
}
