package models

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
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
	// IfAttempt makes the UPDATE conditional on the run still being provisioned in this attempt; 0: in any.
	IfAttempt int
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
	Run      *Run // as it is now, its Box too, but for what only readers compute
	Decision Decision
	Won      bool // false: the run was not in a status it could be finished from; nothing was written

	automation *Automation // as far as AfterEnd asks about it; nil: not read
}

// Finish is the one move to a terminal status: callback, watchdog, cancel, dispatch failure and replacement all call it. In
// one transaction it locks (automation FOR SHARE, then run, then box), calls the pure decide, and writes with one conditional
// UPDATE status, completed_at, the details and sandbox_cleanup_due_at; the order for the box and the events go with it. Zero
// rows: Won is false and nothing changed (S1-010…013). It does no I/O beyond the database. ErrNotFound: no such run.
// Where deletion of the box was ordered already it stays so and no stamp is written, whatever decide says.
func (s *Store) Finish(ctx context.Context, runID uuid.UUID, o Outcome, decide func(Ending) Decision) (Finished, error) {
	return s.end(ctx, end{runID: runID, outcome: o, decide: decide})
}

// TimedOutPrefix starts the error_detail of runs that a late COMPLETED callback may flip (S1-017, S1-018).
const TimedOutPrefix = "Timed out: "

// Reconcile flips a FAILED run whose error_detail starts with TimedOutPrefix to COMPLETED, once, and decides anew about its
// box (the stamp counts from the new completion, but is never moved to an earlier time). Where deletion was ordered already it stays so and no stamp is written.
func (s *Store) Reconcile(ctx context.Context, runID uuid.UUID, o Outcome, decide func(Ending) Decision) (Finished, error) {
	o.Status, o.ErrorDetail, o.StatusDetail = RunCompleted, nil, nil
	o.From, o.IfTimeoutAt, o.IfExitSeen, o.IfAttempt = []RunStatus{RunFailed}, nil, nil, 0
	return s.end(ctx, end{runID: runID, outcome: o, decide: decide, reconcile: true})
}

// end is one try to end a run.
type end struct {
	runID     uuid.UUID
	outcome   Outcome
	decide    func(Ending) Decision
	reconcile bool
}

func (s *Store) end(ctx context.Context, e end) (Finished, error) {
	if len(e.outcome.From) == 0 {
		e.outcome.From = []RunStatus{RunRunning}
	}
	var f Finished
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		var err error
		f, err = s.endTx(ctx, tx, e)
		return err
	})
	if err != nil {
		return Finished{}, fmt.Errorf("end run %s: %w", e.runID, err)
	}
	return f, nil
}

// endTx ends a run inside a transaction. What it decides on is read after the locks are held, so that a switch of keep_alive,
// a pin and an order either come before and count, or wait.
func (s *Store) endTx(ctx context.Context, tx bun.IDB, e end) (Finished, error) {
	automation, err := s.shareAutomation(ctx, tx, e.runID)
	if err != nil {
		return Finished{}, err
	}
	run, err := s.lockRun(ctx, tx, e.runID)
	if err != nil {
		return Finished{}, err
	}
	if !e.applies(run) {
		return Finished{Run: run}, nil
	}
	if run.BoxID != nil {
		box, err := s.lockBox(ctx, tx, *run.BoxID)
		if err != nil {
			return Finished{}, err
		}
		run.setBox(box)
	}
	now := s.Now()
	e.outcome.apply(run, now)
	decision := e.decide(Ending{
		Run: run, Outcome: e.outcome, KeepAlive: automation.KeepsAlive(), Box: run.Box, Reconcile: e.reconcile, Now: now,
	})
	if run.Box != nil && run.Box.Desired == WantDeleted {
		decision = Decision{Box: BoxNothing}
	}
	if e.reconcile && decision.Due != nil && run.CleanupDueAt != nil && run.CleanupDueAt.After(*decision.Due) {
		decision.Due = run.CleanupDueAt // a person has extended it
	}
	run.CleanupDueAt = decision.Due
	run.needsAftercare(now)
	won, err := e.write(ctx, tx, run)
	if err != nil || !won {
		return Finished{Run: run}, err
	}
	ended(ctx, e.reconcile, run)
	return Finished{Run: run, Decision: decision, Won: true, automation: automation}, e.followUp(ctx, tx, run, decision, now)
}

