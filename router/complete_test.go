package router_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
)

func (w *world) complete(as string, run uuid.UUID, body any) answer {
	w.t.Helper()
	return w.call(as, "POST", "runs/"+run.String()+"/complete", body)
}

var completed = map[string]any{"status": "COMPLETED"}

func noDelay(d *router.Deps) { d.Settings.CleanupDelay = 0 }

func TestS1_060_DeferredPathPausesAndStamps(t *testing.T) {
	t.Run("S1-010 S1-011 S1-014 S1-015 stamped and paused by the terminal update, COMPLETED or FAILED", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			for _, status := range []string{"COMPLETED", "FAILED"} {
				run, box := w.running(w.automation())
				w.clock.Advance(time.Minute)
				settles := w.settles.Load()
				got := w.complete("tok-alice", run.ID, map[string]any{"status": status}).is(200)

				require.Equal(t, status, got["status"])
				after := w.run(run.ID)
				require.NotNil(t, after.CleanupDueAt)
				require.Equal(t, after.CompletedAt.Add(delay), *after.CleanupDueAt, "S1-011: counted from completed_at itself")
				require.Equal(t, models.WantSuspended, w.box(box.ID).Desired, "S1-015: paused instead of deleted")
				require.Equal(t, settles+1, w.settles.Load())
				require.Zero(t, w.door.entered.Load(), "the answer does not wait for the box")

				cleanup := got["cleanup"].(map[string]any)
				require.Equal(t, after.CleanupDueAt.UTC().Format(time.RFC3339), cleanup["due_at"])
				require.EqualValues(t, 3600, cleanup["seconds_left"])
				require.Equal(t, "pending", cleanup["state"])
				require.Equal(t, "delay", cleanup["source"])
			}
		})
	})
}

func TestS1_060_KeepAliveWins(t *testing.T) {
	t.Run("S1-020 never stamped, paused or deleted, whatever the delay", func(t *testing.T) {
		for _, edit := range []func(*router.Deps){func(*router.Deps) {}, noDelay} {
			each(t, func(t *testing.T, w *world) {
				run, box := w.running(w.automation(keepAlive))
				w.complete("tok-alice", run.ID, completed).is(200)
				require.Nil(t, w.run(run.ID).CleanupDueAt)
				require.Equal(t, models.WantRunning, w.box(box.ID).Desired)
				require.EqualValues(t, 1, w.box(box.ID).Generation)
			}, edit)
		}
	})
	t.Run("S1-022 false and null are for the service to clean up", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			no := false
			for _, keep := range []*bool{nil, &no} {
				run, box := w.running(w.automation(func(a *models.Automation) { a.KeepAlive = keep }))
				w.complete("tok-alice", run.ID, completed).is(200)
				require.NotNil(t, w.run(run.ID).CleanupDueAt)
				require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
			}
		})
	})
}

func TestS1_016_WithoutADelayTheBoxIsDeletedNotPaused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.running(w.automation())
		got := w.complete("tok-alice", run.ID, completed).is(200)
		require.Nil(t, w.run(run.ID).CleanupDueAt)
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
		require.EqualValues(t, 1, w.settles.Load())
		require.Equal(t, "due", got["cleanup"].(map[string]any)["state"])
	}, noDelay)
}

func TestS1_012_TheStampIsCommittedWithTheStatus(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		clock := modelstest.NewClock()
		first := newWorld(t, db.Open(t, models.WithClock(clock.Now)), clock, func(d *router.Deps) {
			d.Nudge.Settle = func() { panic("crashed right after the commit") }
		})
		run, box := first.running(first.automation())
		require.Equal(t, 500, first.complete("tok-alice", run.ID, completed).Code)

		second := newWorld(t, db.Open(t, models.WithClock(clock.Now)), clock)
		after := second.run(run.ID)
		require.Equal(t, models.RunCompleted, after.Status)
		require.Equal(t, after.CompletedAt.Add(delay), *after.CleanupDueAt)
		require.Equal(t, models.WantSuspended, second.box(box.ID).Desired)
		require.NotNil(t, second.box(box.ID).NextStepAt, "the pause is still to be done")
	})
}

func TestS1_013_LosingTheRaceWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.running(w.automation())
		w.complete("tok-alice", run.ID, completed).is(200)
		stamp, generation, settles := *w.run(run.ID).CleanupDueAt, w.box(box.ID).Generation, w.settles.Load()
		w.clock.Advance(time.Minute)
		for _, status := range []string{"COMPLETED", "FAILED"} {
			got := w.complete("tok-alice", run.ID, map[string]any{"status": status}).is(409)
			require.Equal(t, "Run is COMPLETED, expected RUNNING", got["detail"])
		}
		require.Equal(t, stamp, *w.run(run.ID).CleanupDueAt)
		require.Equal(t, generation, w.box(box.ID).Generation)
		require.Equal(t, settles, w.settles.Load())
	})
}

