package models

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// The phases that the service itself reports (contract section 3.2).
const (
	phasePreparing = "Preparing environment"
	phaseStarting  = "Starting automation"
)

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

// runTimeout is how long the command of a may run.
func (c DispatchClaim) runTimeout(a *Automation) time.Duration {
	if a.TimeoutSeconds == nil {
		return c.DefaultRun
	}
	return time.Duration(*a.TimeoutSeconds) * time.Second
}

// Dispatched is a run that this process now executes, with its automation and (but in local mode) its new, leased box row.
type Dispatched struct {
	Run        *Run
	Automation *Automation
	Box        *Sandbox // nil in local mode
}

// ClaimDispatch claims, oldest first and in one transaction: PENDING runs of live automations that are manual or enabled
// (→ RUNNING, started_at, timeout_at, phase "Preparing environment", status_detail NULL), and RUNNING runs with starting_at
// NULL whose newest box has no live lease (local mode: whose provisioning deadline, kept in check_at, passed): the box of the
// lost attempt is ordered deleted and a new row inserted, or, after MaxAttempts, the run is left out and returned in
// exhausted: the caller finishes it FAILED. A claimed box row is desired running, observed provisioning, next_step_at NULL,
// leased.
func (s *Store) ClaimDispatch(ctx context.Context, c DispatchClaim) (claimed []Dispatched, exhausted []*Run, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		claimed, exhausted = nil, nil
		lost, err := s.lostRuns(ctx, tx, c.Limit, now)
		if err != nil {
			return err
		}
		var runs []*Run
		for _, r := range lost {
			switch still, err := s.stillLost(ctx, tx, r, now); {
			case err != nil:
				return err
			case !still:
			case r.Attempt >= c.MaxAttempts:
				exhausted = append(exhausted, r)
			default:
				runs = append(runs, r)
			}
		}
		pending, err := s.pendingRuns(ctx, tx, c.Limit-len(runs))
		if err != nil {
			return err
		}
		claimed, err = s.beginAttempts(ctx, tx, c, append(runs, pending...), now)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return claimed, exhausted, nil
}

// pendingRuns locks the oldest PENDING runs that may be dispatched, passing over those that another process is claiming.
func (s *Store) pendingRuns(ctx context.Context, tx bun.IDB, limit int) ([]*Run, error) {
	if limit <= 0 {
		return nil, nil
	}
	var runs []*Run
	q := dispatchable(tx, &runs).ColumnExpr("?TableColumns").Limit(int64(limit))
	if err := s.lock(q, "NO KEY UPDATE OF r SKIP LOCKED").Scan(ctx); err != nil {
		return nil, fmt.Errorf("claim pending runs: %w", err)
	}
	return runs, nil
}

// dispatchable selects PENDING runs of live automations that are manual or enabled, oldest first.
func dispatchable(db bun.IDB, model any) *bun.SelectQuery {
	return db.NewSelect().Model(model).
		Join("JOIN automations AS a ON a.id = r.automation_id").
		Where("r.status = 'PENDING'"). // as in the index
		Where("a.deleted_at IS NULL").
		Where("r.trigger_source = ? OR a.state = ?", TriggerManual, AutomationActive).
		OrderExpr("r.created_at, r.id")
}

// provisioning selects RUNNING runs whose command was not started yet, with the lease of their newest box.
func provisioning(db bun.IDB, model any) *bun.SelectQuery {
	return db.NewSelect().Model(model).
		Join("LEFT JOIN sandboxes AS s ON s.id = r.box_id").
		Where("r.status = 'RUNNING' AND r.starting_at IS NULL"). // as in the index
		OrderExpr("r.started_at, r.id")
}

// lostRuns locks RUNNING runs whose dispatch seems to have died.
func (s *Store) lostRuns(ctx context.Context, tx bun.IDB, limit int, now time.Time) ([]*Run, error) {
	var runs []*Run
	q := provisioning(tx, &runs).
		ColumnExpr("?TableColumns").
		WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
			return q.Where("s.id IS NOT NULL AND (s.lease_until IS NULL OR s.lease_until <= ?)", now).
				WhereOr("s.id IS NULL AND (r.check_at IS NULL OR r.check_at <= ?)", now)
		}).
		Limit(int64(limit))
	if err := s.lock(q, "NO KEY UPDATE OF r SKIP LOCKED").Scan(ctx); err != nil {
		return nil, fmt.Errorf("look for lost runs: %w", err)
	}
	return runs, nil
}

