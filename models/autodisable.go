package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// DisableRules say after which failures an automation is switched off (contract section 3.9).
type DisableRules struct {
	Permanent   int           // so many newest runs failed for a cause that only a person can mend; 0 or less: never
	Consecutive int           // so many newest runs failed and none succeeded within Window; 0 or less: never
	Window      time.Duration // of Consecutive
}

// AfterEnd does what follows from the end of a run, in a transaction of its own after that of Finish or Reconcile, which every
// caller of these hands over: an automation whose runs keep failing is switched off, and one that was made from a template
// remembers how its first run went. A crash in between costs nothing but time: the next failure is judged with this one.
func (s *Store) AfterEnd(ctx context.Context, f Finished) error {
	if !f.Won || f.Run.Status != RunCompleted && f.Run.Status != RunFailed {
		return nil
	}
	run := f.Run
	if a := f.automation; a.DeletedAt != nil || !s.judges(a, run) && !awaitsFirstRun(a) {
		return nil
	}
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error { return s.afterEndTx(ctx, tx, run) })
	if errors.Is(err, ErrNotFound) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("after the end of run %s: %w", run.ID, err)
	}
	return nil
}

// judges reports whether the end of run may switch a off.
func (s *Store) judges(a *Automation, run *Run) bool {
	return run.Status == RunFailed && a.Enabled() && (s.disable.Permanent > 0 || s.disable.Consecutive > 0)
}

func (s *Store) afterEndTx(ctx context.Context, tx bun.IDB, run *Run) error {
	a, err := s.lockAutomation(ctx, tx, run.OrgID, run.AutomationID)
	if err != nil {
		return err
	}
	now := s.Now()
	if awaitsFirstRun(a) {
		if err := recordFirstRun(ctx, tx, a, now); err != nil {
			return err
		}
	}
	if !s.judges(a, run) {
		return writeAutomation(ctx, tx, a)
	}
	why, err := s.judge(ctx, tx, a, run, now)
	if err != nil {
		return err
	}
	if why == nil {
		return writeAutomation(ctx, tx, a)
	}
	detail, err := json.Marshal(why)
	if err != nil {
		return err
	}
	a.disable(why.Reason, detail, now)
	return disabledTx(ctx, tx, a, "service", now)
}

// DisableBroken switches off an automation that cannot run as it is: reason is the run's own failure, run the one that met
// it. One that is off or deleted is left alone.
func (s *Store) DisableBroken(ctx context.Context, run *Run, reason string, statusDetail json.RawMessage) error {
	detail, err := json.Marshal(map[string]any{"status_detail": statusDetail})
	if err != nil {
		return fmt.Errorf("disable automation %s: %w", run.AutomationID, err)
	}
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		a, err := s.lockAutomation(ctx, tx, run.OrgID, run.AutomationID)
		if errors.Is(err, ErrNotFound) || err == nil && !a.Enabled() {
			return nil
		}
		if err != nil {
			return err
		}
		now := s.Now()
		a.disable(reason, detail, now)
		return disabledTx(ctx, tx, a, "dispatch", now)
	})
	if err != nil {
		return fmt.Errorf("disable automation %s: %w", run.AutomationID, err)
	}
	return nil
}

// disable makes a INACTIVE.
func (a *Automation) disable(reason string, detail json.RawMessage, now time.Time) {
	a.State, a.NextRunAt, a.UpdatedAt = AutomationInactive, nil, now
	a.DisabledReason, a.DisabledDetail, a.DisabledAt = &reason, detail, &now
}

// disabledTx writes a locked automation that was just switched off: its PENDING runs that are not manual become SKIPPED, and
// the event is appended.
func disabledTx(ctx context.Context, tx bun.IDB, a *Automation, actor string, now time.Time) error {
	a.LastDisabledAt = &now
	if err := writeAutomation(ctx, tx, a); err != nil {
		return err
	}
	if err := skipPending(ctx, tx, a, false, now); err != nil {
		return err
	}
	event := Event{OrgID: a.OrgID, AutomationID: &a.ID, What: "disabled", Actor: actor, Outcome: EventOK}
	if a.DisabledReason != nil {
		event.Reason = *a.DisabledReason
	}
	return appendEventsTx(ctx, tx, now, []Event{event})
}

// The names of the rules.
const (
	rulePermanent   = "consecutive_permanent_failures"
	ruleConsecutive = "consecutive_failures"
)

// disableReason is the disabled_detail of an automation that was switched off for its failures.
type disableReason struct {
	Reason       string          `json:"reason"`
	Source       string          `json:"source"`
	RunID        uuid.UUID       `json:"run_id"`
	Rule         string          `json:"rule"`
	Threshold    int             `json:"threshold"`
	Permanent    int             `json:"consecutive_permanent_failures,omitempty"`
	Consecutive  int             `json:"consecutive_failures,omitempty"`
	StatusDetail json.RawMessage `json:"status_detail,omitempty"`
}

