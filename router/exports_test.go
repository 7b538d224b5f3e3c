package router_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/router"
	"automation/sandbox"
)

// exporting is an Exports that stores text, or fails; with neither the box has no conversation.
type exporting struct {
	w            *world
	text         string
	err          error
	conversation string
}

func (e *exporting) Export(ctx context.Context, b *models.Sandbox, conversation string) (*models.Export, error) {
	e.conversation = conversation
	if e.err != nil || e.text == "" {
		return nil, e.err
	}
	x, err := e.w.store.BeginExport(ctx, b)
	if err != nil {
		return nil, err
	}
	x.Bytes, err = e.w.blob.Put(ctx, x.BlobKey, strings.NewReader(e.text))
	if err != nil {
		return nil, err
	}
	x.SHA256 = strings.Repeat("ab", 32)
	x.Conversations = []models.ExportedConversation{{ID: "c1", Events: 3}}
	return x, e.w.store.FinishExport(ctx, x)
}

// exported runs test with an Exports that stores text.
func exported(t *testing.T, test func(t *testing.T, w *world, made *exporting)) {
	t.Helper()
	made := &exporting{}
	each(t, func(t *testing.T, w *world) {
		*made = exporting{w: w, text: "zip bytes"}
		test(t, w, made)
	}, func(d *router.Deps) { d.Exports = made })
}

// asleep makes a box sleep with its export current, as the settler leaves it.
func (w *world) asleep(b *models.Sandbox) *models.Sandbox {
	modelstest.Set(w.t, w.store, b, "desired = ?, observed = ?, awake_epoch = 1, exported_epoch = 1", models.WantSuspended, models.SeenSuspended)
	return w.box(b.ID)
}

func TestAnExportIsMadeByHandAndDownloadedAfterTheBoxIsGone(t *testing.T) {
	exported(t, func(t *testing.T, w *world, made *exporting) {
		conversation := "c1"
		_, box := w.running(w.automation(), func(r *models.Run, _ *models.Sandbox) { r.ConversationID = &conversation })
		w.call("tok-alice", "GET", sandboxPath(box, "/export"), nil).is(http.StatusNotFound)
		got := w.call("tok-alice", "POST", sandboxPath(box, "/export"), nil).is(http.StatusOK)
		require.Equal(t, "c1", made.conversation)
		require.EqualValues(t, 9, got["bytes"])
		require.Equal(t, false, got["current"], "of a running box none is")
		require.Equal(t, []any{map[string]any{"id": "c1", "events": 3.0}}, got["conversations"])
		require.Equal(t, w.door.entered.Load(), w.door.left.Load())
		shown := w.call("tok-alice", "GET", sandboxPath(box, ""), nil).is(http.StatusOK)
		require.Equal(t, got, shown["export"])

		box = w.asleep(box)
		require.Equal(t, true, w.call("tok-alice", "POST", sandboxPath(box, "/export"), nil).is(http.StatusOK)["current"], "what is stored")
		modelstest.Set(t, w.store, box, "desired = 'deleted', observed = 'deleted'")
		w.call("tok-alice", "POST", sandboxPath(box, "/export"), nil).is(http.StatusConflict)
		file := w.call("tok-alice", "GET", sandboxPath(box, "/export"), nil)
		require.Equal(t, http.StatusOK, file.Code)
		require.Equal(t, "zip bytes", file.Body.String())
		require.Equal(t, "application/zip", file.Header().Get("Content-Type"))
		require.Equal(t, "9", file.Header().Get("Content-Length"))
		require.Contains(t, file.Header().Get("Content-Disposition"), box.ID.String()+".zip")
		sum, _ := hex.DecodeString(strings.Repeat("ab", 32))
		require.Equal(t, "sha-256=:"+base64.StdEncoding.EncodeToString(sum)+":", file.Header().Get("Repr-Digest"))

		require.NoError(t, w.blob.Delete(t.Context(), w.box(box.ID).Export.BlobKey))
		w.call("tok-alice", "GET", sandboxPath(box, "/export"), nil).is(http.StatusNotFound)
	})
}

func TestAnExportByHandWakesNothingAndSaysWhatWentWrong(t *testing.T) {
	exported(t, func(t *testing.T, w *world, made *exporting) {
		_, paused := w.finished()
		got := w.call("tok-alice", "POST", sandboxPath(paused, "/export"), nil).is(http.StatusConflict)
		require.Equal(t, "not_running", got["error"].(map[string]any)["code"])
		require.Zero(t, w.door.entered.Load(), "not woken for it")

		_, box := w.running(w.automation())
		for name, c := range map[string]struct {
			err    error
			status int
		}{
			"no conversation":  {nil, http.StatusConflict},
			"too large":        {sandbox.ErrHistoryTooLarge, http.StatusBadGateway},
			"leads out of it":  {sandbox.ErrHistoryUnsafe, http.StatusBadGateway},
			"not all of it":    {sandbox.ErrHistoryShort, http.StatusBadGateway},
			"no answer":        {sandbox.ErrUnreachable, http.StatusServiceUnavailable},
			"a refusal of its": {&sandbox.AgentError{Status: 500, Detail: "disk"}, http.StatusBadGateway},
		} {
			made.text, made.err = "", c.err
			require.Equal(t, c.status, w.call("tok-alice", "POST", sandboxPath(box, "/export"), nil).Code, name)
		}
	})
}

func TestS0_155_ADeleteAsksWhereItWouldLoseTheHistory(t *testing.T) {
	exported(t, func(t *testing.T, w *world, _ *exporting) {
		_, lost := w.finished()
		got := w.call("tok-alice", "DELETE", sandboxPath(lost, ""), nil).is(http.StatusConflict)
		require.Equal(t, "confirmation_needed", got["error"].(map[string]any)["code"])
		w.call("tok-alice", "DELETE", sandboxPath(lost, "?export=skip"), nil).is(http.StatusConflict)
		require.Equal(t, models.WantSuspended, w.box(lost.ID).Desired)
		w.call("tok-alice", "DELETE", sandboxPath(lost, confirmed), nil).is(http.StatusAccepted)
		require.Empty(t, w.box(lost.ID).Tried)

		_, kept := w.finished()
		w.asleep(kept)
		modelstest.Set(t, w.store, kept, "exported_epoch = 0")
		w.call("tok-alice", "DELETE", sandboxPath(kept, ""), nil).is(http.StatusConflict)
		w.asleep(kept)
		w.call("tok-alice", "DELETE", sandboxPath(kept, ""), nil).is(http.StatusConflict) // nothing is stored
		x, err := w.store.BeginExport(t.Context(), w.box(kept.ID))
		require.NoError(t, err)
		require.NoError(t, w.store.FinishExport(t.Context(), x))
		w.call("tok-alice", "DELETE", sandboxPath(kept, ""), nil).is(http.StatusAccepted)

		_, skipped := w.finished()
		w.call("tok-alice", "DELETE", sandboxPath(skipped, confirmed+"&export=skip"), nil).is(http.StatusAccepted)
		require.Equal(t, []string{models.TriedExport}, w.box(skipped.ID).Tried, "no try is made")
	})
}

func TestHistoryLostIsShownForAWeek(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		_, box := w.finished()
		modelstest.Set(t, w.store, box, "desired = 'deleted', observed = 'deleted', needs_attention = 'history_lost', deleted_at = ?", w.store.Now())
		listed := func() any { return w.call("tok-alice", "GET", "sandboxes?needs_attention=true", nil).is(200)["total"] }
		require.EqualValues(t, 1, listed())
		w.clock.Advance(8 * 24 * time.Hour)
		require.EqualValues(t, 0, listed())
	})
}
