package router

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// exportWithin bounds the making of an export by hand.
const exportWithin = 10 * time.Minute

// exportObject is the stored history of a box. Current says that nothing in the box is newer.
type exportObject struct {
	ID            uuid.UUID                     `json:"id"`
	TakenAt       stamp                         `json:"taken_at"`
	Bytes         int64                         `json:"bytes"`
	SHA256        string                        `json:"sha256"`
	AwakeEpoch    int64                         `json:"awake_epoch"`
	Current       bool                          `json:"current"`
	Conversations []models.ExportedConversation `json:"conversations"`
}

func showExport(b *models.Sandbox) *exportObject {
	x := b.Export
	if x == nil {
		return nil
	}
	return &exportObject{
		ID: x.ID, TakenAt: stamp(*x.TakenAt), Bytes: x.Bytes, SHA256: x.SHA256, AwakeEpoch: x.AwakeEpoch,
		Current: b.ExportCurrent() && x.AwakeEpoch == b.AwakeEpoch, Conversations: x.Conversations,
	}
}

// exportSandbox is POST /v1/sandboxes/{id}/export: the history in a box that runs is stored. It is not woken for it; what was
// stored when it went to sleep is the answer then. Of a box that runs no export is current: it goes on.
func (s *server) exportSandbox(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.wish(w, r, who)
	if err != nil {
		return err
	}
	if err := awake(b); err != nil {
		if b.Desired != models.WantDeleted && b.ExportCurrent() && b.Export != nil {
			return ok(w, showExport(b))
		}
		return err
	}
	if b.Export, err = s.export(r.Context(), b, who); err != nil {
		return err
	}
	return ok(w, showExport(b))
}

func (s *server) export(ctx context.Context, b *models.Sandbox, who Caller) (*models.Export, error) {
	b, leave, err := s.enter(ctx, b, who.name())
	if err != nil {
		return nil, err
	}
	defer leave()
	conversation := ""
	if b.RunID != nil {
		run, err := s.Store.Run(ctx, who.OrgID, *b.RunID)
		if err != nil {
			return nil, err
		}
		if run.ConversationID != nil {
			conversation = *run.ConversationID
		}
	}
	limited, cancel := context.WithTimeout(ctx, exportWithin)
	defer cancel()
	began := s.Store.Now()
	export, err := s.Exports.Export(limited, b, conversation)
	switch {
	case err != nil:
		return nil, exportProblem(err)
	case export == nil:
		return nil, conflict("nothing_to_export", "The sandbox has no conversation")
	}
	return export, s.did(context.WithoutCancel(ctx), b, who, models.Event{What: "exported", Reason: "exported by hand", Bytes: export.Bytes}, began)
}

// exportProblem is the answer for an export that failed, or was not trusted.
func exportProblem(err error) error {
	for _, untrusted := range []error{sandbox.ErrHistoryTooLarge, sandbox.ErrHistoryUnsafe, sandbox.ErrHistoryShort} {
		if errors.Is(err, untrusted) {
			return badGateway("The export was not taken: " + err.Error())
		}
	}
	return agentProblem(err)
}

// getExport is GET /v1/sandboxes/{id}/export: the stored history as a zip, after the box is gone too.
func (s *server) getExport(w http.ResponseWriter, r *http.Request, who Caller) error {
	b, err := s.managed(r, who)
	if err != nil {
		return err
	}
	x := b.Export
	if x == nil {
		return notFound("No export of this sandbox is stored")
	}
	archive, err := s.Blob.Open(r.Context(), x.BlobKey)
	if errors.Is(err, fs.ErrNotExist) {
		return notFound("The export of this sandbox is no longer stored")
	} else if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	h := w.Header()
	h.Set("Content-Type", "application/zip")
	h.Set("Content-Length", strconv.FormatInt(x.Bytes, 10))
	h.Set("Content-Disposition", `attachment; filename="`+b.ID.String()+`.zip"`)
	h.Set("Cache-Control", "no-store")
	if sum, err := hex.DecodeString(x.SHA256); err == nil {
		h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum)+":")
	}
	n, err := io.Copy(w, archive)
	if err == nil && n != x.Bytes {
		err = fmt.Errorf("export %s has %d of %d bytes", x.ID, n, x.Bytes)
	}
	return err
}