// judge applies the two rules to the newest runs since a was switched off last; nil: a stays on.
func (s *Store) judge(ctx context.Context, tx bun.IDB, a *Automation, run *Run, now time.Time) (*disableReason, error) {
	rules := s.disable
	newest, err := newestEnded(ctx, tx, a, max(rules.Permanent, rules.Consecutive))
	if err != nil {
		return nil, err
	}
	if n := rules.Permanent; n > 0 && len(newest) >= n && all(newest[:n], failedForGood) {
		d := readDetail(newest[0])
		text := d.FormattedDetail
		if text == "" {
			text = d.Detail
		}
		return &disableReason{
			Reason: fmt.Sprintf("Paused automatically: %s — %s. This failed the last %d runs and needs a configuration fix.", d.Kind, text, n),
			Source: rulePermanent, Rule: rulePermanent, RunID: run.ID, Threshold: n, Permanent: n, StatusDetail: newest[0].StatusDetail,
		}, nil
	}
	n := rules.Consecutive
	if n <= 0 || len(newest) < n || !all(newest[:n], failed) {
		return nil, nil
	}
	succeeded, err := tx.NewSelect().Model((*Run)(nil)).
		Where("r.automation_id = ?", a.ID).
		Where("r.status = ?", RunCompleted).
		Where("r.completed_at >= ?", now.Add(-rules.Window)).
		Exists(ctx)
	if err != nil || succeeded {
		return nil, err
	}
	hours := strconv.FormatFloat(rules.Window.Hours(), 'f', -1, 64)
	return &disableReason{
		Reason: fmt.Sprintf("Paused automatically: the last %d runs all failed and nothing has succeeded in %s hours.", n, hours),
		Source: ruleConsecutive, Rule: ruleConsecutive, RunID: run.ID, Threshold: n, Consecutive: n, StatusDetail: newest[0].StatusDetail,
	}, nil
}

// newestEnded returns up to limit runs of a that succeeded or failed, newest first, created since a was switched off last.
func newestEnded(ctx context.Context, tx bun.IDB, a *Automation, limit int) ([]*Run, error) {
	var runs []*Run
	q := selectEnded(tx, a, &runs).OrderExpr("r.created_at DESC, r.id DESC").Limit(int64(limit))
	if a.LastDisabledAt != nil {
		q = q.Where("r.created_at > ?", *a.LastDisabledAt)
	}
	if err := q.Scan(ctx); err != nil {
		return nil, fmt.Errorf("read the newest runs of automation %s: %w", a.ID, err)
	}
	return runs, nil
}

func selectEnded(tx bun.IDB, a *Automation, model any) *bun.SelectQuery {
	return tx.NewSelect().Model(model).
		Column("r.id", "r.status", "r.status_detail", "r.created_at", "r.completed_at").
		Where("r.automation_id = ?", a.ID).
		Where("r.status IN (?, ?)", RunCompleted, RunFailed)
}

func all(runs []*Run, is func(*Run) bool) bool {
	for _, r := range runs {
		if !is(r) {
			return false
		}
	}
	return true
}

func failed(r *Run) bool { return r.Status == RunFailed }

// storedDetail is what the rules read of a status_detail.
type storedDetail struct {
	StatusDetail
	Permanent      bool `json:"permanent"`
	Classification struct {
		Kind      string `json:"kind"`
		Retryable bool   `json:"retryable"`
	} `json:"classification"`
}

func readDetail(r *Run) storedDetail {
	var d storedDetail
	_ = json.Unmarshal(r.StatusDetail, &d) // NULL explains nothing
	return d
}

// failedForGood reports whether repeating the run is of no use before a person has changed something.
func failedForGood(r *Run) bool {
	d := readDetail(r)
	if !failed(r) || d.Transient || d.Classification.Retryable {
		return false
	}
	return d.Permanent || needsPerson(d.Kind) || needsPerson(d.Classification.Kind) || d.UserAction == "settings"
}

func needsPerson(kind string) bool {
	switch kind {
	case "auth", "config", "quota", "blocked":
		return true
	}
	return false
}

// presetMetadata is what is read of preset_metadata here; the rest is passed on as it is.
type presetMetadata struct {
	Template *struct {
		Version string `json:"version"`
	} `json:"template"`
	FirstRun json.RawMessage `json:"first_run"`
}

// awaitsFirstRun reports whether a was made from a template and none of its runs has been noted yet.
func awaitsFirstRun(a *Automation) bool {
	var meta presetMetadata
	return json.Unmarshal(a.PresetMetadata, &meta) == nil && meta.Template != nil && meta.FirstRun == nil
}

// recordFirstRun notes in a how the first of its runs that succeeded or failed has gone.
func recordFirstRun(ctx context.Context, tx bun.IDB, a *Automation, now time.Time) error {
	first := new(Run)
	if err := selectEnded(tx, a, first).OrderExpr("r.completed_at, r.id").Limit(1).Scan(ctx); err != nil {
		return notFound(err, "read the first run of automation %s", a.ID)
	}
	var known presetMetadata
	meta := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(a.PresetMetadata, &known), json.Unmarshal(a.PresetMetadata, &meta)); err != nil {
		return fmt.Errorf("read the preset metadata of automation %s: %w", a.ID, err)
	}
	note := map[string]any{
		"status": "success", "failure_stage": nil, "template_version": known.Template.Version,
		"recorded_at": now.Format("2006-01-02T15:04:05.000000-07:00"), // as the contract writes times here
	}
	if failed(first) {
		note["status"], note["failure_stage"] = "failure", readDetail(first).Phase
	}
	var err error
	if meta["first_run"], err = json.Marshal(note); err == nil {
		a.PresetMetadata, err = json.Marshal(meta)
	}
	return err
}
