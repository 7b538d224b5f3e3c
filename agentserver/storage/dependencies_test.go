package storage

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

func TestBR23_WithoutRoomForAnythingNewCachesGoAllTheSame(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "full"))
	d := newWorkspace(t)
	d.checkout("project/one")
	d.put(".cache/pip/x", 10)
	require.Equal(t, []string{".cache/pip moved", "project/one skipped " + reasonGitNoRoom}, outcomes(d.reclaim(Request{Tier: TierDependencies})))
	require.NoDirExists(t, filepath.Join(d.home, ".cache/pip"))
}
