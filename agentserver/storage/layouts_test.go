package storage

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
	f := &fleet{disk: &disk{t: t, home: root, guard: &guard{}, log: &strings.Builder{}}, clock: &wallClock{at: time.Now().UTC().Truncate(time.Second)}}
	for _, dir := range []string{"home", "state", "history", "work"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
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

// dependenciesOf are the outcomes of the dependencies only.
func dependenciesOf(result Result) []string {
	all := []string{}
	for _, item := range result.Items {
		if item.Tier == TierDependencies {
			all = append(all, strings.TrimSpace(item.Path+" "+item.Outcome+" "+item.Reason))
		}
	}
	return all
}

func newWorkspace(t *testing.T) *disk {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	d := &disk{t: t, home: home, guard: &guard{}, log: &strings.Builder{}}
	require.NoError(t, os.Mkdir(filepath.Join(home, "project"), 0o700))
	d.Storage, err = Open(Options{
		Root: home, Workspace: filepath.Join(home, "project"), Guard: d.guard, Now: time.Now,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{to: d.log}, nil)),
	})
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

func TestS0_024_DependenciesAreWhatTheProjectIgnoresAndAToolMakesAgain(t *testing.T) {
	d := newWorkspace(t)
	d.checkout("project/one")
	d.checkout("project/group/two")
	d.text("project/one/.venv/pyvenv.cfg", "home=/usr")
	d.put("project/one/Gemfile", 1)
	d.put("project/one/vendor/bundle/ruby/gem", 9)
	d.put("project/two-without-git/node_modules/x", 1)
	d.text("project/two-without-git/package.json", "{}")
	d.put("project/one/sub/node_modules/no-package-json-beside", 1)
	before := fingerprintOf(t, d.home, "project", "/node_modules/left-pad", "/.venv", "/vendor/bundle")
	dry := d.reclaim(Request{Tier: TierDependencies, DryRun: true})
	result := d.reclaim(Request{Tier: TierDependencies})
	require.Equal(t, dry.FreedBytes, result.FreedBytes)
	require.Equal(t, []string{
		"project/group/two/node_modules moved", "project/one/.venv moved", "project/one/node_modules moved", "project/one/vendor/bundle moved",
	}, dependenciesOf(result))
	require.Equal(t, before, fingerprintOf(t, d.home, "project"), "tracked, untracked and ignored files are as they were")
	require.NoDirExists(t, filepath.Join(d.home, "project/one/node_modules"))
	require.Empty(t, dependenciesOf(d.reclaim(Request{Tier: TierCaches})))
}

// fingerprintOf digests the contents of all files of a tree but those in some directories.
func fingerprintOf(t *testing.T, home, tree string, without ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(filepath.Join(home, tree), func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		for _, w := range without {
			if strings.Contains(path, w) {
				return nil
			}
		}
		text, err := os.ReadFile(path)
		files[strings.ToValidUTF8(path, "?")] = string(text)
		return err
	}))
	return files
}

func TestS0_024_WhatMayBeWorkStaysAtAnyDepth(t *testing.T) {
	const deep = "project/one/node_modules/a/b/c/d/"
	cases := map[string]struct {
		make   func(d *disk)
		reason string
	}{
		"a git checkout":         {func(d *disk) { d.put(deep+"x/.git/HEAD", 1) }, reasonCheckout},
		"a bare repository":      {func(d *disk) { d.put(deep+"x/HEAD", 1); d.put(deep+"x/refs/a", 1); d.put(deep+"x/objects/a", 1) }, reasonCheckout},
		"a mercurial checkout":   {func(d *disk) { d.put(deep+"x/.hg/a", 1) }, reasonCheckout},
		"a jujutsu checkout":     {func(d *disk) { d.put(deep+"x/.jj/a", 1) }, reasonCheckout},
		"a subversion checkout":  {func(d *disk) { d.put(deep+"x/.svn/a", 1) }, reasonCheckout},
		"a database":             {func(d *disk) { d.put(deep+"App.SQLite3", 1) }, reasonWork + "App.SQLite3"},
		"the data of PostgreSQL": {func(d *disk) { d.put(deep+"PG_VERSION", 1) }, reasonWork + "PG_VERSION"},
		"what Terraform knows":   {func(d *disk) { d.put(deep+"terraform.tfstate", 1) }, reasonWork + "terraform.tfstate"},
		"a socket": {func(d *disk) {
			d.put("project/one/node_modules/a/x", 1)
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			require.NoError(d.t, err)
			defer syscall.Close(fd)
			d.t.Chdir(filepath.Join(d.home, "project/one/node_modules/a"))
			require.NoError(d.t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: "s"}))
		}, reasonSocket},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := newWorkspace(t)
			d.checkout("project/one")
			c.make(d)
			before := fingerprint(t, filepath.Join(d.home, "project"))
			require.Equal(t, []string{"project/one/node_modules skipped " + c.reason}, dependenciesOf(d.reclaim(Request{Tier: TierRuntime})))
			require.Equal(t, before, fingerprint(t, filepath.Join(d.home, "project")))
		})
	}
}

