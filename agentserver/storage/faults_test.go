package storage

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"automation/agentserver/conversation"
)

// fault is one of those that a reclaimer before this one had: what it met, and what has to become of it. Paths are relative
// to the runtime of idA.
type fault struct {
	name  string
	make  func(f *fleet, base string)
	kept  []string
	freed []string
}

var faults = []fault{
	{"R1 an ignored name that is not UTF-8", func(f *fleet, base string) {
		f.put(base+"/workspace/node_modules/caf\xe9/\xff\xfe", 1)
		f.put(base+"/workspace/data/\xe9", 1)
	}, []string{"workspace/data/\xe9"}, []string{"workspace/node_modules"}},
	{"R3 a clone deep in an ignored directory", func(f *fleet, base string) {
		at := base + "/workspace/node_modules/github.com/org/repo"
		f.put(at+"/work", 1)
		f.git(filepath.Join(f.home, at), "init", "-q")
	}, []string{"workspace/node_modules/github.com/org/repo/work", "workspace/node_modules/left-pad/index.js"}, nil},
	{"R4 ignored directories that no tool makes again", func(f *fleet, base string) {
		f.put(base+"/workspace/data/app.db", 1)
		f.put(base+"/workspace/notes/plan", 1)
	}, []string{"workspace/data/app.db", "workspace/notes/plan"}, []string{"workspace/node_modules"}},
	{"R4 a database among dependencies", func(f *fleet, base string) {
		f.put(base+"/workspace/node_modules/cache/app.db", 1)
	}, []string{"workspace/node_modules/cache/app.db"}, nil},
	{"R5 rules of the user and of info/exclude", func(f *fleet, base string) {
		f.text(base+"/workspace/.git/info/exclude", "build/\n")
		f.put(base+"/workspace/build/release", 1)
		config := filepath.Join(f.home, "xdg")
		f.text("xdg/git/ignore", "dist/\n")
		f.t.Setenv("XDG_CONFIG_HOME", config)
		f.put(base+"/workspace/dist/release", 1)
	}, []string{"workspace/build/release", "workspace/dist/release"}, []string{"workspace/node_modules"}},
	{"R8 directories that their owner may not write in", func(f *fleet, base string) {
		at := filepath.Join(f.home, base, "persistence/.cache/mod")
		f.put(base+"/persistence/.cache/mod/a/b", 1)
		require.NoError(f.t, os.Chmod(filepath.Join(at, "a"), 0o555))
		require.NoError(f.t, os.Chmod(at, 0o555))
	}, nil, []string{"persistence/.cache/mod"}},
	{"R11 a container that died on its own left its lease", func(f *fleet, _ string) {
		f.lease(idA, f.clock.now().Add(-time.Second))
	}, nil, []string{"persistence/.cache/pip", "workspace/node_modules"}},
	{"R15 a broken configuration and a working tree elsewhere", func(f *fleet, base string) {
		f.text(base+"/workspace/.git/config", "[core]\n\tworktree = /nonexistent\n\tfsmonitor = touch "+f.home+"/ran\n[broken")
	}, []string{"workspace/.env"}, []string{"workspace/node_modules"}},
	{"everything that a file system has", func(f *fleet, base string) {
		at := base + "/workspace/node_modules/odd"
		file := f.put(at+"/file", 3)
		require.NoError(f.t, os.Link(file, file+"-again"))
		require.NoError(f.t, os.Link(file, f.put(base+"/workspace/untracked-too", 0)+"-linked"))
		require.NoError(f.t, os.Truncate(f.put(at+"/sparse", 1), 1<<30))
		require.NoError(f.t, syscall.Mkfifo(filepath.Join(f.home, at, "pipe"), 0o600))
		f.put(at+"/"+strings.Repeat("n", 255), 1)
		f.deep(at, 100)
		f.deep(at+"/long", 4096/200+4)
	}, []string{"workspace/untracked-too-linked", "workspace/untracked"}, []string{"workspace/node_modules"}},
}

// deep makes a tree of so many levels with names of 200 bytes: its paths are longer than any call takes.
func (f *fleet) deep(at string, levels int) {
	full := filepath.Join(f.home, at)
	require.NoError(f.t, os.MkdirAll(full, 0o700))
	dir, err := unix.Open(full, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(f.t, err)
	name := strings.Repeat("d", 200)
	for range levels {
		require.NoError(f.t, unix.Mkdirat(dir, name, 0o700))
		below, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(f.t, err)
		require.NoError(f.t, unix.Close(dir))
		dir = below
	}
	require.NoError(f.t, unix.Close(dir))
}

func TestS0_024_S0_046_FaultsOfAReclaimerBeforeThisOne(t *testing.T) {
	for _, c := range faults {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, Settings{})
			f.runtime(idA, 2*time.Hour)
			f.runtime(idB, time.Hour)
			base := "state/runtime-data/" + idA
			c.make(f, base)
			at := filepath.Join(f.home, base)
			kept := append(slices.Clone(c.kept), "workspace/.env", "workspace/untracked", "workspace/tracked", "persistence/notes")
			before := map[string]string{}
			for _, name := range kept {
				before[name] = fingerprint(t, filepath.Join(at, name))
			}
			history := fingerprint(t, filepath.Join(f.home, "history"))

			f.reclaim(Request{Tier: TierDependencies})
			for name, digest := range before {
				require.Equal(t, digest, fingerprint(t, filepath.Join(at, name)), name)
			}
			for _, name := range c.freed {
				require.NoDirExists(t, filepath.Join(at, name))
			}
			require.Equal(t, history, fingerprint(t, filepath.Join(f.home, "history")))
			require.NoDirExists(t, filepath.Join(f.home, "state/runtime-data", idB, "workspace/node_modules"), "the newer one is not starved")
			require.NoFileExists(t, filepath.Join(f.home, "ran"))
			require.Empty(t, entries(t, filepath.Join(f.home, "state", trashName)))
		})
	}
}

