package models

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Due is one automation whose next fire time has come.
type Due struct {
	Automation *Automation
	Running    bool // a run of it is PENDING or RUNNING: the overlap policy decides
}

// selectScheduled selects automations that fire by themselves, earliest first.
func selectScheduled(db bun.IDB, model any) *bun.SelectQuery {
	return db.NewSelect().Model(model).
		Where("a.next_run_at IS NOT NULL").
		Where("a.state = ?", AutomationActive).
		Where("a.deleted_at IS NULL").
		OrderExpr("a.next_run_at, a.id")
}

// DueSchedules returns up to limit enabled cron automations with next_run_at <= now, earliest first.
func (s *Store) DueSchedules(ctx context.Context, limit int) ([]Due, error) {
	var list []*Automation
	err := selectScheduled(s.db, &list).Where("a.next_run_at <= ?", s.Now()).Limit(int64(limit)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read due schedules: %w", err)
	}
	ids := make([]uuid.UUID, len(list))
	for n, a := range list {
		ids[n] = a.ID
	}
	running, err := active(ctx, s.db, ids)
	if err != nil {
		return nil, err
	}
	due := make([]Due, len(list))
	for n, a := range list {
		due[n] = Due{Automation: a, Running: running[a.ID]}
	}
	return due, nil
}

// active tells which of the automations have a run that is PENDING or RUNNING.
func active(ctx context.Context, db bun.IDB, automations []uuid.UUID) (map[uuid.UUID]bool, error) {
	found := map[uuid.UUID]bool{}
	for chunk := range slices.Chunk(automations, rowsPerStatement) {
		var ids []uuid.UUID
		err := db.NewSelect().Model((*Run)(nil)).
			Distinct().
			Column("r.automation_id").
			Where("r.automation_id IN (?)", bun.List(chunk)).
			Where("r.status IN ('PENDING', 'RUNNING')"). // as in the index
			Scan(ctx, &ids)
		if err != nil {
			return nil, fmt.Errorf("look for active runs: %w", err)
		}
		for _, id := range ids {
			found[id] = true
		}
	}
	return found, nil
}

// NextScheduleAt returns the earliest next_run_at of all enabled automations, or nil.
func (s *Store) NextScheduleAt(ctx context.Context) (*time.Time, error) {
	next, err := earliest(ctx, selectScheduled(s.db, (*Automation)(nil)).Column("a.next_run_at"))
	if err != nil {
		return nil, fmt.Errorf("look for the next schedule: %w", err)
	}
	return next, nil
}

// Fire is what the schedule duty decided for one due automation.
type Fire struct {
	AutomationID uuid.UUID
	Was          time.Time  // the next_run_at that was read: the write happens only where it still stands
	At           *time.Time // scheduled instant of the run to create; nil: none (impossible schedule, missed while off)
	Next         *time.Time // the new next_run_at; nil: never again
	Skip         bool       // create the run as SKIPPED (overlap Forbid)
	Replace      bool       // overlap Replace: the caller finishes the older runs afterwards
	Disable      string     // not empty: set INACTIVE with this disabled_reason (schedule cannot be evaluated)
}

// rowsPerStatement bounds how many rows one statement carries, for its text is limited (1 MB on SQLite).
const rowsPerStatement = 500

// FireSchedules applies fires set-based in one transaction: PENDING (or SKIPPED) runs with trigger_source cron, unique per
// automation and scheduled instant (a repeat inserts nothing), next_run_at moved, last_triggered_at set. An automation that
// forbids overlap and has an active run gets its run SKIPPED whatever Skip says, for another process may have fired since the
// caller looked (BR-02). It returns the runs it really inserted.
func (s *Store) FireSchedules(ctx context.Context, fires []Fire) ([]*Run, error) {
	inOrder := slices.SortedFunc(slices.Values(fires), func(a, b Fire) int {
		return bytes.Compare(a.AutomationID[:], b.AutomationID[:])
	})
	var inserted []*Run
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		inserted = nil
		now := s.Now()
		for chunk := range slices.Chunk(inOrder, rowsPerStatement) {
			if err := s.lockSchedules(ctx, tx, chunk); err != nil {
				return err
			}
			moved, err := moveSchedules(ctx, tx, chunk, now)
			if err != nil {
				return err
			}
			runs, err := scheduledRuns(ctx, tx, chunk, moved, now)
			if err != nil {
				return err
			}
			if runs, err = insertScheduled(ctx, tx, runs); err != nil {
				return err
			}
			inserted = append(inserted, runs...)
			for _, r := range runs {
				if r.Status.Terminal() {
					ended(ctx, false, r)
				}
			}
		}
		return disableSchedules(ctx, tx, inOrder, now)
	})
	return inserted, err
}

// lockSchedules locks automations in the order of their ids, so that replicas which fire the same ones wait for each other
// instead of locking each other out.
func (s *Store) lockSchedules(ctx context.Context, tx bun.IDB, fires []Fire) error {
	if s.dialect == SQLite {
		return nil
	}
	ids := make([]uuid.UUID, len(fires))
	for n, f := range fires {
		ids[n] = f.AutomationID
	}
	_, err := tx.NewSelect().Model((*Automation)(nil)).
		Column("a.id").
		Where("a.id IN (?)", bun.List(ids)).
		OrderExpr("a.id").
		For("NO KEY UPDATE").
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("lock schedules: %w", err)
	}
	return nil
}

