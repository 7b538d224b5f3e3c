package storage

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

const (
	idA = "aaaaaaaa000040008000000000000001"
	idB = "bbbbbbbb000040008000000000000002"
	idC = "cccccccc000040008000000000000003"
)

// wallClock is a clock that the test moves.
type wallClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *wallClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *wallClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// fleet is a server of docker runtimes on a directory of its own: home/, state/ (the runtimes), history/, work/.
type fleet struct {
	*disk
	clock     *wallClock
	histories *conversation.Store
	options   Options
}

func newFleet(t *testing.T, settings Settings) *fleet {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"home", "state", "history", "work"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
	return newFleetAt(t, root, settings)
}

// newFleetAt opens a server on directories that are there.
func newFleetAt(t *testing.T, root string, settings Settings) *fleet {
	t.Helper()
	f := &fleet{disk: &disk{t: t, home: root, guard: &guard{}, log: &strings.Builder{}}, clock: &wallClock{at: time.Now().UTC().Truncate(time.Second)}}
	f.histories = conversation.Open(filepath.Join(root, "history"))
	f.options = Options{
		Root: filepath.Join(root, "home"), Workspace: filepath.Join(root, "work"), RuntimesDir: filepath.Join(root, "state"),
		StateDir: filepath.Join(root, "state", "storage"), Protected: []string{filepath.Join(root, "state"), filepath.Join(root, "history")},
		Histories: f.histories, Settings: settings, Guard: f.guard, Now: f.clock.now, LastActive: f.clock.now,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{to: f.log}, nil)),
	}
	f.restart()
	t.Cleanup(func() { f.Close() })
	return f
}

// restart opens the storage, anew if it is open.
func (f *fleet) restart() {
	f.t.Helper()
	if f.Storage != nil {
		f.Close()
	}
	var err error
	f.Storage, err = Open(f.options)
	require.NoError(f.t, err)
}

// runtime makes a stopped conversation that was last active so long ago.
func (f *fleet) runtime(id string, unused time.Duration) {
	f.t.Helper()
	require.NoError(f.t, f.histories.Create(id, []byte(`{"id":"`+conversation.Dashed(id)+`"}`), []byte(`{"execution_status":"paused"}`)))
	f.put("history/"+id+"/events/event-00000.json", 1)
	f.put("state/runtime-data/"+id+"/persistence/.cache/pip/wheel", 40)
	f.put("state/runtime-data/"+id+"/persistence/notes", 1)
	f.checkout("state/runtime-data/" + id + "/workspace")
	f.used(id, unused)
}

func (f *fleet) used(id string, ago time.Duration) {
	at := f.clock.now().Add(-ago)
	require.NoError(f.t, os.Chtimes(filepath.Join(f.home, "history", id, "base_state.json"), at, at))
}

// checkout makes a project with a tracked, an untracked and an ignored file, and dependencies.
func (d *disk) checkout(path string) {
	d.t.Helper()
	at := filepath.Join(d.home, path)
	require.NoError(d.t, os.MkdirAll(at, 0o700))
	d.text(path+"/.gitignore", "node_modules/\n.env\nnotes/\n.venv\nvendor/bundle\ndata/\n")
	d.text(path+"/package.json", "{}")
	d.put(path+"/tracked", 1)
	d.git(at, "init", "-q")
	d.git(at, "add", ".")
	d.put(path+"/untracked", 1)
	d.text(path+"/.env", "KEY=1")
	d.put(path+"/node_modules/left-pad/index.js", 80)
	d.put(path+"/notes/mine", 1)
	d.put(path+"/data/mine", 1)
}

func (d *disk) text(path, text string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(d.put(path, 0), []byte(text), 0o600))
}

func (d *disk) git(dir string, arguments ...string) {
	d.t.Helper()
	call := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, arguments...)...)
	call.Dir = dir
	output, err := call.CombinedOutput()
	require.NoError(d.t, err, string(output))
}

// lease is what another server writes that has the conversation open.
func (f *fleet) lease(id string, until time.Time) {
	f.text("history/"+id+"/owner_lease.json", `{"owner_instance_id":"x","generation":1,"expires_at":`+jsonSeconds(until)+`}`)
}

func jsonSeconds(at time.Time) string {
	text, _ := json.Marshal(float64(at.UnixMicro()) / 1e6)
	return string(text)
}

// of is what the status says of a conversation.
func (f *fleet) of(id string) Conversation {
	f.t.Helper()
	for _, c := range f.status().Conversations {
		if c.ID == conversation.Dashed(id) {
			return c
		}
	}
	require.Fail(f.t, "not in the status", id)
	return Conversation{}
}

// sleepless lets time pass with the box awake.
func (f *fleet) sleepless(d time.Duration) {
	for ; d > 0; d -= 10 * time.Minute {
		f.clock.advance(10 * time.Minute)
		f.ledger.tick()
	}
}

// archive asks for one archive after something was done, and wants it refused for a reason, or done for "".
func (f *fleet) archive(id string, first func(), refused string) {
	f.t.Helper()
	first()
	result := f.reclaim(Request{Tier: TierRuntime, ConversationIDs: []string{conversation.Dashed(id)}})
	require.Len(f.t, result.Items, 1)
	if refused == "" {
		require.Equal(f.t, Moved, result.Items[0].Outcome, result.Items[0].Reason)
		return
	}
	require.Equal(f.t, Skipped, result.Items[0].Outcome)
	require.Contains(f.t, result.Items[0].Reason, refused)
}

// wrap has every tenant be worked on through another layout.
func (f *fleet) wrap(with func(layout) layout) {
	for i, l := range f.layouts {
		f.layouts[i] = wrapped{l, with(l)}
	}
}

// wrapped is a layout whose tenants belong to another one.
type wrapped struct {
	layout
	by layout
}

func (w wrapped) tenants(ctx context.Context) ([]Tenant, error) {
	all, err := w.layout.tenants(ctx)
	for i := range all {
		all[i].layout = w.by
	}
	return all, err
}
