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
	return b.about(Event{At: at, What: what, Actor: actor, Reason: reason, Outcome: EventOK})
}

// appendEventsTx appends events in one statement of the caller's transaction; ids and times are set where they are zero.
func appendEventsTx(ctx context.Context, tx bun.IDB, now time.Time, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	for i := range events {
		events[i].complete(now)
	}
	if _, err := tx.NewInsert().Model(&events).Exec(ctx); err != nil {
		return fmt.Errorf("append events: %w", err)
	}
	return nil
}

func (e *Event) complete(now time.Time) {
	if e.ID == uuid.Nil {
		e.ID = newID()
	}
	if e.At.IsZero() {
		e.At = now
	}
	if e.Outcome == "" {
		e.Outcome = EventOK
	}
}

// about fills in what an event about a box leaves open.
func (b *Sandbox) about(e Event) Event {
	e.OrgID, e.SandboxID, e.RunID, e.AutomationID = b.OrgID, &b.ID, b.RunID, b.AutomationID
	return e
}

// AppendEvent appends an event; ID and At are set here when zero, org, run and automation from the box when it is given.
func (s *Store) AppendEvent(ctx context.Context, e Event) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		e := e
		if e.SandboxID != nil {
			box := new(Sandbox)
			err := tx.NewSelect().Model(box).
				Column("s.id", "s.org_id", "s.run_id", "s.automation_id").
				Where("s.id = ?", *e.SandboxID).
				Scan(ctx)
			if err != nil {
				return notFound(err, "read box %s", *e.SandboxID)
			}
			e = box.about(e)
		}
		return appendEventsTx(ctx, tx, s.Now(), []Event{e})
	})
}

// Events returns a box's timeline, oldest first, and its length.
func (s *Store) Events(ctx context.Context, boxID uuid.UUID, limit, offset int) ([]*Event, int, error) {
	var events []*Event
	q := s.db.NewSelect().Model(&events).Where("e.sandbox_id = ?", boxID)
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count the events of box %s: %w", boxID, err)
	}
	if err := q.OrderExpr("e.at, e.id").Limit(int64(limit)).Offset(int64(offset)).Scan(ctx); err != nil {
		return nil, 0, fmt.Errorf("read the events of box %s: %w", boxID, err)
	}
	return events, int(total), nil
}

// PurgeEvents removes up to limit events older than t and returns how many went.
func (s *Store) PurgeEvents(ctx context.Context, t time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	gone := 0
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		old := tx.NewSelect().Model((*Event)(nil)).Column("e.id").Where("e.at < ?", t).OrderExpr("e.at").Limit(int64(limit))
		var err error
		gone, err = affected(tx.NewDelete().Model((*Event)(nil)).
			Where("id IN (?)", s.lock(old, "UPDATE SKIP LOCKED")).
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("purge events: %w", err)
		}
		return nil
	})
	return gone, err
}
