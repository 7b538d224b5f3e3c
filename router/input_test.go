package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/router"
)

// problems returns the contract's list of what is wrong.
func problems(t *testing.T, a answer) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, entry := range a.is(422)["detail"].([]any) {
		e := entry.(map[string]any)
		var at []string
		for _, l := range e["loc"].([]any) {
			at = append(at, strings.Trim(encode(l), `"`))
		}
		out[strings.Join(at, ".")] = e["type"].(string)
		require.NotEmpty(t, e["msg"])
	}
	return out
}

func TestAllProblemsOfABodyAreReportedTogether(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		got := problems(t, w.call("tok-alice", "POST", base+"/v1", map[string]any{
			"name": "", "trigger": map[string]any{"type": "cron", "schedule": 5, "x": 1}, "entrypoint": "/bin/sh", "timeout": "soon",
			"tags": []any{"fine", 7}, "keep_alive": "perhaps", "state": "ON", "overlap": "Queue", "model": "-x", "agent_profile_id": "me",
			"template": map[string]any{"id": strings.Repeat("x", 101), "config": []any{}}, "first": 1, "second": nil,
		}))
		require.Equal(t, map[string]string{
			"body.name": "string_too_short", "body.trigger.cron.schedule": "string_type", "body.trigger.cron.x": "extra_forbidden",
			"body.tarball_path": "missing", "body.entrypoint": "value_error", "body.timeout": "int_parsing", "body.tags.1": "string_type",
			"body.keep_alive": "bool_parsing", "body.state": "enum", "body.overlap": "enum", "body.model": "string_pattern_mismatch",
			"body.agent_profile_id": "uuid_parsing", "body.template.id": "string_too_long", "body.template.version": "missing",
			"body.template.config": "dict_type", "body.first": "extra_forbidden", "body.second": "extra_forbidden",
		}, got)
		require.EqualValues(t, 0, w.call("tok-alice", "GET", base+"/v1", nil).is(200)["total"], "nothing is written")
	})
}

func TestWhatTheContractTakesLenientlyIsTaken(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for given, want := range map[any]any{"90": 90.0, " 90 ": 90.0, 90.0: 90.0, "90.0": 90.0, true: 1.0} {
			require.Equal(t, want, w.call("tok-alice", "POST", base+"/v1", newAutomation("timeout", given)).is(201)["timeout"], "%v", given)
		}
		for given, want := range map[any]any{"yes": true, "ON": true, "t": true, 1: true, "0": false, "off": false, "No": false, 0.0: false} {
			require.Equal(t, want, w.call("tok-alice", "POST", base+"/v1", newAutomation("keep_alive", given)).is(201)["keep_alive"], "%v", given)
		}
		for given, kind := range map[any]string{
			90.5: "int_from_float", "1e2": "int_parsing", "": "int_parsing", "x": "int_parsing", 0: "value_error", -1: "value_error",
			"99999999999999999999999": "value_error", 1e300: "value_error",
		} {
			require.Equal(t, map[string]string{"body.timeout": kind}, problems(t, w.call("tok-alice", "POST", base+"/v1", newAutomation("timeout", given))), "%v", given)
		}
		for _, given := range []any{2, "maybe", []any{}, map[string]any{}} {
			w.call("tok-alice", "POST", base+"/v1", newAutomation("keep_alive", given)).is(422)
		}
		run, _ := w.running(w.automation())
		require.Equal(t, "0.25", encode(w.complete("tok-alice", run.ID, map[string]any{"status": "COMPLETED", "cost": "0.25"}).is(200)["cost"]))
		for _, cost := range []any{"nan", "inf", "-Infinity", "1e999", json.Number("1e999"), "x", []any{}} {
			require.Equal(t, 422, w.complete("tok-alice", run.ID, map[string]any{"status": "COMPLETED", "cost": cost}).Code, "%v", cost)
		}
	})
}

func TestPatchNullIs422(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		for _, name := range []string{"name", "trigger", "entrypoint", "tarball_path", "enabled", "tags"} {
			require.Equal(t, map[string]string{"body." + name: "value_error"},
				problems(t, w.call("tok-alice", "PATCH", a.ID.String(), map[string]any{name: nil})))
		}
		require.Equal(t, "nightly", w.call("tok-alice", "GET", a.ID.String(), nil).is(200)["name"])
		got := w.call("tok-alice", "PATCH", a.ID.String(), map[string]any{
			"description": nil, "keep_alive": nil, "timeout": nil, "model": nil, "setup_script_path": nil, "observability_associations": nil,
			"agent_profile_id": nil, "prompt": nil, "state": nil,
		}).is(200)
		require.Nil(t, got["timeout"])
		require.Equal(t, "ACTIVE", got["state"])
	})
}

