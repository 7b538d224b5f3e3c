package tests

import (
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
				life{point: p.point + ":" + p.sqlite, cloud: true, replicas: 1}.survives(t, nil)
			})
			t.Run("postgres", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.postgres, cloud: true, replicas: 1}.survives(t, postgres(t))
			})
			t.Run("postgres, two replicas", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.replicas, cloud: true, replicas: 2}.survives(t, postgres(t))
			})
			t.Run("sqlite, process boxes", func(t *testing.T) {
				t.Parallel()
				life{point: p.point + ":" + p.sqlite, replicas: 1}.survives(t, nil)
			})
		})
	}
}

// life is the whole life of one run and its box, from its dispatch to the deletion of the box when it is due, with a kill.
type life struct {
	point    string // of the kill, with its time
	cloud    bool   // boxes of Cloud's stub, else of processes
	replicas int
}

// unaccounted reports whether the kill may leave a box behind that nobody can tell from another's: at a provider without
// labels, between its answer and the record of it.
func (l life) unaccounted() bool {
	return l.cloud && strings.HasPrefix(l.point, "dispatch.create_answered")
}

func (l life) survives(t *testing.T, database []string) {
	t.Helper()
	w := newWorld(t, l.cloud, l.replicas, database)
	w.serve(l.point)
	id := w.dispatched(w.boxes.automation(w))
	path := "/runs/" + id

	seen := w.wait("the command of the run has begun", func(s sight) bool {
		run := s.runs[id]
		return terminal(run) || run.text("bash_command_id") != "" && w.boxes.prints(run.text("sandbox", "provider_id"))
	})
	begun := !terminal(seen.runs[id])
	w.wait("the run has ended", func(s sight) bool {
		if begun && !terminal(s.runs[id]) {
			w.ask(http.MethodPost, path+"/complete", object{"status": "COMPLETED"})
		}
		return terminal(s.runs[id])
	})
	w.boxes.leave()
	seen = w.wait("the box is paused, its predecessors are deleted", func(s sight) bool {
		return s.runs[id].text("sandbox", "observed") == "suspended" && len(w.boxes.alive()) == 1+l.behind(s)
	})
	run := seen.runs[id]
	box := run.text("sandbox", "provider_id")
	require.Contains(t, w.boxes.alive(), box)
	due := run.moment(t, "cleanup", "due_at")
	require.Equal(t, run.moment(t, "completed_at").Add(cleanupDelay), due, "stamped once, as the run ended")
	l.requireRows(t, w, seen)
	if begun {
		require.Equal(t, "COMPLETED", run.text("status"))
		require.Contains(t, w.output(path), strings.TrimSpace(told), "the output is stored")
	}

	w.reach(due.Add(-5 * time.Second))
	w.still("the box is there until it is due", func(s sight) bool {
		return s.runs[id].text("sandbox", "desired") == "suspended" && slices.Contains(w.boxes.alive(), box)
	})
	w.reach(due.Add(time.Second))
	seen = w.wait("the box is deleted when it is due", func(s sight) bool {
		return s.runs[id].text("cleanup", "state") == "deleted" && len(w.boxes.alive()) == l.behind(s)
	})
	require.Equal(t, 1, w.kills, "killed at %s", l.point)
	l.requireRows(t, w, seen)
	l.requireOnce(t, w, seen, id)
	if begun {
		require.Contains(t, w.output(path), strings.TrimSpace(told), "the output outlives the box")
	}
}

// dispatched makes a run, one whatever is killed meanwhile.
func (w *world) dispatched(automation string) (run string) {
	w.t.Helper()
	w.wait("a run is made", func(s sight) bool {
		for run = range s.runs {
			return true
		}
		w.ask(http.MethodPost, "/"+automation+"/dispatch", nil)
		return false
	})
	return run
}

func terminal(run object) bool { return run.text("completed_at") != "" }

// output is the stored output of a run.
func (w *world) output(path string) (text string) {
	w.t.Helper()
	w.wait("the logs are read", func(sight) bool {
		for _, r := range w.replicas {
			select {
			case <-r.gone:
				continue
			default:
			}
			text = logs(w.t, r.server, path)
			return true
		}
		return false
	})
	return text
}

// behind counts the boxes that are shown as unaccounted, which only a kill at the one point may leave.
func (l life) behind(s sight) (n int) {
	for _, b := range s.boxes {
		if b.text("needs_attention") == "unaccounted" && l.unaccounted() {
			n++
		}
	}
	return n
}

// requireRows requires that every box that exists has a row that knows it, but for unaccounted ones.
func (l life) requireRows(t *testing.T, w *world, s sight) {
	t.Helper()
	var strangers []string
	for _, id := range w.boxes.alive() {
		known := false
		for _, b := range s.boxes {
			known = known || b.text("provider_id") == id && b.text("observed") != "deleted"
		}
		if !known {
			strangers = append(strangers, id)
		}
	}
	require.Len(t, strangers, l.behind(s), "boxes without a row")
	require.LessOrEqual(t, len(strangers), w.kills)
}

// requireOnce requires that nothing was done twice, but for the one call that was repeated after a kill between it and its
// record.
func (l life) requireOnce(t *testing.T, w *world, s sight, id string) {
	t.Helper()
	repeated := 0
	for _, b := range s.boxes {
		calls, counted := w.boxes.deletes(b.text("provider_id"))
		if counted && b.text("observed") == "deleted" {
			require.GreaterOrEqual(t, calls, 1, "%v", b)
			repeated += calls - 1
		}
	}
	allowed := 0
	if strings.HasPrefix(l.point, "settle.after_call") {
		allowed = 1
	}
	require.LessOrEqual(t, repeated, allowed, "deletes that were repeated")
	ended := 0
	status, answer, _ := w.ask(http.MethodGet, "/sandboxes/"+s.runs[id].text("sandbox", "id")+"/events?limit=100", nil)
	require.Equal(t, http.StatusOK, status)
	ended = strings.Count(string(answer), `"what":"finished"`)
	require.Equal(t, 1, ended, "the run has ended once: %s", answer)
}
