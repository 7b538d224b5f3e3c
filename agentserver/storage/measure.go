package storage

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// linked is a file with several names.
type linked struct {
	seen  uint64 // names seen
	names uint64
	bytes int64
}

// linkCounter counts the names seen of files that have several.
type linkCounter map[identity]linked

func (c linkCounter) see(st unix.Stat_t) {
	file := c[identityOf(st)]
	c[identityOf(st)] = linked{file.seen + 1, st.Nlink, allocated(st)}
}

// take adds the names that go with one unit, and returns the bytes of the files whose last name is among them: only then
// are their blocks freed.
func (c linkCounter) take(going linkCounter) int64 {
	var freed int64
	for id, file := range going {
		file.seen += c[id].seen
		c[id] = file
		if file.seen == file.names {
			freed += file.bytes
		}
	}
	return freed
}

// measurement adds up a directory tree.
type measurement struct {
	ctx    context.Context
	dev    uint64
	links  linkCounter // of this tree
	unlock bool        // make closed directories readable: only for what is in the trash

	bytes, files int64
	checkout     bool
	work         string // a name of somebody's data, where there is one
	socket       bool
	mount        bool
	partial      bool
}

// directory adds up what is beneath one directory of parent. Only the end of ctx ends it early.
func (m *measurement) directory(parent handle, name string) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	if st, err := parent.stat(name); m.unlock && err == nil && st.Mode&0o700 != 0o700 {
		_ = parent.unlock(name) // the next line tells
	}
	dir, err := parent.open(name)
	if err != nil {
		m.partial = true
		return nil
	}
	defer dir.close()
	names, err := dir.names(-1)
	m.partial = m.partial || err != nil
	m.checkout = m.checkout || isCheckout(names)
	for _, entry := range names {
		st, err := dir.stat(entry)
		if m.work == "" && isWork(entry) {
			m.work = entry
		}
		switch {
		case err != nil:
			m.partial = m.partial || !errors.Is(err, fs.ErrNotExist)
		case !isDir(st):
			m.files++
			m.socket = m.socket || isSocket(st)
			if st.Nlink > 1 {
				m.links.see(st)
			} else {
				m.bytes += allocated(st)
			}
		case st.Dev != m.dev:
			m.mount = true
		default:
			m.bytes += allocated(st)
			if err := m.directory(dir, entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// isCheckout reports whether a directory with these names is the top of somebody's work: a checkout of any kind, or a bare
// repository.
func isCheckout(names []string) bool {
	bare := 0
	for _, name := range names {
		switch name {
		case ".git", ".hg", ".jj", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout":
			return true
		case "HEAD", "objects", "refs":
			bare++
		}
	}
	return bare == 3
}

// extent adds up everything beneath some directories on their file systems, each file once, without the trash and without
// what counts elsewhere. What cannot be read counts as nothing.
func extent(ctx context.Context, parts []part) (int64, error) {
	var total int64
	links := linkCounter{}
	for _, p := range parts {
		apart := map[identity]bool{}
		for _, name := range p.apart {
			var st unix.Stat_t
			if unix.Lstat(name, &st) == nil {
				apart[identityOf(st)] = true
			}
		}
		for _, name := range p.extent {
			dir, err := p.area.root.descend(name)
			if err != nil {
				continue
			}
			st, err := dir.stat(".")
			if err == nil {
				total += allocated(st)
				err = addUp(ctx, dir, st.Dev, apart, links, &total)
			}
			dir.close()
			if err != nil {
				return 0, err
			}
		}
	}
	return total, ctx.Err()
}

// addUp adds what is beneath one directory. Only the end of ctx is an error.
func addUp(ctx context.Context, dir handle, dev uint64, apart map[identity]bool, links linkCounter, total *int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	names, _ := dir.names(-1)
	for _, name := range names {
		st, err := dir.stat(name)
		if err != nil || st.Dev != dev || name == trashName || apart[identityOf(st)] {
			continue
		}
		if !isDir(st) {
			again := false
			if st.Nlink > 1 {
				_, again = links[identityOf(st)]
				links.see(st)
			}
			if !again {
				*total += allocated(st)
			}
			continue
		}
		*total += allocated(st)
		if below, err := dir.open(name); err == nil {
			err = addUp(ctx, below, dev, apart, links, total)
			below.close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}
