package models

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// UpdateAutomation locks the live automation, lets change edit it (pure: no I/O; its error aborts and is returned as it
// is; it may be called again), writes it, and in the same transaction does what follows from the difference: keep_alive
// switched on clears the stamps of its boxes that are not ordered deleted; switched off stamps the boxes of its terminal runs
// from now + delay (design section 9); no longer enabled makes its PENDING runs that are not manual SKIPPED ("Automation
// disabled"). ErrNotFound when there is none in the organization.
func (s *Store) UpdateAutomation(ctx context.Context, orgID, id uuid.UUID, delay time.Duration, change func(*Automation) error) (*Automation, error) {
	return s.updateAutomation(ctx, orgID, id, delay, change, nothingElse)
}

func nothingElse(context.Context, bun.IDB) error { return nil }

// ReplaceTarball is UpdateAutomation with code that was made anew: the upload that the automation named so far is deleted in
// the same transaction, and its file is the caller's to remove afterwards. It stays where a live automation still names it:
// removed is false then.
func (s *Store) ReplaceTarball(ctx context.Context, orgID, id uuid.UUID, delay time.Duration, old *Upload, change func(*Automation) error) (a *Automation, removed bool, err error) {
	a, err = s.updateAutomation(ctx, orgID, id, delay, change, func(ctx context.Context, tx bun.IDB) error {
		var err error
		removed, err = dropUploadTx(ctx, tx, old, s.Now())
		return err
	})
	return a, removed, err
}

func (s *Store) updateAutomation(
	ctx context.Context, orgID, id uuid.UUID, delay time.Duration, change func(*Automation) error, also writeFunc,
) (*Automation, error) {
	var a *Automation
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		var err error
		if a, err = s.lockAutomation(ctx, tx, orgID, id); err != nil {
			return err
		}
		kept, enabled := a.KeepsAlive(), a.Enabled()
		if err := change(a); err != nil {
			return err
		}
		now := s.Now()
		a.UpdatedAt = now
		switch {
		case enabled && !a.Enabled():
			err = disabledTx(ctx, tx, a, "user", now)
		default:
			if err = writeAutomation(ctx, tx, a); err == nil && !a.Enabled() {
				err = skipPending(ctx, tx, a, false, now)
			}
		}
		if err == nil {
			err = also(ctx, tx)
		}
		if err != nil {
			return err
		}
		switch {
		case !kept && a.KeepsAlive():
			return s.restampBoxes(ctx, tx, id, nil)
		case kept && !a.KeepsAlive():
			due := now.Add(delay)
			return s.restampBoxes(ctx, tx, id, &due)
		default:
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// DeleteAutomation soft-deletes: state INACTIVE, deleted_at now, the disable fields become manual_delete if it was
// enabled, and all its PENDING runs, manual ones too, become SKIPPED. RUNNING runs go on. ErrNotFound when there is none.
func (s *Store) DeleteAutomation(ctx context.Context, orgID, id uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		a, err := s.lockAutomation(ctx, tx, orgID, id)
		if err != nil {
			return err
		}
		now := s.Now()
		if a.Enabled() {
			reason := "manual_delete"
			a.DisabledReason, a.DisabledAt = &reason, &now
			a.DisabledDetail = json.RawMessage(`{"reason":"manual_delete","source":"user"}`)
		}
		a.State, a.DeletedAt, a.UpdatedAt, a.NextRunAt = AutomationInactive, &now, now, nil
		if err := writeAutomation(ctx, tx, a); err != nil {
			return err
		}
		return skipPending(ctx, tx, a, true, now)
	})
}

// lockAutomation reads a live automation and keeps others from changing it until the transaction ends.
func (s *Store) lockAutomation(ctx context.Context, tx bun.IDB, orgID, id uuid.UUID) (*Automation, error) {
	a := new(Automation)
	err := s.lock(selectLive(tx, a, orgID).Where("a.id = ?", id), "NO KEY UPDATE").Scan(ctx)
	if err != nil {
		return nil, notFound(err, "lock automation %s", id)
	}
	return a, nil
}

// writeAutomation writes every column of a locked automation.
func writeAutomation(ctx context.Context, tx bun.IDB, a *Automation) error {
	if _, err := tx.NewUpdate().Model(a).WherePK().Exec(ctx); err != nil {
		return fmt.Errorf("write automation %s: %w", a.ID, err)
	}
	return nil
}

