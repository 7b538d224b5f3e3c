package models_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

func update(t *testing.T, s *models.Store, a *models.Automation, change func(*models.Automation)) *models.Automation {
	t.Helper()
	got, err := s.UpdateAutomation(t.Context(), a.OrgID, a.ID, time.Hour, func(a *models.Automation) error { change(a); return nil })
	require.NoError(t, err)
	return got
}

func TestAnAutomationIsStoredAsItIs(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		at := modelstest.Start
		profile := uuid.New()
		want := modelstest.Automation(t, s, func(a *models.Automation) {
			a.Description, a.Prompt, a.SetupScriptPath = ptr("d"), ptr("it's a ? prompt"), ptr("setup.sh")
			a.PresetMetadata, a.PluginSpec = json.RawMessage(`{"preset_type":"prompt"}`), json.RawMessage(`{"p":[1,2]}`)
			a.Observability, a.Tags = json.RawMessage(`{"k":"body.x"}`), []string{"nightly", "o'neil"}
			a.TimeoutSeconds, a.KeepAlive, a.Overlap = ptr(60), ptr(true), models.OverlapForbid
			a.Model, a.AgentProfileID, a.TemplateID = ptr("m"), &profile, ptr("tpl")
			a.DisabledReason, a.DisabledDetail, a.DisabledAt = ptr("why"), json.RawMessage(`{"reason":"manual"}`), &at
			a.LastTriggeredAt, a.NextRunAt = &at, &at
		})
		got, err := s.Automation(t.Context(), want.OrgID, want.ID)
		require.NoError(t, err)
		for _, pair := range [][2]*json.RawMessage{
			{&want.PresetMetadata, &got.PresetMetadata}, {&want.PluginSpec, &got.PluginSpec}, {&want.Trigger, &got.Trigger},
			{&want.Observability, &got.Observability}, {&want.DisabledDetail, &got.DisabledDetail},
		} {
			require.JSONEq(t, string(*pair[0]), string(*pair[1]))
			*pair[1] = *pair[0]
		}
		require.Equal(t, want, got)

		bare := modelstest.Automation(t, s)
		got, err = s.Automation(t.Context(), bare.OrgID, bare.ID)
		require.NoError(t, err)
		require.Equal(t, []string{}, got.Tags)
		require.Nil(t, got.PresetMetadata)
		require.Nil(t, got.KeepAlive)
		require.Nil(t, got.NextRunAt)
		require.False(t, got.KeepsAlive())
	})
}

func TestAutomationsAreListedNewestFirstInTheirOrganization(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		var mine []uuid.UUID
		for range 3 {
			clock.Advance(time.Second)
			mine = append(mine, modelstest.Automation(t, s, func(a *models.Automation) { a.Tags = []string{"a", "b"} }).ID)
		}
		clock.Advance(time.Second)
		others := modelstest.Automation(t, s, func(a *models.Automation) { a.UserID = uuid.New() })
		deleted := modelstest.Automation(t, s)
		require.NoError(t, s.DeleteAutomation(t.Context(), deleted.OrgID, deleted.ID))
		modelstest.Automation(t, s, func(a *models.Automation) { a.OrgID = uuid.New() })
		slices.Reverse(mine)

		list := func(f models.AutomationFilter) []uuid.UUID {
			t.Helper()
			f.OrgID = modelstest.Org
			all, total, err := s.ListAutomations(t.Context(), models.AutomationFilter{
				OrgID: f.OrgID, CreatedBy: f.CreatedBy, NotBy: f.NotBy, Tag: f.Tag, Limit: 100,
			})
			require.NoError(t, err)
			require.Len(t, all, total)
			var ids []uuid.UUID
			for _, a := range all {
				ids = append(ids, a.ID)
			}
			return ids
		}
		me := modelstest.User
		require.Equal(t, append([]uuid.UUID{others.ID}, mine...), list(models.AutomationFilter{}))
		require.Equal(t, mine, list(models.AutomationFilter{CreatedBy: &me}))
		require.Equal(t, []uuid.UUID{others.ID}, list(models.AutomationFilter{NotBy: &me}))
		require.Equal(t, mine, list(models.AutomationFilter{Tag: "b"}))
		require.Empty(t, list(models.AutomationFilter{Tag: "%"}))
		page, total, err := s.ListAutomations(t.Context(), models.AutomationFilter{OrgID: me, Limit: 1})
		require.NoError(t, err)
		require.Empty(t, page)
		require.Zero(t, total)
		page, total, err = s.ListAutomations(t.Context(), models.AutomationFilter{OrgID: modelstest.Org, Limit: 2, Offset: 2})
		require.NoError(t, err)
		require.Equal(t, 4, total)
		require.Len(t, page, 2)
		require.Equal(t, mine[1], page[0].ID)
	}, models.WithClock(clock.Now))
}

