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
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	real, err := filepath.EvalSymlinks(options.Root)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	root, err := openRoot(real)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	s := &Storage{options: options, root: root, trash: newTrash(root, options.Log)}
	s.around.root = real
	for _, own := range options.Protected {
		if own == "" {
			continue
		}
		if resolved, err := filepath.EvalSymlinks(own); err == nil {
			own = resolved
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

// Filesystem is the file system that the root is on, in bytes.
type Filesystem struct {
	TotalBytes int64 `json:"total_bytes"`
	UsedBytes  int64 `json:"used_bytes"`
	FreeBytes  int64 `json:"free_bytes"` // to an unprivileged user
}

// Retention is how long a conversation's runtime is kept when it is not used; Days nil: for ever.
type Retention struct {
	Policy string `json:"policy"`
	Days   *int   `json:"days"`
}

// NextPass is what the next pass would do if nothing changed.
type NextPass struct {
	Tier      Tier       `json:"tier"`
	Bytes     int64      `json:"bytes"`
	NotBefore *time.Time `json:"not_before"` // nil: at once, when asked
	Reason    string     `json:"reason"`
}

// Conversation is the disk of one conversation, or of the box as a whole (id Box).
type Conversation struct {
	ID         string    `json:"id"`
	Layout     string    `json:"layout"`
	State      string    `json:"state"` // running, starting, idle, stopped, archived
	LastActive time.Time `json:"last_active"`
	SizeBytes  int64     `json:"size_bytes"` // of the root without the trash, each file once, this file system only
	Retention  Retention `json:"retention"`
	NextPass   NextPass  `json:"next_pass"`
}

// Status is the disk of the box, as read at AsOf.
type Status struct {
	AsOf          time.Time      `json:"as_of"`
	Root          string         `json:"root"`
	Filesystem    Filesystem     `json:"filesystem"`
	TrashBytes    int64          `json:"trash_bytes"`
	Conversations []Conversation `json:"conversations"`
}

// Status reads the whole disk usage anew. It changes nothing. lastActive is when the box last did real work.
func (s *Storage) Status(ctx context.Context, lastActive time.Time) (Status, error) {
	status := Status{AsOf: s.options.Now().UTC().Truncate(time.Microsecond), Root: s.around.root}
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.root.fd(), &st); err != nil {
		return Status{}, fmt.Errorf("storage status: %w", err)
	}
	block := int64(st.Bsize)
	status.Filesystem = Filesystem{
		TotalBytes: int64(st.Blocks) * block,
		UsedBytes:  int64(st.Blocks-st.Bfree) * block,
		FreeBytes:  int64(st.Bavail) * block,
	}
	var err error
	if status.TrashBytes, err = s.trash.size(ctx); err != nil {
		return Status{}, fmt.Errorf("storage status: %w", err)
	}
	total, err := size(ctx, s.root)
	if err != nil {
		return Status{}, fmt.Errorf("storage status: %w", err)
	}
	found, err := s.scan(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("storage status: %w", err)
	}
	box := Conversation{
		ID: Box, Layout: Box, State: "idle", LastActive: lastActive.UTC().Truncate(time.Microsecond), SizeBytes: total,
		Retention: Retention{Policy: "default"},
		NextPass:  NextPass{Tier: TierCaches, Bytes: Freed(Plan(found, Request{})), Reason: "when asked"},
	}
	if found.Running {
		box.State, box.NextPass.Reason = "running", reasonRunning
	}
	status.Conversations = []Conversation{box}
	return status, nil
}

func (s *Storage) scan(ctx context.Context) (Scan, error) {
	units, err := scan(ctx, s.root, s.around)
	return Scan{Units: units, Running: s.options.Guard.Running() > 0}, err
}

// Result is what a pass did, or would do.
type Result struct {
	PlanID          string  `json:"plan_id"`
	DryRun          bool    `json:"dry_run"`
	DurationSeconds float64 `json:"duration_seconds"`
	FreedBytes      int64   `json:"freed_bytes"` // of a dry run: that would be
	Items           []Item  `json:"items"`
}

// Reclaim plans a pass and, unless it is a dry run, applies it at once; with a plan id it applies that plan and skips what
// is no longer so. One pass runs at a time: *BusyError names it. ErrUnknownPlan when the plan is not remembered.
func (s *Storage) Reclaim(ctx context.Context, request Request) (Result, error) {
	began := s.options.Now()
	result := Result{PlanID: request.PlanID, DryRun: request.DryRun}
	fresh := request.PlanID == ""
	if fresh {
		result.PlanID = newName()
	}
	if !request.DryRun {
		if err := s.begin(result.PlanID); err != nil {
			return Result{}, err
		}
		defer s.end()
	}
	var err error
	if fresh {
		result.Items, err = s.plan(ctx, result.PlanID, request)
	} else {
		result.Items, err = s.remembered(request.PlanID)
	}
	if err != nil {
		return Result{}, err
	}
	if !request.DryRun {
		s.apply(ctx, result.Items, fresh)
	}
	result.FreedBytes = Freed(result.Items)
	result.DurationSeconds = s.options.Now().Sub(began).Seconds()
	return result, nil
}

func (s *Storage) begin(planID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != "" {
		return &BusyError{s.running}
	}
	s.running = planID
	return nil
}

func (s *Storage) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = ""
}

