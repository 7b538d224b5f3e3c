package router_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"automation/router"
)

func TestTelemetryConsentIsAnsweredAndNothingElse(t *testing.T) {
	const path = "/api/automation/v1/telemetry/consent"
	granted := map[string]any{"consent_granted": "yes", "frontend_distinct_id": "f-1"}
	once(t, func(t *testing.T, w *world) {
		require.Equal(t, "Telemetry consent is managed by the main OpenHands app in cloud mode.", w.call("tok-bob", "POST", path, granted).is(400)["detail"])
		w.call("tok-alice", "POST", path, map[string]any{}).is(422)
		w.call("tok-nobody", "POST", path, granted).is(403)
	})
	once(t, func(t *testing.T, w *world) {
		require.Equal(t, map[string]any{"consent_granted": true}, w.call(localKey, "POST", path, granted).is(200))
		require.Equal(t, map[string]any{"consent_granted": false}, w.call(localKey, "POST", path, map[string]any{"consent_granted": false}).is(200))
		w.call(localKey, "POST", path, map[string]any{"consent_granted": true, "x": 1}).is(422)
	}, func(d *router.Deps) { d.Cloud, d.LocalKey = nil, localKey })
}
