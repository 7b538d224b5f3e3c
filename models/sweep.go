package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// ErrPlanExpired means that a plan is too old to be applied: make a new one.
var ErrPlanExpired = errors.New("the plan has expired")

// SweepKind says what made a sweep.
type SweepKind string

// The kinds of sweeps.
const (
	SweepPlan    SweepKind = "plan"    // shown to a person first, then applied or not
	SweepJanitor SweepKind = "janitor" // a pass of the janitor that ordered something
)

// SweepOutcome says what became of one box of a sweep.
type SweepOutcome string

// The outcomes.
const (
	SweepPlanned  SweepOutcome = "planned"          // not applied
	SweepOrdered  SweepOutcome = "ordered"          // ordered deleted
	SweepKept     SweepOutcome = "skipped_kept"     // a person keeps it
	SweepAttached SweepOutcome = "skipped_attached" // somebody is in it
	SweepChanged  SweepOutcome = "skipped_changed"  // its due date moved, or its run has another box
	SweepGone     SweepOutcome = "gone"             // deletion was ordered by something else, or it is gone
)

// Bounds of a plan.
const (
	// SweepLimit is how many boxes one plan lists at most; LeftOut tells how many more there were.
	SweepLimit = 1000
	// planLife is how long a plan can be applied.
	planLife = time.Hour
	// unusedLife is how long a plan that was never applied is shown after it has expired.
	unusedLife = 24 * time.Hour
)

// Sweep is a row of sweeps: boxes that were, or are to be, ordered deleted together.
type Sweep struct {
	bun.BaseModel `bun:"table:sweeps,alias:w"`

	ID               uuid.UUID  `bun:"id,pk"`
	OrgID            uuid.UUID  `bun:"org_id"`
	Kind             SweepKind  `bun:"kind"`
	DueWithinSeconds int64      `bun:"due_within_seconds"` // the plan's horizon; 0: due when it was made
	Backend          string     `bun:"backend"`            // only of this one; "": of all
	LeftOut          int        `bun:"left_out"`           // boxes beyond SweepLimit
	CreatedAt        time.Time  `bun:"created_at"`
	CreatedBy        string     `bun:"created_by"`
	ExpiresAt        *time.Time `bun:"expires_at"` // of a plan
	AppliedAt        *time.Time `bun:"applied_at"`
	AppliedBy        string     `bun:"applied_by"`

	Items  []*SweepItem         `bun:"-"` // earliest due date first; filled by PlanSweep, ApplySweep and Sweep
	Counts map[SweepOutcome]int `bun:"-"` // of its items by outcome; filled by every reader
}

// SweepItem is a row of sweep_items: one box of a sweep, with what was known of it when the sweep was made.
type SweepItem struct {
	bun.BaseModel `bun:"table:sweep_items,alias:i"`

	SweepID      uuid.UUID    `bun:"sweep_id,pk"`
	SandboxID    uuid.UUID    `bun:"sandbox_id,pk"`
	RunID        uuid.UUID    `bun:"run_id"`
	AutomationID *uuid.UUID   `bun:"automation_id"`
	Backend      string       `bun:"backend"`
	DueAt        time.Time    `bun:"due_at"`
	SizeBytes    *int64       `bun:"size_bytes"` // what the box last said it holds; nil: not known
	Outcome      SweepOutcome `bun:"outcome"`

	AutomationName *string `bun:"automation_name,scanonly"`
}

// SweepFilter selects what a plan lists.
type SweepFilter struct {
	OrgID     uuid.UUID
	DueWithin time.Duration // 0: what is due now
	Backend   string        // "": every one
}