func TestS0_144_WhatHasRunSinceItWasPlannedStays(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, 2*time.Hour)
	f.wrap(func(l layout) layout { return working{l, func() { f.used(idA, time.Hour) }} })
	for _, item := range f.reclaim(Request{Tier: TierDependencies, ConversationIDs: []string{conversation.Dashed(idA)}}).Items {
		require.Equal(t, []string{Skipped, reasonUsed}, []string{item.Outcome, item.Reason}, item.Path)
	}
}

// working is a layout whose conversation works between the plan and the lock.
type working struct {
	layout
	work func()
}

func (w working) whileIdle(id string, f func()) string {
	w.work()
	return w.layout.whileIdle(id, f)
}

func TestS0_144_WhatAContainerHasMountedMeanwhileIsPutBack(t *testing.T) {
	for _, tier := range []Tier{TierDependencies, TierRuntime} {
		f := newFleet(t, Settings{})
		f.runtime(idA, 2*time.Hour)
		before := contents(t, filepath.Join(f.home, "state/runtime-data", idA))
		f.wrap(func(l layout) layout { return mounting{l} })
		for _, item := range f.reclaim(Request{Tier: tier, ConversationIDs: []string{conversation.Dashed(idA)}}).Items {
			require.Equal(t, []string{Skipped, reasonUsed}, []string{item.Outcome, item.Reason}, item.Path)
		}
		require.NoFileExists(t, filepath.Join(f.home, "state/runtime-control", idA+archivedSuffix))
		require.Equal(t, before, contents(t, filepath.Join(f.home, "state/runtime-data", idA)))
	}
}

// mounting is a layout in which a container starts as soon as something was moved.
type mounting struct{ layout }

func (mounting) startedSince(string, string, time.Time) bool { return true }

// contents lists a tree with the digests of its files, whatever happened to the times of its directories.
func contents(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		require.NoError(t, err)
		all.WriteString(path + "\n")
		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			all.Write(text)
		}
		return nil
	}))
	return all.String()
}

func TestBR21_DependenciesThatAnotherCheckoutLinksIntoStay(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, 2*time.Hour)
	f.runtime(idB, time.Hour)
	base := func(id string) string { return filepath.Join(f.home, "state/runtime-data", id, "workspace") }
	of := func(ids ...string) []string {
		var all []string
		for _, item := range f.reclaim(Request{Tier: TierDependencies, DryRun: true, ConversationIDs: ids}).Items {
			if item.Tier == TierDependencies {
				all = append(all, strings.TrimPrefix(item.Path, filepath.Join(f.home, "state/runtime-data"))+" "+item.Outcome+" "+item.Reason)
			}
		}
		return all
	}
	modules := "/" + idA + "/workspace/node_modules "
	require.Equal(t, []string{modules + "planned "}, of(conversation.Dashed(idA)))

	require.NoError(t, os.RemoveAll(base(idB)+"/node_modules"))
	require.NoError(t, os.Symlink(base(idA)+"/node_modules", base(idB)+"/node_modules"))
	require.Equal(t, []string{modules + "skipped " + reasonLinked}, of(conversation.Dashed(idA)), "the whole is a link, in a checkout that was not asked for")
	require.Equal(t, []string{modules + "skipped " + reasonLinked}, of())

	require.NoError(t, os.Remove(base(idB)+"/node_modules"))
	require.NoError(t, os.Mkdir(base(idB)+"/node_modules", 0o700))
	require.NoError(t, os.Symlink(base(idA)+"/node_modules/left-pad", base(idB)+"/node_modules/left-pad"))
	require.Equal(t, []string{modules + "skipped " + reasonLinked, "/" + idB + "/workspace/node_modules planned "}, of(), "one package is")
	f.reclaim(Request{Tier: TierDependencies, ConversationIDs: []string{conversation.Dashed(idB)}})
	require.Equal(t, []string{modules + "planned "}, of(), "nobody links any more")

	f.put("state/runtime-data/"+idA+"/workspace/node_modules/.bin/x", 0)
	require.NoError(t, os.Symlink("../left-pad/index.js", base(idA)+"/node_modules/.bin/left-pad"))
	require.Equal(t, []string{modules + "planned "}, of(), "its own links say nothing")
}

func TestS0_144_TheLockOfAConversationIsHeldForAMoment(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	for i := range 300 {
		f.put("state/runtime-data/"+idA+"/persistence/.cache/tool/"+string(rune('a'+i%20))+"/"+time.Duration(i).String(), 0)
	}
	var held []time.Duration
	f.wrap(func(l layout) layout { return timing{l, &held} })
	for range 21 {
		f.put("state/runtime-data/"+idA+"/persistence/.cache/pip/x", 1)
		f.reclaim(Request{Tier: TierCaches, ConversationIDs: []string{conversation.Dashed(idA)}})
	}
	require.GreaterOrEqual(t, len(held), 21)
	slices.Sort(held)
	require.Less(t, held[len(held)/2], 2*time.Millisecond)
}

// timing is a layout that notes how long what is done under its lock takes.
type timing struct {
	layout
	held *[]time.Duration
}

func (l timing) whileIdle(id string, f func()) string {
	return l.layout.whileIdle(id, func() {
		began := time.Now()
		f()
		*l.held = append(*l.held, time.Since(began))
	})
}