func TestS0_024_OnlyTheProjectsOwnRulesDecide(t *testing.T) {
	d := newWorkspace(t)
	d.checkout("project/one")
	hooked := filepath.Join(d.home, "ran")
	one := filepath.Join(d.home, "project/one")
	d.text("project/one/.gitignore", "# nothing\n")
	d.text("project/one/.git/info/exclude", "node_modules/\n")
	d.text("global-ignore", "node_modules/\n")
	d.text("hook", "#!/bin/sh\ntouch "+hooked+"\n")
	require.NoError(t, os.Chmod(filepath.Join(d.home, "hook"), 0o700))
	d.git(one, "config", "core.excludesFile", filepath.Join(d.home, "global-ignore"))
	d.git(one, "config", "core.fsmonitor", filepath.Join(d.home, "hook"))
	d.git(one, "config", "core.worktree", t.TempDir())
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.excludesFile")
	t.Setenv("GIT_CONFIG_VALUE_0", filepath.Join(d.home, "global-ignore"))
	require.Empty(t, dependenciesOf(d.reclaim(Request{Tier: TierDependencies})))
	d.text("project/one/.gitignore", "node_modules/\n")
	require.Equal(t, []string{"project/one/node_modules moved"}, dependenciesOf(d.reclaim(Request{Tier: TierDependencies})),
		"the checkout's own configuration hides nothing either")
	require.NoFileExists(t, hooked, "nothing that an agent configured has run")
}

func TestS0_024_ATrackedFileKeepsItsDirectory(t *testing.T) {
	d := newWorkspace(t)
	d.checkout("project/one")
	d.git(filepath.Join(d.home, "project/one"), "add", "-f", "node_modules/left-pad/index.js")
	require.Empty(t, dependenciesOf(d.reclaim(Request{Tier: TierDependencies})))
	require.NoError(t, os.Remove(filepath.Join(d.home, "project/one/.git/index")))
	require.Equal(t, []string{"project/one skipped " + reasonNoIndex}, dependenciesOf(d.reclaim(Request{Tier: TierDependencies})),
		"without an index nobody knows what is tracked")
}

func TestS0_024_OneWorkspaceWithAHangingGitOrOddNamesDelaysNoOther(t *testing.T) {
	f := newFleet(t, Settings{})
	for _, id := range []string{idA, idB, idC} {
		f.runtime(id, time.Hour)
	}
	odd := f.put("state/runtime-data/"+idB+"/workspace/node_modules/caf\xe9/"+strings.Repeat("n", 255), 1)
	f.put("state/runtime-data/"+idB+"/workspace/data/\xff\xfe", 1)
	program := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\ncase \"$GIT_WORK_TREE\" in *"+idA+"*) exec sleep 1000;; esac\nexec git \"$@\"\n"), 0o700))
	f.around.git.program, f.around.git.limit = program, 2*time.Second
	began := time.Now()
	result := f.reclaim(Request{Tier: TierDependencies})
	require.Less(t, time.Since(began), time.Minute)
	base := "/state/runtime-data/"
	require.ElementsMatch(t, []string{
		f.home + base + idA + "/workspace skipped " + reasonGitSlow,
		f.home + base + idB + "/workspace/node_modules moved",
		f.home + base + idC + "/workspace/node_modules moved",
	}, dependenciesOf(result))
	require.NoFileExists(t, odd)
	require.FileExists(t, filepath.Join(f.home, "state/runtime-data", idA, "workspace/node_modules/left-pad/index.js"))
}

