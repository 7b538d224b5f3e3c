package models

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// RunStatus is the state of a run (contract section 3.2).
type RunStatus string

// The states of a run. PENDING → RUNNING → one of the four terminal ones; FAILED ("Timed out: …") → COMPLETED by a late
// callback (S1-017).
const (
	RunPending   RunStatus = "PENDING"
	RunRunning   RunStatus = "RUNNING"
	RunCompleted RunStatus = "COMPLETED"
	RunFailed    RunStatus = "FAILED"
	RunCancelled RunStatus = "CANCELLED"
	RunSkipped   RunStatus = "SKIPPED"
)

// Terminal reports whether nothing moves the run any more (but S1-017).
func (s RunStatus) Terminal() bool { return s != RunPending && s != RunRunning }

// TriggerSource says what started a run.
type TriggerSource string

// The trigger sources.
const (
	TriggerManual TriggerSource = "manual"
	TriggerCron   TriggerSource = "cron"
	TriggerEvent  TriggerSource = "event"
)

// Run is a row of automation_runs.
type Run struct {
	bun.BaseModel `bun:"table:automation_runs,alias:r"`

	ID            uuid.UUID       `bun:"id,pk"`
	AutomationID  uuid.UUID       `bun:"automation_id"`
	OrgID         uuid.UUID       `bun:"org_id"`
	Status        RunStatus       `bun:"status"`
	TriggerSource *TriggerSource  `bun:"trigger_source"`
	ScheduledFor  *time.Time      `bun:"scheduled_for"` // the cron instant; unique with automation_id
	EventPayload  json.RawMessage `bun:"event_payload,nullzero"`
	Observability json.RawMessage `bun:"observability_associations,nullzero"`

	ErrorDetail    *string         `bun:"error_detail"`
	StatusDetail   json.RawMessage `bun:"status_detail,nullzero"`
	CurrentPhase   *string         `bun:"current_phase"`
	ConversationID *string         `bun:"conversation_id"`
	Cost           *float64        `bun:"cost"`
	RunMetadata    json.RawMessage `bun:"run_metadata,nullzero"`
	Runtime        json.RawMessage `bun:"resolved_runtime,nullzero"`

	BoxID         *uuid.UUID `bun:"box_id"`          // newest box row; NULL in local mode and before dispatch
	Attempt       int        `bun:"attempt"`         // provisioning attempts so far
	BashCommandID *string    `bun:"bash_command_id"` // id the box gave to the entrypoint
	StartingAt    *time.Time `bun:"starting_at"`     // written just before the start call; from here nothing is repeated
	CheckAt       *time.Time `bun:"check_at"`        // when the stale duty looks at the command next
	ExitSeenAt    *time.Time `bun:"exit_seen_at"`    // when the command's exit was first seen while RUNNING
	TimeoutAt     *time.Time `bun:"timeout_at"`

	ExitCode    *int       `bun:"exit_code"`
	OutputKey   *string    `bun:"output_key"` // blob key of the stored output (NDJSON); NULL: none stored
	OutputBytes *int64     `bun:"output_bytes"`
	OutputAt    *time.Time `bun:"output_at"` // when output and exit code were stored

	CreatedAt   time.Time  `bun:"created_at"`
	StartedAt   *time.Time `bun:"started_at"`
	CompletedAt *time.Time `bun:"completed_at"`

	// CleanupDueAt is sandbox_cleanup_due_at: when the janitor deletes the run's box. NULL: never stamped, or cleared (S1-006).
	CleanupDueAt *time.Time `bun:"sandbox_cleanup_due_at"`

	// ProviderID is the first provider id of the newest box (the contract's sandbox_id); filled by the readers below.
	ProviderID *string `bun:"provider_id,scanonly"`
	// OwnerID is the creator of the run's automation, deleted or not (S1-019); filled by Run and ListRuns.
	OwnerID uuid.UUID `bun:"owner_id,scanonly"`
	// Box is the newest box; filled by Run and ListRuns.
	Box *Sandbox `bun:"-"`
}

// RunFilter selects runs of one organization, newest first (created_at, id).
type RunFilter struct {
	OrgID        uuid.UUID
	AutomationID *uuid.UUID
	Statuses     []RunStatus
	Limit        int
	Offset       int
}

// CreateRun inserts a PENDING run; ID and CreatedAt are set here when zero. A manual run does not move next_run_at, so it
// never swallows a scheduled one; it sets the automation's last_triggered_at.
func (s *Store) CreateRun(ctx context.Context, r *Run) error { panic("unwritten") }

// Run returns a run with its newest box. orgID uuid.Nil means any organization (callers then check the owner themselves,
// as the contract's own 403 demands). ErrNotFound when there is none.
func (s *Store) Run(ctx context.Context, orgID, id uuid.UUID) (*Run, error) { panic("unwritten") }

// ListRuns returns a page with the newest boxes, and the total number of matches.
func (s *Store) ListRuns(ctx context.Context, f RunFilter) ([]*Run, int, error) { panic("unwritten") }

// RunStatusCounts counts all runs of an automation by status; statuses that do not occur are left out.
func (s *Store) RunStatusCounts(ctx context.Context, automationID uuid.UUID) (map[RunStatus]int, error) {
	panic("unwritten")
}

// SetPhase sets current_phase of a PENDING or RUNNING run; ErrConflict when it is neither, ErrNotFound when there is none.
func (s *Store) SetPhase(ctx context.Context, id uuid.UUID, phase string) error { panic("unwritten") }

