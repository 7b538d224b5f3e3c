package storage

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

// newTrees is a server of worktrees, with one repository and a worktree for each of two conversations.
func newTrees(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t, Settings{DiskBudget: 0.000001, RetentionDays: 1})
	f.options.RuntimesDir, f.options.WorktreeRoot = "", filepath.Join(f.home, "trees")
	f.restart()
	f.checkout("repository")
	f.git(filepath.Join(f.home, "repository"), "commit", "-qm", "first")
	for _, id := range []string{idA, idB} {
		tree := filepath.Join(f.home, "trees", id, "repository")
		f.git(filepath.Join(f.home, "repository"), "worktree", "add", "-q", "-b", "branch-"+id[:4], tree)
		f.put("trees/"+id+"/repository/node_modules/left-pad/index.js", 50)
		f.put("trees/"+id+"/repository/untracked", 1)
		require.NoError(t, f.histories.Create(id, []byte(`{"workspace":{"working_dir":"`+tree+`"}}`), []byte(`{"execution_status":"idle"}`)))
		f.used(id, 48*time.Hour)
	}
	return f
}

func (f *fleet) said(arguments ...string) string {
	f.t.Helper()
	output, err := exec.Command("git", append([]string{"-C", filepath.Join(f.home, "repository")}, arguments...)...).CombinedOutput()
	require.NoError(f.t, err, string(output))
	return string(output)
}

func TestS0_008_S0_026_WorktreesHaveABudgetAndGoWithTheirConversation(t *testing.T) {
	f := newTrees(t)
	onStop := conversation.Retention{Policy: conversation.OnStop}
	require.NoError(t, f.histories.SetRetention(idA, onStop))
	f.lease(idB, f.clock.now().Add(time.Minute))
	before := fingerprintOf(t, f.home, "trees", "node_modules")
	f.sleepless(72 * time.Hour)
	f.lease(idB, f.clock.now().Add(time.Minute))
	require.NoError(t, f.Maintain(t.Context()))
	require.NoDirExists(t, filepath.Join(f.home, "trees", idA, "repository/node_modules"), "above the budget")
	require.DirExists(t, filepath.Join(f.home, "trees", idB, "repository/node_modules"), "a server has it open")
	require.Equal(t, before, fingerprintOf(t, f.home, "trees", "node_modules"), "no retention: everything else stays")
	require.Contains(t, f.log.String(), "retention is set and has no effect")
	c := f.of(idA)
	require.Equal(t, []any{LayoutWorktrees, StateStopped, onStop, reasonNoRetention}, []any{c.Layout, c.State, c.Retention, c.NextPass.Reason})
	require.Equal(t, StateIdle, f.of(idB).State)

	require.NoError(t, f.Remove(t.Context(), idA))
	require.NoDirExists(t, filepath.Join(f.home, "trees", idA))
	require.NoDirExists(t, filepath.Join(f.home, "history", idA))
	require.Contains(t, f.said("branch", "--list"), "branch-aaaa", "the branch stays")
	require.NotContains(t, f.said("worktree", "list"), idA)
	require.Contains(t, f.said("worktree", "list"), idB)
	require.NoError(t, f.histories.Create(idC, []byte(`{}`), []byte(`{}`)))
	var inUse *InUseError
	require.ErrorAs(t, f.Remove(t.Context(), idB), &inUse)
	require.DirExists(t, filepath.Join(f.home, "trees", idB))
}

func TestBR20_OnlyTheOneWorktreeIsTakenOffTheList(t *testing.T) {
	f := newTrees(t)
	away := filepath.Join(f.home, "away")
	require.NoError(t, os.Rename(filepath.Join(f.home, "trees", idB), away))
	require.NoError(t, f.Remove(t.Context(), idA))
	require.NoError(t, os.Rename(away, filepath.Join(f.home, "trees", idB)))
	f.git(filepath.Join(f.home, "trees", idB, "repository"), "status")
}

func TestBR32_WhatTheServerDidNotMakeStays(t *testing.T) {
	f := newTrees(t)
	t.Run("a directory of the user's own", func(t *testing.T) {
		own := f.put("own/precious", 1)
		before := fingerprint(t, filepath.Join(f.home, "own"))
		require.NoError(t, f.histories.Create(idC, []byte(`{"workspace":{"working_dir":"`+filepath.Dir(own)+`"}}`), []byte(`{}`)))
		require.NoError(t, f.Remove(t.Context(), idC))
		require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "own")))
	})
	t.Run("a worktree that a fork works in, until that goes too", func(t *testing.T) {
		tree := filepath.Join(f.home, "trees", idA, "repository")
		require.NoError(t, f.histories.Create(idC, []byte(`{"workspace":{"working_dir":"`+tree+`"}}`), []byte(`{}`)))
		require.NoError(t, f.Remove(t.Context(), idA))
		require.DirExists(t, tree)
		f.git(tree, "status")
		require.NoError(t, f.Remove(t.Context(), idC))
		require.NoDirExists(t, filepath.Join(f.home, "trees", idA))
		require.NotContains(t, f.said("worktree", "list"), idA)
	})
	t.Run("a registration that names another worktree", func(t *testing.T) {
		require.NoError(t, f.histories.Create(idC, []byte(`{}`), []byte(`{}`)))
		forged := filepath.Join(f.home, "repository/.git/worktrees/repository1")
		require.DirExists(t, forged)
		f.text("trees/"+idC+"/repository/.git", "gitdir: "+forged+"\n")
		require.NoError(t, f.Remove(t.Context(), idC))
		require.DirExists(t, forged, "it belongs to the worktree of another conversation")
		require.NoDirExists(t, filepath.Join(f.home, "trees", idC))
		require.True(t, strings.HasSuffix(strings.TrimSpace(f.said("worktree", "list")), "[branch-bbbb]"))
	})
}