func TestS1_017_ALateCallbackFlipsATimedOutRunAndStampsAnew(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.running(w.automation())
		text := "Timed out: No bash output found"
		done, err := w.store.Finish(t.Context(), run.ID, models.Outcome{
			Status: models.RunFailed, ErrorDetail: &text, Actor: "watchdog", Reason: "timed out",
		}, func(e models.Ending) models.Decision {
			due := e.Now.Add(delay)
			return models.Decision{Box: models.BoxSuspend, Due: &due}
		})
		require.NoError(t, err)
		require.True(t, done.Won)
		first := *w.run(run.ID).CleanupDueAt

		w.clock.Advance(10 * time.Minute)
		require.Equal(t, "Run is FAILED, expected RUNNING",
			w.complete("tok-alice", run.ID, map[string]any{"status": "FAILED", "error": "late"}).is(409)["detail"])
		got := w.complete("tok-alice", run.ID, map[string]any{"status": "COMPLETED", "conversation_id": "c-9", "cost": 1.5}).is(200)
		require.Equal(t, "COMPLETED", got["status"])
		require.Nil(t, got["error_detail"])
		require.Equal(t, "c-9", got["conversation_id"])
		require.Equal(t, "1.5", encode(got["cost"]))
		after := w.run(run.ID)
		require.Equal(t, first.Add(10*time.Minute), *after.CleanupDueAt, "stamped from the new completion")
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		require.Equal(t, "Run is COMPLETED, expected RUNNING", w.complete("tok-alice", run.ID, completed).is(409)["detail"], "once")
	})
}

func TestS1_018_NoOtherTerminalStateIsFlipped(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, end := range []struct {
			status models.RunStatus
			text   string
		}{
			{models.RunFailed, "exit_code=3"}, {models.RunFailed, "timed out: lower case"}, {models.RunFailed, ""},
			{models.RunCancelled, "Timed out: not this one"}, {models.RunSkipped, "Timed out: nor this"}, {models.RunCompleted, ""},
		} {
			run, _ := w.running(w.automation())
			_, err := w.store.Finish(t.Context(), run.ID, models.Outcome{Status: end.status, ErrorDetail: &end.text, Actor: "watchdog"},
				func(models.Ending) models.Decision { return models.Decision{Box: models.BoxNothing} })
			require.NoError(t, err)
			got := w.complete("tok-alice", run.ID, completed).is(409)
			require.Equal(t, "Run is "+string(end.status)+", expected RUNNING", got["detail"])
			require.Equal(t, end.status, w.run(run.ID).Status)
			require.Nil(t, w.run(run.ID).CleanupDueAt)
		}
	})
}

func TestS1_019_CallbackOnlyFromTheOwner(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, _ := w.running(w.automation())
		for _, as := range []string{"tok-bob", "tok-carol", "tok-eve"} {
			require.Equal(t, map[string]any{"detail": "Not your automation"}, w.complete(as, run.ID, completed).is(403), as)
		}
		require.Equal(t, map[string]any{"detail": "Run not found"}, w.complete("tok-alice", uuid.New(), completed).is(404))
		require.Equal(t, models.RunRunning, w.run(run.ID).Status)

		// The creator keeps that right when the automation is deleted meanwhile: its runs go on.
		require.NoError(t, w.store.DeleteAutomation(t.Context(), org, run.AutomationID))
		w.complete("tok-alice", run.ID, completed).is(200)
	})
}

func TestS1_057_ManyCallbacksAtOnceEndARunOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.running(w.automation())
		var wg sync.WaitGroup
		codes := make([]int, 8)
		for i := range codes {
			wg.Go(func() { codes[i] = w.complete("tok-alice", run.ID, completed).Code })
		}
		var watchdogWon bool
		wg.Go(func() {
			text := "exit_code=1"
			done, err := w.store.Finish(t.Context(), run.ID, models.Outcome{Status: models.RunFailed, ErrorDetail: &text, Actor: "watchdog"},
				func(e models.Ending) models.Decision {
					due := e.Now.Add(delay)
					return models.Decision{Box: models.BoxSuspend, Due: &due}
				})
			watchdogWon = err == nil && done.Won
		})
		wg.Wait()
		won := 0
		for _, code := range codes {
			if code == http.StatusOK {
				won++
			} else {
				require.Equal(t, http.StatusConflict, code)
			}
		}
		if watchdogWon {
			won++
		}
		require.Equal(t, 1, won)
		after := w.run(run.ID)
		require.Equal(t, after.CompletedAt.Add(delay), *after.CleanupDueAt)
		require.EqualValues(t, 2, w.box(box.ID).Generation, "one order")
		events, _, err := w.store.Events(t.Context(), box.ID, 100, 0)
		require.NoError(t, err)
		ordered := 0
		for _, e := range events {
			if e.What == "ordered" {
				ordered++
			}
		}
		require.Equal(t, 1, ordered)
	})
}

