// Package storage frees disk space in the box it runs in: it plans over a scan of the real state, moves what may go into a
// trash on the same file system while the box is idle, and deletes it there in the background. It works on plain paths
// beneath one directory, the same on a laptop, in a container and in a virtual machine (S0-006); it follows no link,
// crosses no mount, and knows no timer: whatever a pass needs it reads anew (S0-022, S0-143).
package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"automation/agentserver/conversation"
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
	Root         string   // the home directory of the box
	Protected    []string // places of the server that a pass never takes, nor what holds them; "" is ignored
	Workspace    string   // the shared workspace; "" or one that does not exist: none
	RuntimesDir  string   // holds the docker runtimes; "": this layout is not in use
	WorktreeRoot string   // holds the worktrees of the conversations; "": this layout is not in use
	Histories    *conversation.Store
	StateDir     string // what the server keeps for itself; "" for nothing
	Settings     Settings
	Guard        Guard
	LastActive   func() time.Time // when the box last did real work
	Log          *slog.Logger
	Now          func() time.Time
}

// Storage is the disk of one box. Make it with Open and Close it.
type Storage struct {
	options Options
	around  surroundings
	home    *area
	areas   []*area // home first
	layouts []layout
	ledger  *ledger
	walks   walks
	looks   looks

	mu      sync.Mutex
	states  map[string]string // of the tenants, as the last maintenance saw them
	running string            // plan id of the pass that runs
	plans   []keptPlan
}

type keptPlan struct {
	id    string
	items []Item
}

// Open opens the places of every layout that is configured, and starts to delete what an earlier server left in the trash.
func Open(options Options) (*Storage, error) {
	s := &Storage{options: options, ledger: openLedger(options.StateDir, options.Now, options.Log)}
	if options.Histories == nil {
		s.options.Histories = conversation.Open("")
	}
	s.looks = looks{last: map[string]glance{}, margin: settled}
	s.around.free = make(chan struct{}, walkers)
	var err error
	if s.around.git, err = newGit(gitLimit); err != nil {
		options.Log.Warn("dependencies are not reclaimed", "error", err)
	}
	if s.home, err = s.openArea(options.Root); err == nil {
		s.around.root = s.home.absolute
		err = s.arrange()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	for _, own := range options.Protected {
		if own != "" {
			s.around.protected = append(s.around.protected, resolved(own))
		}
	}
	s.warnUnused()
	for _, a := range s.areas {
		a.trash.empty()
	}
	return s, nil
}

// arrange makes the layouts.
func (s *Storage) arrange() error {
	box := &shared{
		home: s.home, active: s.options.LastActive, guard: s.options.Guard, histories: s.options.Histories, now: s.options.Now,
	}
	if box.active == nil {
		box.active = func() time.Time { return time.Time{} }
	}
	s.layouts = []layout{box}
	if dir := s.options.Workspace; dir != "" {
		dir = resolved(dir)
		s.around.workspace = dir
		if err := s.placeWorkspace(box, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if dir := s.options.WorktreeRoot; dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("storage root: %w", err)
		}
		a, err := s.openArea(dir)
		if err != nil {
			return err
		}
		box.apart = append(box.apart, a.absolute)
		s.layouts = append(s.layouts, &worktrees{area: a, histories: s.options.Histories, guard: s.options.Guard, now: s.options.Now})
	}
	if dir := s.options.RuntimesDir; dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("storage root: %w", err)
		}
		a, err := s.openArea(dir)
		if err != nil {
			return err
		}
		box.histories = conversation.Open("") // its conversations work in containers
		box.apart = append(box.apart, a.path(runtimeData))
		s.layouts = append(s.layouts, &docker{area: a, histories: s.options.Histories, now: s.options.Now})
	}
	return nil
}

// placeWorkspace finds the area of the shared workspace: the home, or the directory that holds the workspace, so that the
// trash lies beside the work and not in it.
func (s *Storage) placeWorkspace(box *shared, dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return err
	}
	if within(dir, s.home.absolute) {
		box.work, box.workspace = s.home, shown(s.home.absolute, dir)
		return nil
	}
	parent := filepath.Dir(dir)
	root := parent
	if !sameDevice(parent, dir) || unix.Access(parent, unix.W_OK) != nil {
		root = dir
	}
	a, err := s.openArea(root)
	if err != nil {
		return err
	}
	box.work, box.workspace = a, shown(a.absolute, dir)
	return nil
}

func (s *Storage) openArea(dir string) (*area, error) {
	for _, known := range s.areas {
		if known.absolute == resolved(dir) {
			return known, nil // one trash has one keeper
		}
	}
	a, err := openArea(dir, s.options.Log, s.options.Now)
	if err != nil {
		return nil, err
	}
	s.areas = append(s.areas, a)
	return a, nil
}

func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// Close ends the deletion; the next server goes on with it.
func (s *Storage) Close() {
	s.ledger.tick()
	s.close()
}

func (s *Storage) close() {
	for _, a := range s.areas {
		a.close()
	}
	s.around.git.close()
}