// schedule is one row of the VALUES list that moves next_run_at.
type schedule struct {
	ID    uuid.UUID  `bun:"automation_id,type:uuid"`
	Was   time.Time  `bun:"was,type:timestamptz"`
	Next  *time.Time `bun:"next,type:timestamptz"`
	Fired *time.Time `bun:"fired,type:timestamptz"`
}

// moveSchedules moves next_run_at where the caller's reading still stands, and returns the automations it moved: these, and
// no others, fire here. Their rows stay locked, so a disable waits or has won already.
func moveSchedules(ctx context.Context, tx bun.IDB, fires []Fire, now time.Time) (map[uuid.UUID]*Automation, error) {
	var rows []schedule
	for _, f := range fires {
		if f.Disable != "" {
			continue
		}
		row := schedule{ID: f.AutomationID, Was: f.Was, Next: f.Next}
		if f.At != nil {
			row.Fired = &now
		}
		rows = append(rows, row)
	}
	moved := map[uuid.UUID]*Automation{}
	if len(rows) == 0 {
		return moved, nil
	}
	var list []*Automation
	err := tx.NewUpdate().
		With("f", tx.NewValues(&rows)).
		Model(&list).
		TableExpr("f").
		Set("next_run_at = f.next").
		Set("last_triggered_at = COALESCE(f.fired, a.last_triggered_at)").
		Where("a.id = f.automation_id").
		Where("a.next_run_at = f.was").
		Where("a.state = ?", AutomationActive).
		Where("a.deleted_at IS NULL").
		Returning("id, org_id, overlap"). // unqualified: SQLite does not know the alias here.
		Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("move schedules: %w", err)
	}
	for _, a := range list {
		moved[a.ID] = a
	}
	return moved, nil
}

// scheduledRuns makes the runs of the automations that were moved.
func scheduledRuns(ctx context.Context, tx bun.IDB, fires []Fire, moved map[uuid.UUID]*Automation, now time.Time) ([]*Run, error) {
	var forbid []uuid.UUID
	for id, a := range moved {
		if a.Overlap == OverlapForbid {
			forbid = append(forbid, id)
		}
	}
	busy, err := active(ctx, tx, forbid)
	if err != nil {
		return nil, err
	}
	var runs []*Run
	for _, f := range fires {
		a := moved[f.AutomationID]
		if a == nil || f.At == nil {
			continue
		}
		by := TriggerCron
		r := &Run{
			ID: newID(), AutomationID: a.ID, OrgID: a.OrgID, Status: RunPending, TriggerSource: &by,
			ScheduledFor: f.At, CreatedAt: now,
		}
		if f.Skip || busy[a.ID] {
			text := "Skipped: an earlier run of this automation has not ended"
			r.Status, r.CompletedAt, r.ErrorDetail = RunSkipped, &now, &text
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// insertScheduled inserts runs but those whose instant has a run already, and returns the others.
func insertScheduled(ctx context.Context, tx bun.IDB, runs []*Run) ([]*Run, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	var ids []uuid.UUID
	err := tx.NewInsert().Model(&runs).
		Column("id", "automation_id", "org_id", "status", "trigger_source", "scheduled_for", "attempt", "created_at", "completed_at", "error_detail").
		On("CONFLICT (automation_id, scheduled_for) DO NOTHING").
		Returning("id").
		Scan(ctx, &ids)
	if err != nil {
		return nil, fmt.Errorf("insert scheduled runs: %w", err)
	}
	fresh := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		fresh[id] = true
	}
	return slices.DeleteFunc(runs, func(r *Run) bool { return !fresh[r.ID] }), nil
}

// disableSchedules sets automations INACTIVE whose schedule cannot be evaluated, with the reason and an event.
func disableSchedules(ctx context.Context, tx bun.IDB, fires []Fire, now time.Time) error {
	for _, f := range fires {
		if f.Disable == "" {
			continue
		}
		detail, err := json.Marshal(map[string]string{"reason": f.Disable, "source": "schedule"})
		if err != nil {
			return err
		}
		var list []*Automation
		err = tx.NewUpdate().Model(&list).
			Set("state = ?", AutomationInactive).
			Set("disabled_reason = ?", f.Disable).
			Set("disabled_detail = ?", json.RawMessage(detail)).
			Set("disabled_at = ?", now).
			Set("last_disabled_at = ?", now).
			Set("updated_at = ?", now).
			Set("next_run_at = NULL").
			Where("id = ?", f.AutomationID).
			Where("next_run_at = ?", f.Was).
			Where("state = ?", AutomationActive).
			Returning("*").
			Scan(ctx)
		if err != nil {
			return fmt.Errorf("disable automation %s: %w", f.AutomationID, err)
		}
		for _, a := range list {
			if err := skipPending(ctx, tx, a, false, now); err != nil {
				return err
			}
			event := Event{OrgID: a.OrgID, AutomationID: &a.ID, What: "disabled", Actor: "schedule", Reason: f.Disable, Outcome: EventOK}
			if err := appendEventsTx(ctx, tx, now, []Event{event}); err != nil {
				return err
			}
		}
	}
	return nil
}