// values that no field takes everywhere; wherever they are put, the answer is below 500 and never a success by accident.
var oddValues = []any{
	nil, true, -1, 1e300, 1.5, "", "\x00", "a\x00b", "\uFFFF", strings.Repeat("x", 60_000), []any{}, []any{nil}, map[string]any{},
	map[string]any{"\x00": "\x00"}, "'; DROP TABLE automations; --", "../../etc/passwd", "\u202e", "٣", []any{[]any{[]any{}}},
}

func TestOddInputIsNeverAServerError(t *testing.T) {
	bodies := map[string]map[string]any{
		"POST ":      newAutomation(),
		"PATCH {a}":  {},
		"POST r/c":   {"status": "FAILED"},
		"POST r/p":   {"phase": "x"},
		"POST s/ext": {"seconds": 5},
		"PUT s/keep": {},
	}
	fields := map[string][]string{
		"POST ": {"name", "description", "trigger", "tarball_path", "entrypoint", "setup_script_path", "timeout", "keep_alive", "state", "enabled",
			"tags", "model", "agent_profile_id", "observability_associations", "template", "overlap", "other", "\x00"},
		"PATCH {a}": {"name", "description", "trigger", "tarball_path", "entrypoint", "setup_script_path", "timeout", "keep_alive", "state",
			"enabled", "tags", "model", "agent_profile_id", "observability_associations", "overlap", "prompt", "repos", "plugin", "other"},
		"POST r/c":   {"status", "run_id", "conversation_id", "error", "cost", "blocking_factor", "task_outcome", "other"},
		"POST r/p":   {"phase", "other"},
		"POST s/ext": {"seconds", "until", "other"},
		"PUT s/keep": {"reason", "until", "other"},
	}
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		run, box := w.running(a)
		for route, body := range bodies {
			method, _, _ := strings.Cut(route, " ")
			for _, name := range fields[route] {
				for _, odd := range oddValues {
					path := strings.NewReplacer("PATCH {a}", a.ID.String(), "POST r/c", "runs/"+run.ID.String()+"/complete",
						"POST r/p", "runs/"+run.ID.String()+"/phase", "POST s/ext", sandboxPath(box, "/extend"), "PUT s/keep", sandboxPath(box, "/keep"))
					with := maps.Clone(body)
					with[name] = odd
					target := path.Replace(route)
					if route == "POST " {
						target = base + "/v1"
					}
					got := w.call("tok-alice", method, target, with)
					require.Less(t, got.Code, 500, "%s %s=%s", route, name, encode(odd))
					if got.Code < 300 {
						run, box = w.running(a) // this one has changed
					}
				}
			}
		}
	})
}

func TestBrokenBodies(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		a := w.automation()
		run, box := w.running(a)
		contract := []string{"POST " + base + "/v1", "PATCH " + base + "/v1/" + a.ID.String(),
			"POST " + base + "/v1/runs/" + run.ID.String() + "/complete", "POST " + base + "/v1/runs/" + run.ID.String() + "/phase"}
		own := []string{"POST " + base + "/v1/" + sandboxPath(box, "/extend"), "PUT " + base + "/v1/" + sandboxPath(box, "/keep"),
			"POST " + base + "/v1/" + sandboxPath(box, "/pause"), "DELETE " + base + "/v1/" + sandboxPath(box, "")}
		for _, body := range []string{
			"{", `{"a"`, "[]", "7", `"text"`, "nul", `{"a":1}}`, `{"a":1} {"b":2}`, "\xff\xfe", `{"a":NaN}`, strings.Repeat("[", 20_000), "{}\x00", `{'a':1}`,
		} {
			for n, route := range append(append([]string{}, contract...), own...) {
				method, path, _ := strings.Cut(route, " ")
				want := 422
				if n >= len(contract) {
					want = 400
				}
				require.Equal(t, want, w.call("tok-alice", method, path, body).Code, "%s %.40q", route, body)
			}
		}
		huge := `{"name":"` + strings.Repeat("x", 2<<20) + `"}`
		for _, route := range append(append([]string{}, contract...), own...) {
			method, path, _ := strings.Cut(route, " ")
			require.Equal(t, 413, w.call("tok-alice", method, path, huge).Code, route)
			require.Equal(t, 415, w.call("tok-alice", method, path, strings.NewReader(`{"seconds":5}`), "Content-Type", "text/plain").Code, route)
			require.Equal(t, 400, w.call("tok-alice", method, path, io.MultiReader(strings.NewReader("{"), brokenReader{})).Code, route)
		}
		require.EqualValues(t, 1, w.box(box.ID).Generation)
		require.Equal(t, models.RunRunning, w.run(run.ID).Status)
		require.Equal(t, map[string]string{"body.1": "json_invalid"}, problems(t, w.call("tok-alice", "POST", base+"/v1", "{")))
		require.Equal(t, map[string]string{"body": "missing"}, problems(t, w.call("tok-alice", "POST", base+"/v1", "null")))
	})
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

