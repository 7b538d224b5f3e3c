package tests

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"automation/tests/dockerengine"
)

// engine is the Docker engine that a service of these tests works with. What it is asked about is only the containers of that
// service's deployment.
type engine struct {
	*client.Client
	t          *testing.T
	deployment string
}

// startDocker starts the service with Docker boxes of the image with a shell. Its containers are removed with the test.
func startDocker(t *testing.T, env ...string) (*server, *engine) {
	t.Helper()
	e := &engine{Client: dockerengine.Client(t), t: t, deployment: uuid.NewString()}
	t.Cleanup(e.removeAll)
	s := start(t, append([]string{
		"AUTOMATION_SANDBOX_BACKEND=docker", "AUTOMATION_LISTEN=0.0.0.0:0", "AUTOMATION_DEPLOYMENT_ID=" + e.deployment,
		"AUTOMATION_DOCKER_HOST=" + dockerengine.Host(t), "AUTOMATION_DOCKER_IMAGE=" + dockerengine.WithShell(t, ".."),
		"AUTOMATION_DOCKER_PULL=never", "AUTOMATION_DOCKER_MEMORY_BYTES=268435456",
	}, env...)...)
	return s, e
}

// containers are those of the deployment in any state: name → what the engine calls the state.
func (e *engine) containers() map[string]string {
	e.t.Helper()
	answer, err := e.ContainerList(context.Background(), client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", "automation.deployment="+e.deployment),
	})
	require.NoError(e.t, err)
	states := map[string]string{}
	for _, c := range answer.Items {
		states[strings.TrimPrefix(c.Names[0], "/")] = string(c.State)
	}
	return states
}

func (e *engine) removeAll() {
	for name := range e.containers() {
		_, err := e.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		require.NoError(e.t, err)
	}
}

// containerOf is the name of a box's container.
func containerOf(box string) string { return "automation-" + box }

// until waits for what the engine or a file is to show.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not seen in %v: %s", patience, what)
		}
	}
}

// byShell is the entry point of an automation where there is no bash.
var byShell = object{"entrypoint": "sh main.sh"}

// reportFromBox ends a run as its script may where there is no curl.
const reportFromBox = `wget -q -O /dev/null --header "Authorization: Bearer $AUTOMATION_CALLBACK_API_KEY" --header 'Content-Type: application/json' \
	--post-data "{\"status\":\"$1\",\"run_id\":\"$AUTOMATION_RUN_ID\",\"error\":\"check failed\"}" "$AUTOMATION_CALLBACK_URL"
`

