package storage

import (
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// trailLimit is how many steps all remembered trails may have together; each takes some 40 bytes.
const trailLimit = 1 << 17

// settled is how long something must have been as it is before a trail counts on its times: a file system notes them in ticks,
// and what changes twice within one looks the same.
const settled = time.Second

// trail is what was read to find what one tenant could give: directories and the files that rule over them, each as it was
// then. While all are as they were, nothing in those directories has been made, removed or renamed, and no rule is another
// one; only a file may hold more or less. A nil trail notes nothing.
type trail struct {
	base string    // what the tenant has, relative to the area; nothing above it is noted
	from time.Time // when the reading began

	mu    sync.Mutex
	names []byte // of all steps
	steps []step
	known map[string]int32 // steps by their path, of those that were noted by it
	lost  bool             // what was read cannot be told again
}

// step is one of them.
type step struct {
	above   int32 // the step of the directory that it lies in; negative: none
	end     uint32
	inode   uint64
	changed int64 // nanoseconds
}

const nowhere int32 = -1

func newTrail(base string, margin time.Duration) *trail {
	return &trail{base: base, from: time.Now().Add(-margin), known: map[string]int32{}}
}

// note adds a step before it is read, and returns it.
func (t *trail) note(above int32, name string, st unix.Stat_t) int32 {
	if t == nil {
		return nowhere
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.steps) >= trailLimit || !time.Unix(st.Ctim.Unix()).Before(t.from) {
		t.lost = true
		return nowhere
	}
	t.names = append(t.names, name...)
	t.steps = append(t.steps, step{above, uint32(len(t.names)), st.Ino, st.Ctim.Nano()})
	return int32(len(t.steps) - 1)
}

// lose has nobody count on the trail.
func (t *trail) lose() {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lost = true
	}
}

// path notes every directory from the base down to a path, as far as they are there, and returns the last one.
func (t *trail) path(root handle, name string) int32 {
	if t == nil || !within(name, t.base) {
		return nowhere
	}
	at, above := t.base, nowhere
	for rest := strings.TrimPrefix(name[len(t.base):], "/"); ; {
		below, there := t.known[at]
		if !there {
			st, err := root.stat(at)
			if err != nil {
				return above // when it is made, that changes what it is made in
			}
			below = t.note(above, path.Base(at), st)
			if !isDir(st) {
				below = nowhere // what it leads to is not looked at either
			}
			t.known[at] = below
		}
		if below == nowhere {
			return nowhere
		}
		above = below
		if rest == "" {
			return above
		}
		next, further, _ := strings.Cut(rest, "/")
		at, rest = at+"/"+next, further
	}
}

// file notes a file of rules by its path, in a directory or absolute; one that is not there is none.
func (t *trail) file(dir int, above int32, name string) {
	var st unix.Stat_t
	if t != nil && unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		t.note(above, name, st)
	}
}

// holds reports whether all is as it was.
func (t *trail) holds(root handle) bool {
	base, err := root.descend(t.base)
	if err != nil {
		return false
	}
	defer base.close()
	below := t.below()
	for i, s := range t.steps {
		at := int32(i)
		switch {
		case s.above != nowhere:
			continue
		case t.name(at)[0] != '/':
			if st, err := base.stat("."); err != nil || !s.same(st) || !t.holdsBelow(base.fd(), below, at) {
				return false
			}
		default: // a file of rules that lies elsewhere
			if st, err := base.stat(string(t.name(at))); err != nil || !s.same(st) {
				return false
			}
		}
	}
	return true
}

// family says which steps lie in which: the first one in a directory, and the next one in the same.
type family struct{ first, next []int32 }

func (t *trail) below() family {
	f := family{make([]int32, len(t.steps)), make([]int32, len(t.steps))}
	for i := range t.steps {
		f.first[i], f.next[i] = nowhere, nowhere
	}
	for i, s := range t.steps {
		if s.above != nowhere {
			f.next[i], f.first[s.above] = f.first[s.above], int32(i)
		}
	}
	return f
}

// holdsBelow reports whether what was read in an open directory is as it was.
func (t *trail) holdsBelow(dir int, all family, at int32) bool {
	for i := all.first[at]; i != nowhere; i = all.next[i] {
		name := string(t.name(i))
		var st unix.Stat_t
		if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || !t.steps[i].same(st) {
			return false
		}
		if all.first[i] == nowhere {
			continue
		}
		fd, err := openDir(dir, name)
		if err != nil {
			return false
		}
		same := t.holdsBelow(fd, all, i)
		_ = unix.Close(fd)
		if !same {
			return false
		}
	}
	return true
}

func (s step) same(st unix.Stat_t) bool { return st.Ino == s.inode && st.Ctim.Nano() == s.changed }

func (t *trail) name(i int32) []byte {
	begin := uint32(0)
	if i > 0 {
		begin = t.steps[i-1].end
	}
	return t.names[begin:t.steps[i].end]
}
