package models_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// scheduled stores n automations that are due since a minute, but as edit says.
func scheduled(t *testing.T, s *models.Store, n int, edit func(n int, a *models.Automation)) []*models.Automation {
	t.Helper()
	model := modelstest.Automation(t, s)
	var all []*models.Automation
	for i := range n {
		a := *model
		a.ID, a.Name, a.NextRunAt = uuid.Must(uuid.NewV7()), fmt.Sprint("scheduled ", i), ptr(s.Now().Add(-time.Minute))
		if edit != nil {
			edit(i, &a)
		}
		all = append(all, &a)
	}
	for from := 0; from < n; from += 500 {
		part := all[from:min(n, from+500)]
		_, err := modelstest.Of(t, s).Raw().NewInsert().Model(&part).Exec(t.Context())
		require.NoError(t, err)
	}
	return all
}

func dueSchedules(t *testing.T, s *models.Store, limit int) []models.Due {
	t.Helper()
	list, err := s.DueSchedules(t.Context(), limit)
	require.NoError(t, err)
	return list
}

// fireAll fires what was read: the instant it was due for, and again in an hour.
func fireAll(list []models.Due, next time.Time) []models.Fire {
	fires := make([]models.Fire, len(list))
	for n, d := range list {
		was := *d.Automation.NextRunAt
		fires[n] = models.Fire{AutomationID: d.Automation.ID, Was: was, At: &was, Next: &next}
	}
	return fires
}

func TestFiringMakesOneRunAndMovesTheSchedule(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		at, err := s.NextScheduleAt(t.Context())
		require.NoError(t, err)
		require.Nil(t, at)
		all := scheduled(t, s, 5, func(n int, a *models.Automation) {
			a.NextRunAt = ptr(clock.Now().Add(-time.Duration(n) * time.Minute))
			switch n {
			case 3:
				a.State = models.AutomationInactive
			case 4:
				a.DeletedAt = ptr(clock.Now())
			}
		})
		scheduled(t, s, 1, func(_ int, a *models.Automation) { a.NextRunAt = ptr(clock.Now().Add(time.Second)) })
		modelstest.Pending(t, s, all[1])
		at, err = s.NextScheduleAt(t.Context())
		require.NoError(t, err)
		sameTime(t, *all[2].NextRunAt, at)

		list := dueSchedules(t, s, 10)
		require.Len(t, list, 3)
		for n, want := range []*models.Automation{all[2], all[1], all[0]} {
			require.Equal(t, want.ID, list[n].Automation.ID, "earliest first")
			require.Equal(t, want.ID == all[1].ID, list[n].Running)
		}
		require.Len(t, dueSchedules(t, s, 1), 1)

		next := clock.Now().Add(time.Hour)
		fires := fireAll(list, next)
		fires[2].Skip = true
		runs, err := s.FireSchedules(t.Context(), fires)
		require.NoError(t, err)
		require.Len(t, runs, 3)
		of := map[uuid.UUID]models.Fire{}
		for _, f := range fires {
			of[f.AutomationID] = f
		}
		for _, r := range runs {
			got := read(t, s, r.ID)
			fire := of[got.AutomationID]
			require.Equal(t, models.TriggerCron, *got.TriggerSource)
			sameTime(t, fire.Was, got.ScheduledFor)
			a, err := s.Automation(t.Context(), got.OrgID, got.AutomationID)
			require.NoError(t, err)
			sameTime(t, next, a.NextRunAt)
			sameTime(t, clock.Now(), a.LastTriggeredAt)
			want := models.RunPending
			if fire.Skip {
				want = models.RunSkipped
				require.NotNil(t, got.CompletedAt)
				require.NotEmpty(t, *got.ErrorDetail)
			}
			require.Equal(t, want, got.Status)
		}
		require.Empty(t, dueSchedules(t, s, 10))
		again, err := s.FireSchedules(t.Context(), fires)
		require.NoError(t, err)
		require.Empty(t, again, "the reading no longer stands")
	}, models.WithClock(clock.Now))
}

func TestBR_02_VolumeOneRunPerAutomationAndInstant(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		stores := []*models.Store{db.Open(t), db.Open(t), db.Open(t)}
		all := scheduled(t, stores[0], modelstest.Volume(200), nil)
		list := dueSchedules(t, stores[0], len(all))
		fires := fireAll(list, stores[0].Now().Add(time.Hour))
		var mu sync.Mutex
		var inserted int
		var group sync.WaitGroup
		for _, s := range stores {
			group.Go(func() {
				runs, err := s.FireSchedules(t.Context(), fires)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				inserted += len(runs)
				mu.Unlock()
			})
		}
		group.Wait()
		require.Equal(t, len(all), inserted)
		n, err := db.Raw().NewSelect().Model((*models.Run)(nil)).Count(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, len(all), n)

		// Even where next_run_at was put back by hand, the instant has its run already.
		modelstest.Set(t, stores[0], all[0], "next_run_at = ?", *all[0].NextRunAt)
		runs, err := stores[0].FireSchedules(t.Context(), fires)
		require.NoError(t, err)
		require.Empty(t, runs)
	})
}

