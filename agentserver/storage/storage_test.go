package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guard is a box whose commands the test decides on.
type guard struct {
	mu      sync.Mutex
	running int
	before  func() // called before each move, outside the lock
}

func (g *guard) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

func (g *guard) set(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = n
}

func (g *guard) WhileIdle(f func()) bool {
	if g.before != nil {
		g.before()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 0 {
		return false
	}
	f()
	return true
}

// disk is a Storage over a home directory of its own.
type disk struct {
	*Storage
	t     *testing.T
	home  string
	guard *guard
	log   *strings.Builder
}

func newDisk(t *testing.T, protected ...string) *disk {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	d := openDisk(t, home, protected...)
	t.Cleanup(d.Close)
	return d
}

func openDisk(t *testing.T, home string, protected ...string) *disk {
	t.Helper()
	d := &disk{t: t, home: home, guard: &guard{}, log: &strings.Builder{}}
	for i, p := range protected {
		protected[i] = filepath.Join(home, p)
	}
	s, err := Open(Options{
		Root: home, Protected: protected, Guard: d.guard, Now: time.Now,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{to: d.log}, nil)),
	})
	require.NoError(t, err)
	d.Storage = s
	return d
}

type lockedWriter struct {
	mu sync.Mutex
	to *strings.Builder
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// put writes a file of n KiB beneath the home.
func (d *disk) put(path string, kib int) string {
	d.t.Helper()
	full := filepath.Join(d.home, path)
	require.NoError(d.t, os.MkdirAll(filepath.Dir(full), 0o700))
	require.NoError(d.t, os.WriteFile(full, []byte(strings.Repeat("x", kib<<10)), 0o600))
	return full
}

func (d *disk) reclaim(request Request) Result {
	d.t.Helper()
	result, err := d.Reclaim(d.t.Context(), request)
	require.NoError(d.t, err)
	return result
}

func (d *disk) status() Status {
	d.t.Helper()
	status, err := d.Status(d.t.Context())
	require.NoError(d.t, err)
	return status
}

// outcomes are the items as "path outcome reason".
func outcomes(result Result) []string {
	all := []string{}
	for _, item := range result.Items {
		all = append(all, strings.TrimSpace(item.Path+" "+item.Outcome+" "+item.Reason))
	}
	return all
}

// fingerprint is a digest of a whole tree: names, types, modes, times, contents.
func fingerprint(t *testing.T, root string) string {
	t.Helper()
	sum := sha256.New()
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, path, info.Mode(), info.ModTime().UnixNano(), info.Size())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			sum.Write(text)
			return err
		}
		return nil
	}))
	return hex.EncodeToString(sum.Sum(nil))
}

