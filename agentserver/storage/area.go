package storage

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// area is a directory that everything of a layout lies in, on one file system, with a trash of its own.
type area struct {
	root     handle
	absolute string // without links
	trash    *trash
}

// openArea opens the directory at path, and makes its trash now, since a full disk may leave no room for it when it is
// needed (BR-23). Without a trash nothing of it can be reclaimed, which is said.
func openArea(path string, log *slog.Logger, now func() time.Time) (*area, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	root, err := openRoot(resolved)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	a := &area{root: root, absolute: resolved, trash: newTrash(root, log, now)}
	if made, err := a.trash.open(true); err != nil {
		log.Warn("nothing can be reclaimed", "root", resolved, "error", err)
	} else {
		made.close()
	}
	return a, nil
}

func (a *area) close() {
	a.trash.close()
	a.root.close()
}

// path is the absolute path of a name in the area.
func (a *area) path(name string) string { return filepath.Join(a.absolute, name) }
