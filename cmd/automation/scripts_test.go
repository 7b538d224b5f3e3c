package main

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/models/modelstest"
)

const scriptKey = "the-key-of-the-scripts"

// TestScripts runs testdata/*.txtar, each against a service of its own that has the rows of seed. The boxes in them are in a
// place that it does not serve, so that they stay as they are.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			app := startSeeded(t)
			testscript.Run(t, testscript.Params{
				Files: []string{file}, UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"automation": automationCommand, "code": exitsWith, "dispatch": dispatched(app), "newest-sweep": newestSweep(app), "runtime-runs": runtimeRuns(app), "stub-box": stubbedBox,
				},
				Setup: func(env *testscript.Env) error {
					env.Setenv("HOME", env.WorkDir)
					env.Setenv("AUTOMATION_URL", app.config.HTTP.BaseURL)
					env.Setenv("AUTOMATION_TOKEN", scriptKey)
					env.Setenv("SERVED_DATA", app.config.Storage.DataDir)
					env.Setenv("SERVED_DB", app.config.Database.SQLitePath())
					return nil
				},
			})
		})
	}
}

// automationCommand is "automation ARG…" in this process: it must succeed.
func automationCommand(ts *testscript.TestScript, neg bool, args []string) {
	if code := inProcess(ts, args); neg || code != exitOK {
		ts.Fatalf("exit code %d, want 0; to expect another: code N automation …", code)
	}
}

// exitsWith is "code N automation ARG…": the exit code must be N.
func exitsWith(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "automation" {
		ts.Fatalf("usage: code N automation ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if code := inProcess(ts, args[2:]); code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// inProcess runs a command with the variables that the script sets; an empty one is not set.
func inProcess(ts *testscript.TestScript, args []string) int {
	var env []string
	for _, name := range append(config.Names(), "HOME", "PATH", "COLUMNS", "AUTOMATION_URL", "AUTOMATION_TOKEN", "AUTOMATION_TOKEN_FILE",
		"AUTOMATION_TENANT", ticketVariable, "AUTOMATION_SESSION_KEY", "AUTOMATION_SESSION_KEY_FILE",
		"AUTOMATION_SANDBOX_CLENUP_DELAY_SECONDS") {
		if value := ts.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return Main(context.Background(), args, Streams{Env: env, Out: ts.Stdout(), Err: ts.Stderr()})
}

// newestSweep is "newest-sweep": PLAN becomes the id of the newest sweep.
func newestSweep(app *App) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, _ []string) {
		c := newClient(app.apiURL(), scriptKey)
		defer c.close()
		sweeps, _, err := listed[sweepObject](context.Background(), c, "/sweeps", url.Values{}, "sweeps", 1)
		ts.Check(err)
		ts.Setenv("PLAN", sweeps[0].ID)
	}
}

// runtimeRuns is "runtime-runs CONVERSATION": waits until its box does.
func runtimeRuns(app *App) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: runtime-runs CONVERSATION")
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := newClient(app.apiURL(), scriptKey)
		defer c.close()
		var r runtimeObject
		ts.Check(await(ctx, "its box runs", func() (bool, error) {
			err := c.get(ctx, "/runtimes/"+args[0], &r)
			return r.State == "running", err
		}))
	}
}

// dispatched is "dispatch NAME COMMAND": a run in a real box, waited for until its command has been started.
func dispatched(app *App) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 2 {
			ts.Fatalf("usage: dispatch NAME COMMAND")
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := newClient(app.apiURL(), scriptKey)
		defer c.close()
		path, err := c.upload(ctx, "run.sh", args[1])
		ts.Check(err)
		var made automationObject
		ts.Check(c.json(ctx, "POST", "", map[string]any{
			"name": args[0], "entrypoint": "sh run.sh", "tarball_path": path, "timeout": 300,
			"trigger": map[string]string{"type": "cron", "schedule": "0 0 1 1 *"},
		}, &made))
		var run runObject
		ts.Check(c.json(ctx, "POST", "/"+made.ID+"/dispatch", nil, &run))
		ts.Check(await(ctx, "the command starts", func() (bool, error) {
			err := c.get(ctx, "/runs/"+run.ID, &run)
			return run.CommandID != "", err
		}))
		ts.Setenv("RUN", run.ID)
		ts.Setenv("BOX", run.Sandbox.ID)
	}
}