func TestS0_061_ReclaimRunsOnePassAtOnceAndReturnsItsResult(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/pip/wheel", 100)
	d.put(".cache/go-build/00/a", 50)
	d.put(".npm/_cacache/x", 10)
	d.put("go/pkg/mod/github.com/a/b@v1/go.mod", 1)
	d.put("go/pkg/mod/cache/download/x.zip", 1)
	d.put(".cargo/registry/cache/x.crate", 1)
	kept := []string{d.put("project/.cache/mine", 1), d.put(".cache/a-file", 1), d.put(".config/x", 1), d.put(".m2/repository/x", 1)}

	result := d.reclaim(Request{})
	require.Equal(t, []string{
		".cache/go-build moved", ".cache/pip moved", ".npm/_cacache moved", "go/pkg/mod/github.com moved",
		"go/pkg/mod/cache/download moved", ".cargo/registry/cache moved",
	}, outcomes(result))
	require.GreaterOrEqual(t, result.FreedBytes, int64(163<<10))
	require.NotEmpty(t, result.PlanID)
	require.NoDirExists(t, filepath.Join(d.home, ".cache/pip"))
	for _, path := range kept {
		require.FileExists(t, path)
	}
	require.Empty(t, entries(t, filepath.Join(d.home, trashName)), "deleted when the answer comes")
	require.Empty(t, d.reclaim(Request{}).Items)
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func TestS0_062_S0_146_ADryRunChangesNothingAndPredictsTheApply(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/pip/a/b/c", 33)
	d.put(".cache/uv/x", 5)
	require.NoError(t, os.Link(d.put(".cache/uv/y", 64), filepath.Join(d.home, ".cache/pip/y")))
	d.put(".cache/clone/deep/er/.git/HEAD", 1)
	before := fingerprint(t, d.home)
	dry := d.reclaim(Request{DryRun: true})
	require.True(t, dry.DryRun)
	require.Equal(t, before, fingerprint(t, d.home))
	require.Equal(t, []string{".cache/clone skipped holds a checkout", ".cache/pip planned", ".cache/uv planned"}, outcomes(dry))

	applied := d.reclaim(Request{PlanID: dry.PlanID})
	require.Equal(t, dry.PlanID, applied.PlanID)
	require.Equal(t, dry.FreedBytes, applied.FreedBytes)
	for i, item := range dry.Items {
		require.Equal(t, item.Bytes, applied.Items[i].Bytes)
		require.Equal(t, item.Files, applied.Items[i].Files)
	}
	require.Equal(t, []string{".cache/clone skipped holds a checkout", ".cache/pip moved", ".cache/uv moved"}, outcomes(applied))
	_, err := d.Reclaim(t.Context(), Request{PlanID: "nope"})
	require.ErrorIs(t, err, ErrUnknownPlan)
}

func TestS0_059_StatusSaysWhatTheNextPassFrees(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/a/x", 77)
	shared := d.put(".cache/b/x", 40)
	require.NoError(t, os.Link(shared, filepath.Join(d.home, "outside")))
	promised := d.status().Conversations[0].NextPass
	sizeBefore := d.status().Conversations[0].SizeBytes
	freed := d.reclaim(Request{}).FreedBytes
	require.Equal(t, promised.Bytes, freed)
	require.Equal(t, sizeBefore-freed, d.status().Conversations[0].SizeBytes, "the file with a name outside is not freed")
	require.Zero(t, d.status().Conversations[0].NextPass.Bytes)
}

func TestS0_143_EveryPassReadsTheRealStateAnew(t *testing.T) {
	d := newDisk(t)
	require.Zero(t, d.status().Conversations[0].NextPass.Bytes)
	d.put(".cache/a/x", 100)
	first := d.status()
	require.GreaterOrEqual(t, first.Conversations[0].NextPass.Bytes, int64(100<<10))
	d.put(".cache/a/y", 100)
	second := d.status()
	require.GreaterOrEqual(t, second.Conversations[0].NextPass.Bytes, first.Conversations[0].NextPass.Bytes+100<<10)
	require.GreaterOrEqual(t, second.Conversations[0].SizeBytes, first.Conversations[0].SizeBytes+100<<10)
	require.NoError(t, os.RemoveAll(filepath.Join(d.home, ".cache")))
	require.Zero(t, d.status().Conversations[0].NextPass.Bytes)
	require.Empty(t, d.reclaim(Request{}).Items)
}

func TestS0_063_NothingIsTouchedWhileACommandRunsOrStarts(t *testing.T) {
	for _, tier := range Tiers {
		t.Run(string(tier), func(t *testing.T) {
			d := newDisk(t)
			file := d.put(".cache/a/x", 10)
			d.guard.set(1)
			require.Equal(t, []string{".cache/a skipped a command is running"}, outcomes(d.reclaim(Request{Tier: tier})))
			require.Equal(t, "running", d.status().Conversations[0].State)
			require.Zero(t, d.status().Conversations[0].NextPass.Bytes)
			require.FileExists(t, file)
			d.guard.set(0)
			dry := d.reclaim(Request{Tier: tier, DryRun: true})
			d.guard.before = func() { d.guard.set(1) } // it starts between the plan and the move
			require.Equal(t, []string{".cache/a skipped a command is running"}, outcomes(d.reclaim(Request{PlanID: dry.PlanID})))
			require.FileExists(t, file)
		})
	}
}

func TestS0_144_APlanIsCheckedAgainBeforeEachMove(t *testing.T) {
	d := newDisk(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		d.put(".cache/"+name+"/x", 10)
	}
	dry := d.reclaim(Request{DryRun: true})
	require.NoError(t, os.RemoveAll(filepath.Join(d.home, ".cache/a")))
	require.NoError(t, os.Rename(filepath.Join(d.home, ".cache/b"), filepath.Join(d.home, "was-b")))
	d.put(".cache/b/other", 10)
	d.put(".cache/c/src/.git/HEAD", 1)
	later := d.put(".cache/e/x", 10)
	require.Equal(t, []string{
		".cache/a skipped no longer there", ".cache/b skipped no longer the same", ".cache/c skipped holds a checkout", ".cache/d moved",
	}, outcomes(d.reclaim(Request{PlanID: dry.PlanID})))
	require.FileExists(t, later, "it is in no plan")
}

func TestS0_145_FilesAreMovedFirstAndDeletedInTheBackground(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/a/deep/x", 10)
	d.put(".cache/b/deep/x", 10)
	looked := 0
	d.guard.before = func() {
		// The first one has been moved when the second one's turn comes, and nothing of it has been deleted under the lock.
		if looked++; looked == 2 {
			require.NoDirExists(t, filepath.Join(d.home, ".cache/a"))
			moved := entries(t, filepath.Join(d.home, trashName))
			require.Len(t, moved, 1)
			require.FileExists(t, filepath.Join(d.home, trashName, moved[0], "deep/x"))
		}
	}
	d.reclaim(Request{})
	require.Equal(t, 2, looked)
	require.Empty(t, entries(t, filepath.Join(d.home, trashName)))

	t.Run("what a server left in the trash the next one deletes", func(t *testing.T) {
		home := t.TempDir()
		left := &disk{t: t, home: home}
		left.put(trashName+"/0001/deep/er/x", 10)
		left.put(trashName+"/a-file", 10)
		next := openDisk(t, home)
		defer next.Close()
		next.Storage.home.trash.wait(t.Context())
		require.Empty(t, entries(t, filepath.Join(home, trashName)))
	})
}

func TestOneReclaimAtATime(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/a/x", 10)
	entered, leave := make(chan struct{}), make(chan struct{})
	d.guard.before = func() { close(entered); <-leave }
	done := make(chan Result)
	go func() {
		result, err := d.Reclaim(context.Background(), Request{})
		if err != nil {
			result.PlanID = err.Error()
		}
		done <- result
	}()
	<-entered
	_, err := d.Reclaim(t.Context(), Request{})
	var busy *BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, []string{".cache/a planned"}, outcomes(d.reclaim(Request{DryRun: true})), "looking is never refused")
	close(leave)
	first := <-done
	require.Equal(t, busy.PlanID, first.PlanID)
	require.Equal(t, []string{".cache/a moved"}, outcomes(first))
}