// DispatchClaim says which runs a process may claim and what a claimed run's new box row looks like.
type DispatchClaim struct {
	Limit       int
	Backend     string // "" in local mode: no box row
	Location    string
	MaxAttempts int
	Budget      time.Duration // provisioning deadline of one attempt: timeout_at = now + Budget + run timeout
	Lease       time.Duration
	DefaultRun  time.Duration // run timeout where the automation has none
}

// Dispatched is a run that this process now executes, with its automation and (but in local mode) its new, leased box row.
type Dispatched struct {
	Run        *Run
	Automation *Automation
	Box        *Sandbox // nil in local mode
}

// ClaimDispatch claims, oldest first and in one transaction: PENDING runs of live automations that are manual or enabled
// (→ RUNNING, started_at, timeout_at, phase "Preparing environment", status_detail NULL), and RUNNING runs with starting_at
// NULL whose newest box has no live lease (local mode: whose timeout_at of provisioning passed): the box of the lost
// attempt is ordered deleted and a new row inserted, or, after MaxAttempts, the run is left out and returned in exhausted:
// the caller finishes it FAILED. A claimed box row is desired running, observed provisioning, next_step_at NULL, leased.
func (s *Store) ClaimDispatch(ctx context.Context, c DispatchClaim) (claimed []Dispatched, exhausted []*Run, err error) {
	panic("unwritten")
}

// NextDispatchAt returns when ClaimDispatch has work at the earliest (a PENDING run: now; a lost attempt: the end of its
// lease), or nil.
func (s *Store) NextDispatchAt(ctx context.Context) (*time.Time, error) { panic("unwritten") }

// NextAttempt orders the box of a failed provisioning attempt deleted (why) and inserts the next leased row of the same run,
// moving timeout_at to timeoutAt, only where the run is RUNNING, starting_at is NULL and d.Box is its newest row under the
// same lease; else ErrConflict (the run was cancelled or taken over).
func (s *Store) NextAttempt(ctx context.Context, d Dispatched, c DispatchClaim, why string, timeoutAt time.Time) (*Sandbox, error) {
	panic("unwritten")
}

// MarkStarting writes starting_at, the phase "Starting automation", timeout_at and check_at, and sets the box's next_step_at
// to check_at, WHERE the run is RUNNING, starting_at NULL and the box's lease is token's. ErrConflict otherwise: do not start.
// In local mode box and token are zero.
func (s *Store) MarkStarting(ctx context.Context, runID, boxID, token uuid.UUID, timeoutAt, checkAt time.Time) error {
	panic("unwritten")
}

// RecordCommand stores the id the box gave to the entrypoint, unconditionally: it is a fact, also on a finished run.
func (s *Store) RecordCommand(ctx context.Context, runID uuid.UUID, commandID string) error {
	panic("unwritten")
}

// ClaimStale claims up to limit RUNNING runs whose check_at or timeout_at is <= now, earliest first, by moving check_at to
// now + hold (the row count names the winner), and returns them with their newest boxes.
func (s *Store) ClaimStale(ctx context.Context, limit int, hold time.Duration) ([]*Run, error) {
	panic("unwritten")
}

// NextStaleAt returns the earliest check_at or timeout_at of a RUNNING run, or nil.
func (s *Store) NextStaleAt(ctx context.Context) (*time.Time, error) { panic("unwritten") }

// RecordCheck stores what a look at the command showed, WHERE the run is RUNNING: exit_seen_at (kept when set already), the
// next check_at and, when not nil, timeout_at (only where timeout_at still equals was) and status_detail.
func (s *Store) RecordCheck(ctx context.Context, runID uuid.UUID, c Check) error { panic("unwritten") }

// Check is the record of one look at a RUNNING run.
type Check struct {
	ExitSeenAt   *time.Time
	ExitCode     *int
	NextAt       time.Time
	WasTimeoutAt *time.Time
	TimeoutAt    *time.Time
	StatusDetail json.RawMessage
}

// Output is what the settler took from a box before it was suspended or deleted.
type Output struct {
	ExitCode       *int
	Key            *string // blob key
	Bytes          int64
	FinishResponse json.RawMessage // merged into run_metadata.finish_tool_response
}

// RecordOutput stores output facts of a run, unconditionally; output once stored is never replaced by less (NULL).
func (s *Store) RecordOutput(ctx context.Context, runID uuid.UUID, o Output) error {
	panic("unwritten")
}

// RecordLateCallback stores what a callback that lost still told: conversation_id and cost where they are NULL, and its
// error text appended on a FAILED run's status_detail (design section 5).
func (s *Store) RecordLateCallback(ctx context.Context, runID uuid.UUID, conversationID *string, cost *float64, errText *string) error {
	panic("unwritten")
}

// ExpiredOutputs returns up to limit blob keys of stored outputs whose box has been gone (or, without a box, whose run has
// been terminal) since before t; ForgetOutput clears the columns after the blob was removed (blob first, then its row).
func (s *Store) ExpiredOutputs(ctx context.Context, t time.Time, limit int) (map[uuid.UUID]string, error) {
	panic("unwritten")
}

// ForgetOutput clears output_key of a run.
func (s *Store) ForgetOutput(ctx context.Context, runID uuid.UUID) error { panic("unwritten") }
