package storage

import (
	"context"
	"errors"
	"os"
	"path"
	"time"
)

// reasonUsed means that a conversation was used after the plan was made.
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
	if item.Tier == TierRuntime {
		entry = archivedName(item.ConversationID)
	}
	a.trash.hold(entry) // until it has been looked at
	busy := item.layout.whileIdle(item.ConversationID, func() {
		began := time.Now()
		defer func() { item.held = time.Since(began) }()
		if reason := item.take(parent, base, dir, entry); reason != "" {
			item.skip(reason)
		} else {
			item.Outcome = Moved
		}
	})
	if busy != "" {
		item.skip(busy)
	}
	if item.Outcome != Moved {
		a.trash.release(entry)
		return
	}
	item.entry, item.moved = entry, time.Now()
	if reason := item.verify(ctx, dir, entry); reason != "" {
		s.regret(item, reason)
	}
}

// confirm gives what was moved to the deletion, but what somebody has begun to use meanwhile: that is put back.
func (s *Storage) confirm(items []Item) {
	last := time.Time{}
	for _, item := range items {
		if item.moved.After(last) {
			last = item.moved
		}
	}
	for i := range items {
		item := &items[i]
		if item.Outcome != Moved {
			continue
		}
		if item.layout.startedSince(item.ConversationID, item.entry, last) {
			s.regret(item, reasonUsed)
		} else {
			item.unit.part.area.trash.release(item.entry)
		}
	}
}

// regret puts back what was moved. What cannot be put back is held in the trash until the server ends.
func (s *Storage) regret(item *Item, reason string) {
	err := item.putBack()
	if err != nil {
		s.options.Log.Warn("moved by mistake and not put back", "path", item.Path, "trash", item.entry, "error", err)
	} else {
		item.unit.part.area.trash.release(item.entry)
	}
	item.skip(reason)
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
	case i.usedSince():
		return reasonUsed
	case i.Tier != TierRuntime:
		if err := rename(parent, base, dir, entry); err != nil {
			return reasonFor(err)
		}
		return ""
	}
	if err := i.layout.mark(i.ConversationID); err != nil {
		return reasonFor(err)
	}
	if err := rename(parent, base, dir, entry); err != nil {
		return reasonFor(errors.Join(err, i.layout.unmark(i.ConversationID)))
	}
	return ""
}

// usedSince reports whether the tenant has been active since the plan looked at it: what it has may be something else by now.
// An activity that was unknown then keeps a runtime only.
func (i *Item) usedSince() bool {
	if i.lastActive.IsZero() && i.Tier != TierRuntime {
		return false
	}
	return !i.layout.lastActive(i.ConversationID).Equal(i.lastActive)
}

// putBack undoes take.
func (i *Item) putBack() error {
	a := i.unit.part.area
	dir, err := a.trash.open(false)
	if err != nil {
		return err
	}
	defer dir.close()
	parent, err := a.root.descend(path.Dir(i.unit.name))
	if err != nil {
		return err
	}
	defer parent.close()
	if err := dir.move(i.entry, parent, path.Base(i.unit.name)); err != nil {
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