// Faults 3 and 4 of the Python service: whether an id is stored yet does not matter, for the row of the box is there first.
func TestCallbackBeforeTheProviderNamedTheBox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		unnamed := func(_ *models.Run, b *models.Sandbox) { b.Identities, b.Observed = nil, models.SeenProvisioning }
		run, box := w.running(w.automation(), unnamed)
		got := w.complete("tok-alice", run.ID, completed).is(200)
		require.Nil(t, got["sandbox_id"])
		require.Equal(t, box.ID.String(), got["sandbox"].(map[string]any)["id"])
		require.NotNil(t, w.run(run.ID).CleanupDueAt)
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)

		require.NoError(t, w.store.RecordIdentity(t.Context(), models.Identity{
			SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: "late-name", SeenAt: w.store.Now(),
		}))
		require.Equal(t, "late-name", w.call("tok-alice", "GET", "runs/"+run.ID.String(), nil).is(200)["sandbox_id"])
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired, "the order stands")

		run, box = w.running(w.automation(), unnamed)
		w.call("tok-alice", "POST", "runs/"+run.ID.String()+"/cancel", nil).is(200)
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
	})
}

// Fault 27 of the Python service: the SDK calls back once, so what a late callback tells is kept.
func TestWhatALateFailedCallbackTellsIsKept(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, _ := w.running(w.automation())
		text := "Timed out: Command still running"
		_, err := w.store.Finish(t.Context(), run.ID, models.Outcome{Status: models.RunFailed, ErrorDetail: &text, Actor: "watchdog"},
			func(models.Ending) models.Decision { return models.Decision{Box: models.BoxNothing} })
		require.NoError(t, err)
		w.complete("tok-alice", run.ID, map[string]any{
			"status": "FAILED", "error": "the tests are red", "conversation_id": "c-1", "cost": 0.5,
		}).is(409)
		got := w.call("tok-alice", "GET", "runs/"+run.ID.String(), nil).is(200)
		require.Equal(t, "c-1", got["conversation_id"])
		require.Equal(t, "0.5", encode(got["cost"]))
		require.Equal(t, text, got["error_detail"])
		require.Contains(t, encode(got["status_detail"]), "the tests are red")
	})
}

func TestErrorsOfACallback(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	each(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			name   string
			given  any
			text   string
			detail map[string]any
		}{
			{"text", "boom", "boom", map[string]any{"kind": "execution_error", "source": "sdk_callback", "detail": "boom"}},
			{"nothing", nil, "Completion callback reported failure", map[string]any{"kind": "execution_error"}},
			{"empty", "", "Completion callback reported failure", nil},
			{"object", map[string]any{"code": "X", "detail": "went wrong", "source": "sdk"}, "X: went wrong [source=sdk]",
				map[string]any{"code": "X", "source": "sdk", "formatted_detail": "X: went wrong [source=sdk]", "fingerprint": "callback:sdk:execution_error"}},
			{"known code", map[string]any{"code": "LLMAuthenticationError", "detail": "bad key", "source": "environment"},
				"LLMAuthenticationError: bad key [kind=auth, source=environment]",
				map[string]any{"kind": "auth", "user_action": "settings", "transient": false}},
			{"own classification", map[string]any{"code": "Q", "detail": "used up", "source": "agent",
				"classification": map[string]any{"kind": "quota", "retryable": true, "user_action": "settings"}},
				"Q: used up [kind=quota, source=agent]", map[string]any{"kind": "quota", "transient": true}},
			{"message", map[string]any{"message": "only a message"}, "only a message", map[string]any{"formatted_detail": "only a message"}},
			{"empty object", map[string]any{}, "Completion callback reported failure", nil},
			{"odd members", map[string]any{"code": 7, "detail": []any{1}, "source": nil}, "Completion callback reported failure", nil},
			{"NUL", "a\x00b", "a\uFFFDb", nil},
			{"long", long, long, nil},
		} {
			run, _ := w.running(w.automation())
			got := w.complete("tok-alice", run.ID, map[string]any{"status": "FAILED", "error": c.given}).is(200)
			require.Equal(t, c.text, got["error_detail"], c.name)
			require.Subset(t, got["status_detail"], c.detail, c.name)
			require.Equal(t, "callback", got["status_detail"].(map[string]any)["phase"], c.name)
			require.Equal(t, "2026-06-01T12:00:00+00:00", got["status_detail"].(map[string]any)["first_seen_at"], c.name)
		}
	})
}

