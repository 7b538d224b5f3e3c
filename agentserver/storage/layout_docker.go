package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"automation/agentserver/conversation"
)

// LayoutDocker is a container for each conversation, whose home and workspace lie in a directory of its own.
const LayoutDocker = "docker-runtimes"

// Directories of the layout in its area.
const (
	runtimeData    = "runtime-data"
	runtimeControl = "runtime-control"
)

const (
	reasonUnreadable = "its history cannot be read"
	reasonContainer  = "its container has the conversation open"
	reasonStarting   = "its container is being started"
	reasonWorking    = "the conversation is running"
)

// docker is the layout of a server that keeps a container for each conversation. It needs no engine: a conversation that a
// server has open says so by its lease, and one that is being started by its lock. The other server on the same directories
// takes the same lock.
type docker struct {
	area      *area
	histories *conversation.Store
	now       func() time.Time
	mounts    mountLook
}

// mountsFor is how old what is known of mounts may be before something is moved.
const mountsFor = 250 * time.Millisecond

func (l *docker) tenants(context.Context) ([]Tenant, error) {
	ids, err := l.ids()
	all := make([]Tenant, 0, len(ids))
	mounted := l.mounts.since(time.Now())
	for _, id := range ids {
		all = append(all, l.tenant(id, mounted))
	}
	return all, err
}

// isMounted reports whether a container has the runtime of a conversation mounted: one that is coming up holds no lease yet.
func isMounted(mounted, id string) bool {
	return strings.Contains(mounted, "/"+runtimeData+"/"+conversation.Plain(id)+"/")
}

// ids lists the conversations that have a runtime or had one.
func (l *docker) ids() ([]string, error) {
	found := map[string]bool{}
	for _, place := range []struct{ name, suffix string }{{runtimeData, ""}, {runtimeControl, archivedSuffix}} {
		dir, err := l.area.root.open(place.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("runtimes: %w", err)
		}
		names, err := dir.names(-1)
		for _, name := range names {
			id := name[:max(0, len(name)-len(place.suffix))]
			st, statErr := dir.stat(name)
			if conversation.IsID(id) && id+place.suffix == name && statErr == nil && (isDir(st) || place.suffix != "") {
				found[id] = true
			}
		}
		dir.close()
		if err != nil {
			return nil, fmt.Errorf("runtimes: %w", err)
		}
	}
	ids := make([]string, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (l *docker) tenant(id, mounted string) Tenant {
	base := runtimeData + "/" + id
	t := Tenant{
		ID: conversation.Dashed(id), Layout: LayoutDocker, State: StateStopped, layout: l,
		parts: []part{{
			area: l.area, homes: []string{base + "/persistence"}, workspaces: []string{base + "/workspace"},
			runtime: base, whole: base, extent: []string{base},
		}},
	}
	c, err := l.histories.Get(id, l.now())
	t.LastActive = c.LastActive
	if t.Busy = l.busyBy(c, err); t.Busy == "" && isMounted(mounted, id) {
		t.Busy = reasonContainer
	}
	if t.Busy != "" {
		t.State = StateIdle
	}
	if c.Working() {
		t.State = StateRunning
	}
	if r, err := l.histories.Retention(id); err == nil {
		t.Retention = r
	} else {
		t.Retention = conversation.Retention{Policy: conversation.Default}
		t.LastActive = time.Time{} // what it asked for is unknown: it stays
	}
	if l.archived(id) {
		t.State = StateArchived
	} else if t.Busy == "" && l.starting(id) {
		t.State, t.Busy = StateStarting, reasonStarting
	}
	t.key = fmt.Sprint(t.LastActive.UnixNano(), t.State, t.Busy)
	return t
}

func (l *docker) busyBy(c conversation.Conversation, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist): // a runtime without a history: never started, or deleted by half
		return ""
	case c.Leased:
		return reasonContainer
	case err != nil:
		return reasonUnreadable
	case c.Working():
		return reasonWorking
	}
	return ""
}

func (l *docker) archived(id string) bool {
	_, err := os.Lstat(l.marker(id))
	return err == nil
}

const archivedSuffix = ".archived.json"

func (l *docker) marker(id string) string {
	return filepath.Join(l.area.path(runtimeControl), conversation.Plain(id)+archivedSuffix)
}

func (l *docker) starting(id string) bool {
	unlock, busy := l.lock(id, false)
	if busy == "" {
		unlock()
	}
	return busy != ""
}

// lock takes the lock of one conversation if nobody has it; without create one that does not exist is nobody's.
func (l *docker) lock(id string, create bool) (unlock func(), busy string) {
	flags := os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if create {
		flags |= os.O_CREATE
	}
	name := filepath.Join(l.area.path(runtimeControl), conversation.Plain(id)+".json.lock")
	file, err := os.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return func() {}, ""
	}
	if err != nil {
		return nil, reasonFor(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, reasonStarting
	}
	return func() { _ = file.Close() }, ""
}

// whileIdle looks at everything before it takes the lock, and under it only at whether anything of that has changed since: the
// lock is held for as long as f takes (S0-144). No lock keeps a container from mounting the runtime meanwhile; see startedSince.
func (l *docker) whileIdle(id string, f func()) (busy string) {
	if err := os.MkdirAll(l.area.path(runtimeControl), 0o700); err != nil {
		return reasonFor(err)
	}
	plain := conversation.Plain(id)
	before := l.histories.Stamp(plain)
	if busy := l.busyBy(l.histories.Get(plain, l.now())); busy != "" {
		return busy
	}
	if isMounted(l.mounts.since(time.Now().Add(-mountsFor)), id) {
		return reasonContainer
	}
	unlock, busy := l.lock(id, true)
	if busy != "" {
		return busy
	}
	defer unlock()
	if l.histories.Stamp(plain) != before {
		return reasonUsed
	}
	f()
	return ""
}

func (l *docker) startedSince(id, entry string, moved time.Time) bool {
	mounted := l.mounts.since(moved)
	return isMounted(mounted, id) || strings.Contains(mounted, "/"+trashName+"/"+entry+"/")
}

func (l *docker) lastActive(id string) time.Time {
	return l.histories.LastActive(conversation.Plain(id))
}

func (l *docker) mark(id string) error {
	text, err := json.Marshal(struct {
		ArchivedAt time.Time `json:"archived_at"`
	}{l.now().UTC()})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(l.marker(id), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("mark archived: %w", err)
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(fmt.Errorf("mark archived: %w", err), os.Remove(l.marker(id)))
	}
	return nil
}

func (l *docker) unmark(id string) error {
	if err := os.Remove(l.marker(id)); err != nil {
		return fmt.Errorf("un-mark: %w", err)
	}
	return nil
}

// forget removes the manifest and the marker. The lock stays: removed, it would be two locks for whoever waits for it.
func (l *docker) forget(id, _ string) error {
	manifest := filepath.Join(l.area.path(runtimeControl), conversation.Plain(id)+".json")
	for _, name := range []string{manifest, l.marker(id)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget runtime: %w", err)
		}
	}
	return nil
}
