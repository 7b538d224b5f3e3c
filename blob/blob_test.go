package blob_test

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/blob"
)

func open(t *testing.T, dir string) *blob.Folder {
	t.Helper()
	f, err := blob.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func read(t *testing.T, f store, key string) string {
	t.Helper()
	r, err := f.Open(t.Context(), key)
	require.NoError(t, err)
	defer r.Close()
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(content)
}

// files lists what is in a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel)
		}
		return err
	}))
	return found
}

func TestABlobIsAFileForItsOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "store")
	f := open(t, dir)
	_, err := f.Put(t.Context(), "outputs/a.ndjson", strings.NewReader("one"))
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(dir, "outputs/a.ndjson"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	require.Equal(t, "one", read(t, open(t, dir), "outputs/a.ndjson"))
	_, err = f.Open(t.Context(), "outputs")
	require.ErrorIs(t, err, fs.ErrNotExist, "a folder is no blob")
}

func TestALinkOutOfTheFolderIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600))
	f := open(t, filepath.Join(dir, "store"))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "store", "link")))

	_, err := f.Open(t.Context(), "link/secret")
	require.Error(t, err)
	_, err = f.Put(t.Context(), "link/new", strings.NewReader("x"))
	require.Error(t, err)
	require.Error(t, f.Delete(t.Context(), "link/secret"))
	require.Equal(t, []string{"secret"}, files(t, outside))
}

func TestLeftoversOfDeadWritersAreRemoved(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	old, fresh := filepath.Join(dir, ".partial", "old"), filepath.Join(dir, ".partial", "fresh")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.WriteFile(fresh, nil, 0o600))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-25*time.Hour)))
	open(t, dir)
	require.Equal(t, []string{".partial/fresh"}, files(t, dir), "a writer of another process may still be at it")
}

// TestAFullDiskLeavesWhatWasThere runs itself anew under a limit on the size of files, the nearest thing to a full disk that
// needs no rights.
func TestAFullDiskLeavesWhatWasThere(t *testing.T) {
	if dir := os.Getenv("BLOB_TEST_FULL_DISK"); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: 4096}))
		f := open(t, dir)
		_, err := f.Put(t.Context(), "k", bytes.NewReader(make([]byte, 1<<16)))
		require.ErrorIs(t, err, syscall.EFBIG)
		return
	}
	dir := t.TempDir()
	f := open(t, dir)
	_, err := f.Put(t.Context(), "k", strings.NewReader("old"))
	require.NoError(t, err)
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFullDiskLeavesWhatWasThere$", "-test.testlogfile=")
	self.Env = append(os.Environ(), "BLOB_TEST_FULL_DISK="+dir)
	out, err := self.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "old", read(t, f, "k"))
	require.Equal(t, []string{"k"}, files(t, dir))
}
