package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"automation/loop"
	"automation/models"
)

const (
	// scheduleBatch is how many due automations one pass fires.
	scheduleBatch = 200
	// catchUpWithin is how late a missed fire may be made up for. An older one is passed over: what it was to do is stale.
	catchUpWithin = 7 * 24 * time.Hour
)

// Schedules is the duty that turns due schedules into runs (contract section 3.3, BR-02, BR-09, BR-10).
type Schedules struct {
	Store    *models.Store
	Decide   func(models.Ending) models.Decision // what becomes of the box of a replaced run
	Interval time.Duration                       // the longest wait between two looks
	Log      *slog.Logger
	Nudge    loop.Nudge // woken when an automation changed
	Dispatch loop.Nudge // woken when runs were created
	Settle   func()     // woken when boxes were ordered
	// Fired is told of what was decided about due schedules, and of the runs that came of it; nil: nobody.
	Fired func(fires []models.Fire, runs []*models.Run)
}

// Loop returns the duty. It sleeps until the earliest next_run_at.
func (s *Schedules) Loop() loop.Loop {
	return loop.Loop{
		Name: "schedule", Every: s.Interval, Batch: scheduleBatch,
		Pass: s.pass, Until: s.Store.NextScheduleAt, Now: s.Store.Now, Nudge: s.Nudge,
	}
}

// pass fires one batch of due automations. Several processes may read the same rows: each fire is written only where
// next_run_at still is what it was decided on, and an instant has one run at most.
func (s *Schedules) pass(ctx context.Context) (int, error) {
	due, err := s.Store.DueSchedules(ctx, scheduleBatch)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	now := s.Store.Now()
	fires := make([]models.Fire, 0, len(due))
	for _, d := range due {
		fire := decideFire(d, now)
		if fire.Disable != "" {
			s.Log.WarnContext(ctx, "automation disabled: its schedule cannot be evaluated",
				"automation_id", d.Automation.ID, "reason", fire.Disable)
		}
		fires = append(fires, fire)
	}
	runs, err := s.Store.FireSchedules(ctx, fires)
	if err != nil {
		return 0, fmt.Errorf("fire schedules: %w", err)
	}
	if s.Fired != nil {
		s.Fired(fires, runs)
	}
	if len(runs) > 0 {
		s.Dispatch.Wake()
	}
	return len(due), s.replace(ctx, fires, runs)
}

// decideFire decides about one due automation. Of fires that were missed only the latest counts, so that down-time costs
// one catch-up run at most, and none at all when even that one is long past.
func decideFire(d models.Due, now time.Time) models.Fire {
	a := d.Automation
	fire := models.Fire{AutomationID: a.ID, Was: *a.NextRunAt}
	trigger := triggerOf(a)
	if trigger.Type != "cron" {
		return fire
	}
	if err := Validate(trigger.Schedule, trigger.Timezone); err != nil {
		fire.Disable = err.Error()
		return fire
	}
	p, err := parse(trigger.Schedule, trigger.Timezone)
	if err != nil {
		fire.Disable = err.Error()
		return fire
	}
	at := p.last(fire.Was, now)
	if next := p.next(at); !next.IsZero() {
		fire.Next = &next
	}
	if now.Sub(at) > catchUpWithin {
		return fire
	}
	fire.At = &at
	fire.Skip = a.Overlap == models.OverlapForbid && d.Running
	fire.Replace = a.Overlap == models.OverlapReplace && d.Running
	return fire
}

// replace ends the older runs of automations whose new run replaces them.
func (s *Schedules) replace(ctx context.Context, fires []models.Fire, runs []*models.Run) error {
	replacing := map[string]bool{}
	for _, f := range fires {
		replacing[f.AutomationID.String()] = f.Replace
	}
	for _, run := range runs {
		if !replacing[run.AutomationID.String()] {
			continue
		}
		if err := s.endOlder(ctx, run); err != nil {
			return fmt.Errorf("replace the runs of automation %s: %w", run.AutomationID, err)
		}
	}
	return nil
}

// endOlder finishes every other run of run's automation that still waits or works, as failed and replaced. One whose command
// was not started yet leaves nothing to look into.
func (s *Schedules) endOlder(ctx context.Context, run *models.Run) error {
	active := []models.RunStatus{models.RunPending, models.RunRunning}
	filter := models.RunFilter{OrgID: run.OrgID, AutomationID: &run.AutomationID, Statuses: active, Limit: 100}
	older, _, err := s.Store.ListRuns(ctx, filter)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Replaced by run %s", run.ID)
	detail := models.StatusDetail{
		Phase: "dispatch", Kind: "replaced", Detail: text, Source: "automation_service", Operation: "replace",
	}
	for _, r := range older {
		if r.ID == run.ID {
			continue
		}
		done, err := s.Store.Finish(ctx, r.ID, models.Outcome{
			Status: models.RunFailed, ErrorDetail: &text, StatusDetail: detail.Seen(s.Store.Now(), r.StatusDetail),
			Actor: "schedule", Reason: "replaced", From: active,
		}, s.disposeReplaced)
		if err != nil {
			return fmt.Errorf("finish run %s: %w", r.ID, err)
		}
		s.Settle()
		if err := s.Store.AfterEnd(ctx, done); err != nil {
			return err
		}
	}
	return nil
}

// disposeReplaced disposes of a replaced run like any failure; whether its command was started is read under the run's lock.
func (s *Schedules) disposeReplaced(e models.Ending) models.Decision {
	e.Outcome.NotStarted = e.Run.StartingAt == nil
	return s.Decide(e)
}

// triggerOf reads an automation's trigger; one that cannot be read has no type.
func triggerOf(a *models.Automation) models.Trigger {
	var t models.Trigger
	if json.Unmarshal(a.Trigger, &t) != nil {
		return models.Trigger{}
	}
	return t
}
