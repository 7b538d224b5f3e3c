package models_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// disabling runs a test on both dialects, with rules that switch automations off.
func disabling(t *testing.T, rules models.DisableRules, test func(*testing.T, *models.Store, *modelstest.Clock, *models.Automation)) {
	t.Helper()
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		s := db.Open(t, models.WithClock(clock.Now), models.WithDisableRules(rules))
		test(t, s, clock, modelstest.Automation(t, s))
	})
}

// ends makes one more run of a and ends it; detail is its status_detail, "" for success.
func ends(t *testing.T, s *models.Store, clock *modelstest.Clock, a *models.Automation, detail string) *models.Run {
	t.Helper()
	clock.Advance(time.Second)
	r, _ := modelstest.Running(t, s, a)
	o := models.Outcome{Status: models.RunCompleted, Actor: "callback"}
	if detail != "" {
		text := "it failed"
		o.Status, o.ErrorDetail, o.StatusDetail = models.RunFailed, &text, json.RawMessage(detail)
	}
	done, err := s.Finish(t.Context(), r.ID, o, func(models.Ending) models.Decision { return models.Decision{Box: models.BoxNothing} })
	require.NoError(t, err)
	require.True(t, done.Won)
	require.NoError(t, s.AfterEnd(t.Context(), done))
	return done.Run
}

const auth = `{"phase":"callback","kind":"auth","detail":"bad key","formatted_detail":"LLM: bad key"}`

func TestAutoDisable_AfterPermanentFailures(t *testing.T) {
	disabling(t, models.DisableRules{Permanent: 3}, func(t *testing.T, s *models.Store, clock *modelstest.Clock, a *models.Automation) {
		waits := modelstest.Pending(t, s, a, func(r *models.Run) { by := models.TriggerEvent; r.TriggerSource = &by })
		byHand := modelstest.Pending(t, s, a)
		ends(t, s, clock, a, auth)
		ends(t, s, clock, a, auth)
		require.True(t, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled(), "two are not enough")
		last := ends(t, s, clock, a, auth)

		off := must(s.Automation(t.Context(), a.OrgID, a.ID))
		require.Equal(t, models.AutomationInactive, off.State)
		require.Nil(t, off.NextRunAt)
		const why = "Paused automatically: auth — LLM: bad key. This failed the last 3 runs and needs a configuration fix."
		require.Equal(t, why, *off.DisabledReason)
		require.Equal(t, s.Now(), off.DisabledAt.UTC())
		require.JSONEq(t, fmt.Sprintf(`{"reason":%q,"source":"consecutive_permanent_failures","run_id":%q,"rule":"consecutive_permanent_failures",
			"threshold":3,"consecutive_permanent_failures":3,"status_detail":%s}`, why, last.ID, auth), string(off.DisabledDetail))
		skipped := must(s.Run(t.Context(), a.OrgID, waits.ID))
		require.Equal(t, models.RunSkipped, skipped.Status)
		require.Equal(t, "Automation disabled", *skipped.ErrorDetail)
		require.Equal(t, models.RunPending, must(s.Run(t.Context(), a.OrgID, byHand.ID)).Status, "a run by hand is still wanted")

		_, err := s.UpdateAutomation(t.Context(), a.OrgID, a.ID, 0, func(a *models.Automation) error {
			a.State, a.DisabledReason, a.DisabledDetail, a.DisabledAt = models.AutomationActive, nil, nil, nil
			return nil
		})
		require.NoError(t, err)
		ends(t, s, clock, a, auth)
		ends(t, s, clock, a, auth)
		require.True(t, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled(), "failures before it was switched off do not count")
		ends(t, s, clock, a, auth)
		require.False(t, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled())
	})
}

func TestAutoDisable_WhatIsPermanent(t *testing.T) {
	cases := map[string]bool{
		`{"kind":"auth"}`:                                                   true,
		`{"kind":"config"}`:                                                 true,
		`{"kind":"quota"}`:                                                  true,
		`{"kind":"blocked"}`:                                                true,
		`{"kind":"execution_error"}`:                                        false,
		`{"kind":"auth","transient":true}`:                                  false,
		`{"kind":"unknown","permanent":true}`:                               true,
		`{"kind":"unknown","user_action":"settings"}`:                       true,
		`{"kind":"unknown","user_action":"retry"}`:                          false,
		`{"kind":"unknown","classification":{"kind":"quota"}}`:              true,
		`{"kind":"auth","classification":{"kind":"auth","retryable":true}}`: false,
		`{"kind":"unknown","user_action":"settings","classification":{"retryable":true}}`: false,
	}
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		s := db.Open(t, models.WithClock(clock.Now), models.WithDisableRules(models.DisableRules{Permanent: 1}))
		for detail, permanent := range cases {
			a := modelstest.Automation(t, s)
			ends(t, s, clock, a, detail)
			require.Equal(t, !permanent, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled(), detail)
		}
	})
}