func TestOneLiveAutomationPerTemplateAndOrganization(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx := t.Context()
		template := func(a *models.Automation) { a.TemplateID = ptr("tpl") }
		first := modelstest.Automation(t, s, template)
		copied := *first
		copied.ID = uuid.Nil
		require.ErrorIs(t, s.CreateAutomation(ctx, &copied), models.ErrConflict)
		found, err := s.AutomationByTemplate(ctx, first.OrgID, "tpl")
		require.NoError(t, err)
		require.Equal(t, first.ID, found.ID)
		_, err = s.AutomationByTemplate(ctx, uuid.New(), "tpl")
		require.ErrorIs(t, err, models.ErrNotFound)
		require.NoError(t, s.DeleteAutomation(ctx, first.OrgID, first.ID))
		_, err = s.AutomationByTemplate(ctx, first.OrgID, "tpl")
		require.ErrorIs(t, err, models.ErrNotFound)
		modelstest.Automation(t, s, template)
	})
}

func TestAnUpdateIsWrittenOrNotAtAll(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		refused := errors.New("refused")
		_, err := s.UpdateAutomation(t.Context(), a.OrgID, a.ID, 0, func(a *models.Automation) error {
			a.Name = "changed"
			return refused
		})
		require.ErrorIs(t, err, refused)
		got, err := s.Automation(t.Context(), a.OrgID, a.ID)
		require.NoError(t, err)
		require.Equal(t, a.Name, got.Name)
		changed := update(t, s, a, func(a *models.Automation) { a.Name, a.Tags = "changed", []string{"x"} })
		got, err = s.Automation(t.Context(), a.OrgID, a.ID)
		require.NoError(t, err)
		require.Equal(t, "changed", got.Name)
		require.Equal(t, []string{"x"}, got.Tags)
		sameTime(t, changed.UpdatedAt, &got.UpdatedAt)
		require.True(t, got.UpdatedAt.After(a.UpdatedAt))
		nothing := func(*models.Automation) error { return nil }
		_, err = s.UpdateAutomation(t.Context(), uuid.New(), a.ID, 0, nothing)
		require.ErrorIs(t, err, models.ErrNotFound, "another organization")
		require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))
		_, err = s.UpdateAutomation(t.Context(), a.OrgID, a.ID, 0, nothing)
		require.ErrorIs(t, err, models.ErrNotFound, "deleted")
	})
}

func TestDisablingSkipsPendingRunsThatAreNotManual(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		cron, event := models.TriggerCron, models.TriggerEvent
		by := func(source *models.TriggerSource) *models.Run {
			return modelstest.Pending(t, s, a, func(r *models.Run) { r.TriggerSource = source })
		}
		skipped := []*models.Run{by(&cron), by(&event), by(nil)}
		manual := modelstest.Pending(t, s, a)
		running, _ := modelstest.Running(t, s, a)
		foreign := modelstest.Pending(t, s, modelstest.Automation(t, s), func(r *models.Run) { r.TriggerSource = &cron })
		update(t, s, a, func(a *models.Automation) {
			a.State, a.DisabledReason, a.DisabledDetail = models.AutomationInactive, ptr("manual"), json.RawMessage(`{"reason":"manual","source":"user"}`)
		})
		for _, r := range skipped {
			got := read(t, s, r.ID)
			require.Equal(t, models.RunSkipped, got.Status)
			require.Equal(t, "Automation disabled", *got.ErrorDetail)
			require.NotNil(t, got.CompletedAt)
			var detail map[string]any
			require.NoError(t, json.Unmarshal(got.StatusDetail, &detail))
			for key, want := range map[string]any{
				"phase": "dispatch", "kind": "blocked", "detail": "manual", "transient": false, "source": "automation_service",
				"operation": "automation_disabled", "user_action": "settings",
				"disabled_detail": map[string]any{"reason": "manual", "source": "user"},
			} {
				require.Equal(t, want, detail[key], key)
			}
		}
		require.Equal(t, models.RunPending, read(t, s, manual.ID).Status)
		require.Equal(t, models.RunRunning, read(t, s, running.ID).Status)
		require.Equal(t, models.RunPending, read(t, s, foreign.ID).Status)

		require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))
		require.Equal(t, models.RunSkipped, read(t, s, manual.ID).Status, "deleting skips manual ones too")
		require.Equal(t, models.RunRunning, read(t, s, running.ID).Status, "what runs goes on")
		require.True(t, finish(t, s, running, callback(models.RunCompleted), suspendFor(time.Hour)).Won)
		require.ErrorIs(t, s.CreateRun(t.Context(), &models.Run{AutomationID: a.ID, OrgID: a.OrgID}), models.ErrNotFound)
		require.ErrorIs(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID), models.ErrNotFound)
	})
}

