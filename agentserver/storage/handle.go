package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// handle is an open directory. Everything in this package reaches files by handles and single names, and follows no link at
// all: os.Root keeps inside its root but follows the links in it, and would take a directory of the workspace for a cache
// that was swapped for a link to it.
type handle struct{ file *os.File }

// openRoot opens the directory that everything starts from; links on the way to it are its owner's choice.
func openRoot(path string) (handle, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	return handle{file}, err
}

func (h handle) fd() int { return int(h.file.Fd()) }

func (h handle) close() { _ = h.file.Close() } // directories are only read from

// open opens a directory in this one.
func (h handle) open(name string) (handle, error) {
	fd, err := openDir(h.fd(), name)
	if err != nil {
		return handle{}, fmt.Errorf("open %q: %w", name, err)
	}
	return handle{os.NewFile(uintptr(fd), name)}, nil
}

// descend opens a directory some levels down, one name at a time.
func (h handle) descend(path string) (handle, error) {
	at, err := h.open(".")
	for name := range strings.SplitSeq(path, "/") {
		if err != nil {
			return handle{}, err
		}
		if name == "" || name == "." {
			continue
		}
		var next handle
		next, err = at.open(name)
		at.close()
		at = next
	}
	return at, err
}

// stat is lstat of a name in this directory.
func (h handle) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(h.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// readFile reads a regular file in this directory, if it is no longer than limit; nothing is waited for.
func (h handle) readFile(name string, limit int64) ([]byte, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(h.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%q is no file of at most %d bytes", name, limit)
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// names reads the next names of this directory, at most n, all when n is -1.
func (h handle) names(n int) ([]string, error) { return h.file.Readdirnames(n) }

func (h handle) mkdir(name string) error { return unix.Mkdirat(h.fd(), name, 0o700) }

// move renames a name of this directory into another one; nothing is ever replaced.
func (h handle) move(name string, to handle, as string) error {
	return moveAt(h.fd(), name, to.fd(), as)
}

func moveAt(from int, name string, to int, as string) error {
	err := unix.Renameat2(from, name, to, as, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // file systems without the flag; the names are ours
		err = unix.Renameat(from, name, to, as)
	}
	return err
}

// unlock gives the owner all rights on a directory in this one, by a handle of its own: a link is not followed.
func (h handle) unlock(name string) error { return unlockAt(h.fd(), name) }

func unlockAt(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// identity tells two files apart, whatever they are called.
type identity struct{ dev, ino uint64 }

func identityOf(st unix.Stat_t) identity { return identity{st.Dev, st.Ino} }

// allocated is what a file takes on disk, in bytes.
func allocated(st unix.Stat_t) int64 { return st.Blocks * 512 }

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

func isFile(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

func isSocket(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFSOCK }

func isLink(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFLNK }

// sameDevice reports whether two directories are on one file system.
func sameDevice(a, b string) bool {
	var one, other unix.Stat_t
	return unix.Stat(a, &one) == nil && unix.Stat(b, &other) == nil && one.Dev == other.Dev
}
