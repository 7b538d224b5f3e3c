package storage

import (
	"context"
	"errors"
	"os"
	"path"
)

// reasonUsed means that a conversation was used after the plan to archive it was made.
const reasonUsed = "used since"

// move renames one item into the trash while its tenant is held idle, and makes sure that what it moved is what was planned.
func (s *Storage) move(ctx context.Context, item *Item) {
	a := item.unit.part.area
	dir, err := a.trash.open(true)
	if err != nil {
		item.skip(reasonFor(err))
		return
	}
	defer dir.close()
	parent, err := a.root.descend(path.Dir(item.unit.name))
	if err != nil {
		item.skip(reasonFor(err))
		return
	}
	defer parent.close()
	base, entry := path.Base(item.unit.name), newName()
	a.trash.hold(entry) // until it has been looked at
	busy := item.layout.whileIdle(item.ConversationID, func() {
		if reason := item.take(parent, base, dir, entry); reason != "" {
			item.skip(reason)
		} else {
			item.Outcome = Moved
		}
	})
	if busy != "" {
		item.skip(busy)
	}
	if item.Outcome == Moved {
		if reason := item.verify(ctx, dir, entry); reason != "" {
			item.skip(reason)
			if err := item.putBack(dir, entry, parent, base); err != nil {
				s.options.Log.Warn("moved by mistake and not put back", "path", item.Path, "trash", entry, "error", err)
				return // held for ever
			}
		}
	}
	a.trash.release(entry)
}

// take looks at the item once more and renames it. A runtime is marked first, so that a crash between the two leaves an
// archived conversation whose rest the next pass takes; if it cannot be moved, the mark goes away again.
func (i *Item) take(parent handle, base string, dir handle, entry string) (reason string) {
	st, err := parent.stat(base)
	switch {
	case err != nil:
		return reasonFor(err)
	case identityOf(st) != i.unit.id:
		return reasonChanged
	case i.Tier != TierRuntime:
		if err := rename(parent, base, dir, entry); err != nil {
			return reasonFor(err)
		}
		return ""
	case !i.layout.lastActive(i.ConversationID).Equal(i.lastActive):
		return reasonUsed
	}
	if err := i.layout.mark(i.ConversationID); err != nil {
		return reasonFor(err)
	}
	if err := rename(parent, base, dir, entry); err != nil {
		return reasonFor(errors.Join(err, i.layout.unmark(i.ConversationID)))
	}
	return ""
}

// putBack undoes take.
func (i *Item) putBack(dir handle, entry string, parent handle, base string) error {
	if err := dir.move(entry, parent, base); err != nil {
		return err
	}
	if i.Tier == TierRuntime {
		return i.layout.unmark(i.ConversationID)
	}
	return nil
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
func (i *Item) verify(ctx context.Context, dir handle, entry string) (reason string) {
	st, err := dir.stat(entry)
	if err != nil || identityOf(st) != i.unit.id {
		return reasonChanged
	}
	if !i.unit.partial {
		return ""
	}
	t := newTally(i.unit.id, true)
	w := walker{ctx: context.WithoutCancel(ctx), free: make(chan struct{}, walkers), unlock: true}
	_ = w.from(dir, entry, nil, t) // ends early only with its context
	if reason := t.all.refuse(i.Tier); reason != "" && reason != reasonUnread {
		return reason
	}
	i.unit.bytes, i.unit.links, i.unit.Files, i.Files = t.all.bytes, t.links, t.all.files, t.all.files
	return ""
}
