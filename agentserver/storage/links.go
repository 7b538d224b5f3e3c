package storage

import (
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lead is a link by which one checkout's dependencies use those of another: what it leads to stays (BR-21).
type lead struct{ from, to string } // absolute, without links

// leadsTo is where a link in an open directory leads in the end; "" when that is nowhere.
func leadsTo(dir int, name string) string {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	return target
}

// linkedPlaces lists the checkouts of a tenant in which the place of a dependency is a link.
func linkedPlaces(t Tenant) []lead {
	var leads []lead
	for _, p := range t.parts {
		for _, workspace := range p.workspaces {
			for _, checkout := range checkouts(p.area.root, workspace, checkoutDepth) {
				dir, err := p.area.root.descend(checkout)
				if err != nil {
					continue
				}
				for _, r := range rebuildables {
					if st, err := dir.stat(r.name); err != nil || !isLink(st) || strings.Contains(r.name, "/") {
						continue
					}
					if target := leadsTo(dir.fd(), r.name); target != "" {
						leads = append(leads, lead{p.area.path(path.Join(checkout, r.name)), target})
					}
				}
				dir.close()
			}
		}
	}
	return leads
}

// keepLinked refuses the dependencies that others link into.
func keepLinked(tenants []Found, others []lead) {
	for _, t := range tenants {
		others = append(others, t.leads...)
	}
	if len(others) == 0 {
		return
	}
	for _, t := range tenants {
		for i := range t.Units {
			u := &t.Units[i]
			if u.Tier != TierDependencies || u.Refuse != "" {
				continue
			}
			absolute := u.part.area.path(u.name)
			for _, l := range others {
				if within(l.to, absolute) && !within(l.from, absolute) {
					u.Refuse = reasonLinked
				}
			}
		}
	}
}