func TestS1_023_CancelDeletesAtOnceWithoutAStamp(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, edit := range []func(*models.Automation){func(*models.Automation) {}, keepAlive} {
			run, box := w.running(w.automation(edit))
			path := "runs/" + run.ID.String() + "/cancel"
			require.Equal(t, "Only admins, owners, or the automation creator can modify it", w.call("tok-bob", "POST", path, nil).is(403)["detail"])
			require.Equal(t, "Not your automation", w.call("tok-eve", "POST", path, nil).is(403)["detail"])
			require.Equal(t, "Run not found", w.call("tok-alice", "POST", "runs/"+uuid.NewString()+"/cancel", nil).is(404)["detail"])
			before := w.settles.Load()

			got := w.call("tok-alice", "POST", path, nil).is(200)
			require.Equal(t, "CANCELLED", got["status"])
			require.Equal(t, "Cancelled by user", got["error_detail"])
			require.Nil(t, got["status_detail"])
			require.Nil(t, w.run(run.ID).CleanupDueAt)
			require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
			require.Equal(t, before+1, w.settles.Load())
			require.Equal(t, "Run is CANCELLED, only PENDING or RUNNING runs can be cancelled", w.call("tok-alice", "POST", path, nil).is(409)["detail"])
			require.Equal(t, "Run is CANCELLED, expected RUNNING", w.complete("tok-alice", run.ID, completed).is(409)["detail"])
		}
		pending := modelstest.Pending(t, w.store, w.automation())
		got := w.call("tok-alice", "POST", "runs/"+pending.ID.String()+"/cancel", nil).is(200)
		require.Equal(t, "CANCELLED", got["status"])
		require.Nil(t, got["sandbox"])
		require.Equal(t, "none", got["cleanup"].(map[string]any)["state"])
	})
}

func TestS1_021_ConversationsThatGoOnAreKeptAlive(t *testing.T) {
	goesOn := map[string]any{"type": "event", "source": "github", "on": "push", "destination": "continue_conversation"}
	each(t, func(t *testing.T, w *world) {
		require.Equal(t, true, w.call("tok-alice", "POST", base+"/v1", newAutomation("trigger", goesOn)).is(201)["keep_alive"])
		w.call("tok-alice", "POST", base+"/v1", newAutomation("trigger", goesOn, "keep_alive", false)).is(422)

		made := w.call("tok-alice", "POST", base+"/v1", newAutomation("keep_alive", false)).is(201)
		id := made["id"].(string)
		require.Equal(t, true, w.call("tok-alice", "PATCH", id, map[string]any{"trigger": goesOn}).is(200)["keep_alive"])
		got := w.call("tok-alice", "PATCH", id, map[string]any{"keep_alive": false}).is(400)
		require.Contains(t, got["detail"], "keep_alive cannot be false when destination is 'continue_conversation'")
		require.Equal(t, true, w.call("tok-alice", "GET", id, nil).is(200)["keep_alive"])
	})
}

func TestPhaseOfARun(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, _ := w.running(w.automation())
		path := "runs/" + run.ID.String() + "/phase"
		got := w.call("tok-alice", "POST", path, map[string]any{"phase": "  Cloning\n repositories \a "}).is(200)
		require.Equal(t, "Cloning repositories", got["current_phase"])
		for _, phase := range []any{"", " \n ", strings.Repeat("p", 201), 7, nil} {
			w.call("tok-alice", "POST", path, map[string]any{"phase": phase}).is(422)
		}
		w.call("tok-bob", "POST", path, map[string]any{"phase": "x"}).is(403)
		w.call("tok-eve", "POST", path, map[string]any{"phase": "x"}).is(403)
		w.complete("tok-alice", run.ID, completed).is(200)
		require.Equal(t, "Run is COMPLETED, expected PENDING or RUNNING",
			w.call("tok-alice", "POST", path, map[string]any{"phase": "x"}).is(409)["detail"])
	})
}

func TestABackendThatCannotSuspendLosesTheBoxWithANote(t *testing.T) {
	t.Run("S0-126 deleted after the run, never left running in silence", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			run, box := w.running(w.automation(), func(_ *models.Run, b *models.Sandbox) { b.Backend = "cannot-suspend" })
			w.complete("tok-alice", run.ID, completed).is(200)
			require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
			require.NotEmpty(t, w.call("tok-alice", "GET", "sandboxes/"+box.ID.String(), nil).is(200)["note"])
			got := w.call("tok-alice", "POST", "sandboxes/"+box.ID.String()+"/pause", nil).is(409)
			require.Equal(t, "unsupported", got["error"].(map[string]any)["code"])
		})
	})
}
