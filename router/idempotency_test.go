package router_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
)

const key = "Idempotency-Key"

func (w *world) runsOf(a *models.Automation) int {
	w.t.Helper()
	_, total, err := w.store.ListRuns(w.t.Context(), models.RunFilter{OrgID: org, AutomationID: &a.ID, Limit: 1})
	require.NoError(w.t, err)
	return total
}

func TestARequestWithAKeyIsDoneOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		path := a.ID.String() + "/dispatch"
		first := w.call("tok-alice", "POST", path, nil, key, "k1")
		first.is(201)
		again := w.call("tok-alice", "POST", path, nil, key, "k1")
		require.Equal(t, first.is(201), again.is(201))
		require.Equal(t, "true", again.Header().Get("Idempotency-Replayed"))
		require.Equal(t, first.Header().Get("Content-Type"), again.Header().Get("Content-Type"))
		require.Equal(t, 1, w.runsOf(a))

		require.Equal(t, 422, w.call("tok-alice", "POST", a.ID.String()+"/dispatch?x=1", nil, key, "k1").Code, "another request")
		require.Equal(t, 400, w.call("tok-alice", "POST", path, nil, key, strings.Repeat("k", 256)).Code)
		require.Equal(t, 400, w.call("tok-alice", "POST", path, nil, key, "two words").Code)
		w.call("tok-alice", "POST", path, nil, key, "k2").is(201)
		w.call("tok-alice", "POST", path, nil).is(201)
		require.Equal(t, 3, w.runsOf(a))
		w.clock.Advance(models.RequestLife)
		w.call("tok-alice", "POST", path, nil, key, "k1").is(201)
		require.Equal(t, 4, w.runsOf(a), "remembered for a day")
	})
}

func TestEqualRequestsAtTheSameTimeAreDoneOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a := w.automation()
		codes := make([]int, 8)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() { codes[i] = w.call("tok-alice", "POST", a.ID.String()+"/dispatch", nil, key, "k").Code })
		}
		all.Wait()
		for _, code := range codes {
			require.Contains(t, []int{201, 409}, code)
		}
		require.Contains(t, codes, 201)
		require.Equal(t, 1, w.runsOf(a))
	})
}

func TestARefusedRequestLeavesItsKeyFree(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.call("tok-alice", "POST", "", newAutomation("name", ""), key, "k").is(422)
		w.call("tok-alice", "POST", "", newAutomation(), key, "k").is(201)
	})
}

func TestARequestThatBrokeOffIsNotRepeated(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.blob.fail = true
		upload := func() answer {
			return w.call("tok-alice", "POST", "uploads?name=x", strings.NewReader("tar"), "Content-Type", "application/x-tar", key, "k")
		}
		require.Equal(t, 500, upload().Code)
		w.blob.fail = false
		got := upload()
		require.Equal(t, 409, got.Code)
		require.Equal(t, "1", got.Header().Get("Retry-After"), "it may still be worked on")
		w.clock.Advance(10 * time.Minute)
		got = upload()
		require.Contains(t, got.is(409)["detail"], "broke off")
		require.Empty(t, got.Header().Get("Retry-After"))
	})
}

func TestTheKeyIsTheCallersOwn(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for _, who := range []string{"tok-alice", "tok-bob", "tok-eve"} {
			got := w.call(who, http.MethodPost, "sweeps/plan", nil, key, "k")
			got.is(201)
			require.Empty(t, got.Header().Get("Idempotency-Replayed"))
		}
	})
}

