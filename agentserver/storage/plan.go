package storage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"automation/agentserver/conversation"
)

// Box is the id under which the box as a whole stands among the conversations: its caches belong to none of them.
const Box = "box"

// Tier says how much may go; each holds the ones before it.
type Tier string

// The tiers of a request. Policy is what a pass of the server itself would do: caches; runtimes whose retention is over;
// and, above the disk budget, dependencies. Runtime archives the conversations that the request names, and of the others
// those whose retention is over.
const (
	TierPolicy       Tier = "policy"
	TierCaches       Tier = "caches"
	TierDependencies Tier = "dependencies"
	TierRuntime      Tier = "runtime"
)

// Tiers lists them.
var Tiers = []Tier{TierPolicy, TierCaches, TierDependencies, TierRuntime}

// Outcomes of an item.
const (
	Planned = "planned"
	Moved   = "moved" // in the trash: deleted in the background
	Skipped = "skipped"
)

// Settings are what the server's own passes follow.
type Settings struct {
	RetentionDays int           // of conversations that ask for nothing else; 0: for ever
	DiskBudget    float64       // share of the file system, above which dependencies go; 0: none
	Grace         time.Duration // after start or resume nothing is archived for its age
	ArchiveLimit  int           // archives for their age in one pass
}

// recentUse keeps the dependencies of whoever was active so shortly ago: they would be made again at once.
const recentUse = time.Hour

// Item is one thing that a plan takes or leaves.
type Item struct {
	ConversationID string `json:"conversation_id"`
	Tier           Tier   `json:"tier"`
	Path           string `json:"path"` // relative to the root; absolute where it lies elsewhere
	Bytes          int64  `json:"bytes"`
	Files          int64  `json:"files"`
	Outcome        string `json:"outcome"`
	Reason         string `json:"reason"`

	unit       Unit
	layout     layout
	lastActive time.Time
	entry      string        // its name in the trash, once moved
	moved      time.Time     // when; on the clock of this process
	held       time.Duration // how long its tenant was held idle for that
}

// Request asks for a pass.
type Request struct {
	DryRun          bool
	Tier            Tier     // "" is TierPolicy
	ConversationIDs []string // nil: all
	PlanID          string   // apply exactly this plan; the rest of the request but DryRun says nothing then

	timed bool // a pass of the server's own: caches go only for the budget
}

func (r Request) names(id string) bool { return slices.Contains(r.ConversationIDs, id) }

func (r Request) wants(id string) bool { return r.ConversationIDs == nil || r.names(id) }

// Plan decides from a scan what a pass takes. It is pure: the dry run, the "next pass" of the status and the pass itself all
// show what it says (S0-059, S0-146). Whoever runs or starts keeps everything, whatever the tier (S0-063): a cache that is
// pulled away under a build breaks it.
func Plan(found Scan, request Request, settings Settings) []Item {
	tenants := slices.Clone(found.Tenants)
	slices.SortStableFunc(tenants, func(a, b Found) int { // the box first, then the longest unused
		if (a.ID == Box) != (b.ID == Box) {
			return cmp.Compare(b2i(b.ID == Box), b2i(a.ID == Box))
		}
		return a.LastActive.Compare(b.LastActive)
	})
	archives := 0
	items := []Item{}
	for _, t := range tenants {
		if !request.wants(t.ID) {
			continue
		}
		archive, why := archives < settings.ArchiveLimit || settings.ArchiveLimit == 0, ""
		if archive {
			archive, why = archiveNow(found, t, request, settings)
		}
		if archive && t.Busy == "" && t.mayGo() && !(request.Tier == TierRuntime && request.names(t.ID)) {
			archives++
		}
		items = append(items, t.items(request, archive, why)...)
	}
	if request.Tier == TierPolicy || request.Tier == "" {
		items = withinBudget(items, found, request.timed, settings)
	}
	return account(items)
}

// mayGo reports whether there is a runtime that can be archived.
func (f Found) mayGo() bool {
	return slices.ContainsFunc(f.Units, func(u Unit) bool { return u.Tier == TierRuntime && u.Refuse == "" })
}

