package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// demoScript is the command of the demo: it works, leaves caches and a file behind, and fails.
const demoScript = `echo "collecting the numbers"
mkdir -p "$HOME/.cache/demo"
head -c 25000000 /dev/zero | tr '\0' 'x' > "$HOME/.cache/demo/index"
echo '{"want": 42, "got": 41}' > result.json
echo "check failed: want 42, got 41" >&2
exit 3
`

// demoClear is how long a demo that broke off may take to delete its box.
const demoClear = 15 * time.Second

// demoPoll is how often the demo looks, as a client without a stream would.
const demoPoll = 150 * time.Millisecond

// demo drives the service over HTTP like any client.
type demo struct{ *client }

func newDemoPlay(a *App) demo { return demo{newClient(a.apiURL(), a.localKey.Reveal())} }

// play goes through the main job and returns at the first step that is not seen in time.
func (c demo) play(ctx context.Context, t *timeline, a *App) error {
	t.seen("ready", fmt.Sprintf("%s, boxes as local processes, deleted %s after their run", a.store.Dialect(), demoDelay))
	automation, err := c.create(ctx)
	if err != nil {
		return fmt.Errorf("create the automation: %w", err)
	}
	t.seen("created", "automation “nightly report”, every 2 s, one run at a time")
	t.wait("the schedule to fire")
	run, err := c.firstRun(ctx, automation)
	if err != nil {
		return err
	}
	t.seen("running", "run "+short(run.ID)+" in box "+short(run.Sandbox.ID))
	steps := []func(context.Context, *timeline, *runObject) error{c.failed, c.output, c.reclaimed, c.paused, c.lookIn, c.swept}
	for _, step := range steps {
		if err := step(ctx, t, run); err != nil {
			return err
		}
	}
	alive, err := a.alive(ctx)
	if err != nil {
		return fmt.Errorf("ask the backend for boxes: %w", err)
	}
	t.seen("gone", fmt.Sprintf("boxes alive: %d", alive))
	if alive != 0 {
		return fmt.Errorf("the backend still lists %d boxes", alive)
	}
	return nil
}

// upload stores a tarball with one file, and returns the path to give an automation.
func (c *client) upload(ctx context.Context, name, content string) (path string, err error) {
	var tarball bytes.Buffer
	zip := gzip.NewWriter(&tarball)
	archive := tar.NewWriter(zip)
	err = archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(archive, content)
	}
	if err = errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return "", err
	}
	answer, err := c.call(ctx, http.MethodPost, "/v1/uploads?name="+url.QueryEscape(name), "application/gzip", tarball.Bytes())
	if err != nil {
		return "", err
	}
	var upload struct {
		TarballPath string `json:"tarball_path"`
	}
	err = json.Unmarshal(answer, &upload)
	return upload.TarballPath, err
}

// create uploads the script and makes the automation.
func (c demo) create(ctx context.Context) (id string, err error) {
	path, err := c.upload(ctx, "report.sh", demoScript)
	if err != nil {
		return "", err
	}
	var made automationObject
	err = c.json(ctx, http.MethodPost, "", map[string]any{
		"name": "nightly report", "entrypoint": "sh report.sh", "tarball_path": path, "timeout": 60,
		"trigger": map[string]string{"type": "cron", "schedule": "@every 2s"}, "overlap": "Forbid",
	}, &made)
	return made.ID, err
}

// firstRun waits for the scheduled run to execute, and switches the schedule off: not before, for a run that waits is not
// executed where its automation is off.
func (c demo) firstRun(ctx context.Context, automation string) (*runObject, error) {
	var runs struct {
		Runs []runObject `json:"runs"`
	}
	fired := func() (bool, error) {
		err := c.get(ctx, "/"+automation+"/runs", &runs)
		return len(runs.Runs) > 0, err
	}
	if err := await(ctx, "the schedule fires", fired); err != nil {
		return nil, err
	}
	run := &runs.Runs[len(runs.Runs)-1]
	if err := c.until(ctx, run, "the run executes", func() bool { return run.Status == "RUNNING" && run.Sandbox != nil }); err != nil {
		return nil, err
	}
	if err := c.json(ctx, http.MethodPatch, "/"+automation, map[string]any{"enabled": false}, nil); err != nil {
		return nil, fmt.Errorf("switch the schedule off: %w", err)
	}
	return run, nil
}

func (c demo) failed(ctx context.Context, t *timeline, run *runObject) error {
	t.wait("the command to end; without a callback its exit is believed after 10 s")
	err := c.until(ctx, run, "the run fails", func() bool { return run.Status == "FAILED" })
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(run.ErrorDetail, "\n")
	t.seen("failed", first)
	return nil
}

func (c demo) output(ctx context.Context, t *timeline, run *runObject) error {
	t.wait("the output to be stored")
	if err := c.until(ctx, run, "the output is stored", func() bool { return run.HasLogs }); err != nil {
		return err
	}
	logs, err := c.logs(ctx, run.ID)
	if err != nil {
		return fmt.Errorf("read the output: %w", err)
	}
	lines, code, err := readLogs(logs)
	if err != nil {
		return err
	}
	if code != 3 {
		return fmt.Errorf("stored exit code is %d, not 3", code)
	}
	t.seen("output", fmt.Sprintf("stored outside the box, exit code %d", code), lines...)
	return nil
}

