// Package storage frees disk space in the box it runs in: it plans over a scan of the real state, moves what may go into a
// trash on the same file system while the box is idle, and deletes it there in the background. It works on plain paths
// beneath one directory, the same on a laptop, in a container and in a virtual machine (S0-006); it follows no link,
// crosses no mount, and knows no timer: whatever a pass needs it reads anew (S0-022, S0-143).
package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"
)

// Bounds: plans that are remembered, and how long a pass waits for its trash to be deleted, so that a snapshot taken after
// it is smaller; what is left then goes on in the background.
const (
	keptPlans   = 16
	deleteGrace = 20 * time.Second
)

// ErrUnknownPlan means that no plan of this id is remembered.
var ErrUnknownPlan = errors.New("plan not found")

// BusyError means that another pass is running.
type BusyError struct{ PlanID string }

// Error names the pass that runs.
func (e *BusyError) Error() string { return "reclaim is running: plan " + e.PlanID }

// Guard says what is in use. WhileIdle runs f while no command runs and none can start, and reports whether it did.
type Guard interface {
	WhileIdle(f func()) bool
	Running() int
}

// Options of a Storage.
type Options struct {
	Root      string   // the home directory of the box
	Protected []string // places of the server that a pass never takes, nor what holds them; "" is ignored
	Guard     Guard
	Log       *slog.Logger
	Now       func() time.Time
}

// Storage is the disk of one box. Make it with Open and Close it.
type Storage struct {
	options Options
	root    handle
	around  surroundings
	trash   *trash

	mu      sync.Mutex
	running string // plan id of the pass that runs
	plans   []keptPlan
}

type keptPlan struct {
	id    string
	items []Item
}

// Open opens the root, and starts to delete what an earlier server left in the trash.
func Open(options Options) (*Storage, error) {
	resolved, err := filepath.EvalSymlinks(options.Root)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	root, err := openRoot(resolved)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	s := &Storage{options: options, root: root, trash: newTrash(root, options.Log)}
	s.around.root = resolved
	for _, own := range options.Protected {
		if own == "" {
			continue
		}
		if target, err := filepath.EvalSymlinks(own); err == nil {
			own = target
		}
		s.around.protected = append(s.around.protected, own)
	}
	// Made now, since a full disk may leave no room for it when it is needed (BR-23).
	if made, err := s.trash.open(true); err != nil {
		options.Log.Warn("nothing can be reclaimed", "error", err)
	} else {
		made.close()
	}
	s.trash.empty()
	return s, nil
}

// Close ends the deletion; the next server goes on with it.
func (s *Storage) Close() {
	s.trash.close()
	s.root.close()
}

func (s *Storage) scan(ctx context.Context) (Scan, error) {
	units, err := scan(ctx, s.root, s.around)
	return Scan{Units: units, Running: s.options.Guard.Running() > 0}, err
}