// PlanSweep stores and returns the boxes that are due, or will be within the filter's horizon, earliest first: what ApplySweep
// then orders deleted and nothing else.
func (s *Store) PlanSweep(ctx context.Context, f SweepFilter, who string) (*Sweep, error) {
	var id uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		expires := now.Add(planLife)
		w := &Sweep{
			ID: newID(), OrgID: f.OrgID, Kind: SweepPlan, DueWithinSeconds: int64(f.DueWithin / time.Second), Backend: f.Backend,
			CreatedAt: now, CreatedBy: who, ExpiresAt: &expires,
		}
		id = w.ID
		q := sweepable(tx).
			Where("s.org_id = ?", f.OrgID).
			Where("r.sandbox_cleanup_due_at <= ?", now.Add(f.DueWithin))
		if f.Backend != "" {
			q = q.Where("s.backend = ?", f.Backend)
		}
		total, err := q.Count(ctx)
		if err != nil {
			return fmt.Errorf("count due boxes: %w", err)
		}
		var boxes []*Sandbox
		err = q.Column("s.id", "s.automation_id", "s.backend", "s.storage").
			ColumnExpr("r.id AS run_id").
			ColumnExpr("r.sandbox_cleanup_due_at AS due_at").
			OrderExpr("r.sandbox_cleanup_due_at, s.id").
			Limit(SweepLimit).
			Scan(ctx, &boxes)
		if err != nil {
			return fmt.Errorf("look for due boxes: %w", err)
		}
		for _, b := range boxes {
			w.Items = append(w.Items, b.sweepItem(w.ID, *b.RunID, *b.DueAt, SweepPlanned))
		}
		w.LeftOut = int(total) - len(boxes)
		return insertSweepTx(ctx, tx, w)
	})
	if err != nil {
		return nil, err
	}
	return s.Sweep(ctx, f.OrgID, id)
}

func insertSweepTx(ctx context.Context, tx bun.IDB, w *Sweep) error {
	if _, err := tx.NewInsert().Model(w).Exec(ctx); err != nil {
		return fmt.Errorf("store sweep: %w", err)
	}
	if len(w.Items) == 0 {
		return nil
	}
	if _, err := tx.NewInsert().Model(&w.Items).Exec(ctx); err != nil {
		return fmt.Errorf("store the boxes of a sweep: %w", err)
	}
	return nil
}

func (b *Sandbox) sweepItem(sweep, run uuid.UUID, due time.Time, outcome SweepOutcome) *SweepItem {
	return &SweepItem{
		SweepID: sweep, SandboxID: b.ID, RunID: run, AutomationID: b.AutomationID, Backend: b.Backend, DueAt: due,
		SizeBytes: storageBytes(b.Storage), Outcome: outcome,
	}
}

// storageBytes is what a box's own storage status says that it holds: its conversations (or the one named "box", which stands
// for all of it) and its trash. nil: it says nothing.
func storageBytes(status json.RawMessage) *int64 {
	var s struct {
		TrashBytes    *int64 `json:"trash_bytes"`
		Conversations []struct {
			ID        string `json:"id"`
			SizeBytes int64  `json:"size_bytes"`
		} `json:"conversations"`
	}
	if json.Unmarshal(status, &s) != nil || s.TrashBytes == nil {
		return nil
	}
	sum := *s.TrashBytes
	for _, c := range s.Conversations {
		if c.ID == "box" {
			whole := *s.TrashBytes + c.SizeBytes
			return &whole
		}
		sum += c.SizeBytes
	}
	return &sum
}

// recordPassTx records what a pass of the janitor has ordered: one sweep an organization.
func recordPassTx(ctx context.Context, tx bun.IDB, boxes []*Sandbox, due []dueBox, now time.Time) error {
	found := make(map[uuid.UUID]dueBox, len(due))
	for _, d := range due {
		found[d.ID] = d
	}
	passes := map[uuid.UUID]*Sweep{}
	for _, b := range boxes {
		w := passes[b.OrgID]
		if w == nil {
			w = &Sweep{
				ID: newID(), OrgID: b.OrgID, Kind: SweepJanitor, CreatedAt: now, CreatedBy: "janitor", AppliedAt: &now, AppliedBy: "janitor",
			}
			passes[b.OrgID] = w
		}
		w.Items = append(w.Items, b.sweepItem(w.ID, found[b.ID].RunID, found[b.ID].DueAt, SweepOrdered))
	}
	for _, w := range passes {
		if err := insertSweepTx(ctx, tx, w); err != nil {
			return err
		}
	}
	return nil
}