func TestConversationsAreSelected(t *testing.T) {
	d := newDisk(t)
	d.put(".cache/a/x", 10)
	require.Empty(t, d.reclaim(Request{DryRun: true, ConversationIDs: []string{"other"}}).Items)
	require.Len(t, d.reclaim(Request{DryRun: true, ConversationIDs: []string{"other", Box}}).Items, 1)
}

func TestTheServersOwnPlacesStay(t *testing.T) {
	d := newDisk(t, ".cache/agent/state", ".npm", "")
	kept := []string{d.put(".cache/agent/other", 10), d.put(".npm/_cacache/x", 10)}
	d.put(".cache/b/x", 10)
	require.Equal(t, []string{
		".cache/agent skipped holds files of the server", ".cache/b moved", ".npm/_cacache skipped holds files of the server",
	}, outcomes(d.reclaim(Request{})))
	for _, path := range kept {
		require.FileExists(t, path)
	}
}

func TestCheckoutsStayAtAnyDepth(t *testing.T) {
	for _, marker := range []string{".git/HEAD", ".git", ".hg/x", ".jj/x", ".svn/x", "bare/HEAD"} {
		t.Run(marker, func(t *testing.T) {
			d := newDisk(t)
			kept := d.put(".cache/tool/third_party/github.com/org/repo/a/b/"+marker, 1)
			if marker == "bare/HEAD" {
				d.put(".cache/tool/third_party/github.com/org/repo/a/b/bare/objects/x", 1)
				d.put(".cache/tool/third_party/github.com/org/repo/a/b/bare/refs/x", 1)
			}
			require.Equal(t, []string{".cache/tool skipped holds a checkout"}, outcomes(d.reclaim(Request{Tier: TierRuntime})))
			require.FileExists(t, kept)
		})
	}
}

func TestBR21_LinksAreNotFollowed(t *testing.T) {
	d := newDisk(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600))
	d.put("project/mine", 1)
	link := func(target, name string) {
		full := filepath.Join(d.home, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o700))
		require.NoError(t, os.Symlink(target, full))
	}
	d.put(".cache/a/x", 1)
	link(outside, ".cache/a/dir")
	link(filepath.Join(outside, "precious"), ".cache/a/file")
	link("..", ".cache/a/loop")
	link("../../project", ".cache/a/inside")
	link(outside, ".cache/linked")
	link(filepath.Join(d.home, "project"), ".npm")
	link(outside, ".bun")
	before := fingerprint(t, outside) + fingerprint(t, filepath.Join(d.home, "project"))
	result := d.reclaim(Request{})
	require.Equal(t, []string{".cache/a moved", ".cache/linked skipped is a link", ".bun/install/cache skipped is a link"}, outcomes(result))
	require.Equal(t, before, fingerprint(t, outside)+fingerprint(t, filepath.Join(d.home, "project")))
	require.NoDirExists(t, filepath.Join(d.home, ".cache/a"))
	require.Empty(t, entries(t, filepath.Join(d.home, trashName)))
}

