package models

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Outcome is how a run ends: what the one terminal UPDATE writes.
type Outcome struct {
	Status         RunStatus // COMPLETED, FAILED, CANCELLED or SKIPPED
	ErrorDetail    *string
	StatusDetail   json.RawMessage
	ConversationID *string // nil: keep
	Cost           *float64
	RunMetadata    json.RawMessage

	Actor  string // who ended it: "callback", "watchdog", "dispatch", "user:<id>", "schedule"
	Reason string // for the event and the order: "callback", "timed out", "exit", "cancelled", "replaced", "provisioning failed" …

	// CompletedAt is when the run ended; zero means Store.Now. A time ahead of the clock is clamped to now (BR-11).
	CompletedAt time.Time
	// NotStarted says that the start call was never sent or was definitely refused (Disposition deletes such a box at once).
	NotStarted bool
	// From lists the statuses the run may be in; empty means RUNNING only. Cancel gives PENDING and RUNNING.
	From []RunStatus
	// IfTimeoutAt makes the UPDATE conditional on the timeout_at that was verified.
	IfTimeoutAt *time.Time
	// IfExitSeen makes the UPDATE conditional on exit_seen_at still being this.
	IfExitSeen *time.Time
}

// Ending is what decide sees: the run as it will be, read inside the transaction that ends it.
type Ending struct {
	Run       *Run
	Outcome   Outcome
	KeepAlive bool     // the automation's keep_alive, read under a share lock in the same transaction
	Box       *Sandbox // newest box, nil when the run has none (local mode, never dispatched)
	Reconcile bool     // a late COMPLETED callback flips a "Timed out: …" run (S1-017)
	Now       time.Time
}

// BoxOrder is what a Decision asks for the box.
type BoxOrder string

// What may become of a box when its run ends (design section 5, Disposition).
const (
	BoxNothing BoxOrder = "nothing" // no box, keep_alive, kept, or deletion ordered already
	BoxSuspend BoxOrder = "suspend"
	BoxDelete  BoxOrder = "delete"
)

// Decision is what becomes of the box: the order and the stamp.
type Decision struct {
	Box  BoxOrder
	Due  *time.Time // sandbox_cleanup_due_at; nil: none
	Note string     // shown on the box's timeline ("backend cannot suspend: deleted")
}

// Finished is what Finish did.
type Finished struct {
	Run      *Run
	Decision Decision
	Won      bool // false: the run was not in a status it could be finished from; nothing was written
}

// Finish is the one move to a terminal status: callback, watchdog, cancel, dispatch failure and replacement all call it. In
// one transaction it locks (automation FOR SHARE, then run, then box), calls the pure decide, and writes with one conditional
// UPDATE status, completed_at, the details and sandbox_cleanup_due_at; the order for the box and the events go with it. Zero
// rows: Won is false and nothing changed (S1-010…013). It does no I/O beyond the database. ErrNotFound: no such run.
func (s *Store) Finish(ctx context.Context, runID uuid.UUID, o Outcome, decide func(Ending) Decision) (Finished, error) {
	panic("unwritten")
}

// TimedOutPrefix starts the error_detail of runs that a late COMPLETED callback may flip (S1-017, S1-018).
const TimedOutPrefix = "Timed out: "

// Reconcile flips a FAILED run whose error_detail starts with TimedOutPrefix to COMPLETED, once, and decides anew about its
// box (the stamp counts from the new completion). Where deletion was ordered already it stays so and no stamp is written.
func (s *Store) Reconcile(ctx context.Context, runID uuid.UUID, o Outcome, decide func(Ending) Decision) (Finished, error) {
	panic("unwritten")
}
