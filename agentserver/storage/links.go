package storage

import (
	"context"
	"os"
	"strconv"

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

// linkedPlaces are the links by which a tenant uses dependencies of others.
func linkedPlaces(ctx context.Context, t Tenant) (leads []lead) {
	for _, p := range t.parts {
		for _, workspace := range p.workspaces {
			for _, c := range surveyed(ctx, p.area, workspace, nil) {
				leads = append(leads, c.leads...)
			}
		}
	}
	return leads
}

// keepLinked refuses the dependencies that others link into.
func keepLinked(tenants []Found) {
	var leads []lead
	for _, t := range tenants {
		leads = append(leads, t.leads...)
	}
	for _, t := range tenants {
		for i := range t.Units {
			u := &t.Units[i]
			if len(leads) == 0 || u.Tier != TierDependencies || u.Refuse != "" {
				continue
			}
			absolute := u.part.area.path(u.name)
			for _, l := range leads {
				if within(l.to, absolute) && !within(l.from, absolute) {
					u.Refuse = reasonLinked
				}
			}
		}
	}
}
