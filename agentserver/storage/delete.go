package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	fullRetries = 8  // how often a directory is emptied into which somebody goes on writing
	deepest     = 64 // levels that are gone down; what lies deeper is moved up into the trash, so that no depth costs handles
)

// deletion removes trees that lie in the trash, with several workers. It goes down by handles, follows no link, and enters no
// mount: neither another file system nor another part of the same one.
type deletion struct {
	ctx  context.Context
	dir  handle        // the trash
	free chan struct{} // one place for each further worker
}

// share has another worker do f if one is free, else does it now. all counts those that are not done.
func (d *deletion) share(all *sync.WaitGroup, f func()) {
	select {
	case d.free <- struct{}{}:
		all.Go(func() {
			defer func() { <-d.free }()
			f()
		})
	default:
		f()
	}
}

// remove removes one name, whatever it is, and returns the first thing that would not go; it goes on past that.
func (d *deletion) remove(parent int, name string, depth int) error {
	if d.ctx.Err() != nil {
		return d.ctx.Err()
	}
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	return d.removeDirectory(parent, name, depth, err)
}

// removeDirectory removes a directory that unlink refused for this cause.
func (d *deletion) removeDirectory(parent int, name string, depth int, cause error) error {
	if depth == deepest {
		return d.lift(parent, name)
	}
	fd, err := openOnMount(parent, name)
	if errors.Is(err, fs.ErrPermission) && unlockAt(parent, name) == nil {
		fd, err = openOnMount(parent, name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return cause // a file that may not be unlinked
	case errors.Is(err, unix.ENOSYS):
		return d.lift(parent, name)
	case errors.Is(err, unix.EXDEV):
		return unix.EBUSY // as rename and rmdir say of a mount point
	case err != nil:
		return err
	}
	defer unix.Close(fd)
	for range fullRetries {
		failed := d.empty(fd, depth)
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		if failed != nil || !errors.Is(err, unix.ENOTEMPTY) {
			return errors.Join(failed, err)
		}
	}
	return err
}

// empty removes everything in a directory, which its owner can always give itself the right to.
func (d *deletion) empty(fd, depth int) error {
	var mu sync.Mutex
	var first error
	failed := func(name string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && first == nil {
			first = fmt.Errorf("%q: %w", name, err)
		}
	}
	names, err := d.unlinkFiles(fd, failed)
	failed(".", err)
	var below sync.WaitGroup
	for _, name := range names {
		d.share(&below, func() { failed(name, d.removeDirectory(fd, name, depth+1, unix.EISDIR)) })
	}
	below.Wait()
	return first
}

// unlinkFiles removes what is no directory, and names the directories.
func (d *deletion) unlinkFiles(fd int, failed func(string, error)) (directories []string, err error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	writable := false
	err = list(fd, func(name string, _ byte) {
		if d.ctx.Err() != nil {
			return
		}
		err := unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EACCES) && !writable {
			writable = unix.Fchmod(fd, 0o700) == nil
			err = unix.Unlinkat(fd, name, 0)
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, unix.EISDIR):
			directories = append(directories, name)
		default:
			failed(name, err)
		}
	})
	return directories, errors.Join(err, d.ctx.Err())
}

// lift moves a directory up into the trash, where it comes under a later batch. A mount point cannot be moved, and a directory
// only by whoever may write in it, which its owner can always give itself.
func (d *deletion) lift(parent int, name string) error {
	err := moveAt(parent, name, d.dir.fd(), newName())
	if errors.Is(err, fs.ErrPermission) && unlockAt(parent, name) == nil {
		err = moveAt(parent, name, d.dir.fd(), newName())
	}
	return err
}

// openOnMount opens a directory in another one by a single name, unless something is mounted there (EXDEV). ENOSYS: this
// system cannot tell.
func openOnMount(parent int, name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := retry(func() (int, error) { return unix.Openat2(parent, name, &how) })
	if errors.Is(err, unix.EPERM) { // how an older sandbox refuses a call that it does not know
		err = unix.ENOSYS
	}
	return fd, err
}
