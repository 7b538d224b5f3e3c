package storage

import (
	"slices"
	"sync"
	"time"
)

// looks remembers what dry runs found of tenants that have not run since. No pass takes anything by it: applying a plan looks
// at everything anew (S0-143).
type looks struct {
	mu     sync.Mutex
	steps  int
	last   map[string]glance
	margin time.Duration // settled, but in tests
}

// glance is one such find.
type glance struct {
	key    string
	what   aim
	mounts []string
	trail  *trail
	units  []Unit
	leads  []lead
}

// recall is what was found of a tenant before, if all is as it was.
func (l *looks) recall(t Tenant, what aim, mounts []string) (Found, bool) {
	l.mu.Lock()
	last, there := l.last[t.ID]
	l.mu.Unlock()
	if !there || t.key == "" || t.Busy != "" || last.key != t.key || last.what != what || !slices.Equal(last.mounts, mounts) ||
		!last.trail.holds(t.parts[0].area.root) {
		return Found{}, false
	}
	return Found{Tenant: t, Units: slices.Clone(last.units), leads: slices.Clone(last.leads)}, true
}

// begin is the trail for a look at a tenant; nil when nothing of it will be remembered.
func (l *looks) begin(t Tenant) *trail {
	if t.key == "" || t.Busy != "" || len(t.parts) != 1 || len(t.parts[0].extent) != 1 {
		return nil
	}
	return newTrail(t.parts[0].extent[0], l.margin)
}

// prune forgets those that are no longer there.
func (l *looks) prune(tenants []Tenant) {
	there := make(map[string]bool, len(tenants))
	for _, t := range tenants {
		there[t.ID] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.last {
		if !there[id] {
			l.drop(id)
		}
	}
}

// drop forgets one tenant, under the lock.
func (l *looks) drop(id string) {
	if last, there := l.last[id]; there {
		l.steps -= len(last.trail.steps)
		delete(l.last, id)
	}
}

// keep remembers what was found.
func (l *looks) keep(f Found, what aim, mounts []string, way *trail) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(f.ID)
	if way == nil || way.lost || l.steps+len(way.steps) > trailLimit {
		return
	}
	way.known = nil
	way.names, way.steps = slices.Clone(way.names), slices.Clone(way.steps) // without what they could grow into
	l.steps += len(way.steps)
	l.last[f.ID] = glance{f.key, what, mounts, way, slices.Clone(f.Units), slices.Clone(f.leads)}
}
