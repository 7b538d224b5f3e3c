package router_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

const confirmed = "?confirm=history-will-be-lost"

// finished makes a run that has ended, its box paused and due in an hour.
func (w *world) finished(edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	w.t.Helper()
	run, box := w.running(w.automation(), edit...)
	w.complete("tok-alice", run.ID, completed).is(200)
	now := w.store.Now()
	modelstest.Set(w.t, w.store, box, "observed = ?, suspended_at = ?, next_step_at = NULL", models.SeenSuspended, now)
	return w.run(run.ID), w.box(box.ID)
}

func sandboxPath(b *models.Sandbox, tail string) string { return "sandboxes/" + b.ID.String() + tail }

func TestS0_002_OnlyBoxesWithARecordAreDeleted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, id := range []string{uuid.NewString(), "sbx-of-somebody-else", "..", "%2e%2e", "a%2Fb", "%00", "%ff"} {
			got := w.call("tok-alice", "DELETE", "sandboxes/"+id+confirmed, nil)
			require.Equal(t, http.StatusNotFound, got.Code, "%q: %s", id, got.Body)
		}
		require.Zero(t, w.settles.Load())
	})
}

func TestS0_005_APausedBoxIsShownAsStillBilled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, awake := w.running(w.automation())
		_, paused := w.finished()
		require.Equal(t, "compute", w.call("tok-alice", "GET", sandboxPath(awake, ""), nil).is(200)["billed"])
		got := w.call("tok-alice", "GET", sandboxPath(paused, ""), nil).is(200)
		require.Equal(t, "storage", got["billed"])
		require.Equal(t, "0.05 $/GB a month", got["billed_detail"])
		require.Equal(t, true, got["memory_kept"])
		modelstest.Set(t, w.store, paused, "observed = ?", models.SeenDeleted)
		got = w.call("tok-alice", "GET", sandboxPath(paused, ""), nil).is(200)
		require.Equal(t, "nothing", got["billed"])
		require.Equal(t, "deleted", got["cleanup"].(map[string]any)["state"])
		conversation := uuid.NewString()
		w.call("tok-alice", "PUT", runtimePath(conversation), nil).is(201)
		got = w.call("tok-alice", "GET", sandboxPath(w.runtimeOf(conversation).Box, ""), nil).is(200)
		require.Equal(t, []any{"provisioning", "nothing"}, []any{got["observed"], got["billed"]}, "no provider was asked for it yet")
	})
}

func TestS0_014_PausedBoxesAreListedWithTheirAge(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.running(w.automation())
		_, paused := w.finished()
		w.clock.Advance(30 * time.Minute)
		got := w.call("tok-alice", "GET", "sandboxes?state=suspended", nil).is(200)
		require.EqualValues(t, 1, got["total"])
		one := got["sandboxes"].([]any)[0].(map[string]any)
		require.Equal(t, paused.ID.String(), one["id"])
		require.EqualValues(t, 1800, one["suspended_seconds"])
		require.Equal(t, "2026-06-01T12:00:00Z", one["suspended_at"])
		require.EqualValues(t, 1800, one["cleanup"].(map[string]any)["seconds_left"])

		require.EqualValues(t, 2, w.call("tok-alice", "GET", "sandboxes?state=suspended&state=running", nil).is(200)["total"])
		require.EqualValues(t, 1, w.call("tok-alice", "GET", "sandboxes?due_within=1800", nil).is(200)["total"])
		require.EqualValues(t, 1, w.call("tok-alice", "GET", "sandboxes?due_within=36h", nil).is(200)["total"])
		require.EqualValues(t, 0, w.call("tok-alice", "GET", "sandboxes?due_within=60", nil).is(200)["total"])
		require.EqualValues(t, 0, w.call("tok-alice", "GET", "sandboxes?backend=other", nil).is(200)["total"])
		for _, query := range []string{"state=asleep", "due_within=soon", "due_within=-1", "due_within=99999999999999999999", "limit=0", "needs_attention=perhaps"} {
			got := w.call("tok-alice", "GET", "sandboxes?"+query, nil).is(400)
			require.Contains(t, got["detail"], strings.Split(query, "=")[0])
		}
	})
}