// stillLost orders the box of a lost attempt deleted. The lease is read again under the row's lock: it may have been renewed
// after the run was selected, and then the attempt lives.
func (s *Store) stillLost(ctx context.Context, tx bun.IDB, r *Run, now time.Time) (bool, error) {
	if r.BoxID == nil {
		return true, nil
	}
	box, err := s.lockBox(ctx, tx, *r.BoxID)
	if err != nil || box.Leased(now) {
		return false, err
	}
	err = orderTx(ctx, tx, box.ID, order{to: WantDeleted, who: "dispatch", why: "dispatch was lost", now: now})
	if err != nil && !errors.Is(err, ErrDeletionOrdered) {
		return false, err
	}
	return true, nil
}

// beginAttempts starts the next attempt of locked runs.
func (s *Store) beginAttempts(ctx context.Context, tx bun.IDB, c DispatchClaim, runs []*Run, now time.Time) ([]Dispatched, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	ids := make([]uuid.UUID, len(runs))
	for n, r := range runs {
		ids[n] = r.AutomationID
	}
	var list []*Automation
	if err := tx.NewSelect().Model(&list).Where("a.id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return nil, fmt.Errorf("read the automations of runs: %w", err)
	}
	byID := make(map[uuid.UUID]*Automation, len(list))
	for _, a := range list {
		byID[a.ID] = a
	}
	claimed := make([]Dispatched, len(runs))
	for n, r := range runs {
		d := Dispatched{Run: r, Automation: byID[r.AutomationID]}
		if err := s.beginAttempt(ctx, tx, c, &d, now.Add(c.Budget+c.runTimeout(d.Automation)), now); err != nil {
			return nil, err
		}
		claimed[n] = d
	}
	return claimed, nil
}

// beginAttempt inserts the box row of the next attempt (but in local mode) and points the run to it.
func (s *Store) beginAttempt(ctx context.Context, tx bun.IDB, c DispatchClaim, d *Dispatched, timeoutAt, now time.Time) error {
	r, phase := d.Run, phasePreparing
	r.Status, r.Attempt, r.CurrentPhase, r.StatusDetail = RunRunning, r.Attempt+1, &phase, nil
	r.TimeoutAt, r.CheckAt = &timeoutAt, nil
	if r.StartedAt == nil {
		r.StartedAt = &now
	}
	if c.Backend == "" {
		deadline := now.Add(c.Budget)
		r.CheckAt = &deadline // nobody looks at a command before starting_at: dispatch again then
	} else {
		d.Box = c.newBox(r, d.Automation, now)
		if _, err := tx.NewInsert().Model(d.Box).Exec(ctx); err != nil {
			return fmt.Errorf("insert the box of run %s: %w", r.ID, err)
		}
		r.BoxID, r.Box = &d.Box.ID, d.Box
	}
	_, err := tx.NewUpdate().Model(r).
		Column("status", "attempt", "current_phase", "status_detail", "timeout_at", "check_at", "started_at", "box_id").
		WherePK().
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("begin attempt %d of run %s: %w", r.Attempt, r.ID, err)
	}
	return nil
}

// newBox is the row of a box that dispatch is about to create: at rest for the settler, leased by us.
func (c DispatchClaim) newBox(r *Run, a *Automation, now time.Time) *Sandbox {
	token, until := newID(), now.Add(c.Lease)
	return &Sandbox{
		ID: newID(), OrgID: r.OrgID, UserID: a.UserID, AutomationID: &r.AutomationID, RunID: &r.ID,
		Backend: c.Backend, Location: c.Location, CreatedBy: CreatedByDispatch,
		Desired: WantRunning, Observed: SeenProvisioning, Generation: 1,
		OrderedAt: now, OrderedBy: "dispatch", OrderReason: "dispatched",
		LeaseToken: &token, LeaseUntil: &until,
		AwakeEpoch: 1, Tried: []string{}, CreatedAt: now,
	}
}

// NextDispatchAt returns when ClaimDispatch has work at the earliest (a PENDING run: now; a lost attempt: the end of its
// lease), or nil.
func (s *Store) NextDispatchAt(ctx context.Context) (*time.Time, error) {
	now := s.Now()
	pending, err := dispatchable(s.db, (*Run)(nil)).Exists(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for pending runs: %w", err)
	}
	if pending {
		return &now, nil
	}
	var rows []struct {
		BoxID      *uuid.UUID
		CheckAt    *time.Time
		LeaseUntil *time.Time
	}
	err = provisioning(s.db, (*Run)(nil)).Column("r.box_id", "r.check_at", "s.lease_until").Scan(ctx, &rows)
	if err != nil {
		return nil, fmt.Errorf("look for lost runs: %w", err)
	}
	var next *time.Time
	for _, row := range rows { // the runs being provisioned: as many as dispatch has in flight
		at := row.LeaseUntil
		if row.BoxID == nil {
			at = row.CheckAt
		}
		if at == nil {
			at = &now
		}
		if next == nil || at.Before(*next) {
			next = at
		}
	}
	return next, nil
}

