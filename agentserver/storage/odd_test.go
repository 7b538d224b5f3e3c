package storage

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestS0_024_RulesOfEveryKind(t *testing.T) {
	const moved, kept = " moved", ""
	table := map[string]string{
		"node_modules":                           moved,
		"/node_modules/":                         moved,
		"**/node_modules/**":                     moved,
		"node_*":                                 moved,
		"[mn]ode_modules":                        moved,
		"!node_modules\nnode_modules":            moved,
		"node_modules   ":                        moved, // blanks at the end say nothing
		"\xef\xbb\xbfnode_modules":               moved, // nor does a byte order mark
		"*\n!package.json":                       moved,
		"# node_modules":                         kept,
		`\#node_modules`:                         kept,
		"node_modules\n!node_modules":            kept,
		`node_modules\ `:                         kept, // a blank that counts
		"\tnode_modules":                         kept,
		"\\node_modules/left-pad":                moved, // all that is in it; the letter stands for itself
		"node_modules/*\n!node_modules/left-pad": kept,
		"node_modules/**\n!**/index.js\n!node_modules/left-pad/": kept,
		"NODE_MODULES":                kept,
		"node_modules\x00x":           moved, // git reads no further
		"caf\xe9\nother/node_modules": kept,
	}
	d := newWorkspace(t)
	want := []string{}
	for rules, outcome := range table {
		name := "project/" + hex.EncodeToString([]byte(rules))
		d.checkout(name)
		d.text(name+"/.gitignore", rules)
		if outcome == moved {
			want = append(want, name+"/node_modules"+moved)
		}
	}
	require.ElementsMatch(t, want, dependenciesOf(d.reclaim(Request{Tier: TierDependencies})))
}

// strange is a checkout that is not like others, and what becomes of the dependencies in the workspace; one/ is always there.
type strange struct {
	name string
	make func(d *disk, at string)
	want []string
}

