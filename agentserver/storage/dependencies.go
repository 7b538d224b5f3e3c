package storage

import (
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dependencies looks at every directory of a workspace's checkouts that the project ignores and a tool can make again. A
// checkout that git cannot tell about keeps all of its own and says so. Also told are the links by which the workspace uses
// dependencies of others.
func dependencies(ctx context.Context, p part, workspace string, around surroundings) (units []Unit, leads []lead) {
	bounded, cancel := context.WithTimeout(ctx, around.git.limit) // for all checkouts together, however many an agent makes
	defer cancel()
	for _, c := range surveyed(ctx, p.area, workspace, around.trail) {
		leads = append(leads, c.leads...)
		if len(c.asked) > 0 {
			units = append(units, c.dependencies(bounded, p, around)...)
		}
	}
	return units, leads
}

// dependencies asks git, and looks at what it names.
func (c *checkout) dependencies(ctx context.Context, p part, around surroundings) []Unit {
	root, err := p.area.root.descend(c.name)
	if err != nil {
		return nil
	}
	defer root.close()
	var units []Unit
	absolute := p.area.path(c.name)
	if index, err := indexOf(root, absolute); err == nil {
		around.trail.file(unix.AT_FDCWD, nowhere, index)
	}
	ignored, refuse := around.git.ignored(ctx, root, absolute, c.tops())
	if refuse != "" {
		units = append(units, Unit{Tier: TierDependencies, Path: shown(around.root, absolute), Refuse: refuse, part: p, name: c.name})
	}
	names := outermost(deepened(ignored))
	for _, name := range c.asked {
		if _, named := slices.BinarySearch(names, shown(c.name, name)); !named || c.more {
			around.trail.lose() // git has looked where the survey has not
		}
	}
	for _, name := range names {
		if !provenBy(root, name) {
			continue
		}
		if unit, there := inspect(p, path.Join(c.name, name), TierDependencies, around); there {
			units = append(units, unit)
		}
	}
	return units
}

// deepened adds the rebuildable directories that lie one level down in an ignored one: git names the parent when nothing
// else is in it.
func deepened(ignored []string) []string {
	all := slices.Clone(ignored)
	for i, name := range ignored {
		for _, r := range rebuildables {
			if outer, inner := path.Split(r.name); outer != "" && path.Base(name) == path.Clean(outer) {
				all[i] = path.Join(name, inner)
			}
		}
	}
	return all
}

// outermost sorts the names and leaves out what lies in another one.
func outermost(names []string) []string {
	all := make(map[string]bool, len(names))
	for _, name := range names {
		all[name] = true
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		for at := strings.LastIndexByte(name, '/'); at > 0; at = strings.LastIndexByte(name[:at], '/') {
			if all[name[:at]] {
				return true
			}
		}
		return false
	})
}