// plan makes a plan and remembers it.
func (s *Storage) plan(ctx context.Context, id string, request Request) ([]Item, error) {
	found, err := s.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	items := Plan(found, request)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans = append(s.plans, keptPlan{id, append([]Item{}, items...)})
	if len(s.plans) > keptPlans {
		s.plans = s.plans[1:]
	}
	return items, nil
}

func (s *Storage) remembered(id string) ([]Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plans {
		if p.id == id {
			return append([]Item{}, p.items...), nil
		}
	}
	return nil, ErrUnknownPlan
}

// apply moves the planned items into the trash, each by itself: one that cannot be moved stops no other. A plan that was
// not made just now is looked at again first.
func (s *Storage) apply(ctx context.Context, items []Item, fresh bool) {
	dir, err := s.trash.open(true)
	links, around := linkCounter{}, s.around
	around.mounts = mountPoints()
	for i := range items {
		item := &items[i]
		switch {
		case item.Outcome != Planned:
			continue
		case err != nil:
			item.skip(reasonFor(err))
			continue
		case ctx.Err() != nil:
			item.skip(ctx.Err().Error())
			continue
		}
		if !fresh && !s.lookAgain(ctx, item, around, links) {
			continue
		}
		s.move(ctx, item, dir)
	}
	if err != nil {
		return
	}
	dir.close()
	s.trash.empty()
	budget, cancel := context.WithTimeout(ctx, deleteGrace)
	defer cancel()
	s.trash.wait(budget)
}

// lookAgain measures an item of an older plan anew, and reports whether it may still go.
func (s *Storage) lookAgain(ctx context.Context, item *Item, around surroundings, links linkCounter) bool {
	unit, err := inspect(ctx, s.root, item.Path, around, links)
	switch {
	case err != nil:
		item.skip(reasonFor(err))
	case unit.Refuse != "":
		item.skip(unit.Refuse)
	case unit.id != item.id:
		item.skip(reasonChanged)
	default:
		item.Bytes, item.Files, item.partial = unit.Bytes, unit.Files, unit.partial
		return true
	}
	return false
}

// move renames one item into the trash while the box is idle, and makes sure that what it moved is what was planned.
func (s *Storage) move(ctx context.Context, item *Item, dir handle) {
	parent, err := s.root.descend(path.Dir(item.Path))
	if err != nil {
		item.skip(reasonFor(err))
		return
	}
	defer parent.close()
	base, entry := path.Base(item.Path), newName()
	s.trash.hold(entry) // until it has been looked at
	idle := s.options.Guard.WhileIdle(func() {
		st, err := parent.stat(base)
		switch {
		case err != nil:
			item.skip(reasonFor(err))
		case identityOf(st) != item.id:
			item.skip(reasonChanged)
		default:
			if err := rename(parent, base, dir, entry); err != nil {
				item.skip(reasonFor(err))
			} else {
				item.Outcome = Moved
			}
		}
	})
	if !idle {
		item.skip(reasonRunning)
	}
	if item.Outcome == Moved {
		if reason := s.verify(ctx, item, dir, entry); reason != "" {
			item.skip(reason)
			if err := dir.move(entry, parent, base); err != nil {
				s.options.Log.Warn("moved by mistake and not put back", "path", item.Path, "trash", entry, "error", err)
				return // held for ever
			}
		}
	}
	s.trash.release(entry)
}

// rename moves a directory; one that its owner may not write in is unlocked first.
func rename(parent handle, base string, dir handle, entry string) error {
	err := parent.move(base, dir, entry)
	if errors.Is(err, os.ErrPermission) && parent.unlock(base) == nil {
		err = parent.move(base, dir, entry)
	}
	return err
}

// verify looks at what is in the trash now: the very directory that was planned, and, where some of it could not be read
// before, what that holds.
func (s *Storage) verify(ctx context.Context, item *Item, dir handle, entry string) (reason string) {
	st, err := dir.stat(entry)
	if err != nil || identityOf(st) != item.id {
		return reasonChanged
	}
	if !item.partial {
		return ""
	}
	m := measurement{ctx: context.WithoutCancel(ctx), dev: st.Dev, links: linkCounter{}, unlock: true, bytes: allocated(st)}
	_ = m.directory(dir, entry) // ends early only with its context
	switch {
	case m.checkout:
		return reasonCheckout
	case m.mount:
		return reasonMount
	}
	item.Bytes, item.Files = m.bytes+linkCounter{}.take(m.links), m.files
	return ""
}