var stranges = []strange{
	{"an index in the newer format with a tracked file among dependencies", func(d *disk, at string) {
		require.NoError(d.t, os.RemoveAll(at+"/.git"))
		d.git(at, "init", "-q", "--object-format=sha256")
		d.git(at, "add", "-f", "tracked", "node_modules")
	}, nil},
	{"an index in the newer format", func(d *disk, at string) {
		require.NoError(d.t, os.RemoveAll(at+"/.git"))
		d.git(at, "init", "-q", "--object-format=sha256")
		d.git(at, "add", ".")
	}, []string{"project/one/node_modules moved"}},
	{"an index of version 4", func(d *disk, at string) { d.git(at, "update-index", "--index-version=4") },
		[]string{"project/one/node_modules moved"}},
	{"an index with further flags", func(d *disk, at string) { d.git(at, "update-index", "--skip-worktree", ".gitignore") },
		[]string{"project/one/node_modules moved"}},
	{"an empty index", func(d *disk, at string) { d.git(at, "rm", "-rq", "--cached", ".") }, []string{"project/one/node_modules moved"}},
	{"a split index", func(d *disk, at string) { d.git(at, "update-index", "--split-index") }, []string{"project/one skipped "}},
	{"an index that is being written", func(d *disk, _ string) { d.put("project/one/.git/index.lock", 1) },
		[]string{"project/one/node_modules moved"}},
	{"an index of garbage", func(d *disk, _ string) { d.put("project/one/.git/index", 9) }, []string{"project/one skipped " + reasonOddIndex}},
	{"an index that is a pipe", func(d *disk, at string) {
		require.NoError(d.t, os.Remove(at+"/.git/index"))
		require.NoError(d.t, syscall.Mkfifo(at+"/.git/index", 0o600))
	}, []string{"project/one skipped " + reasonNoIndex}},
	{"a repository that is a link", func(d *disk, at string) {
		require.NoError(d.t, os.Rename(at+"/.git", d.home+"/elsewhere"))
		require.NoError(d.t, os.Symlink(d.home+"/elsewhere", at+"/.git"))
	}, []string{"project/one skipped " + reasonNoIndex}},
	{"a .git that names nothing", func(d *disk, at string) {
		require.NoError(d.t, os.RemoveAll(at+"/.git"))
		d.text("project/one/.git", "gitdir: /nonexistent\n")
	}, []string{"project/one skipped " + reasonNoIndex}},
	{"rules that are a pipe", func(d *disk, at string) {
		require.NoError(d.t, os.Remove(at+"/.gitignore"))
		require.NoError(d.t, syscall.Mkfifo(at+"/.gitignore", 0o600))
		d.around.git.limit = time.Second
		for i := range 5 { // all of them together are given up after the time for one workspace
			other := fmt.Sprintf("project/other-%d", i)
			d.checkout(other)
			require.NoError(d.t, os.Remove(filepath.Join(d.home, other, ".gitignore")))
			require.NoError(d.t, syscall.Mkfifo(filepath.Join(d.home, other, ".gitignore"), 0o600))
		}
	}, []string{
		"project/one skipped " + reasonGitSlow, "project/other-0 skipped " + reasonGitSlow, "project/other-1 skipped " + reasonGitSlow,
		"project/other-2 skipped " + reasonGitSlow, "project/other-3 skipped " + reasonGitSlow, "project/other-4 skipped " + reasonGitSlow,
	}},
	{"a worktree with a tracked file among dependencies", func(d *disk, at string) {
		d.git(at, "commit", "-qm", "first")
		tree := filepath.Join(d.home, "project/tree")
		d.git(at, "worktree", "add", "-q", tree)
		d.put("project/tree/node_modules/mine", 1)
		d.git(tree, "add", "-f", "node_modules/mine")
	}, []string{"project/one/node_modules moved"}},
	{"a submodule, which is a checkout in another one", func(d *disk, at string) {
		d.checkout("source")
		d.git(d.home+"/source", "commit", "-qm", "first")
		d.git(at, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", d.home+"/source", "part")
		d.put("project/one/part/node_modules/x", 1)
	}, []string{"project/one/node_modules moved"}},
	{"dependencies in a tracked directory that is called like some", func(d *disk, at string) {
		d.text("project/one/build/package.json", "{}")
		d.put("project/one/build/app/node_modules/x", 1)
		d.text("project/one/build/app/package.json", "{}")
		d.git(at, "add", ".")
	}, []string{"project/one/build/app/node_modules moved", "project/one/node_modules moved"}},
	{"checkouts in checkouts in checkouts", func(d *disk, _ string) {
		for depth := range 8 {
			d.checkout("project/one" + strings.Repeat("/in", depth+1))
		}
	}, []string{"project/one/node_modules moved"}},
	{"a bare repository among dependencies", func(d *disk, at string) {
		d.git(at, "init", "-q", "--bare", "node_modules/left-pad/origin")
	}, []string{"project/one/node_modules skipped " + reasonCheckout}},
	{"more names than a call takes", func(d *disk, _ string) {
		for i := range 400 {
			d.put(fmt.Sprintf("project/one/%s%03d/build/x", strings.Repeat("n", 200), i), 0)
		}
	}, []string{"project/one/node_modules moved"}},
	{"names that look like options and magic", func(d *disk, _ string) {
		for _, name := range []string{"-z", "--", ":(exclude)*", ":!node_modules", "*", "caf\xe9\n"} {
			d.put("project/one/"+name+"/node_modules/x", 0)
			d.text("project/one/"+name+"/package.json", "{}")
		}
	}, []string{
		"project/one/*/node_modules moved", "project/one/--/node_modules moved", "project/one/-z/node_modules moved",
		"project/one/:!node_modules/node_modules moved", "project/one/:(exclude)*/node_modules moved",
		"project/one/caf\xe9\n/node_modules moved", "project/one/node_modules moved",
	}},
}

func TestS0_024_StrangeCheckouts(t *testing.T) {
	for _, c := range stranges {
		t.Run(c.name, func(t *testing.T) {
			d := newWorkspace(t)
			d.checkout("project/one")
			d.around.git.limit = 20 * time.Second
			c.make(d, filepath.Join(d.home, "project/one"))
			before := fingerprintOf(t, d.home, "project", "/node_modules/left-pad", "/node_modules/x", "/index")
			began := time.Now()
			said := dependenciesOf(d.reclaim(Request{Tier: TierDependencies}))
			require.Less(t, time.Since(began), 20*time.Second)
			require.Len(t, said, len(c.want), "%q", said)
			for i, want := range c.want {
				require.True(t, strings.HasPrefix(said[i], want), "%q", said)
			}
			require.Equal(t, before, fingerprintOf(t, d.home, "project", "/node_modules/left-pad", "/node_modules/x", "/index"))
		})
	}
}

func TestWhatGitSaysIsBounded(t *testing.T) {
	d := directories{left: 10 << 10}
	var err error
	for i := 0; err == nil; i++ {
		_, err = fmt.Fprintf(&d, "file-%d\x00dir-%d/\x00", i, i)
	}
	require.ErrorContains(t, err, reasonGitMuch)
	require.Less(t, len(d.names), 400)
	require.Equal(t, "dir-0", d.names[0])

	d = directories{left: 10 << 10}
	for _, part := range []string{"a/", "\x00b", "\x00c", "/c/\x00\x00"} {
		_, err = d.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"a", "c/c"}, d.names)
	require.Equal(t, []string{"a", "a-b", "b/c"}, outermost([]string{"b/c", "a-b", "a/b/c", "a", "b/c", "a/x"}))
}

func TestAStatusAboveTheBudgetNamesEverybodyOnce(t *testing.T) {
	f := newFleet(t, Settings{DiskBudget: 0.000001})
	f.runtime(idA, 2*time.Hour)
	f.runtime(idB, 2*time.Hour)
	first := f.status()
	require.Len(t, first.Conversations, 3)
	second := f.status()
	require.Len(t, second.Conversations, 3)
	require.Equal(t, first.Conversations[1].NextPass, second.Conversations[1].NextPass)
}