func TestS0_013_ABoxCanBeDeletedByHand(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		got := w.call("tok-alice", "DELETE", sandboxPath(box, confirmed), nil).is(202)
		require.Equal(t, "deleted", got["desired"])
		require.Equal(t, "user:"+alice.String(), got["ordered_by"])
		require.Equal(t, models.WantDeleted, w.box(box.ID).Desired)
		generation, settles := w.box(box.ID).Generation, w.settles.Load()

		w.call("tok-alice", "DELETE", sandboxPath(box, confirmed), nil).is(202)
		require.Equal(t, generation, w.box(box.ID).Generation, "asking again changes nothing")
		require.Equal(t, settles, w.settles.Load())
		for _, tail := range []string{"/pause", "/resume"} {
			require.Equal(t, "deletion_ordered", w.call("tok-alice", "POST", sandboxPath(box, tail), nil).is(409)["error"].(map[string]any)["code"])
		}
		w.call("tok-alice", "POST", sandboxPath(box, "/extend"), map[string]any{"seconds": 60}).is(409)
		w.call("tok-alice", "PUT", sandboxPath(box, "/keep"), nil).is(409)
		w.call("tok-alice", "POST", sandboxPath(box, "/reclaim"), nil).is(409)
		require.Equal(t, 409, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/x"), nil).Code)
		require.Zero(t, w.door.entered.Load())
	})
}

func TestS0_155_DeletingAsksForConfirmation(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		// The epoch alone is no export: in this state the step has recorded that there was nothing to export.
		modelstest.Set(t, w.store, box, "exported_epoch = awake_epoch")
		for _, query := range []string{"", "?export=auto", "?export=skip"} {
			got := w.call("tok-alice", "DELETE", sandboxPath(box, query), nil).is(409)
			e := got["error"].(map[string]any)
			require.Equal(t, "confirmation_needed", e["code"])
			require.Equal(t, "history-will-be-lost", e["details"].(map[string]any)["confirm"])
			require.NotEmpty(t, e["request_id"])
		}
		w.call("tok-alice", "DELETE", sandboxPath(box, "?confirm=yes"), nil).is(400)
		w.call("tok-alice", "DELETE", sandboxPath(box, confirmed+"&export=perhaps"), nil).is(400)
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		w.call("tok-alice", "DELETE", sandboxPath(box, confirmed+"&export=skip"), nil).is(202)
	})
}

func TestS0_118_BoxesAreKeyedOnTheWorkspaceID(t *testing.T) {
	t.Run("S0-154 a provider's id names the right one, and a resume changes nothing", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			_, box := w.finished()
			first := box.Identities[0].ProviderID
			w.clock.Advance(time.Minute)
			require.NoError(t, w.store.RecordIdentity(t.Context(), models.Identity{
				SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: "made anew", SeenAt: w.store.Now(),
			}))
			got := w.call("tok-alice", "GET", sandboxPath(box, ""), nil).is(200)
			require.Equal(t, box.ID.String(), got["id"])
			require.Equal(t, "made anew", got["provider_id"])
			require.Len(t, got["identities"], 2)

			for _, name := range []string{first, "made%20anew"} {
				for _, call := range [][2]string{{"GET", ""}, {"POST", "/pause"}, {"DELETE", confirmed}, {"GET", "/proxy/x"}} {
					got := w.call("tok-alice", call[0], "sandboxes/"+name+call[1], nil).is(404)
					e := got["error"].(map[string]any)
					require.Equal(t, box.ID.String(), e["details"].(map[string]any)["workspace_id"])
					require.Contains(t, e["message"], box.ID.String())
				}
				got := w.call("tok-eve", "GET", "sandboxes/"+name, nil).is(404)
				require.NotContains(t, encode(got), box.ID.String(), "not to strangers")
			}
		})
	})
}

func TestS0_021_NothingHangsOnTheClientBeingThere(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.finished()
		server := httptest.NewServer(w.handler)
		client := server.Client()
		for _, path := range []string{"sandboxes", sandboxPath(box, ""), "runs/" + run.ID.String()} {
			r := request(t, "GET", server.URL+base+"/v1/"+path, "tok-alice")
			r.RequestURI = ""
			got := must(client.Do(r))
			require.NoError(t, got.Body.Close())
		}
		before := w.box(box.ID)
		client.CloseIdleConnections()
		server.Close()
		require.Equal(t, before, w.box(box.ID))
		require.Equal(t, run.CleanupDueAt, w.run(run.ID).CleanupDueAt)

		// The date stands in the row, so that what passes on the server is enough for it.
		w.clock.Advance(delay)
		ordered, err := w.store.OrderDue(t.Context(), []models.Place{{Backend: box.Backend}}, 10, time.Hour)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{box.ID}, ordered)
	})
}

