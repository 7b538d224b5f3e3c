package main

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/config"
)

// scrape reads the samples of a page of metrics.
func scrape(t *testing.T, url, key string) (status int, samples map[string]string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	samples = map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if at := strings.LastIndex(line, " "); at > 0 && !strings.HasPrefix(line, "#") {
			samples[line[:at]] = line[at+1:]
		}
	}
	return resp.StatusCode, samples
}

func TestMetricsFollowARealRun(t *testing.T) {
	app := startService(t, "AUTOMATION_METRICS_LISTEN=127.0.0.1:0", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=0")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newClient(app.apiURL(), scriptKey)
	defer c.close()
	path, err := c.upload(ctx, "run.sh", "exit 3")
	require.NoError(t, err)
	var made automationObject
	require.NoError(t, c.json(ctx, "POST", "", map[string]any{
		"name": "measured", "entrypoint": "sh run.sh", "tarball_path": path, "trigger": map[string]string{"type": "cron", "schedule": "0 0 1 1 *"},
	}, &made))
	var run runObject
	require.NoError(t, c.json(ctx, "POST", "/"+made.ID+"/dispatch", nil, &run))
	require.NoError(t, await(ctx, "the command starts", func() (bool, error) {
		err := c.get(ctx, "/runs/"+run.ID, &run)
		return run.CommandID != "", err
	}))
	require.NoError(t, c.json(ctx, "POST", "/runs/"+run.ID+"/complete", map[string]any{"status": "FAILED", "error": "checks failed"}, nil))
	require.NoError(t, await(ctx, "the box is gone", func() (bool, error) {
		err := c.get(ctx, "/runs/"+run.ID, &run)
		return run.Sandbox.Observed == "deleted", err
	}))

	here := "http://" + app.scrapeListener.Addr().String() + "/metrics"
	status, got := scrape(t, here, "")
	require.Equal(t, 200, status)
	for name, want := range map[string]string{
		`automation_runs_finished_total{outcome="failed",trigger="manual"}`:                                      "1",
		`automation_runs_finished_total{outcome="completed",trigger="manual"}`:                                   "0",
		`automation_run_duration_seconds_count{outcome="failed"}`:                                                "1",
		`automation_run_queue_seconds_count`:                                                                     "1",
		`automation_runs{status="failed"}`:                                                                       "1",
		`automation_sandbox_operations_total{operation="create",provider="process",result="ok"}`:                 "1",
		`automation_sandbox_deletes_total{provider="process",reason="immediate",result="ok"}`:                    "1",
		`automation_sandbox_age_at_deletion_seconds_count{provider="process",reason="immediate"}`:                "1",
		`automation_sandboxes{kept="false",provider="process",state="running"}`:                                  "0",
		`automation_sandbox_cleanup_overdue{provider="process"}`:                                                 "0",
		`automation_http_requests_total{code="201",method="POST",route="/api/automation/v1/{id}/dispatch"}`:      "1",
		`automation_http_requests_total{code="200",method="POST",route="/api/automation/v1/runs/{id}/complete"}`: "1",
		`automation_migration_dirty`:                                                                             "0",
	} {
		require.Equal(t, want, got[name], name)
	}
	require.NotEqual(t, "0", got[`automation_loop_iterations_total{loop="settle process",result="ok"}`])
	require.NotEmpty(t, got[`automation_loop_last_success_timestamp_seconds{loop="settle process"}`])
	require.Contains(t, got, `go_sql_open_connections{db_name="read"}`)

	own := app.config.HTTP.BaseURL + "/metrics"
	status, _ = scrape(t, own, "")
	require.Equal(t, 401, status, "on the main listener it wants the login")
	status, got = scrape(t, own, scriptKey)
	require.Equal(t, 200, status)
	require.Contains(t, got, `automation_runs{status="failed"}`)
}

func TestAPortOfMetricsInUseIsAWarning(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	env := []string{
		"HOME=" + dir, "AUTOMATION_DATA_DIR=" + filepath.Join(dir, "data"), "AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=" + taken.Addr().String(), "AUTOMATION_SANDBOX_BACKEND=process",
	}
	cfg, err := config.Load(env)
	require.NoError(t, err)
	l := newLines(t)
	app, err := newApp(t.Context(), cfg, env, l.log)
	require.NoError(t, err, "serving goes on")
	require.NoError(t, app.Close())
	require.Contains(t, l.buf.String(), "metrics not served")
	require.Contains(t, l.buf.String(), "address already in use")
	require.NotContains(t, l.buf.String(), app.localKey.Reveal(), "nor is the key that was made told")
}

// problems are what keeps a service from being ready.
func problems(app *App) (all []string) {
	for _, c := range app.checks(context.Background()) {
		if c.Problem != "" {
			all = append(all, c.Problem)
		}
	}
	return all
}

func TestReadinessNamesWhatFails(t *testing.T) {
	app := startService(t)
	require.Eventually(t, func() bool { return len(problems(app)) == 0 }, 30*time.Second, 10*time.Millisecond, "every loop begins")
	names := []string{}
	for _, c := range app.checks(t.Context()) {
		names = append(names, c.Name)
	}
	require.Subset(t, names, []string{"serving", "database", "migrations", "clock", "loop janitor", "loop dispatch", "loop schedule", "loop settle process"})

	raw, err := sql.Open("sqlite", app.config.Database.SQLitePath()+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer func() { _ = raw.Close() }()
	set := func(assignment string) {
		_, err := raw.ExecContext(t.Context(), "UPDATE schema_migrations SET "+assignment)
		require.NoError(t, err)
	}
	set("dirty = true")
	require.Equal(t, []string{"migration cut short"}, problems(app))
	set("dirty = false, version = version - 1")
	require.Equal(t, []string{"schema at another version"}, problems(app))
	set("version = version + 2")
	require.Empty(t, problems(app), "one version newer is served")
	set("version = version + 1")
	require.Equal(t, []string{"schema at another version"}, problems(app))
	set("version = version - 2")
	app.skew.Store(int64(6 * time.Second))
	require.Equal(t, []string{"clock skew"}, problems(app))
	app.skew.Store(0)

	_, err = raw.ExecContext(t.Context(), "DROP TABLE sweep_items") // what the janitor and the purge need
	require.NoError(t, err)
	_, err = raw.ExecContext(t.Context(), "ALTER TABLE automation_runs RENAME TO away")
	require.NoError(t, err)
	for range 3 {
		app.nudges.dispatch.Wake()
	}
	require.Eventually(t, func() bool { return strings.Contains(strings.Join(problems(app), ";"), "loop dispatch failing") }, 30*time.Second, 50*time.Millisecond)
	_, err = raw.ExecContext(t.Context(), "ALTER TABLE away RENAME TO automation_runs")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !strings.Contains(strings.Join(problems(app), ";"), "loop dispatch") }, 30*time.Second, 50*time.Millisecond)
}

func TestAProcessIsReadyByTheLoopsOfItsOwnRoles(t *testing.T) {
	dir := t.TempDir()
	env := []string{
		"HOME=" + dir, "AUTOMATION_DATA_DIR=" + filepath.Join(dir, "data"), "AUTOMATION_LISTEN=127.0.0.1:0", "AUTOMATION_METRICS_LISTEN=",
		"AUTOMATION_LOCAL_API_KEY=" + scriptKey, "AUTOMATION_SANDBOX_BACKEND=process",
	}
	cfg, err := config.Load(env)
	require.NoError(t, err)
	app, err := newApp(t.Context(), cfg, env, slog.New(slog.DiscardHandler), roleAPI)
	require.NoError(t, err)
	defer func() { require.NoError(t, app.Close()) }()
	var loops []string
	for _, c := range app.checks(t.Context()) {
		if name, is := strings.CutPrefix(c.Name, "loop "); is {
			loops = append(loops, name)
		}
	}
	require.Equal(t, []string{"clock"}, loops)
	require.Equal(t, []string{"loop clock not begun"}, problems(app), "it does not serve yet")
}