// items are what the request takes of one tenant, with the dependencies at the end.
func (f Found) items(request Request, archive bool, why string) []Item {
	var items []Item
	goes := archive && f.mayGo()
	for _, unit := range f.Units {
		switch {
		case unit.Tier == TierRuntime && !archive, unit.Tier == TierDependencies && request.Tier == TierCaches:
			continue
		case unit.Tier != TierRuntime && goes && unit.part.runtime != "":
			continue // it goes with the runtime
		}
		item := Item{
			ConversationID: f.ID, Tier: unit.Tier, Path: unit.Path, Files: unit.Files, Outcome: Planned,
			unit: unit, layout: f.layout, lastActive: f.LastActive,
		}
		if unit.Tier == TierRuntime {
			item.Reason = why
		}
		switch {
		case unit.Refuse != "":
			item.skip(unit.Refuse)
		case f.Busy != "":
			item.skip(f.Busy)
		}
		items = append(items, item)
	}
	return items
}

// archiveNow reports whether a pass archives the tenant, and why. Time asleep does not count, and shortly after start or
// resume nobody's age does (S0-150). Activity that is unknown or in the future keeps it.
func archiveNow(found Scan, t Found, request Request, settings Settings) (now bool, why string) {
	switch {
	case request.Tier == TierCaches || request.Tier == TierDependencies:
		return false, ""
	case t.State == StateArchived:
		return true, "archived before, and not moved"
	case request.Tier == TierRuntime && request.names(t.ID):
		return true, "asked for"
	}
	at, why, ok := archiveAt(found, t, settings)
	return ok && !at.After(found.Now), why
}

// archiveAt is when a tenant will be archived at the earliest, if nobody uses it and the box stays awake.
func archiveAt(found Scan, t Found, settings Settings) (at time.Time, why string, ok bool) {
	after, ok := t.Retention.After(settings.RetentionDays)
	if !ok || t.LastActive.IsZero() || t.LastActive.After(found.Now) {
		return time.Time{}, "", false
	}
	if t.Retention.Policy == conversation.OnStop {
		return found.Now, "kept until it stops", true
	}
	at = found.Now.Add(after - found.AwakeFor(t.LastActive))
	if grace := found.AwakeSince.Add(settings.Grace); at.Before(grace) {
		at = grace
	}
	return at, fmt.Sprintf("unused for %d days", int(after.Hours()/24)), true
}

// withinBudget keeps what need not go: dependencies, and in a pass of the server's own caches too, go only until what is
// used of the file system is within the budget, caches first, and those of the longest unused before others.
func withinBudget(items []Item, found Scan, timed bool, settings Settings) []Item {
	over := overBudget(found.Filesystem, settings)
	var rest, spare []Item
	for _, item := range items {
		if item.Tier == TierDependencies || timed && item.Tier == TierCaches {
			spare = append(spare, item)
		} else {
			rest = append(rest, item)
		}
	}
	slices.SortStableFunc(spare, func(a, b Item) int { return strings.Compare(string(a.Tier), string(b.Tier)) }) // caches < dependencies
	over -= Freed(account(slices.Clone(rest)))
	for _, item := range spare {
		recent := item.Tier == TierDependencies && item.Outcome == Planned && found.Now.Sub(item.lastActive) < recentUse
		if over <= 0 || recent {
			continue
		}
		rest = append(rest, item)
		if item.Outcome == Planned {
			over -= item.unit.bytes
		}
	}
	return rest
}

// overBudget is by how much what is used of the file system is above the budget, in bytes; at most 0: it is not.
func overBudget(fs Filesystem, settings Settings) int64 {
	if settings.DiskBudget <= 0 {
		return 0
	}
	return fs.UsedBytes - int64(settings.DiskBudget*float64(fs.UsedBytes+fs.FreeBytes))
}

// account sets the bytes of each planned item: what goes when it and all before it go. A file with several names goes with
// the last of them.
func account(items []Item) []Item {
	links := linkCounter{}
	for i := range items {
		if item := &items[i]; item.Outcome != Skipped {
			item.Bytes = item.unit.bytes + links.take(item.unit.links)
		}
	}
	return items
}

func (i *Item) skip(reason string) {
	i.Outcome, i.Reason, i.Bytes, i.Files = Skipped, reason, 0, 0
}

// Freed adds up what the items free, or would.
func Freed(items []Item) int64 {
	var total int64
	for _, item := range items {
		if item.Outcome != Skipped {
			total += item.Bytes
		}
	}
	return total
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