func TestS0_007_DockerRuntimesHaveCachesBudgetAndRetention(t *testing.T) {
	t.Run("S0-023 S0-082 caches of those that have stopped", func(t *testing.T) {
		f := newFleet(t, Settings{})
		f.runtime(idA, time.Hour)
		f.runtime(idB, time.Hour)
		f.lease(idB, f.clock.now().Add(30*time.Second))
		box := f.put("home/.cache/pip/wheel", 1)
		cache := func(id string) string {
			return filepath.Join(f.home, "state/runtime-data", id, "persistence/.cache/pip/wheel")
		}
		require.NoError(t, f.Maintain(t.Context()))
		require.NoFileExists(t, cache(idA), "it had stopped before the server started")
		require.FileExists(t, cache(idB))
		require.FileExists(t, box, "the home is no conversation's")
		f.clock.advance(time.Minute)
		require.NoError(t, f.Maintain(t.Context()))
		require.NoFileExists(t, cache(idB), "it has stopped since")
	})
	t.Run("S0-083 dependencies above the budget, the longest unused first", func(t *testing.T) {
		scan := Scan{Filesystem: Filesystem{TotalBytes: 1000, UsedBytes: 900, FreeBytes: 100}, Now: time.Now()}
		for i, id := range []string{"new", "older", "oldest"} {
			scan.Tenants = append(scan.Tenants, Found{
				Tenant: Tenant{ID: id, LastActive: scan.Now.Add(-time.Duration(i)*24*time.Hour - time.Minute)},
				Units:  []Unit{{Tier: TierDependencies, Path: id, bytes: 60}, {Tier: TierCaches, Path: id + "-cache", bytes: 10}},
			})
		}
		paths := func(request Request, budget float64) (all []string) {
			for _, item := range Plan(scan, request, Settings{DiskBudget: budget}) {
				all = append(all, item.Path)
			}
			return all
		}
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache"}, paths(Request{}, 0))
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache", "oldest"}, paths(Request{}, 0.82))
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache", "oldest", "older"}, paths(Request{}, 0.1), "what was used a minute ago stays")
		require.Empty(t, paths(Request{timed: true}, 0.9))
		require.Equal(t, []string{"oldest-cache", "older-cache"}, paths(Request{timed: true}, 0.88))
	})
	t.Run("S0-025 S0-045 S0-046 S0-048 retention", func(t *testing.T) {
		f := newFleet(t, Settings{RetentionDays: 2})
		f.runtime(idA, 0)
		f.sleepless(3 * 24 * time.Hour)
		f.runtime(idB, 24*time.Hour)
		history := fingerprint(t, filepath.Join(f.home, "history"))
		require.NoError(t, f.Maintain(t.Context()))
		require.NoDirExists(t, filepath.Join(f.home, "state/runtime-data", idA), "home and workspace are gone")
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idB))
		require.Equal(t, history, fingerprint(t, filepath.Join(f.home, "history")))
		var marker map[string]time.Time
		text, err := os.ReadFile(filepath.Join(f.home, "state/runtime-control", idA+".archived.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &marker))
		require.Equal(t, f.clock.now(), marker["archived_at"])
		require.Equal(t, StateArchived, f.of(idA).State)
		require.Empty(t, entries(t, filepath.Join(f.home, "state", trashName)))
	})
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

func TestS0_150_TimeAsleepDoesNotCountAndAResumeHasAGrace(t *testing.T) {
	settings := Settings{RetentionDays: 2, Grace: 24 * time.Hour, ArchiveLimit: 2}
	f := newFleet(t, settings)
	all := []string{idA, idB, idC}
	for _, id := range all {
		f.runtime(id, 0)
	}
	left := func() (n int) {
		for _, id := range all {
			if _, err := os.Stat(filepath.Join(f.home, "state/runtime-data", id)); err == nil {
				n++
			}
		}
		return n
	}
	f.sleepless(time.Hour)
	f.clock.advance(30 * 24 * time.Hour) // the box sleeps
	require.NoError(t, f.Maintain(t.Context()))
	f.sleepless(25 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 3, left(), "awake for 26 hours of the 31 days")
	f.restart() // the ledger outlives the server
	f.sleepless(22*time.Hour + 30*time.Minute)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 3, left(), "awake for 48 hours and more, but started a day ago at most")
	require.NotNil(t, f.of(idA).NextPass.NotBefore)
	f.sleepless(2 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 1, left(), "at most two in one pass")
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 0, left())

	t.Run("activity that is unknown or in the future keeps the runtime", func(t *testing.T) {
		f := newFleet(t, Settings{RetentionDays: 1})
		f.runtime(idA, -time.Hour*24*365)
		f.runtime(idB, 0)
		f.sleepless(50 * time.Hour)
		require.NoError(t, os.Remove(filepath.Join(f.home, "history", idB, "base_state.json")))
		require.NoError(t, f.Maintain(t.Context()))
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idA))
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idB))
	})
}