func TestOddQueriesAndIDs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		for _, query := range []string{
			"limit=%00", "limit=1e9", "limit=", "offset=99999999999999999999", "tag=%00", "tag=%ff", "tag=", "created_by=%00", "limit=1;offset=2", "%zz",
		} {
			for _, path := range []string{base + "/v1", a.ID.String() + "/runs", "runs", "sandboxes", "uploads"} {
				require.Less(t, w.call("tok-alice", "GET", path+"?"+query, nil).Code, 500, "%s?%s", path, query)
			}
		}
		for _, id := range []string{"..", "%2e%2e", "%00", "%ff", "x", strings.Repeat("a", 5000), "a%2Fb", "%25", "0"} {
			for _, path := range []string{"{id}", "{id}/runs", "{id}/tarball", "uploads/{id}"} {
				got := w.call("tok-alice", "GET", strings.ReplaceAll(path, "{id}", id), nil)
				require.Contains(t, []int{404, 405, 422}, got.Code, "%s with %.20q", path, id)
			}
			got := w.call("tok-alice", "POST", "runs/"+id+"/cancel", nil)
			require.Contains(t, []int{404, 422}, got.Code, id)
		}
		for _, id := range []string{strings.ToUpper(a.ID.String()), "{" + a.ID.String() + "}", "urn:uuid:" + a.ID.String(), strings.ReplaceAll(a.ID.String(), "-", "")} {
			require.Equal(t, a.ID.String(), w.call("tok-alice", "GET", id, nil).is(200)["id"], "any form of a UUID is read, one is written")
		}
		require.Equal(t, map[string]string{"path.automation_id": "uuid_parsing"}, problems(t, w.call("tok-alice", "GET", "%2541", nil)))
	})
}

func TestUnknownRoutesAndMethods(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for path, want := range map[string]int{"/nope": 404, "/api/automation/nope": 404, "/api/automation/v1/x/y/z": 404, "/": 404} {
			require.Equal(t, map[string]any{"detail": "Not Found"}, w.call("", "GET", path, nil).is(want))
		}
		require.Equal(t, map[string]any{"detail": "Method Not Allowed"}, w.call("", "PUT", base+"/health", nil).is(405))
		require.Equal(t, 405, w.call("tok-alice", "PUT", base+"/v1", nil).Code)
	})
}

func TestReadiness(t *testing.T) {
	var failing []router.Check
	once(t, func(t *testing.T, w *world) {
		failing = nil
		for _, path := range []string{"/ready", base + "/ready"} {
			require.Equal(t, map[string]any{"status": "ready"}, w.call("", "GET", path, nil).is(200))
		}
		failing = []router.Check{{Name: "database", Problem: "database unavailable"}, {Name: "clock"}}
		require.Equal(t, map[string]any{"status": "not_ready", "error": "database unavailable"}, w.call("", "GET", "/ready", nil).is(503))
		require.Equal(t, []any{
			map[string]any{"name": "database", "problem": "database unavailable"}, map[string]any{"name": "clock", "problem": ""},
		}, w.call("", "GET", "/ready?verbose", nil).is(503)["checks"])
		require.Equal(t, map[string]any{"status": "ok"}, w.call("", "GET", "/health", nil).is(200))
	}, func(d *router.Deps) { d.Ready = func(context.Context) []router.Check { return failing } })
}

