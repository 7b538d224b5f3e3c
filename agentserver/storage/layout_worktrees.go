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

	"automation/agentserver/conversation"
)

// LayoutWorktrees is a git worktree for each conversation, or several, in a directory of its own beneath one root.
const LayoutWorktrees = "git-worktrees"

// worktrees is that layout: its dependencies go above the disk budget, and the whole goes with the conversation. There is no
// runtime to archive, so retention does nothing (S0-008). Branches stay with their repositories.
type worktrees struct {
	area      *area
	histories *conversation.Store
	guard     Guard
	now       func() time.Time
}

func (l *worktrees) tenants(context.Context) ([]Tenant, error) {
	dir, err := l.area.root.open(".")
	if err != nil {
		return nil, fmt.Errorf("worktrees: %w", err)
	}
	defer dir.close()
	names, err := dir.names(-1)
	if err != nil {
		return nil, fmt.Errorf("worktrees: %w", err)
	}
	slices.Sort(names)
	users, err := l.users()
	if err != nil {
		return nil, err
	}
	var all []Tenant
	for _, name := range names {
		id := conversation.Plain(name)
		if st, err := dir.stat(name); err != nil || !isDir(st) || !conversation.IsID(id) {
			continue
		}
		t := Tenant{
			ID: conversation.Dashed(id), Layout: LayoutWorktrees, State: StateStopped, layout: l, LastActive: l.lastActive(id),
			Busy: l.busy(id), parts: []part{{area: l.area, workspaces: []string{name}, extent: []string{name}}},
		}
		others := slices.DeleteFunc(users[l.area.path(name)], func(user string) bool { return user == id })
		if len(others) == 0 {
			t.parts[0].whole = name
		} else if _, err := l.histories.Get(id, l.now()); len(others) == 1 && errors.Is(err, fs.ErrNotExist) {
			t.parts[0].heir = others[0]
		}
		switch t.Busy {
		case "":
		case reasonWorking, reasonRunning:
			t.State = StateRunning
		default:
			t.State = StateIdle
		}
		if t.Retention, err = l.histories.Retention(id); err != nil {
			t.Retention = conversation.Retention{Policy: conversation.Default}
		}
		t.key = fmt.Sprint(t.LastActive.UnixNano(), t.State, t.Busy)
		all = append(all, t)
	}
	return all, nil
}

// users tells which conversations work in which directory beneath the root: a fork may use the one of another.
func (l *worktrees) users() (map[string][]string, error) {
	ids, err := l.histories.IDs()
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, id := range ids {
		c, _ := l.histories.Get(id, l.now()) // what cannot be read names no directory
		var workspace struct {
			Dir string `json:"working_dir"`
		}
		if json.Unmarshal(c.Workspace, &workspace) != nil || !filepath.IsAbs(workspace.Dir) {
			continue
		}
		if relative := shown(l.area.absolute, resolved(workspace.Dir)); !filepath.IsAbs(relative) {
			top, _, _ := strings.Cut(relative, "/")
			users[l.area.path(top)] = append(users[l.area.path(top)], id)
		}
	}
	return users, nil
}

// busy says why a conversation's worktrees are in use.
func (l *worktrees) busy(id string) string {
	if l.guard.Running() > 0 {
		return reasonRunning
	}
	return l.conversing(id)
}

func (l *worktrees) conversing(id string) string {
	c, err := l.histories.Get(conversation.Plain(id), l.now())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case c.Working():
		return reasonWorking
	case c.Leased:
		return "a server has the conversation open"
	case err != nil:
		return reasonUnreadable
	}
	return ""
}

func (l *worktrees) whileIdle(id string, f func()) (busy string) {
	plain := conversation.Plain(id)
	before := l.histories.Stamp(plain)
	if busy = l.conversing(id); busy != "" {
		return busy
	}
	done := l.guard.WhileIdle(func() {
		if l.histories.Stamp(plain) != before {
			busy = reasonUsed
			return
		}
		f() // no command runs here
	})
	if !done {
		return reasonRunning
	}
	return busy
}

func (l *worktrees) startedSince(string, string, time.Time) bool { return false }

func (l *worktrees) lastActive(id string) time.Time {
	return l.histories.LastActive(conversation.Plain(id))
}

func (l *worktrees) archived(string) bool { return false }

func (l *worktrees) mark(string) error { return errNoArchive }

func (l *worktrees) unmark(string) error { return errNoArchive }

// forget takes the worktrees of one conversation off the lists of their repositories, exactly these (BR-20): a repository
// may have others that cannot be seen from here at the moment.
func (l *worktrees) forget(id, whole string) error {
	if whole == "" {
		return nil
	}
	dir, err := l.area.root.descend(whole)
	if err != nil {
		return nil // nothing there to be on a list
	}
	defer dir.close()
	names, err := dir.names(-1)
	if err != nil {
		return fmt.Errorf("worktrees of %s: %w", id, err)
	}
	for _, name := range names {
		if err := l.deregister(dir, name, l.area.path(filepath.Join(whole, name))); err != nil {
			return err
		}
	}
	return nil
}

// deregister removes what a repository keeps of one worktree, if that and the worktree name each other.
func (l *worktrees) deregister(dir handle, name, absolute string) error {
	tree, err := dir.open(name)
	if err != nil {
		return nil // a file or a link
	}
	defer tree.close()
	text, err := tree.readFile(".git", 4096)
	if err != nil {
		return nil // no worktree
	}
	entry, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: ")
	if !ok || !filepath.IsAbs(entry) || filepath.Base(filepath.Dir(entry)) != "worktrees" {
		return nil
	}
	list, err := openRoot(filepath.Dir(entry))
	if err != nil {
		return nil // the repository is gone
	}
	defer list.close()
	registered, err := list.open(filepath.Base(entry))
	if err != nil {
		return nil
	}
	back, err := registered.readFile("gitdir", 4096)
	registered.close()
	if err != nil || resolved(filepath.Dir(strings.TrimSpace(string(back)))) != absolute {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(entry))
	if err != nil {
		return fmt.Errorf("deregister worktree: %w", err)
	}
	defer root.Close()
	if err := root.RemoveAll(filepath.Base(entry)); err != nil {
		return fmt.Errorf("deregister worktree: %w", err)
	}
	return nil
}
