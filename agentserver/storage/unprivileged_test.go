package storage

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// nobody is the uid and gid that permission cases run as.
const nobody = 65534

// insideVariable marks a test binary that was started by runIn.
const insideVariable = "STORAGE_TEST_INSIDE"

// runIn runs this very test again in a process of its own: behind a wrapper command, or as another user.
func runIn(t *testing.T, wrapper []string, as *syscall.Credential) {
	t.Helper()
	require.Empty(t, os.Getenv(insideVariable), "the test has been started again already")
	dir, err := os.MkdirTemp("", "storage-test") //nolint:usetesting // t.TempDir is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "again")
	copyProgram(t, program)
	scratch := filepath.Join(dir, "tmp")
	require.NoError(t, os.Mkdir(scratch, 0o777))
	require.NoError(t, os.Chmod(scratch, 0o777))

	arguments := append(append([]string{}, wrapper...), program, "-test.run=^"+t.Name()+"$", "-test.v")
	again := exec.Command(arguments[0], arguments[1:]...)
	again.Dir = dir
	again.Env = append(os.Environ(), insideVariable+"=1", "TMPDIR="+scratch)
	again.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	var output bytes.Buffer
	again.Stdout, again.Stderr = &output, &output
	require.NoError(t, again.Run(), output.String())
	require.Contains(t, output.String(), "--- PASS: "+t.Name())
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer from.Close()
	file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(file, from)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// unprivileged makes the rest of a test run as a user whom permissions bind; false: it has run, in another process.
func unprivileged(t *testing.T) bool {
	t.Helper()
	if os.Getuid() != 0 {
		return true
	}
	runIn(t, nil, &syscall.Credential{Uid: nobody, Gid: nobody})
	return false
}

func TestBR22_ReadOnlyTreesAreFreedWhole(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	d := newDisk(t)
	var want int64
	for name, mode := range map[string]os.FileMode{"r": 0o444, "rx": 0o555, "x": 0o111, "none": 0} {
		for _, path := range []string{"go/pkg/mod/" + name + "/in/file", ".cache/" + name + "/file"} {
			file := d.put(path, 20)
			require.NoError(t, os.Chmod(file, 0o444))
			for dir := filepath.Dir(file); filepath.Base(dir) != "mod" && filepath.Base(dir) != ".cache"; dir = filepath.Dir(dir) {
				info, err := os.Stat(dir)
				require.NoError(t, err)
				want += info.Sys().(*syscall.Stat_t).Blocks * 512
				require.NoError(t, os.Chmod(dir, mode))
			}
			want += 20 << 10
		}
	}
	result := d.reclaim(Request{})
	require.Len(t, result.Items, 8)
	for _, item := range result.Items {
		require.Equal(t, Moved, item.Outcome, item.Path+" "+item.Reason)
		require.EqualValues(t, 1, item.Files, item.Path)
	}
	require.Equal(t, want, result.FreedBytes)
	require.Empty(t, entries(t, filepath.Join(d.home, trashName)), d.log.String())
	require.Empty(t, entries(t, filepath.Join(d.home, ".cache")))
}

func TestBR22_AForeignEntryKeepsNothingElseAndIsSaidOnce(t *testing.T) {
	home := os.Getenv("STORAGE_TEST_HOME")
	if home == "" {
		if os.Getuid() != 0 {
			runIn(t, []string{"unshare", "--user", "--map-root-user"}, nil)
			return
		}
		dir, err := os.MkdirTemp("", "storage-home") //nolint:usetesting // t.TempDir is closed to other users
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		owner := &disk{t: t, home: dir}
		owner.put(".cache/a/one/file", 10)
		owner.put(".cache/a/foreign/file", 10)
		owner.put(".cache/a/two/file", 10)
		owner.put(".cache/b/file", 10)
		require.NoError(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			if err != nil || strings.Contains(path, "foreign") {
				return err
			}
			return os.Lchown(path, nobody, nobody)
		}))
		require.NoError(t, os.Chmod(filepath.Join(dir, ".cache/a/foreign"), 0o755))
		t.Setenv("STORAGE_TEST_HOME", dir)
		runIn(t, nil, &syscall.Credential{Uid: nobody, Gid: nobody})
		return
	}
	d := openDisk(t, home)
	defer d.Close()
	require.Equal(t, []string{".cache/a moved", ".cache/b moved"}, outcomes(d.reclaim(Request{})))
	left := entries(t, filepath.Join(home, trashName))
	require.Len(t, left, 1)
	require.Equal(t, []string{"foreign"}, entries(t, filepath.Join(home, trashName, left[0])))
	d.put(".cache/c/x", 1)
	d.reclaim(Request{})
	require.Equal(t, 1, strings.Count(d.log.String(), "not deletable"), d.log.String())
}