func TestPauseAndResumeByHand(t *testing.T) {
	t.Run("S1-046 S1-047 a resume is possible until the due date and does not move it", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			run, box := w.finished()
			w.clock.Advance(20 * time.Minute)
			got := w.call("tok-alice", "POST", sandboxPath(box, "/resume"), nil).is(202)
			require.Equal(t, "running", got["desired"])
			require.Equal(t, "2026-06-01T13:00:00Z", got["cleanup"].(map[string]any)["due_at"])
			require.Equal(t, run.CleanupDueAt, w.run(run.ID).CleanupDueAt)
			require.Equal(t, models.WantRunning, w.box(box.ID).Desired)
			got = w.call("tok-alice", "POST", sandboxPath(box, "/pause"), nil).is(202)
			require.Equal(t, "suspended", got["desired"])
			require.Equal(t, "user:"+alice.String(), got["ordered_by"])
		})
	})
	t.Run("a box whose run is RUNNING is left alone: cancel the run first", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			_, box := w.running(w.automation())
			for _, call := range [][2]string{{"POST", "/pause"}, {"DELETE", confirmed}} {
				got := w.call("tok-alice", call[0], sandboxPath(box, call[1]), nil).is(409)
				require.Equal(t, "run_active", got["error"].(map[string]any)["code"])
				require.Contains(t, got["detail"], "cancel the run first")
			}
			require.EqualValues(t, 1, w.box(box.ID).Generation)
		})
	})
}

func TestExtend(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.finished() // due at 13:00
		path := sandboxPath(box, "/extend")
		due := func() string { return w.run(run.ID).CleanupDueAt.Format(time.RFC3339) }

		got := w.call("tok-alice", "POST", path, map[string]any{"seconds": "7200"}).is(200)
		require.Equal(t, "2026-06-01T15:00:00Z", got["due_at"])
		require.Equal(t, "2026-06-01T15:00:00Z", due(), "seconds count from the due date")
		require.Equal(t, "changed", got["cleanup"].(map[string]any)["source"])
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)

		w.clock.Advance(5 * time.Hour) // 17:00, overdue
		w.call("tok-alice", "POST", path, map[string]any{"seconds": 60}).is(200)
		require.Equal(t, "2026-06-01T17:01:00Z", due(), "or from now when that has passed")
		w.call("tok-alice", "POST", path, map[string]any{"until": "2026-06-02T00:00:00+02:00"}).is(200)
		require.Equal(t, "2026-06-01T22:00:00Z", due())

		for _, body := range []any{
			map[string]any{"seconds": 31 * 86400}, map[string]any{"until": "2026-07-02T17:00:01Z"}, map[string]any{"seconds": 1e30},
			map[string]any{"seconds": "99999999999999999999"}, map[string]any{"seconds": 0}, map[string]any{"seconds": -5},
			map[string]any{"seconds": 1.5}, map[string]any{"seconds": "x"}, map[string]any{"seconds": nil}, map[string]any{"seconds": []any{}},
			map[string]any{"until": "2026-06-01T16:59:59Z"}, map[string]any{"until": "tomorrow"}, map[string]any{"until": 5}, map[string]any{"until": nil},
			map[string]any{}, map[string]any{"seconds": 5, "until": "2026-06-02T00:00:00Z"}, map[string]any{"seconds": 5, "x": 1},
			"{", "[]", "null", "7", `{"seconds":5}x`, "",
		} {
			got := w.call("tok-alice", "POST", path, body).is(400)
			require.Equal(t, "invalid_request", got["error"].(map[string]any)["code"])
		}
		require.Equal(t, "2026-06-01T22:00:00Z", due())

		_, awake := w.running(w.automation())
		got = w.call("tok-alice", "POST", sandboxPath(awake, "/extend"), map[string]any{"seconds": 5}).is(409)
		require.Equal(t, "no_due_date", got["error"].(map[string]any)["code"])
		w.call("tok-alice", "POST", sandboxPath(awake, "/extend"), map[string]any{"until": "2026-06-02T00:00:00Z"}).is(409)
	})
}

