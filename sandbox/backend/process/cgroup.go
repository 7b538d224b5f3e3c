package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"automation/sandbox/backend/filetree"
)

// cgroupFolder is the directory below the service's own cgroup that holds one cgroup a box.
const cgroupFolder = "automation-boxes"

// cgroupHold holds a box by a cgroup v2 of its own: the kernel freezes and kills all of it at once, whatever it forks.
type cgroupHold struct {
	dir string
	id  uuid.UUID
}

// valid reports whether dir is a cgroup that we made for this box, and not whatever a file in the box claims.
func (c cgroupHold) valid() bool {
	if filepath.Base(c.dir) != c.id.String() || filepath.Base(filepath.Dir(c.dir)) != cgroupFolder {
		return false
	}
	var st unix.Statfs_t
	return unix.Statfs(c.dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

func (c cgroupHold) stop(ctx context.Context) error { return c.freeze(ctx, "1") }
func (c cgroupHold) cont(ctx context.Context) error { return c.freeze(ctx, "0") }

func (c cgroupHold) freeze(ctx context.Context, to string) error {
	if !c.valid() {
		return fmt.Errorf("%s is not the cgroup of the box", c.dir)
	}
	if err := writeKernel(c.dir, "cgroup.freeze", to); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopPatience, errors.New("cgroup of the box does not change"))
	defer cancel()
	return until(ctx, func() (bool, error) { return c.event("frozen", to) })
}

func (c cgroupHold) stopped() (bool, error) {
	if !c.valid() {
		return false, fmt.Errorf("%s is not the cgroup of the box", c.dir)
	}
	return c.event("frozen", "1")
}

// kill ends everything in the cgroup and removes it. One that is not there is no error.
func (c cgroupHold) kill(ctx context.Context) error {
	if !c.valid() {
		return nil
	}
	if err := writeKernel(c.dir, "cgroup.kill", "1"); err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		empty, err := c.event("populated", "0")
		if err != nil || !empty {
			return errors.Is(err, fs.ErrNotExist), ignore(err, fs.ErrNotExist)
		}
		return removeCgroup(c.dir)
	})
}

// event reports whether a word of cgroup.events has the value.
func (c cgroupHold) event(word, value string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "cgroup.events"))
	if err != nil {
		return false, fmt.Errorf("read cgroup: %w", err)
	}
	return slices.Contains(strings.Split(string(text), "\n"), word+" "+value), nil
}

// removeCgroup removes an empty cgroup and those that the box made in it; not done while the kernel still has it in use.
func removeCgroup(dir string) (done bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if done, err := removeCgroup(filepath.Join(dir, e.Name())); err != nil || !done {
				return false, err
			}
		}
	}
	err = unix.Rmdir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if errors.Is(err, unix.EBUSY) {
		return false, nil
	}
	return false, fmt.Errorf("remove cgroup: %w", err)
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// writeKernel writes a control file, which must exist.
func writeKernel(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// limits are a box's share of the machine; 0: no limit.
type limits struct {
	processes   int64
	memoryBytes int64
}

func (l limits) none() bool { return l == limits{} }

// findCgroups returns the directory in which cgroups of boxes can be made, frozen and killed, or why there is none.
func findCgroups(l limits) (string, error) {
	own, err := ownCgroup()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(own, cgroupFolder)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make cgroup: %w", err)
	}
	if !l.none() {
		// Refused where processes of ours are beside the boxes; probe sees whether the controllers are there.
		for _, d := range []string{own, dir} {
			_ = writeKernel(d, "cgroup.subtree_control", "+pids")
			_ = writeKernel(d, "cgroup.subtree_control", "+memory")
		}
	}
	if err := probeCgroup(dir, l); err != nil {
		_ = unix.Rmdir(dir) // refused while boxes are in it
		return "", err
	}
	return dir, nil
}

// ownCgroup returns the directory of our own cgroup v2, wherever that file system is mounted: alone at /sys/fs/cgroup, or
// beside the old ones.
func ownCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	mounts, err := filetree.Mounts()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return locateCgroup(mounts, path)
		}
	}
	return "", errors.New("no cgroup v2 in this kernel")
}

// locateCgroup finds where a cgroup path is to be seen. A mount may show a part of the hierarchy only.
func locateCgroup(mounts []filetree.Mount, path string) (string, error) {
	for _, m := range mounts {
		rel, err := filepath.Rel(m.Root, path)
		if m.Type != "cgroup2" || err != nil || rel == ".." || strings.HasPrefix(rel, "../") || strings.HasPrefix(path, "/..") {
			continue
		}
		return filepath.Join(m.Point, rel), nil
	}
	return "", errors.New("no cgroup v2 is mounted")
}

// probeCgroup tries what a box needs: to be made, to have the files, and to be born into.
func probeCgroup(parent string, l limits) error {
	dir, err := os.MkdirTemp(parent, "probe-")
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	defer func() { _ = unix.Rmdir(dir) }()
	for _, name := range []string{"cgroup.freeze", "cgroup.kill"} {
		if err := unix.Access(filepath.Join(dir, name), unix.W_OK); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := l.apply(dir); err != nil {
		return err
	}
	group, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer group.Close()
	// The child is born into the cgroup and then finds nothing to run there: ENOTDIR shows that the birth is allowed.
	_, err = os.StartProcess("/dev/null/probe", []string{"probe"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())},
	})
	if !errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("start in cgroup: %w", err)
	}
	return nil
}

func (l limits) apply(dir string) error {
	if l.processes > 0 {
		if err := writeKernel(dir, "pids.max", strconv.FormatInt(l.processes, 10)); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	if l.memoryBytes > 0 {
		if err := writeKernel(dir, "memory.max", strconv.FormatInt(l.memoryBytes, 10)); err != nil {
			return fmt.Errorf("limit memory: %w", err)
		}
	}
	return nil
}

// makeCgroup makes the box's cgroup and opens it; the supervisor is born into it.
func (b *Backend) makeCgroup(x box) (*os.File, error) {
	dir := b.cgroupOf(x)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	if err := b.limits.apply(dir); err != nil {
		return nil, err
	}
	group, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return group, nil
}

func (b *Backend) cgroupOf(x box) string { return filepath.Join(b.cgroups, x.id.String()) }
