package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"automation/loop"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox/sandboxtest"
)

func overlap(o models.Overlap) func(*models.Automation) {
	return func(a *models.Automation) { a.Overlap = o }
}

func TestSchedule_FiresWhatIsDue(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		a := r.scheduled("* * * * *")
		r.fire()
		require.Empty(r, r.runs(a), "a new automation does not catch up")
		due := *a.NextRunAt
		r.clock.Advance(due.Sub(r.clock.Now()))
		r.fire()
		runs := r.runs(a)
		require.Len(r, runs, 1)
		require.Equal(r, models.RunPending, runs[0].Status)
		require.Equal(r, models.TriggerCron, *runs[0].TriggerSource)
		require.Equal(r, due, *runs[0].ScheduledFor)
		next, err := r.store.NextScheduleAt(r.Context())
		require.NoError(r, err)
		require.Equal(r, due.Add(time.Minute), *next)
	})
}

func TestBR02_OneRunAnInstantAndNeverTwoRunning(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		duties := []*Schedules{r.schedule}
		for range 2 {
			store := r.store
			if r.db.Dialect == models.Postgres {
				store = r.db.Open(r.T, models.WithClock(r.clock.Now))
			}
			_, s := r.duties(store)
			duties = append(duties, s)
		}
		a := r.scheduled("* * * * *", overlap(models.OverlapForbid))
		started := map[string]time.Time{}
		for range 40 { // 10 minutes in steps of 15 s
			r.clock.Advance(15 * time.Second)
			errs := make(chan error, len(duties))
			for _, s := range duties {
				go func() { _, err := s.pass(r.Context()); errs <- err }()
			}
			for range duties {
				require.NoError(r, <-errs)
			}
			active := 0
			for _, run := range r.runs(a) {
				switch {
				case run.Status != models.RunPending:
				case started[run.ID.String()].IsZero():
					started[run.ID.String()] = r.clock.Now()
					active++
				case r.clock.Now().Sub(started[run.ID.String()]) >= 150*time.Second:
					_, err := r.store.Finish(r.Context(), run.ID, models.Outcome{
						Status: models.RunCompleted, Actor: "callback", From: []models.RunStatus{models.RunPending},
					}, r.decide)
					require.NoError(r, err)
				default:
					active++
				}
			}
			require.LessOrEqual(r, active, 1, "never two at a time")
		}
		instants, skipped := map[time.Time]int{}, 0
		for _, run := range r.runs(a) {
			instants[*run.ScheduledFor]++
			if run.Status == models.RunSkipped {
				skipped++
			}
		}
		for instant, n := range instants {
			require.Equal(r, 1, n, "one row for %v", instant)
		}
		require.GreaterOrEqual(r, len(instants), 10)
		require.Positive(r, skipped, "what was left out is recorded")
	})
}

func TestBR02_ReplaceEndsTheOlderRun(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.auto = r.scheduled("* * * * *", overlap(models.OverlapReplace))
		older := r.pending()
		r.execute()
		waiting := r.pending()
		settled := 0
		r.schedule.Settle = func() { settled++ }
		r.clock.Advance(time.Minute)
		r.fire()

		var fresh *models.Run
		for _, run := range r.runs(r.auto) {
			if run.ScheduledFor != nil {
				fresh = run
			}
		}
		require.NotNil(r, fresh)
		require.Equal(r, models.RunPending, fresh.Status)
		for _, id := range []*models.Run{older, waiting} {
			run := r.run(id.ID)
			require.Equal(r, models.RunFailed, run.Status)
			require.Equal(r, "Replaced by run "+fresh.ID.String(), *run.ErrorDetail)
		}
		replaced := r.run(older.ID)
		require.Equal(r, models.WantSuspended, r.box(*replaced.BoxID).Desired, "disposed like any failure")
		require.Equal(r, replaced.CompletedAt.Add(time.Hour), *replaced.CleanupDueAt)
		require.Positive(r, settled)
		r.settler.Settings.ExitGrace = 0
		r.settle()
		require.True(r, r.agent(*replaced.BoxID).Commands()[0].Stopped, "the command of a replaced run is stopped")
	})
}

func TestBR02_ReplacedWhileItsBoxIsMade(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.auto = r.scheduled("* * * * *", overlap(models.OverlapReplace))
		hold := r.fake.Hold("Create")
		older := r.pending()
		done := make(chan error, 1)
		go func() { _, err := r.dispatch.pass(r.Context()); done <- err }()
		<-hold.Entered
		r.clock.Advance(time.Minute)
		r.fire()
		hold.Release()
		require.NoError(r, <-done)
		run := r.run(older.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Equal(r, models.WantDeleted, r.box(*run.BoxID).Desired, "it was never started")
		require.Nil(r, run.CleanupDueAt)
	})
}

func TestBR09_AtMostOneCatchUpAfterDownTime(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		a := r.scheduled("* * * * *")
		every := r.scheduled("@every 7m")
		r.clock.Advance(14 * time.Hour)
		now := r.clock.Now()
		r.fire()
		for _, a := range []*models.Automation{a, every} {
			runs := r.runs(a)
			require.Len(r, runs, 1, "one run after fourteen hours")
			require.WithinRange(r, *runs[0].ScheduledFor, now.Add(-7*time.Minute), r.clock.Now())
		}
		next, err := r.store.NextScheduleAt(r.Context())
		require.NoError(r, err)
		require.LessOrEqual(r, next.Sub(r.clock.Now()), time.Minute, "the normal rhythm goes on")
	})
}

