package storage

import (
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a survey: how deep beneath a workspace checkouts may lie, how many are looked at, and how deep anything is looked
// for in them.
const (
	checkoutDepth = 3
	checkoutLimit = 512
	surveyDepth   = 64
	surveyLimit   = 4096 // what is asked about in one checkout
)

// checkout is a git checkout in a workspace, and what in it is worth asking git about.
type checkout struct {
	name  string   // relative to the area
	depth int      // beneath the workspace
	asked []string // what is called like something rebuildable, relative to the area
	more  bool     // too many of them to be named
	leads []lead   // links that are called so
}

// tops names what of the checkout's top directory git has to look at; nil: everything.
func (c *checkout) tops() []string {
	if c.more {
		return nil
	}
	tops := make([]string, len(c.asked))
	for i, name := range c.asked {
		tops[i], _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, c.name), "/"), "/")
	}
	slices.Sort(tops)
	return slices.Compact(tops)
}

// survey goes through a workspace, each directory once: the workspace itself may be a checkout, and so may what lies beneath it,
// but not in another one. It does not go into what is called like something rebuildable, which is most of what a workspace
// holds, and stats no file: the listings say what is a directory.
type survey struct {
	ctx   context.Context
	area  *area
	dev   uint64
	trail *trail
	found []*checkout
}

// surveyed lists the checkouts of a workspace, and notes what it has read.
func surveyed(ctx context.Context, in *area, workspace string, way *trail) []*checkout {
	noted := way.path(in.root, workspace)
	dir, err := in.root.descend(workspace)
	if err != nil {
		return nil
	}
	defer dir.close()
	st, err := dir.stat(".")
	if err != nil {
		return nil
	}
	s := &survey{ctx: ctx, area: in, dev: st.Dev, trail: way}
	s.directory(dir.fd(), site{name: workspace, step: noted})
	return s.found
}

// site is where a survey is.
type site struct {
	name   string    // of the directory, relative to the area
	depth  int       // beneath the workspace
	in     *checkout // that it belongs to; nil: none
	closed bool      // a checkout in it is not one of the project's
	step   int32     // of the trail
}

// directory looks at one directory and at those in it.
func (s *survey) directory(fd int, at site) {
	var below, links []string
	own := false
	_ = list(fd, func(name string, kind byte) { // what could be read
		switch kind = kindOf(fd, name, kind); {
		case name == ".git":
			own = true
		case name == ".gitignore":
			s.trail.file(fd, at.step, name)
		case kind == unix.DT_DIR:
			below = append(below, name)
		case kind == unix.DT_LNK && looksRebuildable(at.name, name):
			links = append(links, name)
		}
	})
	if own && !s.enter(&at) {
		return
	}
	slices.Sort(below)
	for _, name := range below {
		if looksRebuildable(at.name, name) {
			at.ask(name)
		} else if s.ctx.Err() == nil {
			s.down(fd, name, site{path.Join(at.name, name), at.depth + 1, at.in, at.closed || name[0] == '.', at.step})
		}
	}
	if at.in == nil {
		return
	}
	for _, name := range links {
		if target := leadsTo(fd, name); target != "" {
			at.in.leads = append(at.in.leads, lead{s.area.path(path.Join(at.name, name)), target})
		}
	}
}

// enter begins a checkout where its top directory is, and reports whether to go on in it: what lies in one that is none of the
// project's is kept.
func (s *survey) enter(at *site) bool {
	if at.closed || at.depth > checkoutDepth || at.in != nil && at.in.depth > 0 || len(s.found) >= checkoutLimit {
		return false
	}
	at.in = &checkout{name: at.name, depth: at.depth}
	s.found = append(s.found, at.in)
	return true
}

// down looks at a directory in another one, on the same file system, while anything may be found there.
func (s *survey) down(parent int, name string, at site) {
	if at.depth > surveyDepth || at.in == nil && (at.closed || at.depth > checkoutDepth) {
		return
	}
	fd, err := openDir(parent, name)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Dev == s.dev {
		at.step = s.trail.note(at.step, name, st)
		s.directory(fd, at)
	}
}

// ask has git asked about a name in the directory.
func (at site) ask(name string) {
	switch {
	case at.in == nil:
	case len(at.in.asked) == surveyLimit:
		at.in.more = true
	default:
		at.in.asked = append(at.in.asked, path.Join(at.name, name))
	}
}

// looksRebuildable reports whether a name in a directory is on the list of what a tool can make again.
func looksRebuildable(directory, name string) bool {
	return slices.ContainsFunc(rebuildables, func(r rebuildable) bool {
		outer, inner := path.Split(r.name)
		return name == inner && (outer == "" || path.Base(directory) == strings.TrimSuffix(outer, "/"))
	})
}
