package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
	"automation/agentserver/storage"
	"automation/tests/bench/reclaimtree"
)

// workerTree names the tree on which this program, started anew, is the worker of BenchmarkReclaimBesidePython: a process of
// its own, so that its memory is the reclaimer's and not that of what makes trees.
const workerTree = "RECLAIM_WORKER_TREE"

func TestMain(m *testing.M) {
	if state := os.Getenv(workerTree); state != "" {
		if err := work(os.Getenv("RECLAIM_WORKER_WHAT"), state); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// work does what reclaimer.py does, and prints the same.
func work(what, state string) error {
	told := map[string]float64{}
	var err error
	if what == "read" {
		err = workRead(state, told)
	} else {
		err = workCaches(state, told)
	}
	memory, memoryErr := most()
	told["memory"] = memory
	return errors.Join(err, memoryErr, json.NewEncoder(os.Stdout).Encode(told))
}

func open(state string) (*storage.Storage, error) {
	root := filepath.Dir(state)
	histories := filepath.Join(root, "history")
	return storage.Open(storage.Options{
		Root: filepath.Join(root, "home"), RuntimesDir: state, Protected: []string{state, histories}, Histories: conversation.Open(histories),
		StateDir: filepath.Join(state, "storage"), Guard: idleBox{}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
}

func workRead(state string, told map[string]float64) error {
	var failed error
	var s *storage.Storage
	note := func(_ any, err error) { failed = errors.Join(failed, err) }
	plan := func() {
		note(s.Reclaim(context.Background(), storage.Request{DryRun: true, Tier: storage.TierDependencies}))
	}
	var first, plans []time.Duration
	for range 3 { // what has been looked at once is not looked at again
		if s != nil {
			s.Close()
		}
		var err error
		if s, err = open(state); err != nil {
			return err
		}
		first = append(first, took(1, func() { note(s.Status(context.Background())) }))
		plans = append(plans, took(1, plan))
	}
	defer s.Close()
	slices.Sort(first)
	slices.Sort(plans)
	told["first plan"] = inMilliseconds(plans[1])
	told["walk"] = inMilliseconds(first[1])
	told["unchanged"] = inMilliseconds(took(5, func() { note(s.Status(context.Background())) }))
	told["plan"] = inMilliseconds(took(3, plan))
	return failed
}

// workCaches takes all caches, and waits until the trash is empty.
func workCaches(state string, told map[string]float64) error {
	s, err := open(state)
	if err != nil {
		return err
	}
	var result storage.Result
	told["caches"] = inMilliseconds(took(1, func() {
		result, err = s.Reclaim(context.Background(), storage.Request{Tier: storage.TierCaches})
		if err == nil {
			err = emptied(filepath.Join(state, ".agent-server-trash"))
		}
	}))
	told["held"] = inMilliseconds(result.Held)
	s.Close()
	return err
}

func emptied(trash string) error {
	ticks := time.NewTicker(2 * time.Millisecond)
	defer ticks.Stop()
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); <-ticks.C {
		if entries, err := os.ReadDir(trash); err != nil || len(entries) == 0 {
			return err
		}
	}
	return errors.New("the trash does not get empty")
}

// most is the most memory that this process has had resident, in bytes.
func most() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kilobytes * 1024, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// figures runs a command and reads the last line that it prints.
func figures(b *testing.B, command *exec.Cmd) map[string]float64 {
	b.Helper()
	var said bytes.Buffer
	command.Stderr = &said
	output, err := command.Output()
	require.NoError(b, err, "%s%s", output, said.String())
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	told := map[string]float64{}
	require.NoError(b, json.Unmarshal(lines[len(lines)-1], &told), "%s", output)
	return told
}

// python are the figures of the Python reclaimer on a tree.
func python(b *testing.B, what string, tree reclaimtree.Tree) map[string]float64 {
	b.Helper()
	interpreter := os.Getenv("AUTOMATION_TEST_PYTHON")
	if interpreter == "" {
		b.Skip("AUTOMATION_TEST_PYTHON is not set")
	}
	command := exec.Command(interpreter, "reclaimer.py", what, tree.State)
	command.Env = append(os.Environ(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1", "PYTHONWARNINGS=ignore")
	return figures(b, command)
}

// ours are the figures of our reclaimer on a tree.
func ours(b *testing.B, what string, tree reclaimtree.Tree) map[string]float64 {
	b.Helper()
	command := exec.Command(os.Args[0], "-test.run=^$")
	command.Env = append(os.Environ(), workerTree+"="+tree.State, "RECLAIM_WORKER_WHAT="+what)
	return figures(b, command)
}

// BenchmarkReclaimBesidePython measures our reclaimer beside that of openhands-agent-server, du and rm on equal trees in one run:
// what takes space, a plan for everybody, and a pass over all caches until the trash is empty.
func BenchmarkReclaimBesidePython(b *testing.B) {
	for range b.N {
		besidePythonReading(b)
		besidePythonDeleting(b)
	}
}

func besidePythonReading(b *testing.B) {
	b.Helper()
	tree := makeTree(b)
	run(b, "du", "-s", tree.State) // warm for everybody
	du := took(3, func() { run(b, "du", "-s", tree.Runtimes) })
	theirs, mine := python(b, "read", tree), ours(b, "read", tree)
	milliseconds(b, du, "ms-du")
	for name, figure := range map[string]float64{
		"ms-status": mine["walk"], "ms-status-unchanged": mine["unchanged"], "ms-plan-first": mine["first plan"], "ms-plan": mine["plan"],
		"ms-walk-python": theirs["walk"], "ms-plan-python": theirs["plan"],
		"x-status-of-du": mine["walk"] / inMilliseconds(du), "x-status-python": theirs["walk"] / mine["walk"], "x-plan-python": theirs["plan"] / mine["plan"],
		"MiB-reading": mine["memory"] / (1 << 20), "MiB-reading-python": theirs["memory"] / (1 << 20),
	} {
		b.ReportMetric(figure, name)
	}
}

func besidePythonDeleting(b *testing.B) {
	b.Helper()
	plain, pythonTree, tree, boxTree := makeTree(b), makeTree(b), makeTree(b), makeTree(b)
	arguments := []string{"-rf"}
	for _, id := range plain.IDs {
		for _, cache := range []string{".cache", ".npm"} {
			arguments = append(arguments, filepath.Join(plain.Runtimes, id, "persistence", cache))
		}
	}
	syscall.Sync()
	rm := took(1, func() { run(b, "rm", arguments...) })
	syscall.Sync()
	theirs := python(b, "caches", pythonTree)
	syscall.Sync()
	mine := ours(b, "caches", tree)
	precious, err := os.ReadFile(filepath.Join(tree.Outside, "precious"))
	require.NoError(b, err)
	require.Equal(b, "not yours", string(precious))
	b.ReportMetric(boxMemory(b, boxTree), "MiB-server")
	milliseconds(b, rm, "ms-caches-rm")
	for name, figure := range map[string]float64{
		"ms-caches": mine["caches"], "ms-caches-python": theirs["caches"], "x-caches-python": theirs["caches"] / mine["caches"],
		"x-caches-rm": inMilliseconds(rm) / mine["caches"], "ms-lock-longest": mine["held"], "MiB-caches": mine["memory"] / (1 << 20), "MiB-caches-python": theirs["memory"] / (1 << 20),
	} {
		b.ReportMetric(figure, name)
	}
}
