package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/tests/cloudstub"
)

// caller makes requests of somebody at the built program, whose boxes are the stub's.
type caller struct{ *player }

func newCaller(t *testing.T, name string, env ...string) caller {
	stub := cloudstub.New(t)
	p := &player{t: t, s: start(t, append(instance(name, stub), env...)...), stub: stub, ids: map[string]string{}}
	p.rec.Instance = name
	t.Cleanup(p.tell)
	return caller{p}
}

func (c caller) call(key, method, path string, body any, status int) object {
	c.t.Helper()
	var raw []byte
	if body != nil {
		var err error
		raw, err = json.Marshal(body)
		require.NoError(c.t, err)
	}
	headers := map[string]string{"Authorization": "Bearer " + key, "Content-Type": "application/json"}
	got, _, answer := c.send(method, "/api/automation/v1"+path, headers, raw)
	require.Equal(c.t, status, got, "%s %s: %s", method, path, answer)
	var o object
	if len(answer) > 0 && answer[0] == '{' {
		require.NoError(c.t, json.Unmarshal(answer, &o))
	}
	return o
}

// running dispatches a run of a new automation and waits until its command was started.
func (c caller) running(key string, timeout int) object {
	c.t.Helper()
	a := c.call(key, http.MethodPost, "", object{
		"name": "x", "entrypoint": "python main.py", "tarball_path": "https://example.test/code.tar.gz", "timeout": timeout,
		"trigger": object{"type": "cron", "schedule": "0 0 29 2 *"},
	}, http.StatusCreated)
	run := c.call(key, http.MethodPost, "/"+a.text("id")+"/dispatch", nil, http.StatusCreated)
	return c.becomes(run.text("id"), "RUNNING", func(o object) bool { return o.text("bash_command_id") != "" })
}

func (c caller) becomes(id, status string, is func(object) bool) (run object) {
	c.t.Helper()
	c.until("run becomes "+status, func() error {
		if run = c.look(id); run.text("status") != status || is != nil && !is(run) {
			return fmt.Errorf("run is %v", run)
		}
		return nil
	})
	return run
}

func TestS1_047_ARunIsVerifiedWithTheKeyThatItsBoxHasNow(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "cloud")
	run := c.running("tok-alice", 2)
	c.stub.Set(c.box(), "PAUSED")
	c.stub.Set(c.box(), "RUNNING") // somebody paused and resumed it: the old key opens nothing any more
	c.stub.Exit(c.box(), 0, "", "")
	c.becomes(run.text("id"), "COMPLETED", nil)
	gone(c.player)
}

func TestS1_029_S1_053_LocalModeStampsPausesAndSweepsNothing(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "local", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=1")
	run := c.running("local-secret", 60)
	c.call("local-secret", http.MethodPost, "/runs/"+run.text("id")+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	failed := c.running("local-secret", 1)
	c.stub.Exit("local", 3, "", "")
	c.becomes(failed.text("id"), "FAILED", nil)
	for _, id := range []string{run.text("id"), failed.text("id")} {
		o := c.look(id)
		require.Nil(t, o.get("cleanup", "due_at"))
		require.Nil(t, o.get("sandbox_id"))
	}
	require.Empty(t, c.stub.Calls("create", "pause", "delete", "get", "mint"), "the provider is not called at all")
}

func TestS1_048_S1_051_APausedBoxIsResumedByHandAndShowsItsDueDate(t *testing.T) {
	t.Parallel()
	c := newCaller(t, "delay", "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")
	run := c.running("tok-alice", 60)
	done := c.call("tok-alice", http.MethodPost, "/runs/"+run.text("id")+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
	due := done.moment(t, "completed_at").Add(600 * time.Second)
	c.becomes(run.text("id"), "COMPLETED", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
	b, _ := c.stub.Box(c.box())
	require.Equal(t, "PAUSED", b.Status, "S1-048: it does not run, so that it takes no place")
	c.call("tok-alice", http.MethodPost, "/sandboxes/"+run.text("sandbox", "id")+"/resume", nil, http.StatusAccepted)
	again := c.becomes(run.text("id"), "COMPLETED", func(o object) bool { return o.text("sandbox", "observed") == "running" })
	require.Equal(t, due, again.moment(t, "cleanup", "due_at"), "resuming does not extend")
	require.Len(t, c.stub.Alive(), 1)
}

func TestS1_047_S1_051_TheProxyFollowsABoxWhoseKeySomebodyElseHasChanged(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, database []string) {
		c := newCaller(t, "delay", append(database, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600")...)
		run := c.running("tok-alice", 60)
		inside := "/sandboxes/" + run.text("sandbox", "id") + "/proxy/api/bash/bash_events/search?limit=1"
		c.call("tok-alice", http.MethodGet, inside, nil, http.StatusOK)
		c.stub.Set(c.box(), "PAUSED")
		c.stub.Set(c.box(), "RUNNING") // at the web UI: the key that we have opens nothing any more
		c.call("tok-alice", http.MethodGet, inside, nil, http.StatusOK)

		c.call("tok-alice", http.MethodPost, "/runs/"+run.text("id")+"/complete", object{"status": "COMPLETED"}, http.StatusOK)
		c.becomes(run.text("id"), "COMPLETED", func(o object) bool { return o.text("sandbox", "observed") == "suspended" })
		c.call("tok-alice", http.MethodGet, inside, nil, http.StatusOK) // resumed by this, with a new key
		require.Len(t, c.stub.Calls("resume"), 1)
	})
}

func TestS1_058_TheInstallersOptionIsToldToBeOutside(t *testing.T) {
	require.Contains(t, flat(document(t, "docs/PROVIDERS.md")), "The option of the commercial installer for the cleanup delay is made there, after this service")
}
