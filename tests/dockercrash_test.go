package tests

import (
	"context"
	"net/http"
	"testing"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
)

// onFirst calls do when the engine first tells of an action on a container of the deployment, and waits for it. It is called
// after begin, which lets the action happen.
func (e *engine) onFirst(action events.Action, begin, do func()) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream := e.Events(ctx, client.EventsListOptions{
		Filters: client.Filters{}.Add("label", "automation.deployment="+e.deployment).Add("event", string(action)),
	})
	begin()
	select {
	case <-stream.Messages:
		do()
	case err := <-stream.Err:
		require.NoError(e.t, err, "waiting for the engine's %s", action)
	}
}

// agree requires that service and engine come to know the same boxes: no container without a row, and no row that says running
// without a container that does.
func agree(s *server, e *engine) {
	s.t.Helper()
	differ := ""
	until(s.t, "service and engine agree", func() bool {
		differ = ""
		states := e.containers()
		boxes, _ := s.call(http.MethodGet, "/sandboxes?limit=100", nil, http.StatusOK).get("sandboxes").([]any)
		for _, b := range boxes {
			box := object(b.(map[string]any)) //nolint:forcetypeassert // of our own answer
			name, observed := containerOf(box.text("id")), box.text("observed")
			state, exists := states[name]
			switch {
			case observed == "deleted" && exists, observed == "running" && state != "running", observed == "suspended" && state == "running",
				observed == "provisioning", observed == "deleting":
				differ = name + " is " + state + ", and its row says " + observed
			}
			delete(states, name)
		}
		for name := range states {
			differ = name + " has no row"
		}
		return differ == ""
	})
	require.Empty(s.t, differ)
}

// The service is killed in the middle of what the engine does, which goes on (or breaks off) without it. Whatever came of it is
// found at the next start.
func TestAKilledServiceForgetsNoContainer(t *testing.T) {
	t.Parallel()
	t.Run("in the middle of the create of a conversation's box", func(t *testing.T) {
		s, engine := startDocker(t)
		const id = "7d1f6a52-0d8e-4d0e-9a53-1c7b6d1f0c11"
		engine.onFirst(events.ActionCreate, func() { s.call(http.MethodPut, "/runtimes/"+id, nil, http.StatusCreated) }, s.kill)
		s.launch()
		s.reopen(id, nil)
		agree(s, engine)
		require.Len(t, engine.containers(), 1, "never two")
	})
	t.Run("in the middle of the create of a run's box", func(t *testing.T) {
		s, engine := startDocker(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=0")
		automation := s.automation("set -- COMPLETED\n"+reportFromBox, byShell)
		var run object
		engine.onFirst(events.ActionCreate, func() {
			run = s.call(http.MethodPost, "/"+automation+"/dispatch", nil, http.StatusCreated)
		}, s.kill)
		s.launch()
		run = s.await("/runs/"+run.text("id"), "the run is dispatched again", func(o object) bool { return o.text("completed_at") != "" })
		require.Equal(t, "COMPLETED", run.text("status"))
		until(t, "no container is left", func() bool { return len(engine.containers()) == 0 })
		agree(s, engine)
	})
	t.Run("in the middle of a stop", func(t *testing.T) {
		s, engine := startDocker(t)
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		engine.onFirst(events.ActionKill, func() {
			until(t, "nobody is in the box", func() bool {
				status, _ := s.try(http.MethodPost, "/runtimes/"+id+"/evict", nil)
				return status == http.StatusAccepted
			})
		}, s.kill)
		s.launch()
		s.await("/runtimes/"+id, "it is stopped", func(o object) bool { return o.text("state") == "stopped" })
		agree(s, engine)
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
	})
	t.Run("in the middle of a delete", func(t *testing.T) {
		s, engine := startDocker(t)
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		engine.onFirst(events.ActionDie, func() {
			s.call(http.MethodDelete, "/sandboxes/"+box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
		}, s.kill)
		s.launch()
		s.await("/runtimes/"+id, "it is deleted", func(o object) bool { return o.text("state") == "deleted" })
		agree(s, engine)
		require.Empty(t, engine.containers())
	})
}

func TestAnEngineThatGoesAwayLosesNoBox(t *testing.T) { // the engine is the tests' own: only its answers can be cut
	t.Parallel()
	s, engine := startDocker(t)
	id, box := s.conversation(nil)
	began := engine.startOf(box)
	s.kill()
	s.env = append(s.env, "AUTOMATION_DOCKER_HOST=unix:///nobody/listens/here.sock")
	s.launch()
	o := s.call(http.MethodGet, "/runtimes/"+id, nil, http.StatusOK)
	require.Equal(t, "running", o.text("state"), "an engine that is down says nothing about its boxes")
	s.kill()
	s.env = s.env[:len(s.env)-1]
	s.launch()
	require.Equal(t, box, s.reopen(id, nil))
	require.Equal(t, began, engine.startOf(box))
}
