package tests

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// eachClock runs test on both engines, with a world whose clock can be set: on SQLite the host's, on PostgreSQL the database's
// as the service reads it.
func eachClock(t *testing.T, cloud bool, env []string, test func(t *testing.T, w *world)) {
	t.Helper()
	eachDatabase(t, func(t *testing.T, database []string) {
		w := newWorld(t, cloud, 1, database, env...)
		if database == nil {
			w.replicas[0].shifts = "host"
		}
		test(t, w)
	})
}

// begin dispatches a run and waits until its command has begun.
func (w *world) begin(automation string) (id string) {
	w.t.Helper()
	id = w.create("/"+automation+"/dispatch", nil).text("id")
	w.soon("the command has begun", func(s sight) bool {
		run := s.runs[id]
		return run.text("bash_command_id") != "" && w.boxes.prints(run.text("sandbox", "provider_id"))
	})
	return id
}

// complete ends a run as its callback does, and waits until its box is paused.
func (w *world) complete(id string) (run object) {
	w.t.Helper()
	status, answer, ok := w.ask(http.MethodPost, "/runs/"+id+"/complete", object{"status": "COMPLETED"})
	require.True(w.t, ok)
	require.Equal(w.t, http.StatusOK, status, "%s", answer)
	return w.soon("the box is paused", func(s sight) bool { return s.runs[id].text("sandbox", "observed") == "suspended" }).runs[id]
}

// gone waits until the box of a run is deleted, which was asked for once.
func (w *world) gone(id string) {
	w.t.Helper()
	seen := w.soon("the box is deleted", func(s sight) bool { return s.runs[id].text("cleanup", "state") == "deleted" })
	calls, counted := w.boxes.deletes(seen.runs[id].text("sandbox", "provider_id"))
	require.True(w.t, counted)
	require.Equal(w.t, 1, calls, "deleted once")
}

func TestBR_11_AClockThatIsSetBackAndForwardLosesNothingAndDoesNothingTwice(t *testing.T) {
	const delay = 300
	env := []string{fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", delay)}
	eachClock(t, true, env, func(t *testing.T, w *world) {
		w.serve("")
		automation := w.boxes.automation(w)
		first, second := w.begin(automation), w.begin(automation)
		began := time.Now()

		w.move(-time.Hour)
		run := w.complete(first)
		third := w.begin(automation)
		require.Less(t, time.Since(began), 30*time.Second, "nothing waits for the hour to pass again")
		due := run.moment(t, "cleanup", "due_at")
		require.Equal(t, run.moment(t, "completed_at").Add(delay*time.Second), due)
		w.still("the box is not due", func(s sight) bool { return s.runs[first].text("sandbox", "desired") == "suspended" })

		forward := delay*time.Second - time.Minute
		if w.replicas[0].shifts == "host" {
			forward += time.Hour // the clock of rows did not go back
		}
		w.move(forward)
		w.still("the box is not due", func(s sight) bool {
			return s.runs[first].text("sandbox", "desired") == "suspended" && s.runs[second].text("status") == "RUNNING"
		})
		w.move(2 * time.Minute)
		w.gone(first)

		for _, id := range []string{second, third} {
			timedOut := w.wait("a run that is past its time is ended", func(s sight) bool { return terminal(s.runs[id]) }).runs[id]
			require.Contains(t, timedOut.text("error_detail"), "Timed out: ")
		}
		w.move(delay*time.Second + time.Hour)
		w.gone(second)
		w.gone(third)
		require.Empty(t, w.boxes.alive())
	})
}

// start starts all replicas, none of which is to be killed.
func (w *world) start() {
	for _, r := range w.replicas {
		r.launch()
	}
}

// soonReady waits until a replica says how ready it is.
func (r *replica) soonReady(status int, text string) {
	r.t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	over := time.After(patience)
	for {
		answer, err := http.Get(strings.TrimSuffix(r.base, "/v1") + "/ready") //nolint:forbidigo // a prober
		require.NoError(r.t, err)
		said, err := io.ReadAll(answer.Body)
		require.NoError(r.t, err)
		require.NoError(r.t, answer.Body.Close())
		if answer.StatusCode == status && strings.Contains(string(said), text) {
			return
		}
		select {
		case <-ticker.C:
		case <-over:
			r.t.Fatalf("not %d %q: %d %s", status, text, answer.StatusCode, said)
		}
	}
}

func TestBR_11_ReplicasOnHostsWithWrongClocksDoEverythingOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true, 2, postgres(t))
	for n, off := range []time.Duration{-90 * time.Second, 90 * time.Second} {
		w.replicas[n].shifts = "host"
		w.replicas[n].set(off)
	}
	w.start()
	for _, r := range w.replicas {
		r.soonReady(http.StatusServiceUnavailable, "clock skew")
	}
	automation := w.boxes.automation(w)
	for range 5 {
		id := w.begin(automation)
		run := w.complete(id)
		require.WithinDuration(t, time.Now(), run.moment(t, "completed_at"), 30*time.Second, "the database's clock counts")
	}
	require.Len(t, w.boxes.alive(), 5, "one box a run, and none of them is due")
}

