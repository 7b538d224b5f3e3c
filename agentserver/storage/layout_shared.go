package storage

import (
	"context"
	"errors"
	"time"

	"automation/agentserver/conversation"
)

// LayoutShared is a box whose conversations share one workspace and one home.
const LayoutShared = "shared-workspace"

// errNoArchive means that a layout has no runtimes to archive.
var errNoArchive = errors.New("this layout has no runtime of its own to archive")

// shared is the box itself: the caches of its home, and the dependencies in the checkouts of its workspace. What a command
// or a conversation uses cannot be told apart, so all of it is idle or none.
type shared struct {
	home, work *area // work is nil without a workspace, and may be home
	workspace  string
	apart      []string // what other layouts account for
	active     func() time.Time
	guard      Guard
	histories  *conversation.Store // of conversations that work in the workspace; empty when another layout holds them
	now        func() time.Time
}

func (l *shared) tenants(context.Context) ([]Tenant, error) {
	busy, err := l.busy()
	box := Tenant{
		ID: Box, Layout: LayoutShared, State: StateIdle, LastActive: l.active(), Busy: busy, layout: l,
		Retention: conversation.Retention{Policy: conversation.Default},
		parts:     []part{{area: l.home, homes: []string{"."}, extent: []string{"."}, apart: l.apart}},
	}
	if busy != "" {
		box.State = StateRunning
	}
	switch l.work {
	case nil:
	case l.home:
		box.parts[0].workspaces = []string{l.workspace}
	default:
		box.parts = append(box.parts, part{area: l.work, workspaces: []string{l.workspace}, extent: []string{l.workspace}})
	}
	return []Tenant{box}, err
}

// busy says why the box is in use.
func (l *shared) busy() (string, error) {
	if l.guard.Running() > 0 {
		return reasonRunning, nil
	}
	return l.conversing()
}

// conversing says which conversation uses the box.
func (l *shared) conversing() (string, error) {
	ids, err := l.histories.IDs()
	for _, id := range ids {
		c, err := l.histories.Get(id, l.now())
		if c.Working() {
			return "conversation " + conversation.Dashed(id) + " is running", nil
		}
		if err != nil && c.Leased {
			return "conversation " + conversation.Dashed(id) + " cannot be read", nil
		}
	}
	return "", err
}

// whileIdle reads the conversations before commands are held back, and then only looks whether one has changed.
func (l *shared) whileIdle(_ string, f func()) (busy string) {
	before := l.histories.Stamps()
	if busy, _ = l.conversing(); busy != "" {
		return busy
	}
	done := l.guard.WhileIdle(func() {
		if l.histories.Stamps() != before {
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

func (l *shared) startedSince(string, string, time.Time) bool { return false }

func (l *shared) lastActive(string) time.Time { return l.active() }

func (l *shared) archived(string) bool { return false }

func (l *shared) mark(string) error { return errNoArchive }

func (l *shared) unmark(string) error { return errNoArchive }

func (l *shared) forget(string, string) error { return nil }