func TestDeletingIsSoft(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		at := modelstest.Start
		on := modelstest.Automation(t, s, func(a *models.Automation) { a.NextRunAt = &at })
		off := modelstest.Automation(t, s, func(a *models.Automation) {
			a.State, a.DisabledReason = models.AutomationInactive, ptr("manual")
		})
		stored := func(a *models.Automation) *models.Automation {
			require.NoError(t, s.DeleteAutomation(t.Context(), a.OrgID, a.ID))
			_, err := s.Automation(t.Context(), a.OrgID, a.ID)
			require.ErrorIs(t, err, models.ErrNotFound)
			got := new(models.Automation)
			require.NoError(t, modelstest.Of(t, s).Raw().NewSelect().Model(got).Where("a.id = ?", a.ID).Scan(t.Context()))
			require.Equal(t, models.AutomationInactive, got.State)
			require.NotNil(t, got.DeletedAt)
			require.Nil(t, got.NextRunAt)
			require.False(t, got.Enabled())
			return got
		}
		require.Equal(t, "manual_delete", *stored(on).DisabledReason)
		require.Equal(t, "manual", *stored(off).DisabledReason)
	})
}

func TestS1_020_SwitchingKeepAliveClearsAndSetsTheStampsOfStandingBoxes(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		ended := func() (*models.Run, *models.Sandbox) {
			r, b := modelstest.Running(t, s, a)
			finish(t, s, r, callback(models.RunCompleted), suspendFor(time.Hour))
			return r, b
		}
		standing, _ := ended()
		leaving, leavingBox := ended()
		require.NoError(t, s.Order(t.Context(), leavingBox.ID, models.WantDeleted, "janitor", "due"))
		kept, keptBox := ended()
		require.NoError(t, s.Keep(t.Context(), keptBox.ID, "user:x", "looking"))
		gone, goneBox := ended()
		modelstest.Set(t, s, goneBox, "observed = 'deleted'")
		running, _ := modelstest.Running(t, s, a)
		foreign, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		finish(t, s, foreign, callback(models.RunCompleted), suspendFor(time.Hour))

		clock.Advance(10 * time.Minute)
		due := *modelstest.Stamp(t, s, leaving.ID)
		update(t, s, a, func(a *models.Automation) { a.KeepAlive = ptr(true) })
		require.True(t, rawNull(t, s, standing.ID))
		sameTime(t, due, modelstest.Stamp(t, s, leaving.ID))
		require.False(t, rawNull(t, s, foreign.ID))

		clock.Advance(10 * time.Minute)
		update(t, s, a, func(a *models.Automation) { a.KeepAlive = ptr(true) })
		require.True(t, rawNull(t, s, standing.ID), "no switch, no change")
		modelstest.Set(t, s, gone, "sandbox_cleanup_due_at = NULL")
		update(t, s, a, func(a *models.Automation) { a.KeepAlive = nil })
		sameTime(t, clock.Now().Add(time.Hour), modelstest.Stamp(t, s, standing.ID))
		sameTime(t, due, modelstest.Stamp(t, s, leaving.ID))
		require.True(t, rawNull(t, s, kept.ID), "pinned by a person")
		require.True(t, rawNull(t, s, gone.ID), "nothing left to delete")
		require.True(t, rawNull(t, s, running.ID), "its end decides")

		clock.Advance(10 * time.Minute)
		due = *modelstest.Stamp(t, s, standing.ID)
		update(t, s, a, func(a *models.Automation) { a.KeepAlive = ptr(false) })
		sameTime(t, due, modelstest.Stamp(t, s, standing.ID))
	}, models.WithClock(clock.Now))
}

func TestUploadsAreReadInTheirOrganization(t *testing.T) {
	clock := modelstest.NewClock()
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		ctx, org, user := t.Context(), modelstest.Org, modelstest.User
		upload := func(name string) *models.Upload {
			clock.Advance(time.Second)
			u := &models.Upload{OrgID: org, UserID: user, Name: name, Status: models.UploadUploading, BlobKey: "uploads/" + name}
			require.NoError(t, s.CreateUpload(ctx, u))
			return u
		}
		first, second := upload("first"), upload("second")
		first.Status, first.SizeBytes = models.UploadCompleted, ptr(int64(42))
		require.NoError(t, s.UpdateUpload(ctx, first))
		got, err := s.Upload(ctx, org, first.ID)
		require.NoError(t, err)
		require.Equal(t, first, got)
		_, err = s.Upload(ctx, uuid.New(), first.ID)
		require.ErrorIs(t, err, models.ErrNotFound)

		names := func(status models.UploadStatus) (all []string) {
			list, total, err := s.ListUploads(ctx, org, user, status, 10, 0)
			require.NoError(t, err)
			require.Len(t, list, total)
			for _, u := range list {
				all = append(all, u.Name)
			}
			return all
		}
		require.Equal(t, []string{"second", "first"}, names(""))
		require.Equal(t, []string{"first"}, names(models.UploadCompleted))
		require.NoError(t, s.DeleteUpload(ctx, second.ID))
		require.ErrorIs(t, s.DeleteUpload(ctx, second.ID), models.ErrNotFound)
		require.Equal(t, []string{"first"}, names(""))
		got, err = s.Upload(ctx, org, second.ID)
		require.NoError(t, err)
		require.NotNil(t, got.DeletedAt)
		require.ErrorIs(t, s.UpdateUpload(ctx, &models.Upload{ID: uuid.New()}), models.ErrNotFound)
	}, models.WithClock(clock.Now))
}
