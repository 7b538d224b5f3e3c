package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"automation/agentserver/conversation"
)

// InUseError means that a conversation cannot be deleted now.
type InUseError struct{ Reason string }

// Error tells why.
func (e *InUseError) Error() string { return "conversation is in use: " + e.Reason }

// Tenants lists what every layout holds now.
func (s *Storage) Tenants(ctx context.Context) ([]Tenant, error) { return s.tenants(ctx) }

// Remove deletes a conversation: its runtime by way of the trash, what its layout keeps of it, and its history. It is only
// done while the conversation is idle. *InUseError; fs.ErrNotExist when there is neither a runtime nor a history.
func (s *Storage) Remove(ctx context.Context, id string) error {
	tenants, err := s.tenants(ctx)
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if err := s.removeOne(tenants, id); err != nil {
		return err
	}
	for _, t := range tenants {
		for i, p := range t.parts {
			if p.heir != id {
				continue
			}
			t.parts[i].whole = p.extent[0] // it was the last to use what an earlier one left behind
			if err := s.removeTenant(t, conversation.Plain(t.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Storage) removeOne(tenants []Tenant, id string) error {
	for _, t := range tenants {
		if t.ID == conversation.Dashed(id) {
			return s.removeTenant(t, id)
		}
	}
	c, err := s.options.Histories.Get(id, s.options.Now())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("remove: %w", err)
	case c.Leased || c.Working():
		return &InUseError{reasonWorking}
	}
	return s.options.Histories.Remove(id)
}

func (s *Storage) removeTenant(t Tenant, id string) error {
	var err error
	busy := t.layout.whileIdle(t.ID, func() {
		for _, p := range t.parts {
			if err == nil {
				err = t.layout.forget(t.ID, p.whole)
			}
			if p.whole != "" && err == nil {
				err = errors.Join(discard(p.area, p.whole), disown(p.area, id))
			}
		}
		if err == nil {
			err = s.options.Histories.Remove(id)
		}
	})
	for _, p := range t.parts {
		p.area.trash.empty()
	}
	if busy != "" {
		return &InUseError{busy}
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// discard moves a directory into the trash; one that is not there is discarded already.
func discard(a *area, name string) error {
	dir, err := a.trash.open(true)
	if err != nil {
		return err
	}
	defer dir.close()
	parent, err := a.root.descend(path.Dir(name))
	if err == nil {
		defer parent.close()
		err = rename(parent, path.Base(name), dir, newName())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
