package bench

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
	"automation/agentserver/storage"
	"automation/tests/bench/reclaimtree"
)

// idleBox is a box in which nothing runs.
type idleBox struct{}

func (idleBox) Running() int { return 0 }

func (idleBox) WhileIdle(f func()) bool { f(); return true }

// openStorage opens the reclaimer on a tree, as the agent server does.
func openStorage(b *testing.B, tree reclaimtree.Tree) *storage.Storage {
	b.Helper()
	s, err := storage.Open(storage.Options{
		Root: tree.Home, RuntimesDir: tree.State, Protected: []string{tree.State, tree.Histories},
		Histories: conversation.Open(tree.Histories), StateDir: filepath.Join(tree.State, "storage"), Guard: idleBox{},
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	require.NoError(b, err)
	return s
}

// took is the median time of several runs of f, so that one interruption does not decide.
func took(times int, f func()) time.Duration {
	all := make([]time.Duration, times)
	for i := range all {
		began := time.Now()
		f()
		all[i] = time.Since(began)
	}
	slices.Sort(all)
	return all[times/2]
}

func milliseconds(b *testing.B, d time.Duration, name string) {
	b.ReportMetric(float64(d.Microseconds())/1000, name)
}

// shape is the full one, or a small one for a first look (-short).
func shape() reclaimtree.Shape {
	if testing.Short() {
		return reclaimtree.Small
	}
	return reclaimtree.Full
}

func makeTree(b *testing.B) reclaimtree.Tree {
	b.Helper()
	tree, err := reclaimtree.Make(filepath.Join(b.TempDir(), "tree"), shape())
	require.NoError(b, err)
	return tree
}

func run(b *testing.B, program string, arguments ...string) {
	b.Helper()
	output, err := exec.Command(program, arguments...).CombinedOutput()
	require.NoError(b, err, string(output))
}

// BenchmarkReclaimStatus compares a status that walks everything, and one of a box in which nothing has run since, with du.
func BenchmarkReclaimStatus(b *testing.B) {
	tree := makeTree(b)
	for range b.N {
		du := took(3, func() { run(b, "du", "-s", tree.State) })
		var s *storage.Storage
		status := func() {
			_, err := s.Status(context.Background())
			require.NoError(b, err)
		}
		var walks []time.Duration
		for range 3 {
			s = openStorage(b, tree)
			walks = append(walks, took(1, status))
			defer s.Close()
		}
		slices.Sort(walks)
		milliseconds(b, du, "ms-du")
		milliseconds(b, walks[1], "ms-status")
		milliseconds(b, took(5, status), "ms-status-unchanged")
		b.ReportMetric(float64(walks[1])/float64(du), "x-du")
	}
}

// BenchmarkReclaimPlan measures a plan for caches and dependencies of everybody: the first one, and one when nothing has changed.
func BenchmarkReclaimPlan(b *testing.B) {
	tree := makeTree(b)
	for range b.N {
		s := openStorage(b, tree)
		plan := func() {
			_, err := s.Reclaim(context.Background(), storage.Request{DryRun: true, Tier: storage.TierDependencies})
			require.NoError(b, err)
		}
		milliseconds(b, took(1, plan), "ms-plan-first")
		milliseconds(b, took(3, plan), "ms-plan")
		s.Close()
	}
}

// BenchmarkReclaimCaches compares a pass over all caches, until the trash is empty, with rm -rf of the same directories.
func BenchmarkReclaimCaches(b *testing.B) {
	for range b.N {
		mine, theirs := makeTree(b), makeTree(b)
		arguments := []string{"-rf"}
		for _, id := range theirs.IDs {
			home := filepath.Join(theirs.Runtimes, id, "persistence")
			arguments = append(arguments, filepath.Join(home, ".cache/pip"), filepath.Join(home, ".npm/_cacache"))
		}
		syscall.Sync()
		rm := took(1, func() { run(b, "rm", arguments...) })
		s := openStorage(b, mine)
		var result storage.Result
		syscall.Sync()
		pass := took(1, func() {
			var err error
			result, err = s.Reclaim(context.Background(), storage.Request{Tier: storage.TierCaches})
			require.NoError(b, err)
		})
		s.Close()
		require.Len(b, result.Items, 2*len(mine.IDs)+len(mine.IDs), "both caches and the link of each")
		entries, err := os.ReadDir(filepath.Join(mine.State, ".agent-server-trash"))
		require.NoError(b, err)
		require.Empty(b, entries)
		milliseconds(b, rm, "ms-rm")
		milliseconds(b, pass, "ms-pass")
		b.ReportMetric(float64(rm)/float64(pass), "x-rm")
	}
}
