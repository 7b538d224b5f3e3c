package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// provider is where the boxes of a world are, seen from the provider's side.
type provider interface {
	// automation makes an automation whose command prints told and ends only after leave.
	automation(w *world) (id string)
	// prints lets commands that have begun show told, and reports whether one has begun in the box of that provider id.
	prints(box string) bool
	// leave lets every command that has begun end.
	leave()
	// alive lists the boxes that exist, by provider id.
	alive() []string
	// deletes counts the calls that asked for the deletion of a box; false: this provider does not count.
	deletes(box string) (int, bool)
}

// never is a schedule that is not due while a test runs.
const never = "0 0 29 2 *"

// told is what commands print.
const told = "what the command of this run has printed\n"

// cleanupDelay is far longer than all leases, backoffs and searches, so that the clock can pass those before a box is due.
const cleanupDelay = 24 * time.Hour

// world is one deployment: replicas of the service with the test hooks on one database, their provider, and their clocks.
type world struct {
	t        *testing.T
	boxes    provider
	replicas []*replica
	kills    int    // of replicas, by their test hook
	fatal    string // the point of the hook, with its time
	storm    int    // how many kills there are to be
	quiet    time.Duration
}

// replica is one process of the service with a clock file.
type replica struct {
	*server
	clock  string
	shifts string // what the clock file shifts: rows, host
	shift  time.Duration
}

// newWorld prepares a deployment on Cloud's stub (cloud) or with process boxes; database chooses the engine.
func newWorld(t *testing.T, cloud bool, replicas int, database []string, env ...string) *world {
	t.Helper()
	w := &world{t: t, quiet: 600 * time.Millisecond}
	home := t.TempDir()
	env = slices.Concat(database, []string{
		fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", cleanupDelay/time.Second), "AUTOMATION_RUN_EXIT_GRACE_SECONDS=0",
		"AUTOMATION_SANDBOX_PROVISION_RETRY_DELAY=1", "AUTOMATION_RATE_LIMIT_MIN_WAIT=0", "AUTOMATION_RATE_LIMIT_MAX_WAIT=1",
		"AUTOMATION_DISPATCHER_INTERVAL_SECONDS=60", "AUTOMATION_WATCHDOG_INTERVAL_SECONDS=60",
	}, env)
	if cloud {
		stub := cloudstub.New(t)
		w.boxes = stubBoxes{stub}
		env = append(instance("cloud", stub), env...)
	} else {
		w.boxes = processBoxes{filepath.Join(home, "data")}
		w.quiet = 1500 * time.Millisecond // a box is an operating system's work
	}
	for n := range replicas {
		clock := filepath.Join(home, fmt.Sprintf("clock-%d", n))
		s := prepare(t, buildHooked(t), home, append(env, "AUTOMATION_TEST_CLOCK="+clock)...)
		if cloud {
			s.key = "tok-alice"
		}
		w.replicas = append(w.replicas, &replica{server: s, clock: clock, shifts: "rows"})
	}
	return w
}

// serve starts the first replica with a fatal point; the others join later.
func (w *world) serve(fatal string) {
	w.t.Helper()
	w.fatal = fatal
	w.launch(w.replicas[0])
}

// launch starts a replica; the first one with the fatal point, while kills are left.
func (w *world) launch(r *replica) {
	w.t.Helper()
	plain := r.env
	if r == w.replicas[0] && w.kills < w.storm {
		r.env = append(slices.Clone(plain), "AUTOMATION_TEST_CRASH="+w.fatal)
	}
	r.launch()
	r.env = plain
}

// set moves a replica's clock: its file is replaced in one step.
func (r *replica) set(shift time.Duration) {
	r.t.Helper()
	r.shift = shift
	next := r.clock + ".next"
	require.NoError(r.t, os.WriteFile(next, []byte(r.shifts+"="+shift.String()+"\n"), 0o600))
	require.NoError(r.t, os.Rename(next, r.clock))
}

// now is the time of rows, as the first replica has it.
func (w *world) now() time.Time { return time.Now().Add(w.replicas[0].shift) }

// apart is how far the clocks of replicas get from each other: less than a lease, or one that works would lose its own to one
// that has nothing to do.
const apart = 45 * time.Second

