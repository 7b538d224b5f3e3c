package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Statuses are the words of an execution status, in the contract's order.
var Statuses = []string{"idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "stuck", "deleting"}

// Files of a history.
const (
	stateFile = "base_state.json"
	metaFile  = "meta.json"
	leaseFile = "owner_lease.json"
)

// Running is the execution status of a conversation whose agent works.
const Running = "running"

// A lease is renewed every 15 seconds and lives for 45. What says nothing that can be read counts as live for leaseDoubt
// after it was written, and a status of running that a lease has outlived for crashDoubt was left by a crash.
const (
	leaseDoubt = time.Minute
	crashDoubt = time.Hour
)

// Conversation is what the disk says of one. Fields that the history has not are empty.
type Conversation struct {
	ID         string // 32 hexadecimal digits
	Status     string
	CreatedAt  time.Time
	UpdatedAt  time.Time
	Title      *string
	Tags       map[string]string
	Workspace  json.RawMessage
	Profile    json.RawMessage // launched_agent_profile
	LastActive time.Time       // when its state was last written (S0-027); zero: unknown
	Leased     bool            // a server has it open
}

// Working reports whether its agent works.
func (c Conversation) Working() bool { return c.Status == Running }

type stored struct {
	Status    string            `json:"execution_status"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
	Title     *string           `json:"title"`
	Tags      map[string]string `json:"tags"`
	Workspace json.RawMessage   `json:"workspace"`
	Profile   json.RawMessage   `json:"launched_agent_profile"`
}

// Get reads one conversation as of now. fs.ErrNotExist: there is none.
func (s *Store) Get(id string, now time.Time) (Conversation, error) {
	root, err := s.within(id)
	if err != nil {
		return Conversation{}, err
	}
	defer root.Close()
	c := Conversation{ID: id, Status: "idle"}
	var all stored
	for _, name := range []string{stateFile, metaFile} {
		text, err := s.read(id, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, &all) // what the second one says too stays the second one's
		}
		if err != nil {
			return c, fmt.Errorf("conversation %s: %s: %w", id, name, err)
		}
	}
	if all.Status != "" {
		c.Status = all.Status
	}
	c.CreatedAt, c.UpdatedAt, c.Title, c.Tags = all.CreatedAt.UTC(), all.UpdatedAt.UTC(), all.Title, all.Tags
	c.Workspace, c.Profile = all.Workspace, all.Profile
	if info, err := root.Lstat(stateFile); err == nil && info.Mode().IsRegular() {
		c.LastActive = info.ModTime().UTC()
	}
	expires, there := s.lease(id)
	c.Leased = there && now.Before(expires)
	if c.Working() && there && now.Sub(expires) > crashDoubt {
		c.Status = "error"
	}
	return c, nil
}

// LastActive is when the state of a conversation was last written; zero: unknown.
func (s *Store) LastActive(id string) time.Time {
	var st unix.Stat_t
	if !IsID(id) || unix.Lstat(filepath.Join(s.path, id, stateFile), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return time.Time{}
	}
	return time.Unix(st.Mtim.Unix()).UTC()
}

// Stamp tells cheaply whether what Get reads of a conversation has been written since: then it is another one.
func (s *Store) Stamp(id string) string {
	var stamp strings.Builder
	for _, name := range []string{stateFile, metaFile, leaseFile} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(s.path, id, name), &st); err != nil {
			fmt.Fprint(&stamp, err, ";")
			continue
		}
		fmt.Fprint(&stamp, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), ";")
	}
	return stamp.String()
}

// Stamps is the stamp of all conversations together.
func (s *Store) Stamps() string {
	ids, err := s.IDs()
	stamps := make([]string, 0, len(ids))
	for _, id := range ids {
		stamps = append(stamps, id, s.Stamp(id))
	}
	return fmt.Sprint(err, stamps)
}

// lease is when the lease runs out that a server holds on a conversation.
func (s *Store) lease(id string) (expires time.Time, there bool) {
	root, err := s.within(id)
	if err != nil {
		return time.Time{}, false
	}
	defer root.Close()
	info, err := root.Lstat(leaseFile)
	if err != nil {
		return time.Time{}, false
	}
	written := info.ModTime().Add(leaseDoubt)
	text, err := s.read(id, leaseFile)
	if err != nil {
		return written, true
	}
	var lease struct {
		Expires any `json:"expires_at"`
	}
	if json.Unmarshal(text, &lease) == nil {
		switch v := lease.Expires.(type) {
		case float64:
			return time.UnixMicro(int64(v * 1e6)), true
		case string:
			if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
				return at, true
			}
		}
	}
	return written, true
}

// Events lists the names of a conversation's events, the oldest first.
func (s *Store) Events(id string) ([]string, error) {
	root, err := s.within(id)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, err := root.Open("events")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, "event-") || !strings.HasSuffix(name, ".json")
	})
	slices.Sort(names)
	return names, nil
}

// Event reads one event by its name.
func (s *Store) Event(id, name string) (json.RawMessage, error) {
	text, err := s.read(id, path.Join("events", name))
	if err == nil && !json.Valid(text) {
		err = fmt.Errorf("%s is no JSON", name)
	}
	return text, err
}
