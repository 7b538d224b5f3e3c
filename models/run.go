package models

import (
	"context"
	"encoding/json"
	"fmt"
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
	// AftercareAt is when an ended run without a box is looked after next; NULL: nothing is left to do.
	AftercareAt *time.Time `bun:"aftercare_at"`

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
// never swallows a scheduled one; it sets the automation's last_triggered_at. ErrNotFound when the automation is deleted.
func (s *Store) CreateRun(ctx context.Context, r *Run) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		n, err := affected(tx.NewUpdate().Model((*Automation)(nil)).
			Set("last_triggered_at = ?", now).
			Where("id = ?", r.AutomationID).
			Where("deleted_at IS NULL").
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("trigger automation %s: %w", r.AutomationID, err)
		}
		if n == 0 {
			return fmt.Errorf("trigger automation %s: %w", r.AutomationID, ErrNotFound)
		}
		if r.ID == uuid.Nil {
			r.ID = newID()
		}
		if r.CreatedAt.IsZero() {
			r.CreatedAt = now
		}
		if r.Status == "" {
			r.Status = RunPending
		}
		if _, err := tx.NewInsert().Model(r).Exec(ctx); err != nil {
			return fmt.Errorf("create run %s: %w", r.ID, err)
		}
		return nil
	})
}

// selectRuns selects runs with the owners of their automations.
func selectRuns(db bun.IDB, model any) *bun.SelectQuery {
	return db.NewSelect().Model(model).
		ColumnExpr("?TableColumns").
		ColumnExpr("a.user_id AS owner_id").
		Join("JOIN automations AS a ON a.id = r.automation_id")
}

// Run returns a run with its newest box. orgID uuid.Nil means any organization (callers then check the owner themselves,
// as the contract's own 403 demands). ErrNotFound when there is none.
func (s *Store) Run(ctx context.Context, orgID, id uuid.UUID) (*Run, error) {
	r := new(Run)
	q := selectRuns(s.db, r).Where("r.id = ?", id)
	if orgID != uuid.Nil {
		q = q.Where("r.org_id = ?", orgID)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, notFound(err, "read run %s", id)
	}
	return r, s.addBoxes(ctx, s.db, []*Run{r})
}

// RunOwner returns what a callback is checked with: a run's id, organization, owner, status and status detail, nothing else.
// ErrNotFound when there is none.
func (s *Store) RunOwner(ctx context.Context, id uuid.UUID) (*Run, error) {
	r := new(Run)
	err := s.db.NewSelect().Model(r).
		Column("r.id", "r.org_id", "r.status", "r.status_detail").
		ColumnExpr("a.user_id AS owner_id").
		Join("JOIN automations AS a ON a.id = r.automation_id").
		Where("r.id = ?", id).
		Scan(ctx)
	if err != nil {
		return nil, notFound(err, "read the owner of run %s", id)
	}
	return r, nil
}

// ListRuns returns a page with the newest boxes, and the total number of matches.
func (s *Store) ListRuns(ctx context.Context, f RunFilter) ([]*Run, int, error) {
	var runs []*Run
	q := selectRuns(s.db, &runs).Where("r.org_id = ?", f.OrgID)
	if f.AutomationID != nil {
		q = q.Where("r.automation_id = ?", *f.AutomationID)
	}
	if len(f.Statuses) > 0 {
		q = q.Where("r.status IN (?)", bun.List(f.Statuses))
	}
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count runs: %w", err)
	}
	err = q.OrderExpr("r.created_at DESC, r.id DESC").Limit(int64(f.Limit)).Offset(int64(f.Offset)).Scan(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	return runs, int(total), s.addBoxes(ctx, s.db, runs)
}

// addBoxes fills in the newest boxes of runs and what their providers called them first, with two statements for all.
func (s *Store) addBoxes(ctx context.Context, db bun.IDB, runs []*Run) error {
	of := map[uuid.UUID]*Run{}
	var ids []uuid.UUID
	for _, r := range runs {
		if r.BoxID != nil {
			of[*r.BoxID] = r
			ids = append(ids, *r.BoxID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var boxes []*Sandbox
	if err := selectBoxes(db, &boxes, s.Now()).Where("s.id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return fmt.Errorf("read the boxes of runs: %w", err)
	}
	if err := s.completeBoxes(ctx, db, boxes); err != nil {
		return err
	}
	for _, b := range boxes {
		of[b.ID].setBox(b)
	}
	return nil
}

func (r *Run) setBox(b *Sandbox) {
	r.Box = b
	for _, i := range b.Identities {
		if i.Kind == IdentityBox {
			r.ProviderID = &i.ProviderID
			return
		}
	}
}

// RunStatusCounts counts all runs of an automation by status; statuses that do not occur are left out.
func (s *Store) RunStatusCounts(ctx context.Context, automationID uuid.UUID) (map[RunStatus]int, error) {
	var rows []struct {
		Status RunStatus
		N      int
	}
	err := s.db.NewSelect().Model((*Run)(nil)).
		Column("status").
		ColumnExpr("count(*) AS n").
		Where("r.automation_id = ?", automationID).
		Group("status").
		Scan(ctx, &rows)
	if err != nil {
		return nil, fmt.Errorf("count the runs of automation %s: %w", automationID, err)
	}
	counts := make(map[RunStatus]int, len(rows))
	for _, row := range rows {
		counts[row.Status] = row.N
	}
	return counts, nil
}

// SetPhase sets current_phase of a PENDING or RUNNING run; ErrConflict when it is neither, ErrNotFound when there is none.
func (s *Store) SetPhase(ctx context.Context, id uuid.UUID, phase string) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		return oneRun(ctx, tx, id, tx.NewUpdate().Model((*Run)(nil)).
			Set("current_phase = ?", phase).
			Where("id = ?", id).
			Where("status IN (?, ?)", RunPending, RunRunning))
	})
}

// oneRun runs a conditional update of one run: ErrConflict when the run is not as the condition says, ErrNotFound when there
// is no such run.
func oneRun(ctx context.Context, tx bun.IDB, id uuid.UUID, q *bun.UpdateQuery) error {
	n, err := affected(q.Exec(ctx))
	if err != nil {
		return fmt.Errorf("write run %s: %w", id, err)
	}
	if n > 0 {
		return nil
	}
	known, err := tx.NewSelect().Model((*Run)(nil)).Where("r.id = ?", id).Exists(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("look for run %s: %w", id, err)
	case known:
		return fmt.Errorf("run %s: %w", id, ErrConflict)
	default:
		return fmt.Errorf("run %s: %w", id, ErrNotFound)
	}
}

// lockRun reads a run and keeps others from changing it until the transaction ends.
func (s *Store) lockRun(ctx context.Context, tx bun.IDB, id uuid.UUID) (*Run, error) {
	r := new(Run)
	err := s.lock(tx.NewSelect().Model(r).Where("r.id = ?", id), "NO KEY UPDATE").Scan(ctx)
	if err != nil {
		return nil, notFound(err, "lock run %s", id)
	}
	return r, nil
}

// lockBox reads a box with its identities and keeps others from changing it until the transaction ends.
func (s *Store) lockBox(ctx context.Context, tx bun.IDB, id uuid.UUID) (*Sandbox, error) {
	b := new(Sandbox)
	err := s.lock(tx.NewSelect().Model(b).Where("s.id = ?", id), "NO KEY UPDATE").Scan(ctx)
	if err != nil {
		return nil, notFound(err, "lock box %s", id)
	}
	return b, s.completeBoxes(ctx, tx, []*Sandbox{b})
}
