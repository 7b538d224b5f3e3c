package router_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

func withTTL(d *router.Deps) { d.Settings = sandbox.Settings{IdleTTL: 20 * time.Minute} }

// runtimeOf is the stored runtime of a conversation.
func (w *world) runtimeOf(conversation string) *models.Runtime {
	w.t.Helper()
	return must(w.store.Runtime(w.t.Context(), uuid.Nil, uuid.MustParse(conversation)))
}

func TestAConversationIsOpenedListedAndEvicted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := uuid.NewString()
		made := w.call("tok-alice", "PUT", runtimePath(id), map[string]any{"workspace": "/checkouts/a"}).is(http.StatusCreated)
		require.Equal(t, "starting", made["state"])
		require.Equal(t, "starting", made["not_evictable_because"], "S3-025")
		require.Equal(t, "/checkouts/a", made["workspace"])
		require.NotContains(t, encode(made), w.runtimeOf(id).SessionKey, "keys are never shown")
		require.Equal(t, int64(1), w.settles.Load(), "the settler is woken")
		w.call("tok-alice", "PUT", runtimePath(id), nil).is(http.StatusOK)
		w.call("tok-alice", "PUT", runtimePath(id), map[string]any{"workspace": "/checkouts/b"}).is(http.StatusConflict)
		w.call("tok-alice", "PUT", runtimePath(uuid.NewString()), map[string]any{"workspace": "/checkouts/a"}).is(http.StatusConflict)
		w.call("tok-alice", "POST", runtimePath(id)+"/evict", nil).is(http.StatusConflict)

		box := w.runtimeOf(id).Box
		modelstest.Set(t, w.store, box, "observed = ?, observed_at = ?, next_step_at = NULL", models.SeenRunning, w.clock.Now())
		got := w.call("tok-alice", "GET", runtimePath(id), nil).is(http.StatusOK)
		require.Equal(t, "running", got["state"])
		require.Equal(t, "recently_used", got["not_evictable_because"])
		w.clock.Advance(21 * time.Minute)
		modelstest.Set(t, w.store, box, "held_because = ?", models.HeldCommand)
		require.Equal(t, models.HeldCommand, w.call("tok-alice", "GET", runtimePath(id), nil).is(http.StatusOK)["not_evictable_because"])
		list := w.call("tok-alice", "GET", "runtimes", nil).is(http.StatusOK)
		require.EqualValues(t, 1, list["total"])

		evicted := w.call("tok-alice", "POST", runtimePath(id)+"/evict", nil).is(http.StatusAccepted)
		require.Equal(t, "stopping", evicted["state"])
		require.Nil(t, evicted["not_evictable_because"])
		require.Equal(t, models.WantSuspended, w.runtimeOf(id).Box.Desired)
	}, withTTL)
}

func runtimePath(id string) string { return "runtimes/" + id }

func TestWhoMayOpenAConversation(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := uuid.NewString()
		w.call("tok-alice", "PUT", runtimePath(id), nil).is(http.StatusCreated)
		w.call("tok-bob", "PUT", runtimePath(id), nil).is(http.StatusForbidden)
		w.call("tok-bob", "POST", runtimePath(id)+"/evict", nil).is(http.StatusForbidden)
		w.call("tok-eve", "GET", runtimePath(id), nil).is(http.StatusNotFound)
		require.EqualValues(t, 0, w.call("tok-eve", "GET", "runtimes", nil).is(http.StatusOK)["total"])
		w.call("tok-eve", "PUT", runtimePath(id), nil).is(http.StatusCreated)
		w.call("tok-alice", "PUT", runtimePath("nonsense"), nil).is(http.StatusBadRequest)
		w.call("tok-alice", "GET", runtimePath("nonsense"), nil).is(http.StatusNotFound)
	})
}

func TestS3_013_WithoutATTLNothingIsEvictable(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		id := uuid.NewString()
		w.call("tok-alice", "PUT", runtimePath(id), nil).is(http.StatusCreated)
		modelstest.Set(t, w.store, w.runtimeOf(id).Box, "observed = ?, next_step_at = NULL", models.SeenRunning)
		got := w.call("tok-alice", "GET", runtimePath(id), nil).is(http.StatusOK)
		require.Equal(t, "eviction_off", got["not_evictable_because"])
		require.Nil(t, got["evict_at"])
	}, func(d *router.Deps) { d.Settings = sandbox.Settings{} })
}

func TestLocalModeHasNoRuntimes(t *testing.T) {
	once(t, func(t *testing.T, w *world) {
		w.call("tok-alice", "PUT", runtimePath(uuid.NewString()), nil).is(http.StatusConflict)
	}, func(d *router.Deps) { d.Runtimes = router.Runtimes{} })
}
