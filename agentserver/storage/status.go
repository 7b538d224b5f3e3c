package storage

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

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
	block := st.Bsize
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
