package storage

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

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
	reasonLinked    = "another checkout links into it"
	reasonSocket    = "holds a socket"
	reasonWork      = "holds data: "
	reasonUnread    = "cannot be read whole"
)

// scanWorkers is how many tenants are looked at at a time; a git that hangs holds one of them.
const scanWorkers = 8

// Unit is one directory as a scan found it.
type Unit struct {
	Tier   Tier
	Path   string // as it is shown
	Files  int64  // all that is not a directory
	Refuse string // why it must stay; "" when it may go

	part    part
	name    string // relative to the area of the part
	bytes   int64  // allocated, without what has several names
	links   linkCounter
	id      identity
	partial bool // some of it could not be read
}

// Found is one tenant and what it could give.
type Found struct {
	Tenant
	Units []Unit
	Size  int64 // allocated bytes, each file once; only when it was asked for

	leads []lead
}

// Scan is what was found on disk at one moment; nothing of it is kept for the next one (S0-143).
type Scan struct {
	Now        time.Time
	Tenants    []Found
	Filesystem Filesystem // the one the home is on
	AwakeFor   func(since time.Time) time.Duration
	AwakeSince time.Time // start or the last resume
}

// surroundings is what a scan must know of the world.
type surroundings struct {
	root      string   // the home: paths in it are shown relative to it; absolute, without links
	protected []string // the server's own places, absolute, without links
	workspace string   // the shared workspace, which holds no cache
	mounts    []string // mount points, absolute
	git       *git
	free      chan struct{} // one place for each walker that helps another
	trail     *trail        // of the tenant that is looked at; nil: nobody will ask
}

// aim is what a scan is for.
type aim struct {
	sizes        bool // everything that a tenant has is added up
	dependencies bool // they may go
	runtimes     bool // they may go
	dry          bool // nothing goes: who is as he was at the last such look is not looked at again
}

// scan looks at every tenant. It changes nothing. What cannot be read stays and says so; what one tenant costs the others
// do not wait for.
func (s *Storage) scan(ctx context.Context, wanted func(Tenant) bool, what aim) (Scan, error) {
	found := Scan{Now: s.options.Now(), Filesystem: s.filesystem(), AwakeFor: s.ledger.awakeFor, AwakeSince: s.ledger.since()}
	tenants, err := s.tenants(ctx)
	if err != nil {
		return Scan{}, err
	}
	around := s.around
	around.mounts = mountPoints()
	if what.dry {
		s.looks.prune(tenants)
	}
	all, errs, asked := make([]Found, len(tenants)), make([]error, len(tenants)), make([]bool, len(tenants))
	for i, t := range tenants {
		asked[i] = wanted(t)
	}
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(scanWorkers, len(tenants)) {
		workers.Go(func() {
			for i := range next {
				if asked[i] {
					all[i], errs[i] = s.look(ctx, tenants[i], around, what)
				} else if what.dependencies {
					all[i].leads = linkedPlaces(ctx, tenants[i])
				}
			}
		})
	}
	for i := range tenants {
		next <- i
	}
	close(next)
	workers.Wait()
	keepLinked(all)
	for i := range all {
		if asked[i] {
			found.Tenants = append(found.Tenants, all[i])
		}
	}
	return found, errors.Join(errs...)
}