// startService serves until the test ends; env comes before what makes it a service on loopback with process boxes in a folder of its own.
func startService(t *testing.T, env ...string) *App {
	t.Helper()
	dir := t.TempDir()
	env = append(env, // of a name that is there twice the first counts
		"HOME="+dir, "PATH="+os.Getenv("PATH"), "AUTOMATION_DATA_DIR="+filepath.Join(dir, "data"), "AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=", "AUTOMATION_LOCAL_API_KEY="+scriptKey, "AUTOMATION_SANDBOX_BACKEND=process",
		"AUTOMATION_SANDBOX_POLL_INTERVAL=1", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=86400",
		"AUTOMATION_CUSTOMER_AGENT_COMMAND=echo serving; echo ready >&2; sleep 600",
	)
	cfg, err := config.Load(env)
	require.NoError(t, err)
	app, err := newApp(t.Context(), cfg, env, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- app.Serve(ctx) }()
	t.Cleanup(func() {
		removeBoxes(t, app)
		stop()
		require.NoError(t, <-served)
		require.NoError(t, app.Close())
	})
	return app
}

// removeBoxes deletes the boxes that the backend still has.
func removeBoxes(t *testing.T, app *App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	play := newDemoPlay(app)
	defer play.close()
	if n, err := app.alive(ctx); n > 0 || err != nil {
		require.NoError(t, play.clear(ctx, app))
	}
}

// The objects of seed, by what ids begin with.
func seededID(n string) uuid.UUID { return uuid.MustParse(n + "-0000-7000-8000-000000000000") }

var (
	localOrg  = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-org"))
	localUser = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("openhands-local-user"))
)

const day = 24 * time.Hour

// startSeeded starts a service on a database with the rows of seed.
func startSeeded(t *testing.T) *App {
	t.Helper()
	db := modelstest.NewSQLite(t)
	seed(t, db.Open(t))
	path := strings.TrimPrefix(db.DSN, "sqlite:")
	return startService(t, "AUTOMATION_DB_URL=sqlite:///"+path)
}

// seed stores two automations, four runs and three boxes: paused and due, paused and kept, gone. Their ages are in days, so
// that what is shown of them does not change while a script runs.
func seed(t *testing.T, s *models.Store) {
	t.Helper()
	now := s.Now()
	before := func(days int) *time.Time { at := now.Add(-time.Duration(days) * day); return &at }
	owned := func(id uuid.UUID, name string) *models.Automation {
		return modelstest.Automation(t, s, func(a *models.Automation) {
			a.ID, a.Name, a.OrgID, a.UserID = id, name, localOrg, localUser
			a.Trigger = []byte(`{"type":"cron","schedule":"0 0 1 1 *","timezone":"UTC"}`)
		})
	}
	nightly, weekly := owned(seededID("01900001"), "nightly report"), owned(seededID("01900002"), "weekly clean-up")
	finished := func(a *models.Automation, n string, days int, status models.RunStatus, text string, edit func(*models.Run, *models.Sandbox)) {
		modelstest.Running(t, s, a, func(r *models.Run, b *models.Sandbox) {
			r.ID, b.ID = seededID("0191000"+n), seededID("0192000"+n)
			b.RunID, b.Identities[0].ProviderID = &r.ID, "provider-"+n
			r.Status, r.TimeoutAt, r.CheckAt = status, nil, nil
			r.CreatedAt, r.StartedAt, r.CompletedAt = *before(days), before(days), before(days)
			if text != "" {
				r.ErrorDetail = &text
			}
			b.Backend, b.Location, b.CreatedAt, b.OrderedAt = "process", "another machine", *before(days), *before(days)
			b.ObservedAt, b.OrderedBy, b.OrderReason = before(days), "watchdog", "exit"
			b.Desired, b.Observed, b.SuspendedAt = models.WantSuspended, models.SeenSuspended, before(days)
			edit(r, b)
		})
	}
	due := now.Add(2*day + 59*time.Minute)
	finished(nightly, "1", 3, models.RunFailed, "exit_code=3\nstderr:\ncheck failed: want 42, got 41", func(r *models.Run, _ *models.Sandbox) {
		r.CleanupDueAt = &due
	})
	finished(weekly, "2", 4, models.RunFailed, "Timed out: no callback", func(_ *models.Run, b *models.Sandbox) {
		b.KeptAt, b.KeptBy, b.KeptReason = before(4), "user:ana", "flaky test"
	})
	finished(weekly, "3", 5, models.RunCompleted, "", func(_ *models.Run, b *models.Sandbox) {
		b.Desired, b.Observed, b.DeletedAt, b.OrderedBy, b.OrderReason = models.WantDeleted, models.SeenDeleted, before(1), "janitor", "due"
	})
	modelstest.Pending(t, s, weekly, func(r *models.Run) {
		r.ID, r.Status, r.CreatedAt, r.CompletedAt = seededID("01910004"), models.RunSkipped, *before(6), before(6)
	})
}
