package watchdog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"automation/loop"
)

const (
	// runFolder holds the workspaces of local mode below the workspace base, one a run, named by its id (contract section 4.2).
	runFolder = "automation-runs"
	// workspacesPerScan is how many workspaces one scan removes (contract section 3.8).
	workspacesPerScan = 50
)

// Workspaces is the duty of local mode that removes the workspaces of runs that ended longer ago than the retention.
func (w *Watchdog) Workspaces() loop.Loop {
	return loop.Loop{Name: "workspaces", Every: w.Config.Watchdog.Interval, Pass: w.purgeWorkspaces}
}

// purgeWorkspaces makes one scan. It removes directories only, and whatever they link to stays: os.Root goes through no link.
func (w *Watchdog) purgeWorkspaces(ctx context.Context) (int, error) {
	if w.Config.Cleanup.WorkspaceRetention <= 0 {
		return 0, nil
	}
	folder, err := openFolder(w.Config.Sandbox.WorkspaceBase, runFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the workspaces: %w", err)
	}
	defer folder.Close()
	candidates, err := workspacesIn(folder)
	if err != nil {
		return 0, err
	}
	ids := make([]uuid.UUID, 0, len(candidates))
	for id := range candidates {
		ids = append(ids, id)
	}
	ends, err := w.Store.RunEnds(ctx, ids)
	if err != nil {
		return 0, err
	}
	removed, failed := 0, []error(nil)
	now := w.Store.Now()
	defer func() { w.swept("workspace", now, removed, len(failed)) }()
	limit := now.Add(-w.Config.Cleanup.WorkspaceRetention)
	for id, ended := range candidates {
		if end, known := ends[id]; known && end == nil {
			continue // its run has not ended
		} else if known {
			ended = *end
		}
		if ended.After(limit) {
			continue
		}
		if err := folder.RemoveAll(id.String()); err != nil {
			failed = append(failed, fmt.Errorf("remove workspace %s: %w", id, err))
			continue
		}
		if removed++; removed == workspacesPerScan || ctx.Err() != nil {
			break
		}
	}
	if removed > 0 {
		w.Log.InfoContext(ctx, "workspaces removed", "count", removed)
	}
	return removed, errors.Join(failed...)
}

// openFolder opens base/name, which must be a directory itself and no link to one.
func openFolder(base, name string) (*os.Root, error) {
	info, err := os.Lstat(filepath.Join(base, name))
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory", filepath.Join(base, name))
	}
	parent, err := os.OpenRoot(base)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return parent.OpenRoot(name)
}

// workspacesIn lists the directories that are named like runs, with when they were changed last.
func workspacesIn(folder *os.Root) (map[uuid.UUID]time.Time, error) {
	entries, err := fs.ReadDir(folder.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list the workspaces: %w", err)
	}
	found := map[uuid.UUID]time.Time{}
	for _, entry := range entries {
		id, err := uuid.Parse(entry.Name())
		if err != nil || id.String() != entry.Name() || !entry.IsDir() {
			continue
		}
		if info, err := entry.Info(); err == nil {
			found[id] = info.ModTime()
		}
	}
	return found, nil
}