// shareAutomation reads of a run's automation what its end depends on, and holds it as it is until the transaction ends.
func (s *Store) shareAutomation(ctx context.Context, tx bun.IDB, runID uuid.UUID) (*Automation, error) {
	a := new(Automation)
	q := tx.NewSelect().Model(a).
		Column("a.id", "a.keep_alive", "a.state", "a.preset_metadata", "a.deleted_at").
		Join("JOIN automation_runs AS r ON r.automation_id = a.id").
		Where("r.id = ?", runID)
	if err := s.lock(q, "SHARE OF a").Scan(ctx); err != nil {
		return nil, notFound(err, "share the automation of run %s", runID)
	}
	return a, nil
}

// applies reports whether the run is one that e may end. The UPDATE says the same; asking before spares the losers its work.
func (e end) applies(r *Run) bool {
	switch {
	case !slices.Contains(e.outcome.From, r.Status):
		return false
	case e.reconcile && (r.ErrorDetail == nil || !strings.HasPrefix(*r.ErrorDetail, TimedOutPrefix)):
		return false
	case e.outcome.IfTimeoutAt != nil && !sameTime(r.TimeoutAt, e.outcome.IfTimeoutAt):
		return false
	case e.outcome.IfExitSeen != nil && !sameTime(r.ExitSeenAt, e.outcome.IfExitSeen):
		return false
	case e.outcome.IfAttempt != 0 && r.Attempt != e.outcome.IfAttempt:
		return false
	default:
		return true
	}
}

// apply makes r what it will be.
func (o Outcome) apply(r *Run, now time.Time) {
	completed := rowTime(o.CompletedAt)
	if o.CompletedAt.IsZero() || completed.After(now) {
		completed = now
	}
	r.Status, r.CompletedAt, r.ErrorDetail, r.StatusDetail = o.Status, &completed, o.ErrorDetail, o.StatusDetail
	if o.ConversationID != nil {
		r.ConversationID = o.ConversationID
	}
	if o.Cost != nil {
		r.Cost = o.Cost
	}
	if o.RunMetadata != nil {
		r.RunMetadata = o.RunMetadata
	}
}

// write is the one statement that ends a run: its row count names the winner (S1-010).
func (e end) write(ctx context.Context, tx bun.IDB, r *Run) (won bool, err error) {
	q := tx.NewUpdate().Model(r).
		Column("status", "completed_at", "error_detail", "status_detail", "conversation_id", "cost", "run_metadata", "sandbox_cleanup_due_at", "aftercare_at").
		WherePK().
		Where("status IN (?)", bun.List(e.outcome.From))
	if e.reconcile {
		q = q.Where("substr(error_detail, 1, ?) = ?", len(TimedOutPrefix), TimedOutPrefix)
	}
	if e.outcome.IfTimeoutAt != nil {
		q = q.Where("timeout_at = ?", rowTime(*e.outcome.IfTimeoutAt))
	}
	if e.outcome.IfExitSeen != nil {
		q = q.Where("exit_seen_at = ?", rowTime(*e.outcome.IfExitSeen))
	}
	if e.outcome.IfAttempt != 0 {
		q = q.Where("attempt = ?", e.outcome.IfAttempt)
	}
	n, err := affected(q.Exec(ctx))
	if err != nil {
		return false, fmt.Errorf("write the outcome: %w", err)
	}
	return n == 1, nil
}

// followUp writes what goes with the terminal status: the event, the note and the order for the box.
func (e end) followUp(ctx context.Context, tx bun.IDB, r *Run, d Decision, now time.Time) error {
	event := Event{OrgID: r.OrgID, RunID: &r.ID, AutomationID: &r.AutomationID, Outcome: EventOK}
	if r.Box != nil {
		event = r.Box.event("", "", "", now)
	}
	event.What, event.Actor, event.Reason = "finished", e.outcome.Actor, e.outcome.Reason
	detail := map[string]any{"status": r.Status, "box": d.Box}
	if d.Due != nil {
		detail["due_at"] = d.Due
	}
	if d.Note != "" {
		detail["note"] = d.Note
	}
	var err error
	if event.Detail, err = json.Marshal(detail); err != nil {
		return err
	}
	if r.Box == nil || d.Box != BoxSuspend && d.Box != BoxDelete {
		return appendEventsTx(ctx, tx, now, []Event{event})
	}
	if d.Note != "" {
		r.Box.Note = d.Note
		if _, err := tx.NewUpdate().Model(r.Box).Column("note").WherePK().Exec(ctx); err != nil {
			return fmt.Errorf("note on box %s: %w", r.Box.ID, err)
		}
	}
	o := order{to: WantSuspended, who: e.outcome.Actor, why: e.outcome.Reason, now: now, after: []Event{event}}
	if d.Box == BoxDelete {
		o.to = WantDeleted
	}
	if err := orderTx(ctx, tx, r.Box.ID, o); err != nil {
		return err
	}
	r.Box.takes(o)
	return nil
}
