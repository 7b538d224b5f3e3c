package router_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/models/modelstest"
)

// Somebody who may only look at automations may look at boxes too, but not change, enter or end another member's.
func TestOnlyItsCreatorAndManagersChangeOrEnterABox(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		before := w.box(box.ID)
		for _, tail := range []string{"", "/events"} {
			w.call("tok-bob", "GET", sandboxPath(box, tail), nil).is(http.StatusOK)
		}
		for _, route := range []struct {
			method, tail string
			body         any
		}{
			{"POST", "/pause", nil}, {"POST", "/resume", nil}, {"POST", "/reclaim?dry_run=true", nil}, {"DELETE", confirmed, nil},
			{"POST", "/extend", map[string]any{"seconds": 60}}, {"PUT", "/keep", map[string]any{"reason": "mine"}}, {"DELETE", "/keep", nil},
			{"GET", "/proxy/api/file/home", nil},
			{"POST", "/export", nil}, {"GET", "/export", nil},
		} {
			got := w.call("tok-bob", route.method, sandboxPath(box, route.tail), route.body)
			require.Equal(t, http.StatusForbidden, got.Code, "%s %s: %s", route.method, route.tail, got.Body)
		}
		require.Equal(t, before, w.box(box.ID), "nothing changed")

		modelstest.Set(t, w.store, box, "user_id = ?", bob)
		w.call("tok-bob", "PUT", sandboxPath(box, "/keep"), map[string]any{"reason": "mine"}).is(http.StatusOK)
	})
}
