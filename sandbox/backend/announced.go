package backend

import (
	"time"

	"automation/sandbox"
)

// What the providers without an adapter in this build can do. Times are the providers' published defaults; a provider moves
// to a file of its own together with its row.
func init() {
	// The caller chooses the session id, which serves as a label; a cluster-internal service, polled freely (S0-131, S0-139).
	announce("runtime-api", sandbox.Capabilities{
		Suspend: sandbox.SuspendDisk, SameIdentity: true,
		List: true, Labels: true, LastActivity: true,
		NativeIdle:    sandbox.Timer{Supported: true, Action: "suspend", Default: 20 * time.Minute},
		NativeExpiry:  sandbox.Timer{Supported: true, Action: "delete", Default: day},
		SuspendedCost: "storage",
	})
	// A session's name is unique and carries our prefix; what last_event_at means is not documented; a dial wakes (S0-134).
	announce("digitalocean", sandbox.Capabilities{
		Suspend: sandbox.SuspendMemory, SameIdentity: true,
		List: true, Labels: true, LastActivity: true,
		NativeIdle:   sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Minute},
		LookingWakes: true, LookingCounts: true,
		SuspendedCost: "storage, and a place in the session quota",
	})
	// Stop keeps the disk for every class, pausing with memory only some; the list is eventually consistent (S0-135).
	announce("daytona", sandbox.Capabilities{
		Suspend: sandbox.SuspendDisk, SameIdentity: true,
		List: true, Labels: true, LastActivity: true,
		NativeIdle:    sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Minute},
		NativeExpiry:  sandbox.Timer{Supported: true, Action: "delete"},
		LookingCounts: true,
		SuspendedCost: "disk, until archived",
	})
	// The timer is a hard one from the last extension and pauses where it is told to; paused boxes never end (S0-136).
	announce("e2b", sandbox.Capabilities{
		Suspend: sandbox.SuspendMemory, SameIdentity: true,
		List: true, Labels: true,
		NativeExpiry:  sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Second},
		LookingCounts: true,
		SuspendedCost: "none known",
	})
	// No pause: a snapshot, then a box made anew from it; every tunnel connection keeps a box awake (S0-130, S0-137).
	announce("modal", sandbox.Capabilities{
		Suspend: sandbox.SuspendSnapshot,
		List:    true, Labels: true,
		NativeIdle:    sandbox.Timer{Supported: true, Action: "delete"},
		NativeExpiry:  sandbox.Timer{Supported: true, Action: "delete", Default: 5 * time.Minute, Max: day},
		LookingCounts: true,
		SuspendedCost: "snapshot storage, 30 days by default",
	})
	// Sleep wipes the files, nothing is listed, and asking whether a box runs starts it (S0-138, S0-141).
	announce("cloudflare", sandbox.Capabilities{
		Suspend: sandbox.SuspendNone, SameIdentity: true,
		NativeIdle:   sandbox.Timer{Supported: true, Action: "delete", Default: 10 * time.Minute},
		LookingWakes: true, LookingCounts: true,
	})
}

const day = 24 * time.Hour