func TestS0_093_S0_094_S0_095_S0_097_S0_098_AutomationsRunOnDockerBoxesToTheirEnd(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		s, engine := startDocker(t, append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="+delaySeconds)...)
		script := "echo first\nmkdir -p \"$HOME/.cache/x\" && head -c 3000000 /dev/zero > \"$HOME/.cache/x/index\"\n" +
			"echo '{\"got\": 41}' > result.json\nset -- FAILED\n" + reportFromBox + "echo last\nexit 3\n"
		run := s.call(http.MethodPost, "/"+s.automation(script, byShell)+"/dispatch", nil, http.StatusCreated)
		path := "/runs/" + run.text("id")
		run = s.await(path, "the box calls back", func(o object) bool { return o.text("completed_at") != "" })
		require.Equal(t, "FAILED", run.text("status"))
		box := run.text("sandbox", "id")
		run = s.await(path, "the box is suspended", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
		require.Equal(t, "exited", engine.containers()[containerOf(box)], "S0-095: suspend is a stop of the container")
		require.Equal(t, "output, reclaimed, suspended", order(s, "/sandboxes/"+box))
		require.EqualValues(t, 3, run.get("exit_code"))
		require.Contains(t, logs(t, s, path), "last")
		freed, _ := s.call(http.MethodGet, "/sandboxes/"+box, nil, http.StatusOK).get("reclaimed_bytes").(float64)
		require.GreaterOrEqual(t, freed, 3e6, "the cache is not kept")

		file := "/sandboxes/" + box + "/proxy/api/file/download?path=/box/home/project/result.json"
		status, content := s.try(http.MethodGet, file, nil)
		require.Equal(t, http.StatusOK, status, "%s", content)
		require.JSONEq(t, `{"got": 41}`, string(content), "the box of a failed run is looked into")

		run = s.await(path, "the sweep deletes the box", func(o object) bool { return o.text("cleanup", "state") == "deleted" })
		require.Nil(t, run.get("cleanup", "due_at"))
		s.await(path, "the box is gone", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
		require.Empty(t, engine.containers(), "no container is left")
		left, err := filepath.Glob(filepath.Join(s.data, "docker", box+"*"))
		require.NoError(t, err)
		require.Empty(t, left, "nor anything of its files")
	})
}

// conversation opens one and waits until its box runs; it returns the id of the conversation and of the box.
func (s *server) conversation(body any) (id, box string) {
	s.t.Helper()
	id = uuid.NewString()
	return id, s.reopen(id, body)
}

// reopen opens a conversation that may be evicted, and waits until its box runs.
func (s *server) reopen(id string, body any) (box string) {
	s.t.Helper()
	status, answer := s.try(http.MethodPut, "/runtimes/"+id, body)
	require.Contains(s.t, []int{http.StatusOK, http.StatusCreated}, status, "%s", answer)
	o := s.await("/runtimes/"+id, "the box runs", func(o object) bool { return o.text("state") == "running" })
	return o.text("sandbox", "id")
}

// write puts a file into a running box, and download takes it out.
func (s *server) write(box, path, content string) {
	s.t.Helper()
	command := fmt.Sprintf("mkdir -p $(dirname %s) && printf %%s '%s' > %s", path, content, path)
	o := s.call(http.MethodPost, "/sandboxes/"+box+"/proxy/api/bash/execute_bash_command", object{"command": command}, http.StatusOK)
	require.EqualValues(s.t, 0, o.get("exit_code"), "%v", o)
}

func (s *server) download(box, path string) string {
	s.t.Helper()
	status, content := s.try(http.MethodGet, "/sandboxes/"+box+"/proxy/api/file/download?path="+path, nil)
	require.Equal(s.t, http.StatusOK, status, "%s", content)
	return string(content)
}

// evict suspends a conversation's box by hand, once nobody is in it, and waits for it.
func (s *server) evict(id string) {
	s.t.Helper()
	until(s.t, "nobody is in the box", func() bool {
		status, answer := s.try(http.MethodPost, "/runtimes/"+id+"/evict", nil)
		require.Contains(s.t, []int{http.StatusAccepted, http.StatusConflict}, status, "%s", answer)
		return status == http.StatusAccepted
	})
	s.await("/runtimes/"+id, "the box is stopped", func(o object) bool { return o.text("state") == "stopped" })
}

func TestRuntimes(t *testing.T) {
	checkouts := t.TempDir()
	s, engine := startDocker(t, "AUTOMATION_DOCKER_WORKSPACES="+checkouts)
	t.Run("S3-005 S3-012 S3-017 an evicted conversation comes back as it was, in the same box", func(t *testing.T) {
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		s.write(box, "/box/conversations/history.json", "events")
		s.write(box, "/opt/own.txt", "on the disk of the container (D10)")
		s.evict(id)
		require.Equal(t, "exited", engine.containers()[containerOf(box)])
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
		require.Equal(t, "events", s.download(box, "/box/conversations/history.json"))
		require.Equal(t, "on the disk of the container (D10)", s.download(box, "/opt/own.txt"))
	})
	t.Run("one whose container somebody removed gets another on the same files", func(t *testing.T) {
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		_, err := engine.ContainerRemove(t.Context(), containerOf(box), client.ContainerRemoveOptions{Force: true})
		require.NoError(t, err)
		s.await("/runtimes/"+id, "the engine tells that it is gone", func(o object) bool { return o.text("state") == "stopped" })
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
	})
	t.Run("a caller's own checkout is mounted, and never removed", func(t *testing.T) {
		checkout := filepath.Join(checkouts, "project")
		require.NoError(t, os.MkdirAll(filepath.Join(checkout, "node_modules"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(checkout, "main.go"), []byte("package main"), 0o600))
		id, box := s.conversation(object{"workspace": checkout})
		require.Equal(t, "package main", s.download(box, "/box/workspace/main.go"))
		s.write(box, "/box/workspace/new.txt", "from the box")
		status, answer := s.try(http.MethodPut, "/runtimes/"+uuid.NewString(), object{"workspace": checkout})
		require.Equal(t, http.StatusConflict, status, "never two boxes on one workspace: %s", answer)
		status, answer = s.try(http.MethodPut, "/runtimes/"+id, object{"workspace": filepath.Dir(checkout)})
		require.Equal(t, http.StatusBadRequest, status, "the root of checkouts is none itself: %s", answer)
		s.evict(id)
		require.Equal(t, box, s.reopen(id, object{"workspace": checkout}))
		s.call(http.MethodDelete, "/sandboxes/"+box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
		s.await("/runtimes/"+id, "the box is deleted", func(o object) bool { return o.text("state") == "deleted" })
		for _, kept := range []string{"main.go", "new.txt", "node_modules"} {
			_, err := os.Stat(filepath.Join(checkout, kept))
			require.NoError(t, err)
		}
	})
	t.Run("a checkout elsewhere is refused, also by a link", func(t *testing.T) {
		link := filepath.Join(checkouts, "link")
		require.NoError(t, os.Symlink("/etc", link))
		for _, path := range []string{"/etc", link, "relative", filepath.Join(checkouts, "missing")} {
			status, answer := s.try(http.MethodPut, "/runtimes/"+uuid.NewString(), object{"workspace": path})
			require.Equal(t, http.StatusBadRequest, status, "%s: %s", path, answer)
		}
	})
	t.Run("S3-024 a hundred callers of an evicted conversation get one container", func(t *testing.T) {
		id, box := s.conversation(nil)
		s.evict(id)
		started, all := engine.startOf(box), len(engine.containers())
		answers := make(chan int, 100)
		for range cap(answers) {
			request := s.request(http.MethodPut, "/runtimes/"+id, nil)
			go func() {
				client := http.Client{Timeout: patience}
				response, err := client.Do(request)
				if err != nil {
					answers <- 0
					return
				}
				answers <- response.StatusCode / 100
				_ = response.Body.Close()
			}()
		}
		for range cap(answers) {
			require.Equal(t, 2, <-answers)
		}
		require.Equal(t, box, s.reopen(id, nil))
		require.NotEqual(t, started, engine.startOf(box))
		require.Len(t, engine.containers(), all)
	})
}

func TestS3_014_AStoppingServiceSuspendsItsConversationsAndLeavesTheBoxesOfRuns(t *testing.T) {
	t.Run("stop", func(t *testing.T) {
		s, engine := startDocker(t)
		run := s.running(s.automation("sleep 300\n", byShell))
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		until(t, "nobody is in the box", func() bool {
			return s.call(http.MethodGet, "/runtimes/"+id, nil, http.StatusOK).get("not_evictable_because") != "attached"
		})
		require.Equal(t, 0, s.stop())
		require.Equal(t, "exited", engine.containers()[containerOf(box)])
		require.Equal(t, "running", engine.containers()[containerOf(run.text("sandbox", "id"))])
		s.launch()
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
		s.call(http.MethodPost, "/runs/"+run.text("id")+"/cancel", nil, http.StatusOK)
		s.await("/runs/"+run.text("id"), "its box is deleted", func(o object) bool { return o.text("sandbox", "observed") == "deleted" })
	})
	t.Run("keep, and adopt what runs with its agent", func(t *testing.T) {
		s, engine := startDocker(t, "AUTOMATION_DOCKER_ON_STOP=keep")
		id, box := s.conversation(nil)
		started := engine.startOf(box)
		require.Equal(t, 0, s.stop())
		require.Equal(t, "running", engine.containers()[containerOf(box)])
		s.launch()
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, started, engine.startOf(box), "it was never stopped")
	})
	t.Run("S3-020 or remove it at the start, and keep its files", func(t *testing.T) {
		s, engine := startDocker(t, "AUTOMATION_DOCKER_ON_STOP=keep", "AUTOMATION_DOCKER_ON_START=remove")
		run := s.running(s.automation("sleep 300\n", byShell))
		id, box := s.conversation(nil)
		s.write(box, "/box/workspace/notes.txt", "mine")
		s.kill()
		s.launch()
		require.NotContains(t, engine.containers(), containerOf(box))
		require.Equal(t, "running", engine.containers()[containerOf(run.text("sandbox", "id"))], "the box of a run is left")
		s.await("/runtimes/"+id, "it is seen stopped", func(o object) bool { return o.text("state") == "stopped" })
		require.Equal(t, box, s.reopen(id, nil))
		require.Equal(t, "mine", s.download(box, "/box/workspace/notes.txt"))
	})
}

// startOf is when the container of a box was last started, as the engine says it.
func (e *engine) startOf(box string) string {
	e.t.Helper()
	answer, err := e.ContainerInspect(context.Background(), containerOf(box), client.ContainerInspectOptions{})
	require.NoError(e.t, err)
	return answer.Container.State.StartedAt
}

func TestTheEngineTellsOfDeathsWithoutBeingAsked(t *testing.T) {
	s, engine := startDocker(t)
	id, box := s.conversation(nil)
	_, err := engine.ContainerKill(t.Context(), containerOf(box), client.ContainerKillOptions{Signal: "KILL"})
	require.NoError(t, err)
	began := time.Now()
	s.await("/runtimes/"+id, "its death is seen", func(o object) bool { return o.text("state") == "stopped" })
	require.Less(t, time.Since(began), 10*time.Second, "sooner than any duty asks")
	_, err = engine.ContainerStart(t.Context(), containerOf(box), client.ContainerStartOptions{})
	require.NoError(t, err)
	s.await("/runtimes/"+id, "its start by hand is adopted", func(o object) bool {
		return o.text("state") == "running" && o.text("sandbox", "desired") == "running"
	})
}

// Containers of other deployments, one of which has a longer id that begins like ours, and one of nobody are as they were after
// everything that a service does (BR-18).
func TestOtherDeploymentsContainersAreNeverTouched(t *testing.T) {
	s, engine := startDocker(t, "AUTOMATION_DOCKER_ON_START=remove", "AUTOMATION_DOCKER_ON_STOP=keep")
	image := dockerengine.WithShell(t, "..")
	var foreign []string
	for _, labels := range []map[string]string{
		nil,
		{"automation.deployment": uuid.NewString(), "automation.conversation": uuid.NewString(), "automation.workspace": uuid.NewString()},
		{"automation.deployment": engine.deployment + "b", "automation.conversation": uuid.NewString(), "automation.workspace": uuid.NewString()},
	} {
		made, err := engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Config: &container.Config{Image: image, Entrypoint: []string{"/bin/sleep", "600"}, Labels: labels},
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := engine.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
			require.NoError(t, err)
		})
		_, err = engine.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
		require.NoError(t, err)
		foreign = append(foreign, made.ID)
	}
	id, box := s.conversation(nil)
	s.evict(id)
	s.reopen(id, nil)
	s.kill()
	s.launch()
	s.call(http.MethodDelete, "/sandboxes/"+box+"?confirm=history-will-be-lost", nil, http.StatusAccepted)
	s.await("/runtimes/"+id, "the box is deleted", func(o object) bool { return o.text("state") == "deleted" })
	require.Equal(t, 0, s.stop())
	for _, name := range foreign {
		answer, err := engine.ContainerInspect(t.Context(), name, client.ContainerInspectOptions{})
		require.NoError(t, err)
		require.True(t, answer.Container.State.Running)
	}
}
