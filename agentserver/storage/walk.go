package storage

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// spot is a directory at or above something that is measured for itself.
type spot struct {
	below map[string]*spot
	tally *tally
}

// find returns the spot of a path beneath this one; "." is this one.
func (s *spot) find(path string) *spot {
	for name := range strings.SplitSeq(path, "/") {
		if name == "." || name == "" {
			continue
		}
		if s.below == nil {
			s.below = map[string]*spot{}
		}
		if s.below[name] == nil {
			s.below[name] = &spot{}
		}
		s = s.below[name]
	}
	return s
}

// on is the spot of a name beneath this one, nil when nothing is measured there.
func (s *spot) on(name string) *spot {
	if s == nil {
		return nil
	}
	return s.below[name]
}

// inner is the tally that counts from a directory on, which is t unless another one begins there: an open directory, or one
// with this stat that could not be opened.
func (s *spot) inner(fd int, st unix.Stat_t, t *tally) *tally {
	if s == nil || s.tally == nil || fd >= 0 && unix.Fstat(fd, &st) != nil || !s.tally.begin(identityOf(st), t) {
		return t
	}
	return s.tally
}

// walkers is how many directories are read at a time beside those that each scan worker reads.
const walkers = 3

// walker goes down directory trees, each directory once, and tells every tally what lies in it. It follows no link and stays on
// one file system. One walker goes down by itself and leaves a directory to another one whenever one is free.
type walker struct {
	ctx    context.Context
	free   chan struct{} // one place for each further walker
	trail  *trail        // notes what is read
	unlock bool          // makes closed directories readable: only for what is in the trash
	others sync.WaitGroup
}

// directory reads one directory and goes on with those in it.
func (w *walker) directory(fd int, dev uint64, at *spot, t *tally, step int32) {
	defer unix.Close(fd)
	if w.ctx.Err() != nil {
		return
	}
	here := tallied{}
	below := w.read(fd, dev, &here, t)
	t.add(here)
	for _, entry := range below {
		w.enter(fd, entry, dev, at.on(entry.name), t, step)
	}
}

// subdirectory is a directory that was found in another one.
type subdirectory struct {
	name string
	st   unix.Stat_t
}

// read counts what a directory holds, and returns its directories.
func (w *walker) read(fd int, dev uint64, here *tallied, t *tally) (below []subdirectory) {
	var top checkoutMark
	err := list(fd, func(name string, _ byte) {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if t.wary {
			here.checkout = top.see(name) || here.checkout
			if here.work == "" && isWork(name) {
				here.work = name
			}
		}
		switch {
		case err != nil:
			here.partial = here.partial || !errors.Is(err, fs.ErrNotExist)
		case !isDir(st):
			here.file(st)
			if t.path != "" && isLink(st) {
				here.leads = append(here.leads, leadsTo(fd, name))
			}
		case st.Dev != dev:
			here.mount = true
		case !t.apart[identityOf(st)]:
			below = append(below, subdirectory{name, st})
		}
	})
	here.partial = here.partial || err != nil
	return below
}

// enter goes down one directory, or has another walker do it.
func (w *walker) enter(parent int, entry subdirectory, dev uint64, at *spot, t *tally, above int32) {
	step := w.trail.note(above, entry.name, entry.st)
	if w.unlock && entry.st.Mode&0o700 != 0o700 {
		_ = unlockAt(parent, entry.name) // the next line tells
	}
	fd, err := openDir(parent, entry.name)
	t = at.inner(fd, entry.st, t)
	t.add(tallied{bytes: allocated(entry.st), partial: err != nil})
	if err != nil {
		return
	}
	select {
	case w.free <- struct{}{}:
		w.others.Go(func() {
			defer func() { <-w.free }()
			w.directory(fd, dev, at, t, step)
		})
	default:
		w.directory(fd, dev, at, t, step)
	}
}

// openDir opens a directory in another one by a single name; no link is followed.
func openDir(parent int, name string) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// from adds up a directory some levels down, itself too. One that is not there counts as nothing. Only the end of ctx ends
// it early.
func (w *walker) from(root handle, name string, at *spot, t *tally) error {
	above := w.trail.path(root, path.Dir(name))
	parent, err := root.descend(path.Dir(name))
	if err == nil {
		defer parent.close()
		base := path.Base(name)
		if st, err := parent.stat(base); err == nil && isDir(st) {
			w.enter(parent.fd(), subdirectory{base, st}, st.Dev, at, t, above)
		}
	}
	w.others.Wait()
	return w.ctx.Err()
}
