package process

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/backend/filetree"
)

func TestDeleteRemovesWhateverIsInABoxAndNothingElse(t *testing.T) {
	ways(t, func(t *testing.T, hold string) {
		outside := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("kept"), 0o600))
		r := open(t, hold)
		ref, x := r.create()
		for name, mode := range map[string]os.FileMode{"read-only": 0o555, "unreadable": 0o333, "closed": 0, "search": 0o111} {
			dir := filepath.Join(x.home(), name)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o444))
			require.NoError(t, os.Symlink(outside, filepath.Join(dir, "directory-link")))
			require.NoError(t, os.Symlink(filepath.Join(outside, "precious"), filepath.Join(dir, "file-link")))
			require.NoError(t, os.Symlink(".", filepath.Join(dir, "loop")))
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o400))
			require.NoError(t, os.Chmod(filepath.Join(dir, "sub"), mode))
			require.NoError(t, os.Chmod(dir, mode))
		}
		require.NoError(t, os.Chmod(x.home(), 0))
		require.NoError(t, r.Delete(r.ctx(), ref))
		entries, err := os.ReadDir(r.dir)
		require.NoError(t, err)
		require.Empty(t, entries)
		text, err := os.ReadFile(filepath.Join(outside, "precious"))
		require.NoError(t, err)
		require.Equal(t, "kept", string(text))
	})
}

func TestADeleteThatIsCutShortIsShownAndFinished(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, r.Suspend(r.ctx(), ref, nothing))
	unlock, err := x.lock(r.ctx())
	require.NoError(t, err)
	require.NoError(t, r.end(r.ctx(), x))
	cancel()
	require.ErrorIs(t, x.setAside(ctx), context.Canceled)
	unlock()

	require.Equal(t, models.SeenDeleting, r.shows(ref, models.SeenDeleting).State)
	var listed []sandbox.Observation
	for o, err := range r.List(r.ctx(), sandbox.Label{Deployment: r.deployment}) {
		require.NoError(t, err)
		listed = append(listed, o)
	}
	require.Len(t, listed, 1)
	require.Equal(t, models.SeenDeleting, listed[0].State)
	require.ErrorIs(t, r.Resume(r.ctx(), ref, nothing), sandbox.ErrGone)
	require.NoError(t, r.Delete(r.ctx(), ref))
	require.ErrorIs(t, r.Delete(r.ctx(), ref), sandbox.ErrGone)
}

func TestWhatAKilledCreateLeftGoesWithADelete(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	left := filepath.Join(r.dir, stagingPrefix+x.id.String()+"-1")
	require.NoError(t, os.MkdirAll(filepath.Join(left, "control"), 0o700))
	busy := box{id: x.id, dir: filepath.Join(r.dir, stagingPrefix+x.id.String()+"-2")}
	require.NoError(t, os.Mkdir(busy.dir, 0o700))
	unlock, err := busy.take()
	require.NoError(t, err)
	require.NoError(t, r.Delete(r.ctx(), ref))
	require.NoDirExists(t, left)
	require.DirExists(t, busy.dir, "a Create that lives is left alone")
	unlock()
	require.NoError(t, r.Delete(r.ctx(), ref))
	require.NoDirExists(t, busy.dir)
}

// A Create that is killed before its box has a name leaves a directory that no row knows of.
func TestAStartClearsWhatKilledCreatesHaveLeft(t *testing.T) {
	data := t.TempDir()
	r := openIn(t, HoldSupervisor, data, nil)
	left := box{id: uuid.New(), dir: filepath.Join(r.dir, stagingPrefix+uuid.NewString()+"-1")}
	busy := box{id: uuid.New(), dir: filepath.Join(r.dir, stagingPrefix+uuid.NewString()+"-2")}
	for _, x := range []box{left, busy} {
		require.NoError(t, os.MkdirAll(x.control(""), 0o700))
		require.NoError(t, os.WriteFile(x.control(keyFile), []byte("k"), 0o600))
	}
	unlock, err := busy.take()
	require.NoError(t, err)
	defer unlock()
	openIn(t, HoldSupervisor, data, nil)
	require.NoDirExists(t, left.dir)
	require.DirExists(t, busy.dir, "a living Create is at it")
}

func TestAMountPointIsNotEmptied(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	source, point := t.TempDir(), filepath.Join(x.home(), "mounted here")
	require.NoError(t, os.WriteFile(filepath.Join(source, "precious"), nil, 0o600))
	require.NoError(t, os.Mkdir(point, 0o700))
	err := syscall.Mount(source, point, "", syscall.MS_BIND, "")
	needs(t, err == nil, "the right to mount")
	err = r.Delete(r.ctx(), ref)
	remains, _ := x.remains()
	for _, left := range append(remains, x) {
		_ = syscall.Unmount(filepath.Join(left.home(), "mounted here"), 0)
	}
	require.ErrorContains(t, err, "mount")
	require.FileExists(t, filepath.Join(source, "precious"))
	require.NoError(t, r.Delete(r.ctx(), ref), "once it is unmounted")
	require.FileExists(t, filepath.Join(source, "precious"))
}

func TestOneEntryThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	dir := os.Getenv(foreignTree)
	if os.Geteuid() == 0 {
		dir = filepath.Join(nobodysDir(t), "tree")
		for n := range 10 {
			sub := filepath.Join(dir, strconv.Itoa(n))
			require.NoError(t, os.MkdirAll(sub, 0o700))
			require.NoError(t, os.Chown(sub, nobody, nobody))
		}
		require.NoError(t, os.Chown(dir, nobody, nobody))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "5", "root's"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "5", "root's", "file"), nil, 0o600))
		asNobody(t, foreignTree+"="+dir)
		return
	}
	needs(t, dir != "", "to begin as root: one entry belongs to another user")
	require.ErrorIs(t, filetree.Remove(t.Context(), filepath.Dir(dir), filepath.Base(dir)), os.ErrPermission)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

const foreignTree = "TEST_FOREIGN_TREE"