// tenants asks every layout.
func (s *Storage) tenants(ctx context.Context) ([]Tenant, error) {
	var all []Tenant
	for _, l := range s.layouts {
		some, err := l.tenants(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// look looks at one tenant, or remembers.
func (s *Storage) look(ctx context.Context, t Tenant, around surroundings, what aim) (Found, error) {
	if !what.dry {
		return look(ctx, t, around, what)
	}
	if found, ok := s.looks.recall(t, what, around.mounts); ok {
		return found, nil
	}
	around.trail = s.looks.begin(t)
	found, err := look(ctx, t, around, what)
	if err == nil {
		s.looks.keep(found, what, around.mounts, around.trail)
	}
	return found, err
}

// look finds what one tenant could give, and its size if asked. Only the end of ctx is an error.
func look(ctx context.Context, t Tenant, around surroundings, what aim) (Found, error) {
	found := Found{Tenant: t}
	for _, p := range t.parts {
		for _, home := range p.homes {
			found.Units = append(found.Units, caches(p, home, around)...)
		}
		for _, workspace := range p.workspaces {
			if what.dependencies {
				units, leads := dependencies(ctx, p, workspace, around)
				found.Units, found.leads = append(found.Units, units...), append(found.leads, leads...)
			}
		}
		if p.runtime != "" && what.runtimes {
			if unit, there := inspect(p, p.runtime, TierRuntime, around); there {
				found.Units = append(found.Units, unit)
			}
		}
	}
	err := found.measure(ctx, around, what.sizes)
	return found, err
}

// caches looks at every cache of one home.
func caches(p part, home string, around surroundings) []Unit {
	if around.workspace != "" {
		around.protected = append(slices.Clone(around.protected), around.workspace)
	}
	var units []Unit
	for _, place := range places {
		around.trail.path(p.area.root, path.Join(home, place.path))
		for _, name := range place.units(p.area.root, home) {
			if unit, there := inspect(p, name, TierCaches, around); there {
				units = append(units, unit)
			}
		}
	}
	return units
}

// units lists the paths of a place that are caches now, relative to the area.
func (p place) units(root handle, home string) []string {
	at := path.Join(home, p.path)
	if !p.each {
		return []string{at}
	}
	dir, err := root.descend(at)
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
			paths = append(paths, at+"/"+name)
		}
	}
	return paths
}

// inspect looks at one unit, and says whether it may be measured; there is false when no directory is there.
func inspect(p part, name string, tier Tier, around surroundings) (unit Unit, there bool) {
	absolute := p.area.path(name)
	unit = Unit{Tier: tier, Path: shown(around.root, absolute), part: p, name: name}
	parent, err := p.area.root.descend(path.Dir(name))
	if err == nil {
		defer parent.close()
		err = unit.identify(parent, absolute, around)
	}
	if err != nil {
		unit.Refuse = reasonFor(err)
	}
	return unit, !errors.Is(err, fs.ErrNotExist)
}

func (u *Unit) identify(parent handle, absolute string, around surroundings) error {
	st, err := parent.stat(path.Base(u.name))
	switch {
	case err != nil:
		return err
	case isLink(st):
		u.Refuse = reasonLink
	case !isDir(st):
		return fs.ErrNotExist
	default:
		u.Refuse = around.refuse(u.part.area, absolute)
	}
	u.id = identityOf(st)
	return nil
}

// refuse says why a directory must stay for what it is to the server and the machine.
func (a surroundings) refuse(in *area, absolute string) string {
	for _, own := range a.protected {
		if within(in.absolute, own) {
			continue // the whole area is the server's: that says nothing of what is in it
		}
		if within(own, absolute) || within(absolute, own) {
			return reasonServer
		}
	}
	for _, mount := range a.mounts {
		if within(mount, absolute) {
			return reasonMount
		}
	}
	return ""
}

// refuse says why a directory must stay for what is in it. An archived runtime takes all its work with it, as was asked.
func (m tallied) refuse(tier Tier) string {
	switch {
	case m.mount:
		return reasonMount
	case tier == TierRuntime:
		return ""
	case m.checkout:
		return reasonCheckout
	case tier == TierCaches:
		return ""
	case m.socket:
		return reasonSocket
	case m.work != "":
		return reasonWork + m.work
	case m.partial:
		return reasonUnread
	}
	return ""
}

// shown is a path as answers carry it: relative to the root where it lies in it.
func shown(root, absolute string) string {
	if relative, err := filepath.Rel(root, absolute); err == nil && within(absolute, root) {
		return relative
	}
	return absolute
}

// within reports whether name is dir or lies beneath it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
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