func TestBR_02_ForbidNeverHasTwoAtWorkWhateverTheCallerSaw(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		scheduled(t, s, 1, func(_ int, a *models.Automation) { a.Overlap = models.OverlapForbid })
		statuses := map[models.RunStatus]int{}
		var working *models.Run
		for minute := range 10 { // a run takes 150 s
			list := dueSchedules(t, s, 10)
			require.Len(t, list, 1)
			runs, err := s.FireSchedules(t.Context(), fireAll(list, clock.Now().Add(time.Minute)))
			require.NoError(t, err)
			require.Len(t, runs, 1)
			statuses[runs[0].Status]++
			if runs[0].Status == models.RunPending {
				require.Nil(t, working, "minute %d", minute)
				working = runs[0]
			}
			clock.Advance(time.Minute)
			if working != nil && clock.Now().Sub(working.CreatedAt) >= 150*time.Second {
				o := callback(models.RunCompleted)
				o.From = []models.RunStatus{models.RunPending}
				require.True(t, finish(t, s, working, o, suspendFor(0)).Won)
				working = nil
			}
		}
		require.Equal(t, map[models.RunStatus]int{models.RunPending: 4, models.RunSkipped: 6}, statuses)
	}, models.WithClock(clock.Now))
}

func TestPeerDefect_22_AManualRunDoesNotSwallowAScheduledOne(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := scheduled(t, s, 1, nil)[0]
		modelstest.Pending(t, s, a)
		list := dueSchedules(t, s, 10)
		require.Len(t, list, 1)
		require.NotNil(t, list[0].Automation.LastTriggeredAt)
		runs, err := s.FireSchedules(t.Context(), fireAll(list, s.Now().Add(time.Hour)))
		require.NoError(t, err)
		require.Len(t, runs, 1)
	})
}

func TestPeerDefect_28_AScheduleThatCannotBeEvaluatedIsDisabledWithReasonAndEvent(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		all := scheduled(t, s, 2, nil)
		cron := models.TriggerCron
		pending := modelstest.Pending(t, s, all[0], func(r *models.Run) { r.TriggerSource = &cron })
		runs, err := s.FireSchedules(t.Context(), []models.Fire{
			{AutomationID: all[0].ID, Was: *all[0].NextRunAt, Disable: "Invalid cron expression: x"},
			{AutomationID: all[1].ID, Was: all[1].NextRunAt.Add(time.Second), Disable: "stale reading"},
		})
		require.NoError(t, err)
		require.Empty(t, runs)
		got, err := s.Automation(t.Context(), all[0].OrgID, all[0].ID)
		require.NoError(t, err)
		require.Equal(t, models.AutomationInactive, got.State)
		require.Equal(t, "Invalid cron expression: x", *got.DisabledReason)
		require.JSONEq(t, `{"reason":"Invalid cron expression: x","source":"schedule"}`, string(got.DisabledDetail))
		require.NotNil(t, got.DisabledAt)
		require.Nil(t, got.NextRunAt)
		require.Equal(t, models.RunSkipped, read(t, s, pending.ID).Status)
		var events []*models.Event
		require.NoError(t, modelstest.Of(t, s).Raw().NewSelect().Model(&events).Where("e.automation_id = ?", all[0].ID).Scan(t.Context()))
		require.Len(t, events, 1)
		require.Equal(t, "disabled", events[0].What)
		got, err = s.Automation(t.Context(), all[1].OrgID, all[1].ID)
		require.NoError(t, err)
		require.True(t, got.Enabled())
	})
}

func TestBR_10_AnImpossibleScheduleNeverFiresAgain(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := scheduled(t, s, 1, nil)[0]
		runs, err := s.FireSchedules(t.Context(), []models.Fire{{AutomationID: a.ID, Was: *a.NextRunAt}})
		require.NoError(t, err)
		require.Empty(t, runs)
		require.Empty(t, dueSchedules(t, s, 10))
		at, err := s.NextScheduleAt(t.Context())
		require.NoError(t, err)
		require.Nil(t, at)
		got, err := s.Automation(t.Context(), a.OrgID, a.ID)
		require.NoError(t, err)
		require.Nil(t, got.LastTriggeredAt)
	})
}

func TestDisablingWinsOverAFireThatWasDecidedBefore(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := scheduled(t, s, 1, nil)[0]
		fires := fireAll(dueSchedules(t, s, 10), s.Now().Add(time.Hour))
		update(t, s, a, func(a *models.Automation) { a.State = models.AutomationInactive })
		runs, err := s.FireSchedules(t.Context(), fires)
		require.NoError(t, err)
		require.Empty(t, runs)
	})
}

// processorTime is what this process has used of the processors. Other tests share the machine, so a bound on it holds where
// one on the wall clock would not.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestVolumeTenThousandSchedulesFireSetBased(t *testing.T) {
	n := modelstest.Volume(10_000)
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		sent := new(statements)
		s.Watch(sent)
		scheduled(t, s, n, nil)
		sent.all = nil
		start, used := time.Now(), processorTime(t)
		list := dueSchedules(t, s, n)
		runs, err := s.FireSchedules(t.Context(), fireAll(list, s.Now().Add(time.Hour)))
		used = processorTime(t) - used
		require.NoError(t, err)
		require.Len(t, runs, n)
		t.Logf("%d schedules fired in %v, %v of processor time", n, time.Since(start), used)
		require.Less(t, used, 2*time.Second)
		require.Less(t, len(sent.all), n/100+20, "two statements for 500")
	})
}