func TestTheBasePathComesFromTheConfiguration(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		require.Equal(t, 200, w.call("tok-alice", "GET", "/agents/api/automation/v1", nil).Code)
		require.Equal(t, 200, w.call("", "GET", "/agents/api/automation/health", nil).Code)
		require.Equal(t, 200, w.call("", "GET", "/health", nil).Code)
		require.Equal(t, 404, w.call("tok-alice", "GET", "/api/automation/v1", nil).Code)
		var seen string
		w.boxServer(func(_ http.ResponseWriter, r *http.Request) { seen = r.RequestURI })
		_, box := w.running(w.automation())
		require.Equal(t, 200, w.call("tok-alice", "GET", "/agents/api/automation/v1/"+sandboxPath(box, "/proxy/a?b=c"), nil).Code)
		require.Equal(t, "/a?b=c", seen)
	}, func(d *router.Deps) { d.Config.HTTP.BasePath = "/agents/api/automation" })
}

func TestPanicsAndSurprisesAreAPlain500(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		run, _ := w.running(w.automation())
		got := w.complete("tok-alice", run.ID, completed)
		require.Equal(t, 500, got.Code)
		require.Equal(t, "Internal Server Error", got.Body.String())
		require.Equal(t, "text/plain; charset=utf-8", got.Header().Get("Content-Type"))
		require.Contains(t, w.logs.String(), "panic in a handler")
		require.Contains(t, w.logs.String(), got.Header().Get("X-Request-Id"))
		require.Equal(t, models.RunCompleted, w.run(run.ID).Status)
	}, func(d *router.Deps) { d.Nudge.Settle = func() { panic("broken") } })
}

func TestRequestsAreNamedAndLogged(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		a := w.automation()
		require.Equal(t, "mine-1", w.call("tok-alice", "GET", a.ID.String(), nil, "X-Request-Id", "mine-1").Header().Get("X-Request-Id"))
		for _, odd := range []string{"a b", strings.Repeat("x", 129), "a\"b", ""} {
			got := w.call("tok-alice", "GET", a.ID.String(), nil, "X-Request-Id", odd).Header().Get("X-Request-Id")
			require.NoError(t, uuid.Validate(got))
		}
		w.call("", "GET", "/health", nil)
		lines := strings.Split(strings.TrimSpace(w.logs.String()), "\n")
		require.Len(t, lines, 5, "probes are not logged")
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
		require.Subset(t, line, map[string]any{
			"msg": "request", "request_id": "mine-1", "method": "GET", "route": base + "/v1/{id}", "status_code": 200.0,
		})
		require.NotContains(t, w.logs.String(), "tok-alice")
		got := w.call("tok-alice", "GET", "sandboxes/x", nil)
		require.Equal(t, got.Header().Get("X-Request-Id"), got.is(404)["error"].(map[string]any)["request_id"])
	})
}

func TestAnUploadBeyondTheLimitFails(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		post := func(body io.Reader) answer {
			return w.call("tok-alice", "POST", "uploads?name=big", body, "Content-Type", "application/gzip; x=y")
		}
		got := post(io.LimitReader(zeros{}, 1<<20+1)).is(201)
		require.Equal(t, "FAILED", got["status"])
		require.Equal(t, "File size exceeds limit of 1048576 bytes", got["error_message"])
		require.Nil(t, got["tarball_path"])
		failed := w.call("tok-alice", "POST", base+"/v1", newAutomation("tarball_path", "oh-internal://uploads/"+got["id"].(string))).is(400)
		require.Equal(t, "Upload is not ready (status: FAILED)", failed["detail"])

		require.Equal(t, "COMPLETED", post(io.LimitReader(zeros{}, 1<<20)).is(201)["status"])
		post(io.MultiReader(strings.NewReader("half"), brokenReader{})).is(400)
		require.EqualValues(t, 2, w.call("tok-alice", "GET", "uploads", nil).is(200)["total"], "what breaks off leaves nothing")
		require.Len(t, w.blob.files, 1)
		for _, query := range []string{"?name=" + strings.Repeat("x", 256), "?name=%00", "?name=x&description=" + strings.Repeat("x", 2001)} {
			w.call("tok-alice", "POST", "uploads"+query, strings.NewReader("x"), "Content-Type", "application/gzip").is(422)
		}
	})
}