func TestAnObjectIsNamedByItsVersion(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		have := w.things()
		paths := map[string]string{
			"automation": have.mine["automation"], "run": "runs/" + have.mine["run"], "sandbox": "sandboxes/" + have.mine["sandbox"],
			"upload": "uploads/" + have.mine["upload"], "sweep": "sweeps/" + have.mine["sweep"],
		}
		for about, path := range paths {
			got := w.call("tok-alice", "GET", path, nil)
			got.is(200)
			tag := got.Header().Get("ETag")
			require.Regexp(t, `^"[0-9a-f]{16}"$`, tag, about)
			w.clock.Advance(time.Minute)
			same := w.call("tok-alice", "GET", path, nil, "If-None-Match", `W/"other", `+tag)
			require.Equal(t, 304, same.Code, "%s: only the clock has changed: %s", about, same.Body)
			require.Empty(t, same.Body.String())
			require.Equal(t, 200, w.call("tok-alice", "GET", path, nil, "If-None-Match", `"other"`).Code)
		}
	})
}

func TestOnlyTheObjectThatWasSeenIsChanged(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.automation().ID.String()
		seen := w.call("tok-alice", "GET", id, nil).Header().Get("ETag")
		changed := w.call("tok-alice", "PATCH", id, map[string]any{"name": "second"}, "If-Match", seen)
		changed.is(200)
		require.NotEqual(t, seen, changed.Header().Get("ETag"))
		require.Equal(t, 412, w.call("tok-alice", "PATCH", id, map[string]any{"name": "third"}, "If-Match", seen).Code)
		require.Equal(t, 412, w.call("tok-alice", "DELETE", id, nil, "If-Match", seen).Code)
		require.Equal(t, "second", w.call("tok-alice", "GET", id, nil).is(200)["name"])
		require.Equal(t, 204, w.call("tok-alice", "DELETE", id, nil, "If-Match", changed.Header().Get("ETag")).Code)
		require.Equal(t, 404, w.call("tok-alice", "DELETE", id, nil, "If-Match", seen).Code, "what is not there has no version")

		_, box := w.finished()
		path := "sandboxes/" + box.ID.String()
		seen = w.call("tok-alice", "GET", path, nil).Header().Get("ETag")
		w.call("tok-alice", "PUT", path+"/keep", nil, "If-Match", seen).is(200)
		require.Equal(t, 412, w.call("tok-alice", "DELETE", path+confirmed, nil, "If-Match", seen).Code)
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		w.call("tok-alice", "DELETE", path+confirmed, nil, "If-Match", "*").is(202)
	})
}

// Two people patch what they have both seen at the same time: one of them is told.
func TestOfTwoChangesOfTheSameVersionOneIsMade(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.automation().ID.String()
		seen := w.call("tok-alice", "GET", id, nil).Header().Get("ETag")
		codes := make([]int, 6)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() {
				name := strings.Repeat("n", i+1)
				codes[i] = w.call("tok-alice", "PATCH", id, map[string]any{"name": name}, "If-Match", seen).Code
			})
		}
		all.Wait()
		made := 0
		for _, code := range codes {
			require.Contains(t, []int{200, 412}, code)
			if code == 200 {
				made++
			}
		}
		require.Equal(t, 1, made)
	})
}

func TestTheDocumentIsShownToPeople(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		for _, path := range []string{"/docs", base + "/docs"} {
			refused := w.call("", "GET", path, nil)
			require.Equal(t, 401, refused.Code)
			require.Contains(t, refused.Header().Get("WWW-Authenticate"), "Basic ")
			r := request(t, "GET", path, "")
			r.SetBasicAuth("", "tok-alice")
			got := w.serve(r)
			require.Equal(t, 200, got.Code)
			require.Equal(t, "text/html; charset=utf-8", got.Header().Get("Content-Type"))
			for _, op := range w.spec().operations() {
				require.Contains(t, got.Body.String(), strings.ReplaceAll(op.path, "{path}", "*")+"</code>")
			}
			require.NotContains(t, got.Body.String(), "<script")
		}
		r := request(t, "GET", base+"/v1/runs", "")
		r.SetBasicAuth("", "tok-alice")
		require.Equal(t, 401, w.serve(r).Code, "nowhere else, for a browser sends it by itself")
	})
}
