package storage

import (
	"context"
	"slices"
	"sync"

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

// tallied is what was found in some directories.
type tallied struct {
	bytes, files int64 // without files that have several names
	links        []unix.Stat_t
	checkout     bool
	work         string // a name of somebody's data, where there is one
	socket       bool
	mount        bool
	partial      bool // not all of it could be read
	leads        []string
}

// file counts one that is no directory.
func (f *tallied) file(st unix.Stat_t) {
	f.files++
	f.socket = f.socket || isSocket(st)
	if st.Nlink > 1 {
		f.links = append(f.links, st)
	} else {
		f.bytes += allocated(st)
	}
}

// tally adds up a directory tree. What is measured for itself in it is told apart, and added when all is read.
type tally struct {
	wary  bool // somebody's work in it keeps it: the names are looked at
	id    identity
	path  string            // where links that lead out of it are told of; "": nowhere
	apart map[identity]bool // not gone into

	mu    sync.Mutex
	begun bool
	outer *tally // where it was met
	all   tallied
	links linkCounter
}

func newTally(id identity, wary bool) *tally { return &tally{id: id, wary: wary, links: linkCounter{}} }

// begin reports whether a directory is the one that is to be measured.
func (t *tally) begin(id identity, outer *tally) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun || id != t.id {
		return false
	}
	t.begun, t.outer = true, outer
	return true
}

func (t *tally) add(here tallied) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.bytes += here.bytes
	t.all.files += here.files
	t.all.checkout = t.all.checkout || here.checkout
	t.all.socket = t.all.socket || here.socket
	t.all.mount = t.all.mount || here.mount
	t.all.partial = t.all.partial || here.partial
	if t.all.work == "" {
		t.all.work = here.work
	}
	for _, st := range here.links {
		t.links.see(st)
	}
	for _, target := range here.leads {
		if target != "" && !within(target, t.path) {
			t.all.leads = append(t.all.leads, target)
		}
	}
}

// close adds what was told apart to the tally around it; the inner ones go first.
func (t *tally) close() {
	if t.outer == nil {
		return
	}
	t.outer.all.bytes += t.all.bytes
	t.outer.all.files += t.all.files
	t.outer.all.mount = t.outer.all.mount || t.all.mount
	t.outer.all.partial = t.outer.all.partial || t.all.partial
	for id, file := range t.links {
		file.seen += t.outer.links[id].seen
		t.outer.links[id] = file
	}
}

// measure goes once through what the units hold, and with sizes through all that counts as the tenant's. Only the end of ctx
// is an error.
func (f *Found) measure(ctx context.Context, around surroundings, sizes bool) error {
	spots := make([]spot, len(f.parts)) // of each area
	measured := make([]*Unit, 0, len(f.Units))
	tallies := map[*Unit]*tally{}
	for i := range f.Units {
		u := &f.Units[i]
		if u.Refuse == "" {
			tallies[u] = newTally(u.id, u.Tier != TierRuntime)
			if u.Tier == TierDependencies {
				tallies[u].path = u.part.area.path(u.name)
			}
			spots[f.partOf(u)].find(u.name).tally = tallies[u]
			measured = append(measured, u)
		}
	}
	// An inner unit has the longer name.
	slices.SortStableFunc(measured, func(a, b *Unit) int { return len(b.name) - len(a.name) })
	w := &walker{ctx: ctx, free: around.free, trail: around.trail}
	top := newTally(identity{}, false)
	for i, p := range f.parts {
		names := p.extent
		if !sizes {
			names = outermostOf(measured, p.area)
		}
		top.apart = p.away()
		for _, name := range names {
			if err := w.from(p.area.root, name, spots[i].find(name), top); err != nil {
				return err
			}
		}
	}
	for _, u := range measured {
		tallies[u].close()
		u.take(tallies[u])
		for _, target := range tallies[u].all.leads {
			f.leads = append(f.leads, lead{tallies[u].path, target})
		}
	}
	if sizes {
		f.Size = top.size()
	}
	return ctx.Err()
}

func (f *Found) partOf(u *Unit) int {
	return slices.IndexFunc(f.parts, func(p part) bool { return p.area == u.part.area })
}

// outermostOf names the units of an area that lie in no other one.
func outermostOf(units []*Unit, in *area) []string {
	var names []string
	for _, u := range units {
		if u.part.area == in {
			names = append(names, u.name)
		}
	}
	return outermost(names)
}

// away is what a walk of the part's extent leaves out: the trash, and what counts elsewhere.
func (p part) away() map[identity]bool {
	out := map[identity]bool{}
	for _, name := range append([]string{p.area.path(trashName)}, p.apart...) {
		var st unix.Stat_t
		if unix.Lstat(name, &st) == nil {
			out[identityOf(st)] = true
		}
	}
	return out
}

// take is what was measured of a unit.
func (u *Unit) take(t *tally) {
	u.bytes, u.links, u.Files, u.partial = t.all.bytes, t.links, t.all.files, t.all.partial
	u.Refuse = t.all.refuse(u.Tier)
	if !t.begun {
		u.Refuse = reasonChanged
	}
}

// size is everything that was counted, each file once.
func (t *tally) size() int64 {
	total := t.all.bytes
	for _, file := range t.links {
		total += file.bytes
	}
	return total
}

// checkoutMark tells from the names of a directory whether it is the top of somebody's work: a checkout of any kind, or a
// bare repository.
type checkoutMark struct{ bare int }

// see takes the next name, and reports whether it or those before it say so.
func (m *checkoutMark) see(name string) bool {
	switch name {
	case ".git", ".hg", ".jj", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout":
		return true
	case "HEAD", "objects", "refs":
		m.bare++
	}
	return m.bare == 3
}