func TestS0_067_RetentionOfOneConversation(t *testing.T) {
	f := newFleet(t, Settings{RetentionDays: 1})
	days := 3
	for id, r := range map[string]conversation.Retention{
		idA: {Policy: conversation.OnStop}, idB: {Policy: conversation.Days, Days: &days}, idC: {Policy: conversation.Default},
	} {
		f.runtime(id, 0)
		require.NoError(t, f.histories.SetRetention(id, r))
	}
	there := func(id string) bool {
		_, err := os.Stat(filepath.Join(f.home, "state/runtime-data", id))
		return err == nil
	}
	f.lease(idA, f.clock.now().Add(time.Minute))
	require.NoError(t, f.Maintain(t.Context()))
	require.True(t, there(idA))
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	require.NoError(t, f.Maintain(t.Context()))
	require.False(t, there(idA), "S0-069 on_stop: it has stopped")
	require.True(t, there(idB))
	f.sleepless(25 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, []bool{true, false}, []bool{there(idB), there(idC)})
	f.sleepless(48 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.False(t, there(idB))
}

func TestS0_049_AMoveThatFailsTakesTheArchiveMarkAwayAgain(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	before := fingerprint(t, filepath.Join(f.home, "state/runtime-data"))
	elsewhere, err := os.MkdirTemp("/dev/shm", "trash") //nolint:usetesting // another file system
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(elsewhere)) })
	trash := f.areas[len(f.areas)-1].trash
	trash.wait(t.Context())
	proper := trash.root
	other, err := openRoot(elsewhere)
	require.NoError(t, err)
	defer other.close()
	f.archive(idA, func() { trash.root = other }, reasonOtherDisk)
	require.NoFileExists(t, filepath.Join(f.home, "state/runtime-control", idA+".archived.json"))
	require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	require.Equal(t, StateStopped, f.of(idA).State)

	t.Run("and a crash between the mark and the move is made good by the next pass", func(t *testing.T) {
		trash.root = proper
		f.put("state/runtime-control/"+idA+".archived.json", 1)
		f.restart()
		require.NoError(t, f.Maintain(t.Context()))
		require.NoDirExists(t, filepath.Join(f.home, "state/runtime-data", idA))
		require.Equal(t, StateArchived, f.of(idA).State)
	})
}

