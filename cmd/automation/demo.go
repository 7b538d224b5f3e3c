package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"automation/config"
)

// The demo's times: it ends by itself within demoBudget.
const (
	demoBudget = 40 * time.Second
	demoDelay  = 10 * time.Second // between the end of the run and the deletion of its box
)

func newDemo(io Streams) *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch a failing automation in a local box: run, kept, looked into, swept",
		Long: "Runs the whole service in a folder of its own with boxes as local processes: a scheduled automation fails, its\n" +
			"output is stored, its box is reclaimed and paused, somebody looks in, and the janitor deletes it when due.\n" +
			"The database is SQLite, or PostgreSQL where AUTOMATION_DB_URL or AUTOMATION_DB_HOST and its like say so.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			return io.demo(ctx, keep)
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "go on serving afterwards, and print where and the key file")
	return c
}

// demo starts a service, drives it as a client would, and is content only if every step was seen.
func (io Streams) demo(ctx context.Context, keep bool) (err error) {
	dir, err := os.MkdirTemp("", "automation-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	defer func() {
		if !keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	app, err := io.demoApp(ctx, dir)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- app.Serve(serving) }()

	line := newTimeline(io.Out)
	play, cancel := context.WithTimeout(ctx, demoBudget)
	client := newDemoPlay(app)
	defer client.close()
	failed := client.play(play, line, app)
	cancel()
	line.end(failed)
	if failed != nil {
		failed = errors.Join(failed, client.clear(context.WithoutCancel(ctx), app))
	}
	if keep && failed == nil {
		fmt.Fprintf(io.Out, "\nServing at %s, login key in %s. End with Ctrl-C.\n",
			app.apiURL(), filepath.Join(app.config.Storage.DataDir, apiKeyFile))
		<-ctx.Done()
	}
	stop()
	return errors.Join(failed, <-served, app.Close())
}

// demoApp builds the service of the demo in dir. What the environment says of a database is kept, everything else is the demo's.
func (io Streams) demoApp(ctx context.Context, dir string) (*App, error) {
	env := []string{
		"AUTOMATION_DATA_DIR=" + dir,
		"AUTOMATION_LISTEN=127.0.0.1:0",
		"AUTOMATION_METRICS_LISTEN=",
		"AUTOMATION_SANDBOX_BACKEND=" + processBackend,
		fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", int(demoDelay/time.Second)),
		"AUTOMATION_SANDBOX_POLL_INTERVAL=1",
		"AUTOMATION_RUN_MIGRATIONS_ON_STARTUP=true",
		"AUTOMATION_LOG_LEVEL=error",
	}
	for _, pair := range io.Env {
		name, _, _ := strings.Cut(pair, "=")
		if upper := strings.ToUpper(name); strings.HasPrefix(upper, "AUTOMATION_DB_") || upper == "AUTOMATION_SECRET_KEY" ||
			!strings.HasPrefix(upper, "AUTOMATION_") && !strings.HasPrefix(upper, "LOG_") && upper != "LOCAL_STORAGE_PATH" {
			env = append(env, pair)
		}
	}
	cfg, err := config.Load(env)
	if err != nil {
		return nil, err
	}
	if cfg.Database.Postgres() && len(cfg.Database.SecretKeys) == 0 {
		key, _, err := keyFile(dir, secretKeyFile)
		if err != nil {
			return nil, err
		}
		if cfg, err = config.Load(append(env, "AUTOMATION_SECRET_KEY="+key)); err != nil {
			return nil, err
		}
	}
	return newApp(ctx, cfg, env, newLog(cfg.Log, io.Err))
}

// timeline writes what was seen, one line a step. On a terminal the step that is waited for stands in the last line.
type timeline struct {
	out   io.Writer
	live  bool
	start time.Time
	stop  func() // ends the ticking of the present wait
}

func newTimeline(out io.Writer) *timeline {
	return &timeline{out: out, live: isTerminal(out), start: time.Now(), stop: func() {}}
}

// wait says what is waited for.
func (t *timeline) wait(what string) {
	t.stop()
	if !t.live {
		return
	}
	done, ended := make(chan struct{}), make(chan struct{})
	t.stop = func() {
		close(done)
		<-ended
		t.stop = func() {}
	}
	go t.tick(what, done, ended)
}

// tick keeps the last line of a terminal moving until done is closed.
func (t *timeline) tick(what string, done, ended chan struct{}) {
	defer close(ended)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		fmt.Fprintf(t.out, "\r\033[K%6.1fs  \033[2m… %s\033[0m", time.Since(t.start).Seconds(), what)
		select {
		case <-done:
			fmt.Fprint(t.out, "\r\033[K")
			return
		case <-ticker.C:
		}
	}
}

// seen writes a step that was seen, and lines that belong to it.
func (t *timeline) seen(what, text string, more ...string) {
	t.stop()
	fmt.Fprintf(t.out, "%6.1fs  %-10s %s\n", time.Since(t.start).Seconds(), what, text)
	for _, m := range more {
		fmt.Fprintf(t.out, "                     │ %s\n", m)
	}
}

// end closes the timeline.
func (t *timeline) end(err error) {
	t.stop()
	if err != nil {
		fmt.Fprintf(t.out, "%6.1fs  %-10s %v\n", time.Since(t.start).Seconds(), "FAILED", err)
	}
}
