package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

func TestBackendsAreShownAsData(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.running(w.automation())
		w.running(w.automation())
		w.finished()
		_, gone := w.finished()
		modelstest.Set(t, w.store, gone, "observed = ?", models.SeenDeleted)
		got := w.call("tok-bob", "GET", "backends", nil).is(200)
		require.EqualValues(t, 3, got["total"])
		shown := map[string]map[string]any{}
		for _, b := range got["backends"].([]any) {
			shown[b.(map[string]any)["name"].(string)] = b.(map[string]any)
		}
		require.Equal(t, true, shown["process"]["configured"])
		require.Equal(t, true, shown["process"]["new_runs"])
		require.Equal(t, false, shown["e2b"]["configured"])
		require.Equal(t, false, shown["e2b"]["new_runs"])
		can := shown["e2b"]["capabilities"].(map[string]any)
		require.Equal(t, "memory", can["suspend"])
		require.Equal(t, true, can["memory_kept"])
		require.Equal(t, map[string]any{"supported": true, "action": "suspend", "default_seconds": 300.0, "max_seconds": nil}, can["native_idle"])
		require.Equal(t, map[string]any{"supported": false, "action": nil, "default_seconds": nil, "max_seconds": nil}, can["native_expiry"])
		require.Empty(t, shown["e2b"]["sandboxes"])
		require.Equal(t, map[string]any{"running": 2.0, "suspended": 1.0, "deleted": 1.0}, shown[modelstest.Backend]["sandboxes"],
			"one that is not known here and has boxes is shown too")
		for _, b := range w.call("tok-eve", "GET", "backends", nil).is(200)["backends"].([]any) {
			require.Empty(t, b.(map[string]any)["sandboxes"], "of the caller's organization only")
		}
	}, func(d *router.Deps) {
		d.Backends = router.Backends{Known: []string{"process", "e2b"}, Configured: []string{"process"}, NewRuns: "process"}
		d.Capabilities = func(name string) sandbox.Capabilities {
			if name == "e2b" {
				return sandbox.Capabilities{Suspend: sandbox.SuspendMemory, NativeIdle: sandbox.Timer{Supported: true, Action: "suspend", Default: 5 * time.Minute}}
			}
			return sandbox.Capabilities{Suspend: sandbox.SuspendDisk}
		}
	})
}

func TestS0_152_StorageIsTheLastThatWasSeen(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		got := w.call("tok-bob", "GET", sandboxPath(box, ""), nil).is(200)
		require.Nil(t, got["storage"])
		require.Nil(t, got["storage_as_of"])
		seen := w.store.Now().Add(-time.Minute)
		modelstest.Set(t, w.store, box, "storage = ?, storage_at = ?", `{"trash_bytes":7}`, seen)
		got = w.call("tok-bob", "GET", sandboxPath(box, ""), nil).is(200)
		require.Equal(t, map[string]any{"trash_bytes": 7.0}, got["storage"])
		require.Equal(t, "2026-06-01T11:59:00Z", got["storage_as_of"])
		require.Zero(t, w.door.entered.Load(), "nobody asked the box")
	})
}