// sweepReason begins the reason of an order by a plan.
const sweepReason = "sweep "

// ApplySweep orders deleted what a plan lists and is still as it was shown: the same due date, not kept, not attached (an
// attachment holds for at most hold past the stamp). It locks plan, runs, boxes. Applied again it changes nothing and returns
// the first result. ErrNotFound for what is no plan of the organization, ErrPlanExpired.
func (s *Store) ApplySweep(ctx context.Context, orgID, id uuid.UUID, who string, hold time.Duration) (*Sweep, error) {
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now, w := s.Now(), new(Sweep)
		q := tx.NewSelect().Model(w).Where("w.id = ? AND w.org_id = ? AND w.kind = ?", id, orgID, SweepPlan)
		if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
			return notFound(err, "lock plan %s", id)
		}
		switch {
		case w.AppliedAt != nil:
			return nil
		case !w.ExpiresAt.After(now):
			return ErrPlanExpired
		}
		var items []*SweepItem
		if err := tx.NewSelect().Model(&items).Where("i.sweep_id = ?", id).Scan(ctx); err != nil {
			return fmt.Errorf("read the boxes of plan %s: %w", id, err)
		}
		outcomes, err := s.outcomesTx(ctx, tx, items, now, hold)
		if err != nil {
			return err
		}
		now = s.Now() // of the orders: what was committed while we waited for the locks came before them
		why := sweepReason + id.String()
		if _, err := orderBoxesTx(ctx, tx, outcomes[SweepOrdered], order{to: WantDeleted, who: who, why: why, now: now}); err != nil {
			return err
		}
		for outcome, boxes := range outcomes {
			_, err := tx.NewUpdate().Model((*SweepItem)(nil)).Set("outcome = ?", outcome).
				Where("sweep_id = ?", id).Where("sandbox_id IN (?)", bun.List(boxes)).Exec(ctx)
			if err != nil {
				return fmt.Errorf("record the outcome of plan %s: %w", id, err)
			}
		}
		_, err = tx.NewUpdate().Model((*Sweep)(nil)).Set("applied_at = ?, applied_by = ?", now, who).Where("id = ?", id).Exec(ctx)
		if err != nil {
			return fmt.Errorf("record the end of plan %s: %w", id, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.Sweep(ctx, orgID, id)
}

// outcomesTx locks the runs and the boxes of a plan and tells what is to become of each.
func (s *Store) outcomesTx(ctx context.Context, tx bun.IDB, items []*SweepItem, now time.Time, hold time.Duration) (map[SweepOutcome][]uuid.UUID, error) {
	outcomes := map[SweepOutcome][]uuid.UUID{}
	if len(items) == 0 {
		return outcomes, nil
	}
	runIDs, boxIDs := make([]uuid.UUID, len(items)), make([]uuid.UUID, len(items))
	for n, i := range items {
		runIDs[n], boxIDs[n] = i.RunID, i.SandboxID
	}
	var locked []*Run
	q := tx.NewSelect().Model(&locked).Column("r.id", "r.status", "r.box_id", "r.sandbox_cleanup_due_at").
		Where("r.id IN (?)", bun.List(runIDs)).OrderExpr("r.id")
	if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
		return nil, fmt.Errorf("lock the runs of a plan: %w", err)
	}
	runs := make(map[uuid.UUID]*Run, len(locked))
	for _, r := range locked {
		runs[r.ID] = r
	}
	boxes, attached, err := s.lockBoxesTx(ctx, tx, boxIDs, now)
	if err != nil {
		return nil, err
	}
	for _, i := range items {
		outcome := i.outcome(runs[i.RunID], boxes[i.SandboxID])
		if outcome == SweepOrdered && attached[i.SandboxID] && i.DueAt.After(now.Add(-hold)) {
			outcome = SweepAttached
		}
		outcomes[outcome] = append(outcomes[outcome], i.SandboxID)
	}
	return outcomes, nil
}

