package models

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Event is a row of sandbox_events, the append-only timeline of a box: who, what, why, outcome. It outlives box and
// automation (365 days).
type Event struct {
	bun.BaseModel `bun:"table:sandbox_events,alias:e"`

	ID           uuid.UUID       `bun:"id,pk"`
	At           time.Time       `bun:"at"`
	OrgID        uuid.UUID       `bun:"org_id"`
	SandboxID    *uuid.UUID      `bun:"sandbox_id"`
	RunID        *uuid.UUID      `bun:"run_id"`
	AutomationID *uuid.UUID      `bun:"automation_id"`
	What         string          `bun:"what"`  // ordered, created, output, reclaimed, suspended, resumed, deleted, adopted, …
	Actor        string          `bun:"actor"` // user:<id>, callback, watchdog, janitor, settler, …
	Reason       string          `bun:"reason"`
	Outcome      string          `bun:"outcome"` // ok, failed, skipped
	Bytes        int64           `bun:"bytes"`
	DurationMS   int64           `bun:"duration_ms"`
	Detail       json.RawMessage `bun:"detail,nullzero"`
}

// The outcomes of an event.
const (
	EventOK      = "ok"
	EventFailed  = "failed"
	EventSkipped = "skipped"
)

// event returns an event about the box.
func (b *Sandbox) event(what, actor, reason string, at time.Time) Event {
	return Event{
		At: at, OrgID: b.OrgID, SandboxID: &b.ID, RunID: b.RunID, AutomationID: b.AutomationID,
		What: what, Actor: actor, Reason: reason, Outcome: EventOK,
	}
}

// appendEventsTx appends events in one statement of the caller's transaction; ids and times are set where they are zero.
func appendEventsTx(ctx context.Context, tx bun.IDB, now time.Time, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	for i := range events {
		if err := events[i].complete(now); err != nil {
			return err
		}
	}
	if _, err := tx.NewInsert().Model(&events).Exec(ctx); err != nil {
		return fmt.Errorf("append events: %w", err)
	}
	return nil
}

func (e *Event) complete(now time.Time) error {
	if e.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an event id: %w", err)
		}
		e.ID = id
	}
	if e.At.IsZero() {
		e.At = now
	}
	if e.Outcome == "" {
		e.Outcome = EventOK
	}
	return nil
}

// AppendEvent appends an event; ID and At are set here when zero, org, run and automation from the box when it is given.
func (s *Store) AppendEvent(ctx context.Context, e Event) error { panic("unwritten") }

// Events returns a box's timeline, oldest first.
func (s *Store) Events(ctx context.Context, boxID uuid.UUID, limit, offset int) ([]*Event, int, error) {
	panic("unwritten")
}

// PurgeEvents removes up to limit events older than t and returns how many went.
func (s *Store) PurgeEvents(ctx context.Context, t time.Time, limit int) (int, error) {
	panic("unwritten")
}
