package storage

import (
	"context"
	"path"
	"slices"
	"strings"
)

// Bounds of the search for checkouts: how deep beneath a workspace they may lie, and how many are looked at.
const (
	checkoutDepth = 3
	checkoutLimit = 512
)

// dependencies looks at every directory of a workspace's checkouts that the project ignores and a tool can make again. A
// checkout that git cannot tell about keeps all of its own and says so.
func dependencies(ctx context.Context, p part, workspace string, around surroundings) []Unit {
	var units []Unit
	for _, checkout := range checkouts(p.area.root, workspace, checkoutDepth) {
		root, err := p.area.root.descend(checkout)
		if err != nil {
			continue
		}
		absolute := p.area.path(checkout)
		ignored, refuse := around.git.ignored(ctx, root, absolute)
		if refuse != "" {
			units = append(units, Unit{Tier: TierDependencies, Path: shown(around.root, absolute), Refuse: refuse, part: p, name: checkout})
		}
		for _, name := range outermost(deepened(ignored)) {
			if !provenBy(root, name) {
				continue
			}
			if unit, there := inspect(p, path.Join(checkout, name), TierDependencies, around); there {
				units = append(units, unit)
			}
		}
		root.close()
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
	slices.Sort(names)
	var kept []string
	for _, name := range names {
		if !slices.ContainsFunc(kept, func(outer string) bool { return within(name, outer) }) {
			kept = append(kept, name)
		}
	}
	return kept
}

// checkouts lists the git checkouts in a directory: the directory itself, and those beneath it that are not in another one.
func checkouts(root handle, name string, depth int) []string {
	dir, err := root.descend(name)
	if err != nil {
		return nil
	}
	defer dir.close()
	st, err := dir.stat(".")
	if err != nil {
		return nil
	}
	var found []string
	var search func(at handle, name string, depth int)
	search = func(at handle, name string, depth int) {
		if _, err := at.stat(".git"); err == nil {
			found = append(found, name)
			if name != "" {
				return
			}
		}
		names, _ := at.names(-1)
		slices.Sort(names)
		for _, entry := range names {
			below, err := at.stat(entry)
			if err != nil || !isDir(below) || below.Dev != st.Dev || depth == 0 || len(found) >= checkoutLimit || skipped(entry) {
				continue
			}
			if next, err := at.open(entry); err == nil {
				search(next, path.Join(name, entry), depth-1)
				next.close()
			}
		}
	}
	search(dir, "", depth)
	for i := range found {
		found[i] = path.Join(name, found[i])
	}
	return found
}

// skipped are the directories in which no checkout of the project is looked for.
func skipped(name string) bool {
	return strings.HasPrefix(name, ".") || slices.ContainsFunc(rebuildables, func(r rebuildable) bool { return r.name == name })
}