// outcome compares what was planned with what is there now; attachments left aside.
func (i *SweepItem) outcome(r *Run, b *Sandbox) SweepOutcome {
	switch {
	case b == nil || b.Desired == WantDeleted || b.Observed == SeenDeleted:
		return SweepGone
	case b.KeptAt != nil:
		return SweepKept
	case r == nil || !r.Status.Terminal() || r.BoxID == nil || *r.BoxID != i.SandboxID:
		return SweepChanged
	case r.CleanupDueAt == nil || !r.CleanupDueAt.Equal(i.DueAt):
		return SweepChanged
	}
	return SweepOrdered
}

// Sweep returns a sweep of the organization with its items. ErrNotFound when there is none.
func (s *Store) Sweep(ctx context.Context, orgID, id uuid.UUID) (*Sweep, error) {
	w := new(Sweep)
	if err := s.db.NewSelect().Model(w).Where("w.id = ? AND w.org_id = ?", id, orgID).Scan(ctx); err != nil {
		return nil, notFound(err, "read sweep %s", id)
	}
	err := s.db.NewSelect().Model(&w.Items).
		ColumnExpr("i.*").
		ColumnExpr("a.name AS automation_name").
		Join("LEFT JOIN automations AS a ON a.id = i.automation_id").
		Where("i.sweep_id = ?", id).
		OrderExpr("i.due_at, i.sandbox_id").
		Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the boxes of sweep %s: %w", id, err)
	}
	w.Counts = map[SweepOutcome]int{}
	for _, i := range w.Items {
		w.Counts[i.Outcome]++
	}
	return w, nil
}

// ListSweeps returns a page of the organization's sweeps, newest first and without items, and how many there are.
func (s *Store) ListSweeps(ctx context.Context, orgID uuid.UUID, limit, offset int) ([]*Sweep, int, error) {
	var sweeps []*Sweep
	q := s.db.NewSelect().Model(&sweeps).Where("w.org_id = ?", orgID)
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count sweeps: %w", err)
	}
	if err := q.OrderExpr("w.created_at DESC, w.id DESC").Limit(int64(limit)).Offset(int64(offset)).Scan(ctx); err != nil {
		return nil, 0, fmt.Errorf("list sweeps: %w", err)
	}
	return sweeps, int(total), s.countItems(ctx, sweeps)
}

func (s *Store) countItems(ctx context.Context, sweeps []*Sweep) error {
	if len(sweeps) == 0 {
		return nil
	}
	byID, ids := make(map[uuid.UUID]*Sweep, len(sweeps)), make([]uuid.UUID, len(sweeps))
	for n, w := range sweeps {
		w.Counts = map[SweepOutcome]int{}
		byID[w.ID], ids[n] = w, w.ID
	}
	var counts []struct {
		SweepID uuid.UUID
		Outcome SweepOutcome
		N       int
	}
	err := s.db.NewSelect().Model((*SweepItem)(nil)).
		Column("i.sweep_id", "i.outcome").ColumnExpr("count(*) AS n").
		Where("i.sweep_id IN (?)", bun.List(ids)).
		GroupExpr("i.sweep_id, i.outcome").
		Scan(ctx, &counts)
	if err != nil {
		return fmt.Errorf("count the boxes of sweeps: %w", err)
	}
	for _, c := range counts {
		byID[c.SweepID].Counts[c.Outcome] = c.N
	}
	return nil
}

// PurgeSweeps removes up to limit sweeps: those from before t, and plans that expired unused a day ago. It returns how many went.
func (s *Store) PurgeSweeps(ctx context.Context, t time.Time, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	gone := 0
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		old := tx.NewSelect().Model((*Sweep)(nil)).Column("w.id").
			Where("w.created_at < ? OR (w.applied_at IS NULL AND w.expires_at < ?)", t, s.Now().Add(-unusedLife)).
			OrderExpr("w.created_at").Limit(int64(limit))
		var err error
		gone, err = affected(tx.NewDelete().Model((*Sweep)(nil)).
			Where("id IN (?)", s.lock(old, "UPDATE SKIP LOCKED")).
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("purge sweeps: %w", err)
		}
		return nil
	})
	return gone, err
}