func TestBR09_WeeklyScheduleOfAServiceThatRestartsDaily(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		a := r.scheduled("0 4 * * 3")
		for range 28 {
			r.clock.Advance(24 * time.Hour)
			_, restarted := r.duties(r.store)
			_, err := restarted.pass(r.Context())
			require.NoError(r, err)
		}
		require.Len(r, r.runs(a), 4, "one a week")
	})
}

func TestBR09_EnabledAgainDoesNotFireForTheTimeItWasOff(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		a := r.scheduled("* * * * *")
		set := func(state models.AutomationState) {
			_, err := r.store.UpdateAutomation(r.Context(), a.OrgID, a.ID, 0, func(a *models.Automation) error {
				a.State = state
				arm(a, r.store.Now())
				return nil
			})
			require.NoError(r, err)
		}
		set(models.AutomationInactive)
		r.clock.Advance(72 * time.Hour)
		r.fire()
		require.Empty(r, r.runs(a))
		set(models.AutomationActive)
		r.fire()
		require.Empty(r, r.runs(a), "no catch-up")
		r.clock.Advance(time.Minute)
		r.fire()
		require.Len(r, r.runs(a), 1)
	})
}

func TestBR09_FireThatIsLongPastIsPassedOver(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		a := r.scheduled("0 0 1 1 *")
		r.clock.Advance(a.NextRunAt.Sub(r.clock.Now()) + catchUpWithin + time.Hour)
		r.fire()
		require.Empty(r, r.runs(a))
		a, err := r.store.Automation(r.Context(), a.OrgID, a.ID)
		require.NoError(r, err)
		require.True(r, a.NextRunAt.After(r.clock.Now()))
	})
}

func TestBR10_ImpossibleScheduleInTheDatabase(t *testing.T) {
	for name, trigger := range map[string]string{
		"a date that never comes": `{"type":"cron","schedule":"0 0 30 2 *"}`,
		"no schedule at all":      `{"type":"cron","schedule":"TZ="}`,
		"an unknown zone":         `{"type":"cron","schedule":"* * * * *","timezone":"Mars/Olympus"}`,
	} {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				now := r.store.Now()
				a := r.automation(func(a *models.Automation) {
					a.Trigger, a.NextRunAt = json.RawMessage(trigger), &now
				})
				for range 5 {
					r.fire()
					r.clock.Advance(time.Minute)
				}
				require.Empty(r, r.runs(a))
				a, err := r.store.Automation(r.Context(), a.OrgID, a.ID)
				require.NoError(r, err)
				require.Equal(r, models.AutomationInactive, a.State)
				require.NotEmpty(r, *a.DisabledReason)
				require.Nil(r, a.NextRunAt)
				require.Equal(r, 1, strings.Count(r.log.String(), "schedule cannot be evaluated"), "one line")
			})
		})
	}
}

// Fault 22 of the Python service.
func TestSchedule_AManualRunDoesNotSwallowAScheduledOne(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.auto = r.scheduled("* * * * *")
		r.clock.Advance(time.Minute)
		r.pending()
		r.fire()
		require.Len(r, r.runs(r.auto), 2)
	})
}

// Fault 23 of the Python service: many automations due at once are not worked off fifty a minute.
func TestSchedule_FiresSetBased(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		const many = scheduleBatch + 10
		for range many {
			modelstest.Automation(r.T, r.store, func(a *models.Automation) {
				a.Trigger = json.RawMessage(`{"type":"cron","schedule":"* * * * *"}`)
				arm(a, r.store.Now())
			})
		}
		r.clock.Advance(time.Minute)
		for _, want := range []int{scheduleBatch, 10, 0} {
			n, err := r.schedule.pass(r.Context())
			require.NoError(r, err)
			require.Equal(r, want, n)
		}
		_, total, err := r.store.ListRuns(r.Context(), models.RunFilter{OrgID: modelstest.Org, Limit: 1})
		require.NoError(r, err)
		require.Equal(r, many, total)
	})
}

// The loop sleeps until the next fire and wakes for a change: a day of a five-minute schedule goes by without a look that
// finds nothing.
func TestSchedule_SleepsUntilTheNextFire(t *testing.T) {
	r := newRig(t, modelstest.NewSQLite(t), sandboxtest.Quirks{})
	synctest.Test(t, func(t *testing.T) {
		store, err := models.Open(t.Context(), modelstest.NewSQLite(t).DSN, models.WithKeys(modelstest.Key), models.WithClock(func() time.Time { return time.Now().UTC() }))
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		a := &models.Automation{
			OrgID: modelstest.Org, UserID: modelstest.User, Name: "x", State: models.AutomationActive, Overlap: models.OverlapAllow,
			Trigger: json.RawMessage(`{"type":"cron","schedule":"*/5 * * * *"}`), TarballPath: "x", Entrypoint: "x",
		}
		arm(a, store.Now())
		require.NoError(t, store.CreateAutomation(t.Context(), a))

		s := *r.schedule
		s.Store, s.Interval, s.Nudge = store, 24*time.Hour, loop.NewNudge()
		l := s.Loop()
		passes := 0
		pass := l.Pass
		l.Pass = func(ctx context.Context) (int, error) { passes++; return pass(ctx) }
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- loop.Run(ctx, s.Log, l) }()
		<-time.After(24*time.Hour + time.Second)
		_, total, err := store.ListRuns(t.Context(), models.RunFilter{OrgID: modelstest.Org, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, 288, total)
		cancel()
		require.NoError(t, <-stopped)
		require.Less(t, passes, 2*288+10)
	})
}
