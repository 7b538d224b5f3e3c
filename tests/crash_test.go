package tests

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fatalPoints are the points of the test hooks, and the time at which the short suite kills there. The points of the settler
// are passed once for the pause of a box and once more for its deletion.
var fatalPoints = []struct{ point, sqlite, postgres, replicas string }{
	{"dispatch.claimed", "1", "1", "1"},
	{"dispatch.create_sent", "1", "1", "1"},
	{"dispatch.create_answered", "1", "1", "1"},
	{"dispatch.recorded", "1", "1", "1"},
	{"dispatch.uploaded", "1", "1", "1"},
	{"dispatch.start_sent", "1", "1", "1"},
	{"dispatch.started", "1", "1", "1"},
	{"finish.committed", "1", "1", "1"},
	{"settle.claimed", "1", "1", "1"},
	{"settle.before_call", "1", "2", "1"},
	{"settle.after_call", "2", "1", "2"},
	{"settle.recorded", "1", "2", "3"},
	{"janitor.ordered", "1", "1", "1"},
}

// Nothing is lost, leaked, deleted early or deleted twice, wherever the service is killed.
func TestAKillAtAnyPointLosesNothing(t *testing.T) {
	for _, p := range fatalPoints {
		t.Run(p.point, func(t *testing.T) {
			t.Parallel()
			t.Run("sqlite", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.sqlite, cloud: true}.survives(t, nil)
			})
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.postgres, cloud: true}.survives(t, postgres(t))
			})
			t.Run("postgres, two replicas", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.replicas, cloud: true, replicas: 2}.survives(t, postgres(t))
			})
			t.Run("sqlite, process boxes", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.sqlite}.survives(t, nil)
			})
		})
	}
}

// life is the whole life of runs and their boxes, from the dispatch to the deletion of the boxes when they are due, with kills.
type life struct {
	point    string // of the kills, with its time
	cloud    bool   // boxes of Cloud's stub, else of processes
	replicas int    // 0: one
	runs     int    // 0: one
	storm    int    // how often the service is killed at the point; 0: once
}

// survives lives the life, and returns how often the service was killed.
func (l life) survives(t *testing.T, database []string) {
	t.Helper()
	if kills := l.lived(t, database); kills != 1 {
		require.FailNow(t, "not killed once", "%d kills at %s", kills, l.point)
	}
}

// lived lives the life, requires that nothing is lost, and returns how often the service was killed.
func (l life) lived(t *testing.T, database []string) (kills int) {
	t.Helper()
	w := newWorld(t, l.cloud, max(l.replicas, 1), database)
	w.storm = max(l.storm, 1)
	w.serve(l.point)
	w.dispatched(w.boxes.automation(w), max(l.runs, 1))

	begun := map[string]bool{}
	w.wait("every command has begun, or its run has ended", func(s sight) bool {
		waiting := 0
		for id, run := range s.runs {
			begun[id] = begun[id] || run.text("bash_command_id") != "" && w.boxes.prints(run.text("sandbox", "provider_id"))
			if !begun[id] && !terminal(run) {
				waiting++
			}
		}
		return waiting == 0
	})
	w.join()
	w.wait("every run has ended", func(s sight) bool {
		waiting := 0
		for id, run := range s.runs {
			if terminal(run) {
				continue
			}
			waiting++
			if begun[id] {
				w.ask(http.MethodPost, "/runs/"+id+"/complete", object{"status": "COMPLETED"})
			}
		}
		return waiting == 0
	})
	w.boxes.leave()
	paused := w.wait("the boxes of runs that have begun are paused, all others deleted", func(s sight) bool {
		return l.accounted(w, s) == len(s.stamped()) && s.all(func(run object) bool {
			return run.text("cleanup", "due_at") == "" || run.text("sandbox", "observed") == "suspended"
		})
	})
	l.requireRows(t, w, paused)
	kept := l.requireOutput(t, w, paused, begun)

	if len(paused.stamped()) > 0 { // after several kills every run may have used up its attempts
		first, last := paused.due(t)
		w.reach(first.Add(-5 * time.Second))
		alive := w.boxes.alive()
		w.still("a box is there until it is due", func(s sight) bool {
			return len(s.stamped()) == len(paused.stamped()) && len(w.boxes.alive()) == len(alive)
		})
		w.reach(last.Add(time.Second))
	}
	seen := w.wait("the boxes are deleted when they are due", func(s sight) bool {
		return l.accounted(w, s) == 0 && len(s.stamped()) == 0
	})
	l.requireRows(t, w, seen)
	l.requireOnce(t, w, seen)
	for id := range kept {
		require.Contains(t, w.output(id), strings.TrimSpace(told), "the output outlives the box")
	}
	return w.kills
}

// join starts the other replicas where they do not run yet: when every command has begun, or when the first was killed before
// that. A run that waits belongs to whoever claims it first, and the kill is to hit the first. For the same reason they are an
// hour behind until it was killed, so that nothing else is due there.
func (w *world) join() {
	w.t.Helper()
	for _, r := range w.replicas[1:] {
		if r.cmd != nil {
			continue
		}
		if w.kills == 0 {
			r.set(-time.Hour)
		}
		w.launch(r)
	}
}