// pass moves the clock on. The other replicas follow once the first was killed, and then all go in step.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	if w.kills == 0 || len(w.replicas) == 1 {
		w.replicas[0].set(w.replicas[0].shift + d)
		return
	}
	for ; d > 0; d -= apart {
		w.replicas[0].set(w.replicas[0].shift + min(d, apart))
		w.follow()
		for _, r := range w.replicas {
			r.moved()
		}
	}
}

// follow lets all clocks show what the first does.
func (w *world) follow() {
	for _, r := range w.replicas[1:] {
		r.set(w.replicas[0].shift)
	}
}

// move moves the clock on, and waits until the service has noticed.
func (w *world) move(d time.Duration) {
	w.t.Helper()
	w.pass(d)
	for _, r := range w.replicas {
		r.moved()
	}
}

// moved waits until a replica's clock shows what its file says, or the replica is gone.
func (r *replica) moved() {
	r.t.Helper()
	shifts := map[string]time.Duration{r.shifts: r.shift}
	line := fmt.Sprintf(`"shifts":"host=%s rows=%s"`, shifts["host"], shifts["rows"])
	require.Eventually(r.t, func() bool {
		select {
		case <-r.gone:
			return true
		default:
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.logs[max(0, len(r.logs)-200):], func(l string) bool { return strings.Contains(l, line) })
	}, patience, 5*time.Millisecond)
}

// reach moves the clock to a time at once; everything is at rest.
func (w *world) reach(at time.Time) {
	w.replicas[0].set(w.replicas[0].shift + at.Sub(w.now()))
	if w.kills > 0 {
		w.follow()
	}
}

// revive starts replicas that were killed, and lets all clocks show the same.
func (w *world) revive() {
	for _, r := range w.replicas {
		select {
		case <-r.gone:
		default:
			continue
		}
		status, _ := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(w.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "the service ended by itself:\n%s", r.story())
		w.kills++
		w.follow()
		w.join()
		w.launch(r)
	}
}

// ask makes a request at whichever replica answers.
func (w *world) ask(method, path string, body any) (status int, answer []byte, ok bool) {
	for _, r := range w.replicas {
		client := http.Client{Timeout: 10 * time.Second}
		response, err := client.Do(r.request(method, path, body))
		if err != nil {
			continue
		}
		answer, err := io.ReadAll(response.Body)
		if err = errors.Join(err, response.Body.Close()); err == nil {
			return response.StatusCode, answer, true
		}
	}
	return 0, nil, false
}

// create makes something, whatever is killed meanwhile.
func (w *world) create(path string, body any) (made object) {
	w.t.Helper()
	w.wait("POST "+path, func(sight) bool {
		status, answer, ok := w.ask(http.MethodPost, path, body)
		if !ok {
			return false
		}
		require.Equal(w.t, http.StatusCreated, status, "%s: %s", path, answer)
		require.NoError(w.t, json.Unmarshal(answer, &made))
		return true
	})
	return made
}

// sight is what the API shows: runs and boxes by id.
type sight struct{ runs, boxes map[string]object }

// look reads runs and boxes; false while nobody answers.
func (w *world) look() (s sight, ok bool) {
	s = sight{map[string]object{}, map[string]object{}}
	for path, into := range map[string]map[string]object{"/runs?limit=100": s.runs, "/sandboxes?limit=100": s.boxes} {
		status, answer, answered := w.ask(http.MethodGet, path, nil)
		if !answered {
			return s, false
		}
		require.Equal(w.t, http.StatusOK, status, "%s: %s", path, answer)
		var page map[string]any
		require.NoError(w.t, json.Unmarshal(answer, &page))
		for _, list := range page {
			rows, _ := list.([]any)
			for _, row := range rows {
				if o, is := row.(map[string]any); is {
					into[object(o).text("id")] = o
				}
			}
		}
	}
	return s, true
}

