package sandbox

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"automation/models"
)

// Bounds of an export (design section 9).
const (
	exportBytes     = 1 << 30   // the most that is kept of one box
	exportFreeFloor = 512 << 20 // what stays free where exports are staged
)

// ExportBlobs is where exports go.
type ExportBlobs interface {
	Blobs
	// Open returns a reader of a blob.
	Open(ctx context.Context, key string) (io.ReadCloser, error)
	// Delete removes a blob; one that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// ExporterConfig is what an Exporter works with.
type ExporterConfig struct {
	Store   *models.Store
	Blobs   ExportBlobs
	Staging string       // folder of what is on its way, made where it is missing
	HTTP    *http.Client // for the agent servers; nil: a shared one
	// Free returns how many bytes are free in the staging folder; nil: what its file system says.
	Free func() (int64, error)
}

// Exporter takes the history out of boxes, and trusts what it got only after it has read all of it.
type Exporter struct{ ExporterConfig }

// NewExporter makes the staging folder.
func NewExporter(c ExporterConfig) (*Exporter, error) {
	if err := os.MkdirAll(c.Staging, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for exports: %w", err)
	}
	if c.Free == nil {
		c.Free = func() (int64, error) {
			var fs unix.Statfs_t
			err := unix.Statfs(c.Staging, &fs)
			return int64(fs.Bavail) * fs.Bsize, err
		}
	}
	return &Exporter{ExporterConfig: c}, nil
}

// Export stores the histories of all conversations in a box that runs as one archive, and records it; nil when the box has no
// conversation, so that there is nothing to lose. conversation is the run's, "" for none: it is looked for though the box does
// not list it. All or nothing is stored. ErrUnreachable, ErrHistoryTooLarge, ErrHistoryUnsafe, ErrHistoryShort.
func (e *Exporter) Export(ctx context.Context, b *models.Sandbox, conversation string) (*models.Export, error) {
	agent := AgentOf(b, e.HTTP)
	ids, err := agent.Conversations(ctx)
	if err != nil {
		return nil, err
	}
	same := func(id string) bool { return plainID(id) == plainID(conversation) }
	if conversation != "" && !slices.ContainsFunc(ids, same) {
		ids = append(ids, conversation)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	export, err := e.Store.BeginExport(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := e.store(ctx, agent, ids, export); err != nil {
		return nil, err
	}
	if len(export.Conversations) == 0 { // those that were named are not there
		return nil, errors.Join(e.Blobs.Delete(ctx, export.BlobKey), e.Store.ForgetExport(ctx, export.ID))
	}
	if err := e.Store.FinishExport(ctx, export); err != nil {
		return nil, err
	}
	return export, nil
}

// plainID is a conversation's id without dashes: both forms are in use.
func plainID(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }

// store puts the archive under its key, and reads it back.
func (e *Exporter) store(ctx context.Context, agent Agent, ids []string, export *models.Export) error {
	reader, writer := io.Pipe()
	sum := &summed{w: writer, hash: sha256.New()}
	var putting sync.WaitGroup
	var putErr error
	putting.Go(func() {
		export.Bytes, putErr = e.Blobs.Put(ctx, export.BlobKey, reader)
		_ = reader.CloseWithError(errors.Join(putErr, io.ErrClosedPipe)) // a writer that still writes must not wait
	})
	err := e.write(ctx, agent, ids, sum, export)
	_ = writer.CloseWithError(err) // nil ends the archive, an error the Put
	putting.Wait()
	if err == nil && putErr != nil {
		err = fmt.Errorf("store the export: %w", putErr)
	}
	if err != nil {
		return err
	}
	export.SHA256 = sum.digest()
	if export.Bytes != sum.n {
		return fmt.Errorf("store the export: %d of %d bytes were taken", export.Bytes, sum.n)
	}
	return e.readBack(ctx, export)
}

// write writes the archive of every conversation into one.
func (e *Exporter) write(ctx context.Context, agent Agent, ids []string, w io.Writer, export *models.Export) error {
	whole := zip.NewWriter(w)
	left := int64(exportBytes)
	done := map[string]bool{}
	for _, id := range ids {
		if done[plainID(id)] {
			continue
		}
		done[plainID(id)] = true
		size, events, err := e.add(ctx, agent, id, left, whole)
		if notThere(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("conversation %s: %w", id, err)
		}
		left -= size
		export.Conversations = append(export.Conversations, models.ExportedConversation{ID: id, Events: events})
	}
	return whole.Close()
}

// add takes one conversation's archive, checks it, and copies its entries as they are compressed. The number of events in it
// is the conversation's: of one that goes on meanwhile, a number that it has had.
func (e *Exporter) add(ctx context.Context, agent Agent, id string, limit int64, whole *zip.Writer) (size int64, events int, err error) {
	least, err := agent.EventCount(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	staged, err := e.staged()
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = staged.Close() }()
	room, err := e.room(limit)
	if err != nil {
		return 0, 0, err
	}
	if size, err = agent.Trajectory(ctx, id, staged, room); err != nil {
		return 0, 0, err
	}
	archive, err := zip.NewReader(staged, size)
	if err != nil {
		return 0, 0, fmt.Errorf("the archive cannot be read: %w", err)
	}
	if events, err = checkTrajectory(ctx, archive, id); err != nil {
		return 0, 0, err
	}
	most, err := agent.EventCount(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	if events < least || events > most {
		return 0, 0, fmt.Errorf("%w: %d events, want %d", ErrHistoryShort, events, most)
	}
	for _, entry := range archive.File {
		if err := whole.Copy(entry); err != nil {
			return 0, 0, fmt.Errorf("copy %q: %w", clip(entry.Name, 200), err)
		}
	}
	return size, events, nil
}

// staged is a file without a name: nothing is left of it after a crash.
func (e *Exporter) staged() (*os.File, error) {
	file, err := os.CreateTemp(e.Staging, "export-")
	if err != nil {
		return nil, fmt.Errorf("stage an export: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("stage an export: %w", err), file.Close())
	}
	return file, nil
}

// room is how much may be staged now: half of what is free above the floor, for it is stored beside it.
func (e *Exporter) room(limit int64) (int64, error) {
	free, err := e.Free()
	if err != nil {
		return 0, fmt.Errorf("free space for exports: %w", err)
	}
	room := min(limit, (free-exportFreeFloor)/2)
	if room <= 0 {
		return 0, fmt.Errorf("%w: %d bytes are free, of which %d are left alone", ErrHistoryTooLarge, free, int64(exportFreeFloor))
	}
	return room, nil
}

// readBack compares what is stored with what was checked.
func (e *Exporter) readBack(ctx context.Context, export *models.Export) error {
	stored, err := e.Blobs.Open(ctx, export.BlobKey)
	if err != nil {
		return fmt.Errorf("read the stored export: %w", err)
	}
	defer func() { _ = stored.Close() }()
	sum := &summed{w: io.Discard, hash: sha256.New()}
	if _, err := io.Copy(sum, stored); err != nil {
		return fmt.Errorf("read the stored export: %w", err)
	}
	if sum.digest() != export.SHA256 {
		return errors.New("the stored export is not what was written")
	}
	return nil
}

// summed counts what is written through it, and takes its digest.
type summed struct {
	w    io.Writer
	hash hash.Hash
	n    int64
}

// Write writes on.
func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	_, _ = s.hash.Write(p[:n]) // never fails
	return n, err
}

func (s *summed) digest() string { return hex.EncodeToString(s.hash.Sum(nil)) }
