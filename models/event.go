package models

import (
	"context"
	"encoding/json"
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