func TestKeepAndUnkeep(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.finished()
		path := sandboxPath(box, "/keep")
		got := w.call("tok-alice", "PUT", path, map[string]any{"reason": "flaky test"}).is(200)
		require.Equal(t, map[string]any{"at": "2026-06-01T12:00:00Z", "by": "user:" + alice.String(), "reason": "flaky test"}, got["kept"])
		require.Nil(t, w.run(run.ID).CleanupDueAt, "keep clears the stamp")
		cleanup := w.call("tok-alice", "GET", "runs/"+run.ID.String(), nil).is(200)["cleanup"].(map[string]any)
		require.Equal(t, true, cleanup["kept"])
		require.Equal(t, "kept", cleanup["source"])
		require.Equal(t, "none", cleanup["state"])
		w.call("tok-alice", "PUT", path, map[string]any{"until": "2026-06-02T00:00:00Z"}).is(409)

		w.clock.Advance(time.Hour)
		got = w.call("tok-alice", "DELETE", path, nil).is(200)
		require.Nil(t, got["kept"])
		require.Equal(t, "2026-06-01T14:00:00Z", got["cleanup"].(map[string]any)["due_at"], "unkeep stamps from now")

		got = w.call("tok-alice", "PUT", path, map[string]any{"until": "2026-06-02T00:00:00Z"}).is(200)
		require.Equal(t, "2026-06-02T00:00:00Z", got["due_at"], "keep until is an extend")
		require.Nil(t, got["kept"])
		w.call("tok-alice", "PUT", path, nil).is(200)
		w.call("tok-alice", "PUT", path, map[string]any{"reason": strings.Repeat("x", 501)}).is(400)
		w.call("tok-alice", "PUT", path, map[string]any{"reason": "a\x00"}).is(400)
		w.call("tok-alice", "PUT", path, map[string]any{"until": "2027-06-02T00:00:00Z"}).is(400)
	})
}

func TestEventsOfABox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		w.call("tok-alice", "PUT", sandboxPath(box, "/keep"), map[string]any{"reason": "look at it"}).is(200)
		w.call("tok-alice", "DELETE", sandboxPath(box, confirmed), nil).is(202)
		got := w.call("tok-alice", "GET", sandboxPath(box, "/events"), nil).is(200)
		events := got["events"].([]any)
		require.EqualValues(t, len(events), got["total"])
		kept, last := events[len(events)-2].(map[string]any), events[len(events)-1].(map[string]any)
		require.Equal(t, "kept", kept["what"])
		require.Equal(t, "look at it", kept["reason"])
		require.Equal(t, "ordered", last["what"])
		require.Equal(t, "user:"+alice.String(), last["actor"])
		require.Contains(t, last["reason"], "deleted")
		require.Len(t, w.call("tok-alice", "GET", sandboxPath(box, "/events?limit=1"), nil).is(200)["events"], 1)
	})
}

func TestReclaimIsTheBoxesOwnAnswer(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var asked []string
		capabilities := `["storage_reclaim_v1","storage_status_v1"]`
		mux := http.NewServeMux()
		mux.HandleFunc("GET /server_info", func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = rw.Write([]byte(`{"version":"1","uptime":1.0,"idle_time":0.0,"capabilities":` + capabilities + `}`))
		})
		mux.HandleFunc("POST /api/storage/reclaim", func(rw http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Header.Get("X-Session-API-Key")+" "+bodyOf(r))
			_, _ = rw.Write([]byte(`{"plan_id":"p","dry_run":true,"freed_bytes":42,"items":[]}`))
		})
		mux.HandleFunc("GET /api/storage", func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = rw.Write([]byte(`{"root":"/home/box","trash_bytes":` + strconv.Itoa(len(asked)) + `}`))
		})
		box := httptest.NewServer(mux)
		t.Cleanup(box.Close)
		w.door.url, w.door.key = box.URL, "inner"

		_, paused := w.finished()
		require.Equal(t, "not_running", w.call("tok-alice", "POST", sandboxPath(paused, "/reclaim"), nil).is(409)["error"].(map[string]any)["code"])
		require.Zero(t, w.door.entered.Load(), "not woken for it")

		_, awake := w.running(w.automation())
		require.EqualValues(t, 42, w.call("tok-alice", "POST", sandboxPath(awake, "/reclaim?dry_run=true"), nil).is(200)["freed_bytes"])
		require.Equal(t, "p", w.call("tok-alice", "POST", sandboxPath(awake, "/reclaim"), nil).is(200)["plan_id"])
		require.Len(t, asked, 2)
		require.Contains(t, asked[0], "inner ")
		require.Contains(t, asked[0], `"dry_run":true`)
		require.Contains(t, asked[1], `"dry_run":false`)
		shown := w.call("tok-alice", "GET", sandboxPath(awake, ""), nil).is(200)
		require.Equal(t, map[string]any{"root": "/home/box", "trash_bytes": 2.0}, shown["storage"], "what is known of its disk is as of now")
		require.Equal(t, "2026-06-01T12:00:00Z", shown["storage_as_of"])
		events, _, err := w.store.Events(t.Context(), awake.ID, 100, 0)
		require.NoError(t, err)
		require.Len(t, events, 1, "a plan is no event")
		require.EqualValues(t, 42, events[0].Bytes)

		capabilities = `[]`
		w.call("tok-alice", "POST", sandboxPath(awake, "/reclaim"), nil).is(409)
		box.Close()
		w.call("tok-alice", "POST", sandboxPath(awake, "/reclaim"), nil).is(503)
		w.call("tok-alice", "POST", sandboxPath(awake, "/reclaim?dry_run=perhaps"), nil).is(400)
		require.Equal(t, w.door.entered.Load(), w.door.left.Load())
	})
}

