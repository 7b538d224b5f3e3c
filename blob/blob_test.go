package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
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

func read(t *testing.T, f *blob.Folder, key string) string {
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

func TestABlobIsReadAsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "store")
	f := open(t, dir)
	size, err := f.Put(t.Context(), "outputs/a.ndjson", strings.NewReader("one"))
	require.NoError(t, err)
	require.Equal(t, int64(3), size)
	require.Equal(t, "one", read(t, f, "outputs/a.ndjson"))

	_, err = f.Put(t.Context(), "outputs/a.ndjson", strings.NewReader("two"))
	require.NoError(t, err)
	require.Equal(t, "two", read(t, open(t, dir), "outputs/a.ndjson"))
	require.Equal(t, []string{"outputs/a.ndjson"}, files(t, dir))

	info, err := os.Stat(filepath.Join(dir, "outputs/a.ndjson"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}

func TestAMissingBlob(t *testing.T) {
	f := open(t, t.TempDir())
	_, err := f.Open(t.Context(), "none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, f.Delete(t.Context(), "none"))
	require.NoError(t, f.Delete(t.Context(), "no/such/folder"))

	_, err = f.Put(t.Context(), "uploads/x.tar", strings.NewReader("x"))
	require.NoError(t, err)
	_, err = f.Open(t.Context(), "uploads")
	require.ErrorIs(t, err, fs.ErrNotExist, "a folder is no blob")
	require.NoError(t, f.Delete(t.Context(), "uploads/x.tar"))
	_, err = f.Open(t.Context(), "uploads/x.tar")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestKeysThatLeadElsewhereAreRefused(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "store"))
	for _, key := range []string{"", ".", "..", "../x", "a/../../x", "a/../b", "/etc/passwd", "a//b", "a/", "./a", `a\b`, "a\x00b", "a\nb", "c:x", ".partial", ".partial/x", "\xff"} {
		_, err := f.Put(t.Context(), key, strings.NewReader("x"))
		require.ErrorIs(t, err, blob.ErrKey, "%q", key)
		_, err = f.Open(t.Context(), key)
		require.ErrorIs(t, err, blob.ErrKey, "%q", key)
		require.ErrorIs(t, f.Delete(t.Context(), key), blob.ErrKey, "%q", key)
	}
	require.Empty(t, files(t, dir))
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

func TestAFailedPutLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	_, err := f.Put(t.Context(), "k", strings.NewReader("old"))
	require.NoError(t, err)

	broken := errors.New("connection reset")
	_, err = f.Put(t.Context(), "k", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)

	ctx, cancel := context.WithCancel(t.Context())
	_, err = f.Put(ctx, "k", io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, nil
	})))
	require.ErrorIs(t, err, context.Canceled)

	require.Equal(t, "old", read(t, f, "k"))
	require.Equal(t, []string{"k"}, files(t, dir))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

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
