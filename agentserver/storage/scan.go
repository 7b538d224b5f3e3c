package storage

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Reasons why something is not reclaimed.
const (
	reasonRunning   = "a command is running"
	reasonCheckout  = "holds a checkout"
	reasonMount     = "holds a mount point"
	reasonServer    = "holds files of the server"
	reasonLink      = "is a link"
	reasonGone      = "no longer there"
	reasonChanged   = "no longer the same"
	reasonOtherDisk = "on another file system than the trash"
	reasonDenied    = "permission denied"
)

// Unit is one cache as a scan found it.
type Unit struct {
	Path   string // relative to the root
	Bytes  int64  // freed when it and all units before it go: allocated blocks, a file with several names with its last one
	Files  int64  // all that is not a directory
	Refuse string // why it must stay; "" when it may go

	id      identity
	partial bool // some of it could not be read
}

// Scan is what was found on disk at one moment; nothing of it is kept for the next one (S0-143).
type Scan struct {
	Units   []Unit
	Running bool // a command runs
}

// surroundings is what a scan must know of the world.
type surroundings struct {
	root      string   // absolute, without links
	protected []string // the server's own places, absolute, without links
	mounts    []string // mount points, absolute
}

// scan looks at every cache beneath the root. It changes nothing. What cannot be read stays and says so.
func scan(ctx context.Context, root handle, around surroundings) ([]Unit, error) {
	around.mounts = mountPoints()
	links := linkCounter{}
	var units []Unit
	for _, p := range places {
		for _, name := range p.units(root) {
			unit, err := inspect(ctx, root, name, around, links)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				unit.Refuse = reasonFor(err)
			}
			units = append(units, unit)
		}
	}
	return units, nil
}

// units lists the paths of a place that are caches now.
func (p place) units(root handle) []string {
	if !p.each {
		return []string{p.path}
	}
	dir, err := root.descend(p.path)
	if err != nil {
		return nil
	}
	defer dir.close()
	names, _ := dir.names(-1) // what could be read
	slices.Sort(names)
	var paths []string
	for _, name := range names {
		if slices.ContainsFunc(places, func(other place) bool { return other.path == p.path+"/"+name }) {
			continue // a place of its own
		}
		if st, err := dir.stat(name); err == nil && (isDir(st) || isLink(st)) { // never a single file
			paths = append(paths, p.path+"/"+name)
		}
	}
	return paths
}

// inspect measures one unit and says whether it may go.
func inspect(ctx context.Context, root handle, name string, around surroundings, links linkCounter) (Unit, error) {
	unit := Unit{Path: name}
	parent, err := root.descend(path.Dir(name))
	if err != nil {
		return unit, err
	}
	defer parent.close()
	base := path.Base(name)
	st, err := parent.stat(base)
	if err != nil {
		return unit, err
	}
	unit.id = identityOf(st)
	switch {
	case isLink(st):
		unit.Refuse = reasonLink
		return unit, nil
	case !isDir(st):
		return unit, fs.ErrNotExist
	}
	absolute := filepath.Join(around.root, name)
	for _, own := range around.protected {
		if within(around.root, own) {
			continue // the whole root is the server's: that says nothing of its caches
		}
		if within(own, absolute) || within(absolute, own) {
			unit.Refuse = reasonServer
		}
	}
	for _, mount := range around.mounts {
		if within(mount, absolute) {
			unit.Refuse = reasonMount
		}
	}
	if unit.Refuse != "" {
		return unit, nil
	}
	m := measurement{ctx: ctx, dev: st.Dev, links: linkCounter{}, bytes: allocated(st)}
	err = m.directory(parent, base)
	switch {
	case m.mount:
		unit.Refuse = reasonMount
	case m.checkout:
		unit.Refuse = reasonCheckout
	default:
		unit.Bytes, unit.Files, unit.partial = m.bytes+links.take(m.links), m.files, m.partial
	}
	return unit, err
}

// within reports whether name is dir or lies beneath it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

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
		switch {
		case err != nil:
			m.partial = m.partial || !errors.Is(err, fs.ErrNotExist)
		case !isDir(st):
			m.files++
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

// size adds up everything beneath the root on its file system, each file once, without the trash.
func size(ctx context.Context, root handle) (int64, error) {
	st, err := root.stat(".")
	if err != nil {
		return 0, err
	}
	total, links := allocated(st), linkCounter{}
	var walk func(dir handle, top bool) error
	walk = func(dir handle, top bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, _ := dir.names(-1) // what cannot be read counts as nothing
		for _, name := range names {
			entry, err := dir.stat(name)
			if err != nil || entry.Dev != st.Dev || top && name == trashName {
				continue
			}
			again := false
			if !isDir(entry) && entry.Nlink > 1 {
				_, again = links[identityOf(entry)]
				links.see(entry)
			}
			if !again {
				total += allocated(entry)
			}
			if !isDir(entry) {
				continue
			}
			if below, err := dir.open(name); err == nil {
				err = walk(below, false)
				below.close()
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	top, err := root.open(".")
	if err != nil {
		return 0, err
	}
	defer top.close()
	return total, walk(top, true)
}

// mountPoints lists what is mounted where. A bind mount of the same file system is seen by nothing else.
func mountPoints() []string {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	var points []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, unescape(fields[4]))
		}
	}
	return points
}

// unescape undoes the octal escapes of mountinfo.
func unescape(text string) string {
	for _, c := range []int{' ', '\t', '\n', '\\'} {
		text = strings.ReplaceAll(text, `\0`+strconv.FormatInt(int64(c), 8), string(rune(c)))
		text = strings.ReplaceAll(text, `\`+strconv.FormatInt(int64(c), 8), string(rune(c)))
	}
	return text
}

// reasonFor puts an error of the file system into words.
func reasonFor(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return reasonGone
	case errors.Is(err, fs.ErrPermission):
		return reasonDenied
	case errors.Is(err, unix.EXDEV):
		return reasonOtherDisk
	case errors.Is(err, unix.EBUSY):
		return reasonMount
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return reasonLink
	}
	return err.Error()
}
