package storage

import (
	"slices"
)

// Box is the id under which the box as a whole stands among the conversations: its caches belong to none of them.
const Box = "box"

// Tier says how much may go; each holds the ones before it.
type Tier string

// The tiers of a request. Policy is what a pass of the server itself would do: caches.
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

// Item is one thing that a plan takes or leaves.
type Item struct {
	ConversationID string `json:"conversation_id"`
	Tier           Tier   `json:"tier"`
	Path           string `json:"path"` // relative to the root
	Bytes          int64  `json:"bytes"`
	Files          int64  `json:"files"`
	Outcome        string `json:"outcome"`
	Reason         string `json:"reason"`

	id      identity
	partial bool
}

// Request asks for a pass.
type Request struct {
	DryRun          bool
	Tier            Tier     // "" is TierPolicy
	ConversationIDs []string // nil: all
	PlanID          string   // apply exactly this plan; the rest of the request but DryRun says nothing then
}

// Plan decides from a scan what a pass takes. It is pure: the dry run, the "next pass" of the status and the pass itself all
// show what it says (S0-059, S0-146). A box in which a command runs keeps everything, whatever the tier (S0-063): a cache
// that is pulled away under a build breaks it.
func Plan(found Scan, request Request) []Item {
	items := []Item{}
	if request.ConversationIDs != nil && !slices.Contains(request.ConversationIDs, Box) {
		return items
	}
	for _, unit := range found.Units {
		item := Item{
			ConversationID: Box, Tier: TierCaches, Path: unit.Path, Bytes: unit.Bytes, Files: unit.Files,
			Outcome: Planned, id: unit.id, partial: unit.partial,
		}
		switch {
		case unit.Refuse != "":
			item.skip(unit.Refuse)
		case found.Running:
			item.skip(reasonRunning)
		}
		items = append(items, item)
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