func TestBR_11_ReplicasWhoseRowsDisagreeLoseNothing(t *testing.T) {
	t.Parallel()
	const delay = 3600
	w := newWorld(t, true, 2, postgres(t), fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", delay))
	skewed := func(by time.Duration) {
		w.replicas[0].set(by - 90*time.Second)
		w.replicas[1].set(by + 90*time.Second)
	}
	skewed(0)
	w.start()
	automation := w.boxes.automation(w)
	var runs []string
	for range 5 {
		id := w.begin(automation)
		require.Equal(t, "COMPLETED", w.complete(id).text("status"))
		runs = append(runs, id)
	}
	skewed(delay*time.Second - 5*time.Minute)
	w.move(0)
	w.still("no box is due by anybody's clock", func(sight) bool { return len(w.boxes.alive()) == 5 })
	skewed(delay*time.Second + 5*time.Minute)
	seen := w.soon("the boxes are deleted", func(s sight) bool {
		return s.all(func(run object) bool { return run.text("cleanup", "state") == "deleted" })
	})
	require.Empty(t, w.boxes.alive())
	for _, id := range runs {
		status, events, ok := w.ask(http.MethodGet, "/sandboxes/"+seen.runs[id].text("sandbox", "id")+"/events?limit=100", nil)
		require.True(t, ok)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, 1, strings.Count(string(events), `"what":"finished"`))
	}
}

func TestBR_09_AMonthAsleepCostsOneRunAnAutomationAndDeletesWhatWasDue(t *testing.T) {
	const delay = 86400
	env := []string{fmt.Sprintf("AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=%d", delay)}
	eachClock(t, true, env, func(t *testing.T, w *world) {
		w.serve("")
		automation := w.boxes.automation(w)
		paused, working := w.begin(automation), w.begin(automation)
		w.complete(paused)
		minutely := w.create("", scheduled("* * * * *", "UTC")).text("id")
		daily := w.create("", scheduled("0 9 * * *", "Europe/Berlin")).text("id")
		fired := func(s sight, automation string) (n int) {
			for _, run := range s.runs {
				if run.text("automation_id") == automation {
					n++
				}
			}
			return n
		}
		w.soon("everything is quiet", func(s sight) bool { return fired(s, minutely)+fired(s, daily) == 0 })

		w.move(30 * 24 * time.Hour)
		w.gone(paused)
		asleep := w.soon("the run whose command nobody saw end is ended", func(s sight) bool { return terminal(s.runs[working]) }).runs[working]
		require.Equal(t, "FAILED", asleep.text("status"))
		require.Equal(t, asleep.moment(t, "completed_at").Add(delay*time.Second), asleep.moment(t, "cleanup", "due_at"), "its box is kept from now")
		w.soon("each schedule is made up for once", func(s sight) bool { return fired(s, minutely) >= 1 && fired(s, daily) >= 1 })
		w.still("and once only", func(s sight) bool { return fired(s, minutely) <= 2 && fired(s, daily) == 1 })
		w.move(time.Minute)
		w.soon("the next is within a minute", func(s sight) bool { return fired(s, minutely) >= 2 })
	})
}

// scheduled is an automation that runs by a schedule.
func scheduled(schedule, zone string) object {
	return object{
		"name": schedule + " " + zone, "entrypoint": "python main.py", "tarball_path": "https://example.test/code.tar.gz", "timeout": 600,
		"trigger": object{"type": "cron", "schedule": schedule, "timezone": zone},
	}
}

func TestBR_08_TheDaysOnWhichClocksChange(t *testing.T) {
	days := []struct {
		why, schedule, zone, from string
		want                      []string
	}{
		{"a time inside the gap runs once, right after it", "30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		{"the gap of another zone", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"a repeated half hour runs once", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"a gap of half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"every second hour runs once in a repeated hour", "0 */2 * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z"}},
		{"a time in a repeated hour runs the first time round only", "30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"every hour follows the time that passes", "30 * * * *", "America/New_York", "2026-11-08T05:00:00Z", []string{"2026-11-08T05:30:00Z", "2026-11-08T06:30:00Z"}},
	}
	eachClock(t, false, nil, func(t *testing.T, w *world) {
		w.replicas[0].args = append(w.replicas[0].args, "--roles", "api,scheduler")
		instant := func(text string) time.Time {
			at, err := time.Parse(time.RFC3339, text)
			require.NoError(t, err)
			return at
		}
		to := func(at string, off time.Duration) { w.move(instant(at).Add(off).Sub(w.now())) }
		w.reach(instant(days[0].from).Add(-time.Minute))
		w.serve("")
		for _, d := range days {
			to(d.from, 0)
			id := w.create("", scheduled(d.schedule, d.zone)).text("id")
			fired := func(s sight) (runs []time.Time) {
				for _, run := range s.runs {
					if run.text("automation_id") == id {
						runs = append(runs, run.moment(t, "created_at"))
					}
				}
				return runs
			}
			for n, at := range d.want {
				to(at, -3*time.Second)
				to(at, time.Second)
				seen := w.soon(d.why, func(s sight) bool { return len(fired(s)) > n })
				require.Len(t, fired(seen), n+1, d.why)
				for _, run := range fired(seen) {
					require.False(t, run.Before(instant(d.want[0])), "%s: run at %s", d.why, run)
				}
			}
			status, answer, ok := w.ask(http.MethodDelete, "/"+id, nil)
			require.True(t, ok)
			require.Equal(t, http.StatusNoContent, status, "%s", answer)
		}
	})
}