// signature changes whenever something happens that the API shows.
func (s sight) signature() string {
	var lines []string
	for _, o := range slices.Concat(slices.Collect(maps.Values(s.runs)), slices.Collect(maps.Values(s.boxes))) {
		lines = append(lines, fmt.Sprint(o.text("id"), o["status"], o["bash_command_id"], o["desired"], o["observed"], o["observed_at"],
			o["needs_attention"], o.get("cleanup", "state"), o.get("cleanup", "attempts"), o.get("sandbox", "id")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// wait looks until something holds. Whenever nothing happens any more it moves the clock on: what is waited for then is the
// end of a lease, a backoff, a search or a time-out.
func (w *world) wait(what string, holds func(sight) bool) sight {
	w.t.Helper()
	return w.await(what, w.pass, holds)
}

// soon looks until something holds, and leaves the clock alone.
func (w *world) soon(what string, holds func(sight) bool) sight {
	w.t.Helper()
	return w.await(what, func(time.Duration) {}, holds)
}

func (w *world) await(what string, pass func(time.Duration), holds func(sight) bool) sight {
	w.t.Helper()
	ticker := time.NewTicker(40 * time.Millisecond)
	defer ticker.Stop()
	over := time.After(3 * patience)
	last, since, step := "", time.Now(), 65*time.Second
	for {
		w.revive()
		asked := time.Now()
		seen, ok := w.look()
		quiet := max(w.quiet, 10*time.Since(asked)) // a busy machine makes everybody slow
		if ok {
			if holds(seen) {
				return seen
			}
			if s := seen.signature(); s != last {
				last, since, step = s, time.Now(), 65*time.Second
			}
		}
		if ok && time.Since(since) > quiet {
			pass(step)
			since, step = time.Now(), min(2*step, 20*time.Minute)
		}
		select {
		case <-ticker.C:
		case <-over:
			w.t.Fatalf("not seen, %s after the start: %s; last seen:\n%s", w.replicas[0].shift, what, last)
		}
	}
}

// still waits until nothing has happened for a while, without moving the clock, and requires that something holds all along.
func (w *world) still(what string, holds func(sight) bool) {
	w.t.Helper()
	ticker := time.NewTicker(40 * time.Millisecond)
	defer ticker.Stop()
	for began := time.Now(); time.Since(began) < w.quiet; <-ticker.C {
		w.revive()
		if seen, ok := w.look(); ok {
			require.True(w.t, holds(seen), "%s:\n%s", what, seen.signature())
		}
	}
}

// stubBoxes are boxes of Cloud's stub.
type stubBoxes struct{ *cloudstub.Stub }

func (p stubBoxes) automation(w *world) string {
	return w.create("", object{
		"name": "crash", "entrypoint": "python main.py", "tarball_path": "https://example.test/code.tar.gz", "timeout": 600,
		"trigger": object{"type": "cron", "schedule": never},
	}).text("id")
}

func (p stubBoxes) prints(box string) bool {
	p.Prints(box, told)
	_, begun := p.Entrypoint(box)
	return begun
}

func (p stubBoxes) leave() {
	for _, b := range p.Boxes() {
		p.Exit(b.ID, 0, told, "")
	}
}

func (p stubBoxes) alive() []string { return p.Alive() }

func (p stubBoxes) deletes(box string) (int, bool) {
	b, known := p.Box(box)
	return b.DeleteCalls, known
}

// processBoxes are directories in the data folder. Commands make a file when they have printed, and end when one is made.
type processBoxes struct{ data string }

func (p processBoxes) file(name string) string { return filepath.Join(filepath.Dir(p.data), name) }

func (p processBoxes) automation(w *world) string {
	script := fmt.Sprintf("printf %%s %q\ntouch %q$SANDBOX_ID\nuntil [ -e %q ]; do sleep 0.1; done\n", told, p.file("printed-"), p.file("left"))
	status, answer, ok := w.ask(http.MethodPost, "/uploads?name=script", tarball(w.t, "main.sh", script))
	require.True(w.t, ok)
	require.Equal(w.t, http.StatusCreated, status, "%s", answer)
	var upload object
	require.NoError(w.t, json.Unmarshal(answer, &upload))
	return w.create("", object{
		"name": "crash", "entrypoint": "bash main.sh", "tarball_path": upload.text("tarball_path"), "timeout": 600,
		"trigger": object{"type": "cron", "schedule": never},
	}).text("id")
}

func (p processBoxes) prints(box string) bool {
	_, err := os.Stat(p.file("printed-" + box))
	return err == nil
}

func (p processBoxes) leave() { _ = os.WriteFile(p.file("left"), nil, 0o600) }

func (p processBoxes) alive() []string {
	entries, _ := os.ReadDir(filepath.Join(p.data, "boxes"))
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

func (processBoxes) deletes(string) (int, bool) { return 0, false }