func TestBR21_MountsAreNotCrossed(t *testing.T) {
	if os.Getuid() != 0 {
		runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
		return
	}
	d := newDisk(t)
	source := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(source, "precious"), []byte("precious"), 0o600))
	d.put(".cache/a/x", 1)
	for name, flags := range map[string]uintptr{".cache/bound/deep/er": syscall.MS_BIND, ".cache/other/deep/er": 0} {
		target := filepath.Join(d.home, name)
		require.NoError(t, os.MkdirAll(target, 0o700))
		kind := map[uintptr]string{0: "tmpfs"}[flags]
		err := syscall.Mount(source, target, kind, flags, "")
		if errors.Is(err, syscall.EPERM) {
			runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
			return
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, syscall.Unmount(target, syscall.MNT_DETACH)) })
	}
	d.put(".cache/other/deep/er/on-the-mount", 1)
	require.Equal(t, []string{".cache/a moved", ".cache/bound skipped holds a mount point", ".cache/other skipped holds a mount point"},
		outcomes(d.reclaim(Request{})))

	t.Run("not by the deletion either", func(t *testing.T) {
		target := filepath.Join(d.home, trashName, "entry", "mounted")
		require.NoError(t, os.MkdirAll(target, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(d.home, trashName, "entry", "beside"), nil, 0o600))
		require.NoError(t, syscall.Mount(source, target, "", syscall.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, syscall.Unmount(target, syscall.MNT_DETACH)) })
		d.Storage.home.trash.empty()
		d.Storage.home.trash.wait(t.Context())
		require.NoFileExists(t, filepath.Join(d.home, trashName, "entry", "beside"))
	})
	require.FileExists(t, filepath.Join(source, "precious"))
	require.FileExists(t, filepath.Join(d.home, ".cache/other/deep/er/on-the-mount"))
}

func TestBR38_ADirectorySwappedForALinkTakesNothingElseWithIt(t *testing.T) {
	d := newDisk(t)
	outside := t.TempDir()
	for i := range 20 {
		require.NoError(t, os.WriteFile(filepath.Join(outside, strconv.Itoa(i)), []byte("precious"), 0o600))
	}
	d.put("project/pip/mine", 1)
	before := fingerprint(t, outside)
	project := fingerprint(t, filepath.Join(d.home, "project"))

	const swaps = 1000
	cache, aside := filepath.Join(d.home, ".cache"), filepath.Join(d.home, "aside")
	done := make(chan error, 1)
	go func() {
		targets := []string{outside, "project"}
		for i := range swaps {
			if err := errors.Join(
				os.MkdirAll(filepath.Join(cache, "pip/deep"), 0o700),
				os.WriteFile(filepath.Join(cache, "pip/deep/x"), []byte("x"), 0o600),
				os.Rename(cache, aside),
				os.Symlink(targets[i%2], cache),
				os.Remove(cache),
				os.Rename(aside, cache),
			); err != nil && !errors.Is(err, fs.ErrNotExist) {
				done <- err
				return
			}
			_ = os.RemoveAll(aside)
		}
		done <- nil
	}()
	passes, moved := 0, 0
	for swapping := true; swapping; passes++ {
		for _, item := range d.reclaim(Request{}).Items {
			if item.Outcome == Moved {
				moved++
			}
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			swapping = false
		default:
		}
	}
	require.Equal(t, before, fingerprint(t, outside))
	require.Equal(t, project, fingerprint(t, filepath.Join(d.home, "project")))
	require.Positive(t, moved, "in %d passes", passes)
}

func TestDeepTreesNeedNoDeepRecursionToDelete(t *testing.T) {
	d := newDisk(t)
	d.Storage.home.trash.wait(t.Context())
	at := filepath.Join(d.home, trashName, "deep")
	require.NoError(t, os.Mkdir(at, 0o700))
	fd, err := syscall.Open(at, syscall.O_DIRECTORY|syscall.O_RDONLY, 0)
	require.NoError(t, err)
	for range 3000 { // far beyond PATH_MAX
		require.NoError(t, syscall.Mkdirat(fd, "d", 0o500))
		require.NoError(t, syscall.Fchmodat(fd, "d", 0o700, 0))
		next, err := syscall.Openat(fd, "d", syscall.O_DIRECTORY|syscall.O_RDONLY, 0)
		require.NoError(t, err)
		require.NoError(t, syscall.Close(fd))
		fd = next
	}
	require.NoError(t, syscall.Close(fd))
	d.Storage.home.trash.empty()
	d.Storage.home.trash.wait(t.Context())
	require.Empty(t, entries(t, filepath.Join(d.home, trashName)))
}
