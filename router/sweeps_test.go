package router_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

func TestASweepIsShownAndThenAppliedExactly(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.finished()
		modelstest.Set(t, w.store, box, "storage = ?", `{"trash_bytes":1,"conversations":[{"size_bytes":41}]}`)
		w.clock.Advance(delay)
		_, later := w.finished()

		planned := w.call("tok-bob", "POST", "sweeps/plan", nil).is(201)
		id := planned["id"].(string)
		require.Equal(t, "planned", planned["state"])
		require.Equal(t, "2026-06-01T14:00:00Z", planned["expires_at"])
		require.Equal(t, []any{map[string]any{
			"sandbox_id": box.ID.String(), "run_id": run.ID.String(), "automation_id": run.AutomationID.String(), "automation_name": "nightly",
			"backend": modelstest.Backend, "due_at": "2026-06-01T13:00:00Z", "size_bytes": 42.0, "export": "exported_first", "outcome": "planned",
		}}, planned["items"])
		require.Zero(t, w.settles.Load()-2, "a plan orders nothing")

		require.Equal(t, "Requires manage_automations permission", w.call("tok-bob", "POST", "sweeps/"+id+"/apply", nil).is(403)["detail"])
		applied := w.call("tok-alice", "POST", "sweeps/"+id+"/apply", nil).is(200)
		require.Equal(t, "applied", applied["state"])
		require.Equal(t, "user:"+alice.String(), applied["applied_by"])
		require.EqualValues(t, 1, applied["counts"].(map[string]any)["ordered"])
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
		require.Equal(t, models.WantSuspended, w.box(later.ID).Desired)
		require.EqualValues(t, 3, w.settles.Load())
		require.Equal(t, applied, w.call("tok-alice", "POST", "sweeps/"+id+"/apply", nil).is(200), "the first result, again")
		require.Equal(t, applied, w.call("tok-bob", "GET", "sweeps/"+id, nil).is(200))

		list := w.call("tok-bob", "GET", "sweeps", nil).is(200)
		require.EqualValues(t, 1, list["total"])
		require.NotContains(t, list["sweeps"].([]any)[0], "items")
		require.EqualValues(t, 0, w.call("tok-eve", "GET", "sweeps", nil).is(200)["total"])
		w.call("tok-eve", "GET", "sweeps/"+id, nil).is(404)
		w.call("tok-eve", "POST", "sweeps/"+id+"/apply", nil).is(404)
		for _, odd := range []string{uuid.NewString(), "x", "..", "%00", "%ff"} {
			require.Contains(t, []int{404}, w.call("tok-alice", "GET", "sweeps/"+odd, nil).Code, odd)
			require.Equal(t, 404, w.call("tok-alice", "POST", "sweeps/"+odd+"/apply", nil).Code, odd)
		}
	})
}

func TestS0_155_ASweepAheadOfTheDateAsksForConfirmation(t *testing.T) {
	keeps := false
	each(t, func(t *testing.T, w *world) {
		keeps = false
		_, box := w.finished()
		early := func() string {
			return w.call("tok-alice", "POST", "sweeps/plan", map[string]any{"due_within_seconds": 7200}).is(201)["id"].(string)
		}
		id := early()
		got := w.call("tok-alice", "POST", "sweeps/"+id+"/apply", nil).is(409)["error"].(map[string]any)
		require.Equal(t, "confirmation_needed", got["code"])
		require.Equal(t, "history-will-be-lost", got["details"].(map[string]any)["confirm"])
		w.call("tok-alice", "POST", "sweeps/"+id+"/apply", map[string]any{"confirm": "yes"}).is(400)
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		w.call("tok-alice", "POST", "sweeps/"+id+"/apply", map[string]any{"confirm": "history-will-be-lost"}).is(200)
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)

		keeps = true
		_, box = w.finished()
		id = early()
		require.Equal(t, "kept_by_provider", w.call("tok-alice", "GET", "sweeps/"+id, nil).is(200)["items"].([]any)[0].(map[string]any)["export"])
		w.call("tok-alice", "POST", "sweeps/"+id+"/apply", nil).is(200)
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
	}, func(d *router.Deps) {
		d.Capabilities = func(string) sandbox.Capabilities {
			return sandbox.Capabilities{Suspend: sandbox.SuspendDisk, KeepsHistory: keeps}
		}
	})
}

func TestPlansExpireAndPassesAreNoPlans(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		w.clock.Advance(delay)
		id := w.call("tok-alice", "POST", "sweeps/plan", map[string]any{"backend": box.Backend}).is(201)["id"].(string)
		require.Empty(t, w.call("tok-alice", "POST", "sweeps/plan", map[string]any{"backend": "other"}).is(201)["items"])
		w.clock.Advance(time.Hour)
		require.Equal(t, "plan_expired", w.call("tok-alice", "POST", "sweeps/"+id+"/apply", nil).is(409)["error"].(map[string]any)["code"])
		require.Equal(t, "expired", w.call("tok-alice", "GET", "sweeps/"+id, nil).is(200)["state"])
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)

		must(w.store.OrderDue(t.Context(), []models.Place{{Backend: box.Backend}}, 10, time.Hour))
		newest := w.call("tok-alice", "GET", "sweeps?limit=1", nil).is(200)["sweeps"].([]any)[0].(map[string]any)
		require.Equal(t, "janitor", newest["kind"])
		require.Equal(t, "applied", newest["state"])
		require.Nil(t, newest["expires_at"])
		require.Equal(t, "no_plan", w.call("tok-alice", "POST", "sweeps/"+newest["id"].(string)+"/apply", nil).is(409)["error"].(map[string]any)["code"])
		for field, odd := range map[string]any{"due_within_seconds": -1, "backend": "", "other": 1} {
			require.Contains(t, w.call("tok-alice", "POST", "sweeps/plan", map[string]any{field: odd}).is(400)["detail"], field)
		}
	})
}