// NextAttempt orders the box of a failed provisioning attempt deleted (why) and inserts the next leased row of the same run,
// moving timeout_at to timeoutAt, only where the run is RUNNING, starting_at is NULL and d.Box is its newest row under the
// same lease; else ErrConflict (the run was cancelled or taken over).
func (s *Store) NextAttempt(ctx context.Context, d Dispatched, c DispatchClaim, why string, timeoutAt time.Time) (*Sandbox, error) {
	var box *Sandbox
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		r, old, err := s.lockProvisioning(ctx, tx, d.Run.ID, d.Box.ID, *d.Box.LeaseToken)
		if err != nil {
			return err
		}
		now := s.Now()
		err = orderTx(ctx, tx, old.ID, order{to: WantDeleted, who: "dispatch", why: why, now: now})
		if err != nil && !errors.Is(err, ErrDeletionOrdered) {
			return err
		}
		next := Dispatched{Run: r, Automation: d.Automation}
		if err := s.beginAttempt(ctx, tx, c, &next, timeoutAt, now); err != nil {
			return err
		}
		box = next.Box
		return nil
	})
	return box, err
}

// lockProvisioning locks a run and its newest box for dispatch, which still owns them: the run RUNNING, its command not
// started, the box its newest and under dispatch's lease. ErrConflict otherwise.
func (s *Store) lockProvisioning(ctx context.Context, tx bun.IDB, runID, boxID, token uuid.UUID) (*Run, *Sandbox, error) {
	r, err := s.lockRun(ctx, tx, runID)
	if err != nil {
		return nil, nil, err
	}
	if r.Status != RunRunning || r.StartingAt != nil || r.BoxID == nil || *r.BoxID != boxID {
		return nil, nil, fmt.Errorf("run %s is no longer provisioned in box %s: %w", runID, boxID, ErrConflict)
	}
	box, err := s.lockBox(ctx, tx, boxID)
	if err != nil {
		return nil, nil, err
	}
	if box.LeaseToken == nil || *box.LeaseToken != token {
		return nil, nil, fmt.Errorf("the lease of box %s is another's: %w", boxID, ErrConflict)
	}
	return r, box, nil
}

// MarkStarting writes starting_at, the phase "Starting automation", timeout_at and check_at, and sets the box's next_step_at
// to check_at (an order has set an earlier one, which stays), WHERE the run is RUNNING, starting_at NULL and the box's lease
// is token's. ErrConflict otherwise, also when deletion of the box is ordered: do not start. In local mode box and token are
// zero.
func (s *Store) MarkStarting(ctx context.Context, runID, boxID, token uuid.UUID, timeoutAt, checkAt time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if boxID != uuid.Nil {
			if err := s.handOver(ctx, tx, runID, boxID, token, checkAt); err != nil {
				return err
			}
		}
		now := s.Now()
		return oneRun(ctx, tx, runID, tx.NewUpdate().Model((*Run)(nil)).
			Set("starting_at = ?", now).
			Set("current_phase = ?", phaseStarting).
			Set("timeout_at = ?", timeoutAt).
			Set("check_at = ?", checkTime(checkAt, timeoutAt, now)).
			Where("id = ?", runID).
			Where("status = ?", RunRunning).
			Where("starting_at IS NULL"))
	})
}

// handOver locks run and box and gives the settler its first look at the box.
func (s *Store) handOver(ctx context.Context, tx bun.IDB, runID, boxID, token uuid.UUID, checkAt time.Time) error {
	_, box, err := s.lockProvisioning(ctx, tx, runID, boxID, token)
	if err != nil {
		return err
	}
	if box.Desired == WantDeleted {
		return fmt.Errorf("deletion of box %s is ordered: %w", boxID, ErrConflict)
	}
	_, err = tx.NewUpdate().Model((*Sandbox)(nil)).
		Set("next_step_at = ?", sooner(box.NextStepAt, &checkAt)).
		Where("id = ?", boxID).
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("hand box %s to the settler: %w", boxID, err)
	}
	return nil
}
