//go:build matrix

package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// A day of schedules, in steps: with the service left alone, whose memory has to stay as it is, and with a kill every
// hour, which must cost nothing.
func TestMatrixADayUnderLoad(t *testing.T) {
	for _, kills := range []bool{false, true} {
		t.Run(map[bool]string{false: "left alone", true: "killed every hour"}[kills], func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, database []string) {
				replicas := 1
				if database != nil {
					replicas = 2
				}
				newDay(t, replicas, database).lived(kills)
			})
		})
	}
}

const (
	dayDelay = time.Hour // until a finished run's box is deleted
	dayStep  = apart
)

// dayEvery is how often the automations of a day run, in minutes.
var dayEvery = []int{5, 5, 10, 10, 15, 20, 30, 60}

// day is a world whose hours pass.
type day struct {
	*world
	stub   *cloudstub.Stub
	acted  map[string]bool // boxes whose command has done what it does
	moves  []time.Time     // when the clock was moved, a step each
	lasted time.Duration   // with the time that the test itself took
}

func newDay(t *testing.T, replicas int, database []string) *day {
	t.Helper()
	w := newWorld(t, true, replicas, database, fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", dayDelay/time.Second))
	w.start()
	boxes, ok := w.boxes.(stubBoxes)
	require.True(t, ok)
	return &day{world: w, stub: boxes.Stub, acted: map[string]bool{}}
}

func (d *day) lived(kills bool) {
	d.t.Helper()
	var automations []string
	for _, every := range dayEvery {
		schedule := fmt.Sprintf("*/%d * * * *", every)
		if every == 60 {
			schedule = "0 * * * *"
		}
		body := scheduled(schedule, "UTC")
		body["timeout"] = 120
		automations = append(automations, d.create("", body).text("id"))
	}
	began := d.now()
	early := 0
	for hour := range 24 {
		for range int(time.Hour / dayStep) {
			d.step()
		}
		if kills {
			r := d.replicas[hour%len(d.replicas)]
			r.kill()
			d.revive()
		}
		if hour == 5 {
			early = d.resident()
		}
	}
	late := d.resident()
	d.lasted = d.now().Sub(began)
	for _, id := range automations {
		_, _, ok := d.ask(http.MethodDelete, "/"+id, nil)
		require.True(d.t, ok)
	}
	for range int(2 * dayDelay / dayStep) {
		d.step()
	}
	d.requireNothingLost(automations)
	d.t.Logf("resident: %d KiB after 6 hours, %d KiB after 24; %d boxes, %d kills", early, late, len(d.stub.Boxes()), d.kills)
	if !kills {
		require.Less(d.t, late, early+early/4, "memory grows")
	}
}

// step moves the clock and lets commands do what they do, until the provider has heard nothing new for a moment.
func (d *day) step() {
	d.t.Helper()
	for _, r := range d.replicas {
		r.set(r.shift + dayStep)
	}
	for _, r := range d.replicas {
		r.moved() // one that is passed over would be a fire that is missed
	}
	d.moves = append(d.moves, time.Now())
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	calls, since := -1, time.Now()
	for time.Since(since) < 120*time.Millisecond {
		<-ticker.C
		d.act()
		if now := len(d.stub.Calls("create", "get", "pause", "delete", "bash_start")); now != calls {
			calls, since = now, time.Now()
		}
	}
}

var ofRun = regexp.MustCompile(`/tmp/automation-([0-9a-f-]{36})\.tar\.gz`)

// act lets commands that have begun end: most by a callback, some by their exit alone, some never.
func (d *day) act() {
	for n, b := range d.stub.Boxes() {
		c, begun := d.stub.Entrypoint(b.ID)
		if !begun || d.acted[b.ID] || !b.DeletedAt.IsZero() {
			continue
		}
		d.acted[b.ID] = true
		run := ofRun.FindStringSubmatch(c.Text)[1]
		switch n % 10 {
		case 0: // never
			continue
		case 1, 2:
		case 3:
			d.ask(http.MethodPost, "/runs/"+run+"/complete", object{"status": "FAILED", "error": "it did not work"})
		default:
			d.ask(http.MethodPost, "/runs/"+run+"/complete", object{"status": "COMPLETED"})
		}
		d.stub.Exit(b.ID, n%4, told, "")
	}
}

// resident is the memory of all replicas, in KiB.
func (d *day) resident() (kib int) {
	d.t.Helper()
	for _, r := range d.replicas {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(r.cmd.Process.Pid), "status"))
		require.NoError(d.t, err)
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				require.NoError(d.t, err)
				kib += n
			}
		}
	}
	return kib
}

// rows is what the clock of rows showed at least at a moment of the test, for the next move may have been noticed.
func (d *day) rows(at time.Time) time.Time {
	steps := 0
	for steps < len(d.moves) && d.moves[steps].Before(at) {
		steps++
	}
	return at.Add(time.Duration(max(steps-1, 0)) * dayStep)
}

func (d *day) requireNothingLost(automations []string) {
	d.t.Helper()
	fired, completed := map[string]int{}, map[string]time.Time{}
	for offset := 0; ; offset += 100 {
		status, answer, ok := d.ask(http.MethodGet, fmt.Sprintf("/runs?limit=100&offset=%d", offset), nil)
		require.True(d.t, ok)
		require.Equal(d.t, http.StatusOK, status, "%s", answer)
		var page struct{ Runs []object }
		require.NoError(d.t, json.Unmarshal(answer, &page))
		for _, run := range page.Runs {
			require.True(d.t, terminal(run), "%v", run)
			fired[run.text("automation_id")]++
			completed[run.text("sandbox", "provider_id")] = run.moment(d.t, "completed_at")
		}
		if len(page.Runs) < 100 {
			break
		}
	}
	for n, id := range automations {
		want := int(d.lasted/time.Minute) / dayEvery[n]
		require.InDelta(d.t, want, fired[id], 1, "runs of the schedule of every %d minutes", dayEvery[n])
	}
	repeated, alive := 0, 0
	for _, b := range d.stub.Boxes() {
		if b.DeletedAt.IsZero() {
			alive++
			continue
		}
		repeated += b.DeleteCalls - 1
		if end, ended := completed[b.ID]; ended {
			require.False(d.t, d.rows(b.DeletedAt).Before(end.Add(dayDelay-2*dayStep)) && b.Status == "PAUSED", "deleted before it was due: %v", b)
		}
	}
	require.LessOrEqual(d.t, alive, d.kills, "boxes left behind, but for unaccounted ones")
	require.LessOrEqual(d.t, repeated, d.kills, "deletes that were repeated")
}
