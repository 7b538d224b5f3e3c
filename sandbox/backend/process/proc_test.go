package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/sandbox/backend/filetree"
)

func TestStatLinesAreReadWhateverACommandIsCalled(t *testing.T) {
	tail := " S 7 12 12 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 98765 1 2 3\n"
	for _, name := range []string{"sh", "a b", "x) R 1", "(", ")", ") Z 1 ("} {
		s, ok := parseStat("42 (" + name + ")" + tail)
		require.True(t, ok, name)
		require.Equal(t, status{proc: proc{PID: 42, Started: 98765}, parent: 7, state: 'S'}, s, name)
	}
	for _, broken := range []string{"", "42", "42 (sh", "42 (sh) S 7", "x (sh)" + tail} {
		_, ok := parseStat(broken)
		require.False(t, ok, broken)
	}
}

func TestAZombieCountsAsGone(t *testing.T) {
	for state, want := range map[byte]bool{'Z': true, 'X': true, 'R': false, 'S': false, 'D': false, 'T': false} {
		require.Equal(t, want, status{state: state}.gone(), string(state))
	}
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	require.NoError(t, err)
	require.NoError(t, until(t.Context(), func() (bool, error) {
		s, ok := readStatus(p.Pid)
		return ok && s.state == 'Z', nil
	}))
	s, ok := readStatus(p.Pid)
	require.True(t, ok, "nobody has waited for it")
	require.False(t, s.alive())
	s.reap()
	_, ok = readStatus(p.Pid)
	require.False(t, ok, "collected")
	require.NoError(t, p.Release())
}

func TestDescendantsAreFoundAtEveryDepth(t *testing.T) {
	of := func(pid, parent int) status { return status{proc: proc{PID: pid}, parent: parent} }
	all := []status{of(2, 1), of(3, 2), of(4, 3), of(5, 1), of(6, 4), of(7, 5), of(1, 6)}
	var pids []int
	for _, s := range descendants(all, 2) {
		pids = append(pids, s.PID)
	}
	require.Subset(t, pids, []int{3, 4, 6})
	require.NotContains(t, pids, 2)
	require.Empty(t, descendants(all, 99))
}

func TestAHalfDoneOrderIsShownAsNotDone(t *testing.T) {
	program, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = program.Kill()
		_, _ = program.Wait()
	})
	self, ok := readStatus(os.Getpid())
	require.True(t, ok)
	x := box{id: uuid.New(), dir: t.TempDir()}
	require.NoError(t, os.Mkdir(x.control(""), 0o700))
	tree := treeHold{box: x, facts: start{Supervisor: self.proc}} // we are the supervisor of a process that runs
	for held, want := range map[string]bool{"": false, heldSuspend: false, heldResume: true} {
		_ = os.Remove(x.control(heldFile))
		if held != "" {
			require.NoError(t, os.WriteFile(x.control(heldFile), []byte(held), 0o600))
		}
		stopped, err := tree.stopped()
		require.NoError(t, err)
		require.Equal(t, want, stopped, "last told to %q, one process running", held)
	}
	require.NoError(t, tree.stop(t.Context()))
	stopped, err := tree.stopped()
	require.NoError(t, err)
	require.True(t, stopped)
	require.NoError(t, tree.cont(t.Context()))
	stopped, err = tree.stopped()
	require.NoError(t, err)
	require.False(t, stopped)
}

func TestCgroupV2IsFoundAloneBesideOthersAndInPart(t *testing.T) {
	const (
		unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid  = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n" +
			"37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw\n"
		part = "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
		odd  = `41 31 0:38 / /mnt/two\040words\134 rw - cgroup2 cgroup rw` + "\n"
		old  = "37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
	)
	for _, c := range []struct{ name, mounts, path, want string }{
		{"alone", unified, "/system.slice/automation.service", "/sys/fs/cgroup/system.slice/automation.service"},
		{"alone, at the root", unified, "/", "/sys/fs/cgroup"},
		{"beside the old ones", hybrid, "/user.slice", "/sys/fs/cgroup/unified/user.slice"},
		{"a part of it", part, "/docker/abc/box", "/sys/fs/cgroup/box"},
		{"a part that we are not in", part, "/docker/abcdef", ""},
		{"outside of our namespace", unified, "/../other", ""},
		{"a path with blanks", odd, "/a", `/mnt/two words\/a`},
		{"none", old, "/", ""},
	} {
		got, err := locateCgroup(filetree.Parse(c.mounts), c.path)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.want == "", err != nil, c.name)
	}
}

func TestTheLogOfABoxIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := openLog(path)
	require.NoError(t, err)
	line := make([]byte, 1000)
	for range 5 * logLimit / len(line) {
		log.write(line)
	}
	log.printf("the %s line", "last")
	for _, name := range []string{path, path + ".1"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(logLimit))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "the last line\n")
	require.NoError(t, log.file.Close())
	again, err := openLog(path)
	require.NoError(t, err)
	require.EqualValues(t, len(text), again.size, "what is there counts")
	require.NoError(t, again.file.Close())
}