// amid reports whether a kill may hit any run at any point, for there are others than the one that has reached the fatal one.
func (l life) amid() bool { return l.runs > 1 }

// unaccounted reports whether a kill may leave a box behind that nobody can tell from another's: at a provider without labels,
// between the sending of the create and the record of its answer.
func (l life) unaccounted() bool {
	return l.cloud && (l.amid() || strings.HasPrefix(l.point, "dispatch.create_"))
}

// dispatched makes runs, so many whatever is killed meanwhile.
func (w *world) dispatched(automation string, runs int) {
	w.t.Helper()
	w.wait("runs are made", func(s sight) bool {
		if len(s.runs) < runs {
			w.ask(http.MethodPost, "/"+automation+"/dispatch", nil)
		}
		return len(s.runs) >= runs
	})
}

func terminal(run object) bool { return run.text("completed_at") != "" }

// all reports whether something holds for every run.
func (s sight) all(holds func(run object) bool) bool {
	for _, run := range s.runs {
		if !holds(run) {
			return false
		}
	}
	return true
}

// stamped lists the runs whose box is to be deleted later.
func (s sight) stamped() (ids []string) {
	for id, run := range s.runs {
		if run.text("cleanup", "due_at") != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// due is when the first and the last box are. Each was stamped by the end of its run.
func (s sight) due(t *testing.T) (first, last time.Time) {
	t.Helper()
	for _, id := range s.stamped() {
		due := s.runs[id].moment(t, "cleanup", "due_at")
		require.Equal(t, s.runs[id].moment(t, "completed_at").Add(cleanupDelay), due)
		if first.IsZero() || due.Before(first) {
			first = due
		}
		if due.After(last) {
			last = due
		}
	}
	return first, last
}

// requireOutput requires that what commands have printed is stored, and returns the runs that it is stored of. After several
// kills it may be missing.
func (l life) requireOutput(t *testing.T, w *world, s sight, begun map[string]bool) map[string]bool {
	t.Helper()
	kept := map[string]bool{}
	for id := range begun {
		if begun[id] && s.runs[id].text("status") == "COMPLETED" {
			kept[id] = strings.Contains(w.output(id), strings.TrimSpace(told))
			require.True(t, kept[id] || l.storm > 1, "the output of run %s is stored", id)
		}
	}
	maps.DeleteFunc(kept, func(_ string, stored bool) bool { return !stored })
	return kept
}

// output is the stored output of a run, "" for none.
func (w *world) output(run string) (text string) {
	w.t.Helper()
	w.wait("the logs are read", func(sight) bool {
		status, raw, ok := w.ask(http.MethodGet, "/runs/"+run+"/logs", nil)
		if ok && status == http.StatusOK {
			text = unframed(w.t, raw)
		}
		return ok
	})
	return text
}

// strangers are the boxes that exist and that no row knows.
func (w *world) strangers(s sight) []string {
	known := map[string]bool{}
	for _, b := range s.boxes {
		known[b.text("provider_id")] = known[b.text("provider_id")] || b.text("observed") != "deleted"
	}
	return slices.DeleteFunc(w.boxes.alive(), func(id string) bool { return known[id] })
}

// accounted counts the boxes that exist, without those that no row knows where such may be; -1 while there are others.
func (l life) accounted(w *world, s sight) int {
	strangers := w.strangers(s)
	if !l.unaccounted() && len(strangers) > 0 {
		return -1
	}
	return len(w.boxes.alive()) - len(strangers)
}

// requireRows requires that every box that exists has a row that knows it, but for those shown as unaccounted.
func (l life) requireRows(t *testing.T, w *world, s sight) {
	t.Helper()
	shown := 0
	for _, b := range s.boxes {
		if b.text("needs_attention") == "unaccounted" {
			shown++
		}
	}
	require.True(t, shown == 0 || l.unaccounted(), "%d unaccounted", shown)
	require.LessOrEqual(t, len(w.strangers(s)), shown, "boxes without a row")
	require.True(t, shown <= w.kills || l.amid(), "%d unaccounted after %d kills", shown, w.kills)
}

// requireOnce requires that nothing was done twice, but for a call that was repeated after a kill between it and its record.
// Amid other boxes every kill may have hit each of them so.
func (l life) requireOnce(t *testing.T, w *world, s sight) {
	t.Helper()
	allowed := 0
	if l.amid() || strings.HasPrefix(l.point, "settle.after_call") {
		allowed = w.kills
	}
	for _, b := range s.boxes {
		calls, counted := w.boxes.deletes(b.text("provider_id"))
		if counted && b.text("observed") == "deleted" {
			require.GreaterOrEqual(t, calls, 1, "%v", b)
			require.LessOrEqual(t, calls-1, allowed, "deletes that were repeated: %v", b)
		}
	}
	for _, run := range s.runs {
		status, answer, _ := w.ask(http.MethodGet, "/sandboxes/"+run.text("sandbox", "id")+"/events?limit=100", nil)
		require.Equal(t, http.StatusOK, status)
		ends := 1
		if strings.Contains(string(answer), `"reason":"timed out"`) && run.text("status") == "COMPLETED" {
			ends = 2 // its callback was late (S1-017)
		}
		require.Equal(t, ends, strings.Count(string(answer), `"what":"finished"`), "the run has ended once: %s", answer)
	}
}