// Fault 18 of the Python service: another's tarball must be reachable neither by POST nor by PATCH nor by reading it.
func TestOtherPeoplesTarballs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		up := w.call("tok-alice", "POST", "uploads?name=code", strings.NewReader("tar"), "Content-Type", "application/gzip").is(201)
		path := up["tarball_path"].(string)
		mine := w.call("tok-eve", "POST", base+"/v1", newAutomation()).is(201)["id"].(string)
		require.Equal(t, "Upload not found", w.call("tok-eve", "PATCH", mine, map[string]any{"tarball_path": path}).is(404)["detail"])
		require.Equal(t, "Upload not found", w.call("tok-eve", "POST", base+"/v1", newAutomation("tarball_path", path)).is(404)["detail"])
		bobs := w.call("tok-bob", "POST", base+"/v1", newAutomation()).is(201)["id"].(string)
		require.Equal(t, "Upload belongs to another user", w.call("tok-bob", "PATCH", bobs, map[string]any{"tarball_path": path}).is(403)["detail"])
		w.call("tok-eve", "GET", "uploads/"+up["id"].(string), nil).is(404)
		w.call("tok-eve", "DELETE", "uploads/"+up["id"].(string), nil).is(404)
		w.call("tok-alice", "PATCH", bobs, map[string]any{"enabled": false}).is(200)
		alices := w.call("tok-alice", "POST", base+"/v1", newAutomation("tarball_path", path)).is(201)["id"].(string)
		require.Equal(t, "tar", w.call("tok-bob", "GET", alices+"/tarball", nil).Body.String())
		require.Equal(t, 404, w.call("tok-eve", "GET", alices+"/tarball", nil).Code)
	})
}

func TestTheScheduleFollowsTheAutomation(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		next := func(got map[string]any) any { return got["next_run_at"] }
		made := w.call("tok-alice", "POST", base+"/v1", newAutomation()).is(201)
		id := made["id"].(string)
		require.Equal(t, "2026-06-02T03:00:00Z", next(made))
		require.EqualValues(t, 1, w.schedules.Load())
		require.Nil(t, next(w.call("tok-alice", "PATCH", id, map[string]any{"enabled": false}).is(200)))
		w.clock.Advance(48 * time.Hour)
		require.Equal(t, "2026-06-04T03:00:00Z", next(w.call("tok-alice", "PATCH", id, map[string]any{"enabled": true}).is(200)),
			"what passed while it was off is not caught up with")
		hourly := map[string]any{"type": "cron", "schedule": "15 * * * *"}
		require.Equal(t, "2026-06-03T12:15:00Z", next(w.call("tok-alice", "PATCH", id, map[string]any{"trigger": hourly, "overlap": "Forbid"}).is(200)))
		require.Equal(t, "2026-06-03T12:15:00Z", next(w.call("tok-alice", "PATCH", id, map[string]any{"name": "other"}).is(200)))

		// Fault 22: a run by hand swallows no scheduled one.
		w.call("tok-alice", "POST", id+"/dispatch", nil).is(201)
		got := w.call("tok-alice", "GET", id, nil).is(200)
		require.Equal(t, "2026-06-03T12:15:00Z", next(got))
		require.Equal(t, "Forbid", got["overlap"])
		require.EqualValues(t, 1, w.dispatches.Load())
		require.Nil(t, next(w.call("tok-alice", "POST", base+"/v1", newAutomation("trigger",
			map[string]any{"type": "event", "source": "github", "on": []any{"push", "issues.*"}})).is(201)))
	})
}

func TestKeepAliveSwitchedByHand(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		run, box := w.finished()
		id := run.AutomationID.String()
		w.call("tok-alice", "PATCH", id, map[string]any{"keep_alive": true}).is(200)
		require.Nil(t, w.run(run.ID).CleanupDueAt, "switching it on clears the stamps")
		w.clock.Advance(time.Hour)
		w.call("tok-alice", "PATCH", id, map[string]any{"keep_alive": false}).is(200)
		require.WithinDuration(t, w.store.Now().Add(delay), *w.run(run.ID).CleanupDueAt, 0, "switching it off stamps from now")
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		require.Positive(t, w.janitors.Load())
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The statuses have one home (design section 3), as the test of the layout cannot see. The files of Cloud read those of another service.
func TestStatusesAreWrittenInOnePlace(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && name != "errors.go" && !strings.HasPrefix(name, "cloud") {
			require.False(t, bytes.Contains(must(os.ReadFile(name)), []byte("http.Status")), name)
		}
	}
}
