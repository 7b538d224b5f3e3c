package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"automation/agentserver/conversation"
)

// ErrNotArchived means that there is nothing to take back.
var ErrNotArchived = errors.New("conversation is not archived")

// Archived reports whether a conversation is archived, by its id in either form.
func (s *Storage) Archived(id string) bool {
	for _, l := range s.layouts {
		if l.archived(conversation.Plain(id)) {
			return true
		}
	}
	return false
}

// archivedName is a name in the trash that says whose runtime it is, as long as all of it is there.
func archivedName(id string) string { return newName() + "-" + conversation.Plain(id) }

func isArchived(name string) bool { return strings.Contains(name, "-") }

// Restore takes an archived runtime back out of the trash. fs.ErrNotExist: its deletion has begun. ErrNotArchived, *InUseError.
func (s *Storage) Restore(ctx context.Context, id string) error {
	tenants, err := s.tenants(ctx)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for _, t := range tenants {
		if t.ID != conversation.Dashed(id) || t.State != StateArchived {
			continue
		}
		var err error
		if busy := t.layout.whileIdle(t.ID, func() { err = t.restore() }); busy != "" {
			return &InUseError{busy}
		}
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		return nil
	}
	return ErrNotArchived
}

// restore moves the runtime back and takes the mark away. One that is already back, after a crash between the two, only loses
// its mark.
func (t Tenant) restore() error {
	p := t.parts[0]
	parent, err := p.area.root.descend(path.Dir(p.runtime))
	if err != nil {
		return err
	}
	defer parent.close()
	if _, err := parent.stat(path.Base(p.runtime)); errors.Is(err, fs.ErrNotExist) {
		dir, err := p.area.trash.open(false)
		if err != nil {
			return err
		}
		defer dir.close()
		name, err := whole(dir, t.ID)
		if err == nil {
			err = dir.move(name, parent, path.Base(p.runtime))
		}
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return t.layout.unmark(t.ID)
}

// whole names the entry of the trash that is the runtime of a conversation. fs.ErrNotExist: there is none.
func whole(trash handle, id string) (string, error) {
	names, err := trash.names(-1)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "-"+conversation.Plain(id)) {
			return name, nil
		}
	}
	return "", fs.ErrNotExist
}

// disown has nothing in the trash be the runtime of a conversation any more: it is deleted, and may be made anew.
func disown(a *area, id string) error {
	dir, err := a.trash.open(true)
	if err != nil {
		return err
	}
	defer dir.close()
	for {
		fresh, err := dir.open(".") // reads from the start
		if err != nil {
			return err
		}
		name, err := whole(fresh, id)
		fresh.close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = dir.move(name, dir, newName())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}