func TestAutoDisable_AfterNothingButFailures(t *testing.T) {
	rules := models.DisableRules{Permanent: 3, Consecutive: 2, Window: 24 * time.Hour}
	const passing = `{"phase":"execution","kind":"execution_error","detail":"exit_code=2"}`
	disabling(t, rules, func(t *testing.T, s *models.Store, clock *modelstest.Clock, a *models.Automation) {
		ends(t, s, clock, a, "")
		ends(t, s, clock, a, passing)
		ends(t, s, clock, a, passing)
		require.True(t, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled(), "one succeeded within the window")
		clock.Advance(24 * time.Hour)
		last := ends(t, s, clock, a, passing)
		off := must(s.Automation(t.Context(), a.OrgID, a.ID))
		const why = "Paused automatically: the last 2 runs all failed and nothing has succeeded in 24 hours."
		require.Equal(t, why, *off.DisabledReason)
		require.JSONEq(t, fmt.Sprintf(`{"reason":%q,"source":"consecutive_failures","run_id":%q,"rule":"consecutive_failures",
			"threshold":2,"consecutive_failures":2,"status_detail":%s}`, why, last.ID, passing), string(off.DisabledDetail))
	})
	disabling(t, models.DisableRules{Permanent: 0}, func(t *testing.T, s *models.Store, clock *modelstest.Clock, a *models.Automation) {
		for range 5 {
			ends(t, s, clock, a, auth)
		}
		require.True(t, must(s.Automation(t.Context(), a.OrgID, a.ID)).Enabled(), "no threshold, no rule")
	})
}

func TestAutoDisable_ATemplatesFirstRunIsNotedOnce(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		s := db.Open(t, models.WithClock(clock.Now))
		for name, c := range map[string]struct{ first, want string }{
			"success": {"", `{"status":"success","failure_stage":null,"template_version":"3","recorded_at":%q}`},
			"failure": {auth, `{"status":"failure","failure_stage":"callback","template_version":"3","recorded_at":%q}`},
		} {
			t.Run(name, func(t *testing.T) {
				id := uuid.NewString()
				a := modelstest.Automation(t, s, func(a *models.Automation) {
					a.TemplateID, a.PresetMetadata = &id, json.RawMessage(`{"template":{"id":"x","version":"3","config":null}}`)
				})
				ends(t, s, clock, a, c.first)
				at := s.Now().Format("2006-01-02T15:04:05.000000-07:00")
				ends(t, s, clock, a, "")
				ends(t, s, clock, a, auth)
				stored := must(s.Automation(t.Context(), a.OrgID, a.ID))
				require.JSONEq(t, `{"template":{"id":"x","version":"3","config":null},"first_run":`+fmt.Sprintf(c.want, at)+`}`,
					string(stored.PresetMetadata))
			})
		}
	})
}

func TestAutoDisable_WhatCannotRunIsSwitchedOffAtOnce(t *testing.T) {
	disabling(t, models.DisableRules{}, func(t *testing.T, s *models.Store, clock *modelstest.Clock, a *models.Automation) {
		run := ends(t, s, clock, a, `{"kind":"unknown"}`)
		require.NoError(t, s.DisableBroken(t.Context(), run, "its files are gone", run.StatusDetail))
		off := must(s.Automation(t.Context(), a.OrgID, a.ID))
		require.Equal(t, models.AutomationInactive, off.State)
		require.Equal(t, "its files are gone", *off.DisabledReason)
		require.JSONEq(t, `{"status_detail":{"kind":"unknown"}}`, string(off.DisabledDetail))
		require.NoError(t, s.DisableBroken(t.Context(), run, "once more", nil))
		require.Equal(t, "its files are gone", *must(s.Automation(t.Context(), a.OrgID, a.ID)).DisabledReason)
		require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))
		require.NoError(t, s.DisableBroken(t.Context(), run, "deleted meanwhile", nil))
	})
}
