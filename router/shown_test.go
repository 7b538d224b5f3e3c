package router_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
)

func TestS0_040_S0_041_ABoxIsShownWithWhatPeopleNeedAndCanBeEnteredPausedAndDeleted(t *testing.T) {
	exported(t, func(t *testing.T, w *world, _ *exporting) {
		_, box := w.finished()
		require.NoError(t, w.store.RecordStorage(t.Context(), box.ID, []byte(`{"trash_bytes":7}`)))
		w.clock.Advance(time.Hour)
		shown := w.call("tok-alice", "GET", sandboxPath(box, ""), nil).is(http.StatusOK)
		require.Equal(t, "suspended", shown["observed"])
		require.EqualValues(t, 3600, shown["suspended_seconds"], "the paused age")
		require.Equal(t, map[string]any{"trash_bytes": 7.0}, shown["storage"])
		require.Equal(t, "2026-06-01T12:00:00Z", shown["storage_as_of"])
		require.Contains(t, shown, "export")

		w.boxServer(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNoContent) })
		require.Equal(t, http.StatusNoContent, w.call("tok-alice", "GET", sandboxPath(box, "/proxy/ready"), nil).Code, "connect")
		w.call("tok-alice", "POST", sandboxPath(box, "/resume"), nil).is(http.StatusAccepted)
		w.call("tok-alice", "POST", sandboxPath(box, "/pause"), nil).is(http.StatusAccepted)
		require.Equal(t, models.WantSuspended, w.box(box.ID).Desired)
		w.call("tok-alice", "DELETE", sandboxPath(box, confirmed), nil).is(http.StatusAccepted)
	})
}
