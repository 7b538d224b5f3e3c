package storage

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"automation/agentserver/conversation"
)

// Filesystem is the file system that the root is on, in bytes.
type Filesystem struct {
	TotalBytes int64 `json:"total_bytes"`
	UsedBytes  int64 `json:"used_bytes"`
	FreeBytes  int64 `json:"free_bytes"` // to an unprivileged user
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
	ID         string                 `json:"id"`
	Layout     string                 `json:"layout"`
	State      string                 `json:"state"`       // running, starting, idle, stopped, archived
	LastActive *time.Time             `json:"last_active"` // nil: unknown
	SizeBytes  int64                  `json:"size_bytes"`  // without the trash and the history, each file once, one file system
	AsOf       time.Time              `json:"as_of"`       // when it was walked
	Retention  conversation.Retention `json:"retention"`
	NextPass   NextPass               `json:"next_pass"`
}

// Stuck is something in the trash that cannot be deleted; it is tried again.
type Stuck struct {
	Path    string    `json:"path"`
	Error   string    `json:"error"`
	Tries   int       `json:"tries"`
	RetryAt time.Time `json:"retry_at"`
}

// Status is the disk of the box, as read at AsOf.
type Status struct {
	AsOf          time.Time      `json:"as_of"`
	Root          string         `json:"root"`
	Filesystem    Filesystem     `json:"filesystem"`
	TrashBytes    int64          `json:"trash_bytes"`
	Stuck         []Stuck        `json:"stuck"`
	Conversations []Conversation `json:"conversations"`
}

// walks remembers what the status found of conversations that have not run since. No pass decides by it.
type walks struct {
	mu   sync.Mutex
	shed bool // dependencies were looked for
	last map[string]walk
}

type walk struct {
	key   string
	at    time.Time
	units []Unit
	size  int64
}

// fill completes a tenant from an earlier walk, if it has not run since.
func (w *walks) fill(t Tenant, shed bool) (Found, time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[t.ID]
	if !ok || t.key == "" || last.key != t.key || w.shed != shed {
		return Found{}, time.Time{}, false
	}
	return Found{Tenant: t, Units: last.units, Size: last.size}, last.at, true
}

// keep remembers the walks of these tenants, and forgets those of everybody else.
func (w *walks) keep(found []Found, at map[string]time.Time, shed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shed = shed
	w.last = make(map[string]walk, len(found))
	for _, f := range found {
		if f.key != "" && f.Busy == "" {
			w.last[f.ID] = walk{f.key, at[f.ID], f.Units, f.Size}
		}
	}
}

// forget drops the walk of one tenant, of which something has gone.
func (w *walks) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, id)
}

// Status reads the disk usage. It changes nothing. A conversation that has not run since its last walk is not walked again.
func (s *Storage) Status(ctx context.Context) (Status, error) {
	status := Status{
		AsOf: s.options.Now().UTC().Truncate(time.Microsecond), Root: s.around.root, Filesystem: s.filesystem(),
		Stuck: []Stuck{}, Conversations: []Conversation{},
	}
	for _, a := range s.areas {
		bytes, err := a.trash.size(ctx)
		if err != nil {
			return Status{}, fmt.Errorf("storage status: %w", err)
		}
		status.TrashBytes += bytes
		status.Stuck = append(status.Stuck, a.trash.stuck(s.around.root)...)
	}
	found, walked, err := s.walk(ctx, status.AsOf)
	if err != nil {
		return Status{}, fmt.Errorf("storage status: %w", err)
	}
	freed := map[string]NextPass{}
	for _, item := range Plan(found, Request{}, s.options.Settings) {
		next := freed[item.ConversationID]
		if item.Outcome == Planned {
			next.Bytes += item.Bytes
			if slices.Index(Tiers, item.Tier) > slices.Index(Tiers, next.Tier) {
				next.Tier, next.Reason = item.Tier, item.Reason
			}
		}
		freed[item.ConversationID] = next
	}
	for _, t := range found.Tenants {
		status.Conversations = append(status.Conversations, s.describe(found, t, walked[t.ID], freed[t.ID]))
	}
	return status, nil
}

// walk scans what has to be walked, and takes the rest from earlier walks.
func (s *Storage) walk(ctx context.Context, now time.Time) (Scan, map[string]time.Time, error) {
	var known []Found
	walked := map[string]time.Time{}
	what := aim{sizes: true, dependencies: s.sheds(Request{}), runtimes: true}
	found, err := s.scan(ctx, func(t Tenant) bool {
		f, at, ok := s.walks.fill(t, what.dependencies)
		if ok {
			known, walked[t.ID] = append(known, f), at
		}
		return !ok
	}, what)
	if err != nil {
		return Scan{}, nil, err
	}
	for _, t := range found.Tenants {
		walked[t.ID] = now
	}
	found.Tenants = append(found.Tenants, known...)
	slices.SortStableFunc(found.Tenants, func(a, b Found) int {
		if (a.ID == Box) != (b.ID == Box) {
			return b2i(b.ID == Box) - b2i(a.ID == Box)
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	s.walks.keep(found.Tenants, walked, what.dependencies)
	return found, walked, nil
}

func (s *Storage) describe(found Scan, t Found, walked time.Time, next NextPass) Conversation {
	c := Conversation{
		ID: t.ID, Layout: t.Layout, State: t.State, SizeBytes: t.Size, AsOf: walked, Retention: t.Retention, NextPass: next,
	}
	if !t.LastActive.IsZero() {
		at := t.LastActive.UTC().Truncate(time.Microsecond)
		c.LastActive = &at
	}
	if c.NextPass.Tier == "" {
		c.NextPass.Tier = TierCaches
	}
	switch at, why, ok := archiveAt(found, t, s.options.Settings); {
	case t.Busy != "":
		c.NextPass.Reason = t.Busy
	case ok && at.After(found.Now) && t.parts[0].runtime != "":
		c.NextPass.NotBefore, c.NextPass.Reason = &at, "archived when "+why
	case c.NextPass.Reason == "":
		c.NextPass.Reason = "when asked"
	}
	if t.parts[0].runtime == "" && t.Retention.Policy != conversation.Default {
		c.NextPass.Reason = reasonNoRetention
	}
	return c
}

// reasonNoRetention tells that a retention was set where it does nothing (S0-008, S0-047).
const reasonNoRetention = "this layout keeps no runtime of its own: retention has no effect"

func (s *Storage) filesystem() Filesystem {
	var st unix.Statfs_t
	if unix.Fstatfs(s.home.root.fd(), &st) != nil {
		return Filesystem{}
	}
	return Filesystem{
		TotalBytes: int64(st.Blocks) * st.Bsize,
		UsedBytes:  int64(st.Blocks-st.Bfree) * st.Bsize,
		FreeBytes:  int64(st.Bavail) * st.Bsize,
	}
}

// warnUnused says loudly when a retention is configured that does nothing here (S0-151).
func (s *Storage) warnUnused() {
	if s.options.Settings.RetentionDays > 0 && s.options.RuntimesDir == "" {
		s.options.Log.Warn("retention is set and has no effect: no conversation of this box has a runtime of its own",
			"days", s.options.Settings.RetentionDays)
	}
}
