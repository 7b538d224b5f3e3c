package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

// remembering makes a stopped conversation of which dry runs remember what they found.
func remembering(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	f.looks.margin = 20 * time.Millisecond // some ticks of any file system
	require.Eventually(t, func() bool {
		f.planned()
		return len(f.looks.last) == 1
	}, 10*time.Second, 5*time.Millisecond)
	return f
}

// planned is what a dry run says of the dependencies and caches of a conversation, relative to its runtime.
func (f *fleet) planned() []string {
	f.t.Helper()
	all := outcomes(f.reclaim(Request{Tier: TierDependencies, DryRun: true, ConversationIDs: []string{conversation.Dashed(idA)}}))
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], filepath.Join(f.home, "state/runtime-data", idA)+"/")
	}
	return all
}

const (
	pip     = "persistence/.cache/pip planned"
	modules = "workspace/node_modules"
)

func TestS0_143_ADryRunLooksAgainAtWhateverHasChanged(t *testing.T) {
	base := "state/runtime-data/" + idA
	cases := map[string]struct {
		change func(f *fleet, at string)
		want   []string
	}{
		"a clone deep among dependencies": {func(f *fleet, _ string) { f.put(base+"/workspace/node_modules/left-pad/a/.git/HEAD", 1) },
			[]string{pip, modules + " skipped " + reasonCheckout}},
		"a database among them": {func(f *fleet, _ string) { f.put(base+"/workspace/node_modules/left-pad/app.db", 1) },
			[]string{pip, modules + " skipped " + reasonWork + "app.db"}},
		"rules changed in place": {func(f *fleet, _ string) { f.text(base+"/workspace/.gitignore", "notes/\n") }, []string{pip}},
		"a file of them tracked": {func(f *fleet, at string) { f.git(at+"/workspace", "add", "-f", "node_modules/left-pad/index.js") }, []string{pip}},
		"other dependencies": {func(f *fleet, _ string) { f.text(base+"/workspace/.venv/pyvenv.cfg", "home=/usr") },
			[]string{pip, "workspace/.venv planned", modules + " planned"}},
		"what proved them gone": {func(f *fleet, at string) { require.NoError(f.t, os.Remove(at+"/workspace/package.json")) }, []string{pip}},
		"a cache where none was": {func(f *fleet, _ string) { f.put(base+"/persistence/.bun/install/cache/x", 1) },
			[]string{pip, "persistence/.bun/install/cache planned", modules + " planned"}},
		"the workspace a link": {func(f *fleet, at string) {
			require.NoError(f.t, os.Rename(at+"/workspace", f.home+"/aside"))
			require.NoError(f.t, os.Symlink(f.home+"/aside", at+"/workspace"))
		}, []string{pip}},
		"a second checkout": {func(f *fleet, _ string) { f.checkout(base + "/workspace/tools/second") },
			[]string{pip, modules + " planned", "workspace/tools/second/node_modules planned"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := remembering(t)
			before := f.planned()
			require.Equal(t, []string{pip, modules + " planned"}, before)
			program := f.around.git.program
			f.around.git.program = "/nonexistent/git"
			require.Equal(t, before, f.planned(), "nothing has changed: nobody is asked again")
			f.around.git.program = program
			c.change(f, filepath.Join(f.home, base))
			require.Equal(t, c.want, f.planned())
		})
	}
}

func TestS0_143_APassTakesNothingByWhatADryRunRemembers(t *testing.T) {
	f := remembering(t)
	dry := f.reclaim(Request{Tier: TierDependencies, DryRun: true})
	f.around.git.program = "/nonexistent/git"
	require.Equal(t, dry.FreedBytes, f.reclaim(Request{Tier: TierDependencies, DryRun: true}).FreedBytes)
	for _, request := range []Request{{PlanID: dry.PlanID}, {Tier: TierDependencies}} {
		f.reclaim(request)
		require.FileExists(t, filepath.Join(f.home, "state/runtime-data", idA, "workspace/node_modules/left-pad/index.js"),
			"git tells nothing now: the dependencies stay")
	}
}

func TestS0_143_WhoHasRunOrIsGoneIsNotRemembered(t *testing.T) {
	f := remembering(t)
	f.used(idA, time.Minute)
	f.around.git.program = "/nonexistent/git"
	require.Contains(t, f.planned(), "workspace skipped git failed: fork/exec /nonexistent/git: no such file or directory")
	f.forgotten(idA)
	require.Empty(t, f.planned())
	require.Empty(t, f.looks.last)
	require.Zero(t, f.looks.steps)
}

// forgotten takes away all of a conversation.
func (f *fleet) forgotten(id string) {
	for _, name := range []string{"history", "state/runtime-data"} {
		require.NoError(f.t, os.RemoveAll(filepath.Join(f.home, name, id)))
	}
}