func TestRunsOfTheOrganization(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		one, box := w.running(a)
		done, _ := w.finished()
		got := w.call("tok-bob", "GET", "runs", nil).is(200)
		require.EqualValues(t, 2, got["total"])
		got = w.call("tok-bob", "GET", "runs?status=RUNNING", nil).is(200)
		require.EqualValues(t, 1, got["total"])
		show := got["runs"].([]any)[0].(map[string]any)
		require.Equal(t, one.ID.String(), show["id"])
		require.Equal(t, map[string]any{
			"id": box.ID.String(), "backend": "fake", "provider_id": box.Identities[0].ProviderID,
			"desired": "running", "observed": "running", "suspended_at": nil,
		}, show["sandbox"])
		require.EqualValues(t, 2, w.call("tok-bob", "GET", "runs?status=RUNNING&status=COMPLETED", nil).is(200)["total"])
		require.EqualValues(t, 1, w.call("tok-bob", "GET", "runs?automation_id="+a.ID.String(), nil).is(200)["total"])
		w.call("tok-bob", "GET", "runs?status=DONE", nil).is(400)
		w.call("tok-bob", "GET", "runs?automation_id=x", nil).is(400)

		// Fault 31 of the Python service: the runs of a deleted automation can still be read.
		require.NoError(t, w.store.DeleteAutomation(t.Context(), org, done.AutomationID))
		w.call("tok-bob", "GET", "runs/"+done.ID.String(), nil).is(200)
		w.call("tok-bob", "GET", done.AutomationID.String()+"/runs", nil).is(404)
		for _, id := range []string{"x", "..", uuid.NewString(), "%00"} {
			require.Equal(t, 404, w.call("tok-bob", "GET", "runs/"+id, nil).Code, id)
		}
	})
}

func TestLogsOfARun(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, _ := w.running(w.automation())
		path := "runs/" + run.ID.String()
		require.Equal(t, false, w.call("tok-alice", "GET", path, nil).is(200)["has_logs"])
		w.call("tok-alice", "GET", path+"/logs", nil).is(404)

		lines := `{"type":"stdout","seq":1,"data":"aGk="}` + "\n" + `{"type":"exit","seq":2,"exit_code":3}` + "\n"
		key, three := "outputs/"+run.ID.String()+".ndjson", 3
		_, err := w.blob.Put(t.Context(), key, strings.NewReader(lines))
		require.NoError(t, err)
		require.NoError(t, w.store.RecordOutput(t.Context(), run.ID, models.Output{ExitCode: &three, Key: &key, Bytes: int64(len(lines))}))
		show := w.call("tok-bob", "GET", path, nil).is(200)
		require.Equal(t, true, show["has_logs"])
		require.EqualValues(t, 3, show["exit_code"])
		got := w.call("tok-bob", "GET", path+"/logs", nil)
		require.Equal(t, lines, got.Body.String())
		require.Equal(t, "application/x-ndjson", got.Header().Get("Content-Type"))
		require.NoError(t, w.blob.Delete(t.Context(), key))
		w.call("tok-bob", "GET", path+"/logs", nil).is(404)
	})
}