// skipPending makes the PENDING runs of a disabled or deleted automation SKIPPED; manual ones stay unless manual is true.
func skipPending(ctx context.Context, tx bun.IDB, a *Automation, manual bool, now time.Time) error {
	const text = "Automation disabled"
	detail := StatusDetail{
		Phase: "dispatch", Kind: "blocked", Detail: text, Source: "automation_service", Operation: "automation_disabled",
		UserAction: "settings", DisabledDetail: a.DisabledDetail,
	}
	if a.DisabledReason != nil {
		detail.Detail = *a.DisabledReason
	}
	var skipped []*Run
	q := tx.NewUpdate().Model(&skipped).
		Set("status = ?", RunSkipped).
		Set("completed_at = ?", now).
		Set("error_detail = ?", text).
		Set("status_detail = ?", detail.Seen(now, nil)).
		Where("automation_id = ?", a.ID).
		Where("status = ?", RunPending)
	if !manual {
		q = q.Where("(trigger_source IS NULL OR trigger_source <> ?)", TriggerManual)
	}
	if err := q.Returning("id, status, trigger_source, created_at, completed_at").Scan(ctx); err != nil {
		return fmt.Errorf("skip the pending runs of automation %s: %w", a.ID, err)
	}
	ended(ctx, false, skipped...)
	return nil
}

// restampBoxes sets the stamps of an automation's terminal runs whose boxes are not ordered deleted: to due where there is
// none, or, with due nil, away. The caller has locked the automation, so no run of it ends meanwhile (Finish shares that
// lock). Whether a box is ordered deleted is read after its row is locked. Each box's timeline tells.
func (s *Store) restampBoxes(ctx context.Context, tx bun.IDB, automationID uuid.UUID, due *time.Time) error {
	var boxes []uuid.UUID
	stamped := "r.sandbox_cleanup_due_at IS NULL"
	if due == nil {
		stamped = "r.sandbox_cleanup_due_at IS NOT NULL"
	}
	runs := tx.NewSelect().Model((*Run)(nil)).
		Column("r.box_id").
		Join("JOIN sandboxes AS s ON s.id = r.box_id").
		Where("s.automation_id = ?", automationID).
		Where("s.desired <> 'deleted'"). // as in the index
		Where("r.status NOT IN (?, ?)", RunPending, RunRunning).
		Where(stamped).
		OrderExpr("r.id")
	if err := s.lock(runs, "NO KEY UPDATE OF r").Scan(ctx, &boxes); err != nil {
		return fmt.Errorf("lock the runs of automation %s: %w", automationID, err)
	}
	if len(boxes) == 0 {
		return nil
	}
	var standing []*Sandbox
	q := tx.NewSelect().Model(&standing).
		Column("s.id", "s.org_id", "s.run_id", "s.automation_id").
		Where("s.id IN (?)", bun.List(boxes)).
		Where("s.desired <> ?", WantDeleted).
		Where("s.observed <> ?", SeenDeleted).
		Where("s.kept_at IS NULL").
		OrderExpr("s.id")
	if err := s.lock(q, "SHARE").Scan(ctx); err != nil {
		return fmt.Errorf("lock the boxes of automation %s: %w", automationID, err)
	}
	if len(standing) == 0 {
		return nil
	}
	_, err := tx.NewUpdate().Model((*Run)(nil)).
		Set("sandbox_cleanup_due_at = ?", due).
		Where("box_id IN (?)", bun.List(boxIDs(standing))).
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("stamp the boxes of automation %s: %w", automationID, err)
	}
	what, why := "stamped", "keep_alive switched off"
	if due == nil {
		what, why = "unstamped", "keep_alive switched on"
	}
	detail, err := json.Marshal(map[string]*time.Time{"due_at": due})
	if err != nil {
		return fmt.Errorf("describe the due dates of automation %s: %w", automationID, err)
	}
	now, events := s.Now(), make([]Event, len(standing))
	for n, b := range standing {
		events[n] = b.event(what, "user", why, now)
		events[n].Detail = detail
	}
	return appendEventsTx(ctx, tx, now, events)
}
