package storage

import (
	"context"
	"time"

	"automation/agentserver/conversation"
)

// States of a tenant.
const (
	StateRunning  = "running"  // works
	StateStarting = "starting" // about to work
	StateIdle     = "idle"     // at hand, without work
	StateStopped  = "stopped"  // nothing of it runs
	StateArchived = "archived" // its runtime is gone for good, its history can be read
)

// Tenant is what a layout found of one conversation, or of the box as a whole.
type Tenant struct {
	ID         string // with dashes, or Box
	Layout     string
	State      string
	LastActive time.Time // zero: unknown
	Retention  conversation.Retention
	Busy       string // why nothing of it may go now; "" when it is idle

	layout layout
	parts  []part
	key    string // changes when it has run
}

// part is what a tenant has in one area; all paths are relative to that.
type part struct {
	area       *area
	homes      []string // caches lie in them
	workspaces []string // checkouts lie in them
	runtime    string   // all of it that is not history; "" when it cannot be archived
	whole      string   // what goes when the conversation is deleted; "" when another one uses it
	heir       string   // the one conversation that still uses it, when its own was deleted
	extent     []string // what counts as its size
	apart      []string // what lies in the extent and counts elsewhere, absolute
}

// layout is one way in which conversations lie on disk. The core knows nothing else of any: a new way is a new layout and
// no change to the core (S0-009, S0-015).
type layout interface {
	// tenants lists what there is now.
	tenants(ctx context.Context) ([]Tenant, error)
	// whileIdle runs f while the tenant is held idle, and says why it did not.
	whileIdle(id string, f func()) (busy string)
	// startedSince reports whether something has begun to use the tenant that whileIdle cannot hold back, since a moment at
	// which something of it was moved into the trash under the name entry.
	startedSince(id, entry string, moved time.Time) bool
	// lastActive is when the tenant was last active; zero: unknown.
	lastActive(id string) time.Time
	// archived reports whether the note is there that mark makes.
	archived(id string) bool
	// mark notes that the tenant's runtime is archived, durably; unmark takes the note away.
	mark(id string) error
	unmark(id string) error
	// forget takes away what is kept elsewhere of a tenant that is deleted, whose files lie in whole.
	forget(id, whole string) error
}