// readLogs turns stored output into lines of text and the exit code.
func readLogs(output []byte) (lines []string, code int, err error) {
	code = -1
	var text strings.Builder
	err = readFrames(output, func(f frame) error {
		text.Write(f.Data)
		if f.ExitCode != nil {
			code = *f.ExitCode
		}
		return nil
	})
	return strings.Split(strings.TrimRight(text.String(), "\n"), "\n"), code, err
}

func (c demo) reclaimed(ctx context.Context, t *timeline, run *runObject) error {
	t.wait("the box to free its caches")
	var bytes int64
	err := await(ctx, "the box reclaims its caches", func() (bool, error) {
		events, _, err := listed[eventObject](ctx, c.client, "/sandboxes/"+run.Sandbox.ID+"/events", url.Values{}, "events", pageSize)
		for _, event := range events {
			if event.What == "reclaimed" && event.Outcome == "ok" {
				bytes = event.Bytes
			}
		}
		return bytes > 0, err
	})
	if err != nil {
		return err
	}
	t.seen("reclaimed", size(bytes)+" of caches")
	return nil
}

func (c demo) paused(ctx context.Context, t *timeline, run *runObject) error {
	t.wait("the box to pause")
	err := c.until(ctx, run, "the box pauses", func() bool { return run.Sandbox.Observed == "suspended" })
	if err != nil {
		return err
	}
	if run.Cleanup.DueAt == nil || run.Cleanup.SecondsLeft == nil {
		return errors.New("the paused box shows no due date")
	}
	if want := run.CompletedAt.Add(demoDelay); !run.Cleanup.DueAt.Equal(want) {
		return fmt.Errorf("the box is due at %s, not at %s", run.Cleanup.DueAt, want)
	}
	t.seen("paused", fmt.Sprintf("with its memory; due in %d s", *run.Cleanup.SecondsLeft))
	return nil
}

// lookIn reads a file that the run left through the proxy, which resumes the box, and pauses it again.
func (c demo) lookIn(ctx context.Context, t *timeline, run *runObject) error {
	t.wait("the box to come back")
	proxy := "/sandboxes/" + run.Sandbox.ID + "/proxy"
	var home struct {
		Home string `json:"home"`
	}
	if err := c.get(ctx, proxy+"/api/file/home", &home); err != nil {
		return fmt.Errorf("look into the box: %w", err)
	}
	file, err := c.call(ctx, http.MethodGet, "/v1"+proxy+"/api/file/download?path="+home.Home+"/project/result.json", "", nil)
	if err != nil {
		return fmt.Errorf("read a file in the box: %w", err)
	}
	if !bytes.Contains(file, []byte(`"got": 41`)) {
		return fmt.Errorf("the file in the box reads %q", file)
	}
	t.seen("looked in", "resumed through the proxy; result.json is there", strings.TrimSpace(string(file)))
	if err := c.json(ctx, http.MethodPost, "/sandboxes/"+run.Sandbox.ID+"/pause", nil, nil); err != nil {
		return fmt.Errorf("pause the box: %w", err)
	}
	t.wait("the box to pause again")
	err = c.until(ctx, run, "the box pauses again", func() bool { return run.Sandbox.Observed == "suspended" })
	if err != nil {
		return err
	}
	t.seen("paused", fmt.Sprintf("again; still due in %d s, for looking in does not extend it", *run.Cleanup.SecondsLeft))
	return nil
}

func (c demo) swept(ctx context.Context, t *timeline, run *runObject) error {
	due := *run.Cleanup.DueAt
	t.wait("the janitor")
	err := c.until(ctx, run, "the janitor sweeps the box", func() bool {
		return run.Sandbox.Observed == "deleted" && run.Cleanup.State == "deleted"
	})
	if err != nil {
		return err
	}
	if now := time.Now(); now.Before(due) {
		return fmt.Errorf("the box was deleted %s before it was due", due.Sub(now))
	}
	t.seen("swept", "the janitor ordered it deleted when it was due")
	return nil
}

// clear deletes what a demo that broke off has left running.
func (c demo) clear(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, demoClear)
	defer cancel()
	boxes, _, err := listed[boxObject](ctx, c.client, "/sandboxes", url.Values{}, "sandboxes", pageSize)
	if err != nil {
		return fmt.Errorf("list what is left: %w", err)
	}
	for _, box := range boxes {
		// Refusals do not matter: the run has ended, or its end has ordered the box deleted.
		_ = c.json(ctx, http.MethodPost, "/runs/"+box.RunID+"/cancel", nil, nil)
		_ = c.json(ctx, http.MethodDelete, "/sandboxes/"+box.ID+"?confirm=history-will-be-lost", nil, nil)
	}
	return await(ctx, "what was left is deleted", func() (bool, error) {
		alive, err := a.alive(ctx)
		return alive == 0, err
	})
}

// until reads the run again until it is as wanted.
func (c demo) until(ctx context.Context, run *runObject, what string, is func() bool) error {
	return await(ctx, what, func() (bool, error) {
		var now runObject
		if err := c.get(ctx, "/runs/"+run.ID, &now); err != nil {
			return false, err
		}
		*run = now
		return is(), nil
	})
}

// await looks until done, and names what was not seen when the time is over.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	ticker := time.NewTicker(demoPoll)
	defer ticker.Stop()
	for {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not seen in time: %s", what)
		case <-ticker.C:
		}
	}
}

// short is the end of an id, which tells ids of the same moment apart.
func short(id string) string { return id[max(0, len(id)-8):] }