func TestEntriesThatCannotBeDeletedAreTriedAgainLaterAndNeverCountAsFreed(t *testing.T) {
	if os.Getuid() != 0 {
		runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
		return
	}
	f := newFleet(t, Settings{})
	f.put("home/.cache/pip/x", 100)
	stuck := filepath.Join(f.home, "home", trashName, "entry", "mounted")
	require.NoError(t, os.MkdirAll(stuck, 0o700))
	err := syscall.Mount("", stuck, "tmpfs", 0, "")
	if errors.Is(err, syscall.EPERM) {
		runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
		return
	}
	require.NoError(t, err)
	mounted := true
	unmount := func() {
		if mounted {
			require.NoError(t, syscall.Unmount(stuck, syscall.MNT_DETACH))
		}
		mounted = false
	}
	t.Cleanup(unmount)
	freed := f.reclaim(Request{}).FreedBytes
	require.GreaterOrEqual(t, freed, int64(100<<10))
	require.Less(t, freed, int64(110<<10), "without what was in the trash before")
	first := f.status().Stuck
	require.Len(t, first, 1)
	require.Equal(t, []any{trashName + "/entry", 1}, []any{first[0].Path, first[0].Tries})
	require.NotEmpty(t, first[0].Error)
	f.reclaim(Request{})
	require.Equal(t, 1, f.status().Stuck[0].Tries, "not before its time")
	f.clock.advance(retryFirst)
	f.reclaim(Request{})
	second := f.status().Stuck[0]
	require.Equal(t, 2, second.Tries)
	require.Equal(t, f.clock.now().Add(2*retryFirst), second.RetryAt)
	unmount()
	f.clock.advance(2 * retryFirst)
	f.reclaim(Request{})
	require.Empty(t, f.status().Stuck)
	require.NoDirExists(t, stuck)
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

func TestS0_063_WhoRunsOrStartsKeepsEverything(t *testing.T) {
	f := newFleet(t, Settings{RetentionDays: 1})
	f.runtime(idA, time.Hour)
	before := fingerprint(t, filepath.Join(f.home, "state/runtime-data"))
	refused := func(state, reason string) {
		t.Helper()
		require.Equal(t, state, f.of(idA).State)
		for _, item := range f.reclaim(Request{Tier: TierRuntime, ConversationIDs: []string{conversation.Dashed(idA)}}).Items {
			require.Equal(t, []string{Skipped, reason}, []string{item.Outcome, item.Reason})
		}
		require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	}
	f.lease(idA, f.clock.now().Add(20*time.Second))
	refused(StateIdle, reasonContainer)
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"running"}`)
	refused(StateRunning, reasonContainer)
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	refused(StateRunning, reasonWorking)
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"paused"}`)
	f.put("state/runtime-control/"+idA+".json.lock", 0)
	lock, err := os.OpenFile(filepath.Join(f.home, "state/runtime-control", idA+".json.lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	refused(StateStarting, reasonStarting)
	dry := f.reclaim(Request{Tier: TierRuntime, DryRun: true, ConversationIDs: []string{conversation.Dashed(idA)}})
	require.NoError(t, lock.Close())

	dry = f.reclaim(Request{Tier: TierRuntime, DryRun: true, ConversationIDs: []string{conversation.Dashed(idA)}})
	require.Equal(t, Planned, dry.Items[0].Outcome)
	f.lease(idA, f.clock.now().Add(20*time.Second)) // it starts after the plan
	require.Equal(t, Skipped, f.reclaim(Request{PlanID: dry.PlanID}).Items[0].Outcome)
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	f.used(idA, time.Minute) // and has been used
	again := f.reclaim(Request{PlanID: dry.PlanID})
	require.Equal(t, []string{Skipped, reasonUsed}, []string{again.Items[0].Outcome, again.Items[0].Reason})
	require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	f.archive(idA, func() {}, "")
}

func TestS0_009_ABoxWithoutRuntimesIsASharedWorkspace(t *testing.T) {
	f := newFleet(t, Settings{})
	f.options.RuntimesDir, f.options.Settings.RetentionDays = "", 3
	f.restart()
	f.checkout("work/one")
	f.put("home/.cache/pip/x", 10)
	status := f.status()
	require.Len(t, status.Conversations, 1)
	require.Equal(t, LayoutShared, status.Conversations[0].Layout)
	require.Contains(t, f.log.String(), "retention is set and has no effect", "S0-151 S0-047 said loudly")
	result := f.reclaim(Request{Tier: TierRuntime})
	require.Equal(t, []string{".cache/pip moved", f.home + "/work/one/node_modules moved"}, outcomes(result))
	require.Equal(t, status.Conversations[0].SizeBytes-result.FreedBytes, f.status().Conversations[0].SizeBytes)
	require.FileExists(t, filepath.Join(f.home, "work/one/untracked"))
	t.Run("a conversation at work in it keeps all of it", func(t *testing.T) {
		f.put("home/.cache/pip/x", 10)
		require.NoError(t, f.histories.Create(idA, []byte(`{}`), []byte(`{"execution_status":"running"}`)))
		require.Equal(t, []string{".cache/pip skipped conversation " + conversation.Dashed(idA) + " is running"}, outcomes(f.reclaim(Request{})))
	})
}

func TestS0_054_S0_055_S0_056_S0_057_S0_058_StatusOfEveryConversation(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, 3*time.Hour)
	status := f.status()
	require.Positive(t, status.Filesystem.UsedBytes)
	c := f.of(idA)
	require.Equal(t, []any{conversation.Dashed(idA), LayoutDocker, StateStopped}, []any{c.ID, c.Layout, c.State})
	require.True(t, c.LastActive.Equal(f.clock.now().Add(-3*time.Hour)), "S0-027 the time of its state file")
	require.GreaterOrEqual(t, c.SizeBytes, int64(120<<10))
	require.GreaterOrEqual(t, c.NextPass.Bytes, int64(40<<10))
	require.Equal(t, c.NextPass.Bytes, f.reclaim(Request{}).FreedBytes, "S0-059")
	after := f.of(idA)
	require.Equal(t, c.SizeBytes-c.NextPass.Bytes, after.SizeBytes)

	t.Run("who has not run since is not walked again and says as of when", func(t *testing.T) {
		f.clock.advance(time.Hour)
		f.put("state/runtime-data/"+idA+"/persistence/sneaked-in", 100)
		require.Equal(t, after.AsOf, f.of(idA).AsOf)
		require.Equal(t, after.SizeBytes, f.of(idA).SizeBytes)
		f.used(idA, time.Minute)
		require.Equal(t, f.clock.now(), f.of(idA).AsOf)
		require.Greater(t, f.of(idA).SizeBytes, after.SizeBytes)
	})
}
