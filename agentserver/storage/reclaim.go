package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
)

// Result is what a pass did, or would do.
type Result struct {
	PlanID          string  `json:"plan_id"`
	DryRun          bool    `json:"dry_run"`
	DurationSeconds float64 `json:"duration_seconds"`
	FreedBytes      int64   `json:"freed_bytes"` // of a dry run: that would be
	Items           []Item  `json:"items"`
}

// Reclaim plans a pass and, unless it is a dry run, applies it at once; with a plan id it applies that plan and skips what
// is no longer so. One pass runs at a time: *BusyError names it. ErrUnknownPlan when the plan is not remembered.
func (s *Storage) Reclaim(ctx context.Context, request Request) (Result, error) {
	began := s.options.Now()
	result := Result{PlanID: request.PlanID, DryRun: request.DryRun}
	fresh := request.PlanID == ""
	if fresh {
		result.PlanID = newName()
	}
	if !request.DryRun {
		if err := s.begin(result.PlanID); err != nil {
			return Result{}, err
		}
		defer s.end()
	}
	var err error
	if fresh {
		result.Items, err = s.plan(ctx, result.PlanID, request)
	} else {
		result.Items, err = s.remembered(request.PlanID)
	}
	if err != nil {
		return Result{}, err
	}
	if !request.DryRun {
		s.apply(ctx, result.Items, fresh)
	}
	result.FreedBytes = Freed(result.Items)
	result.DurationSeconds = s.options.Now().Sub(began).Seconds()
	return result, nil
}

func (s *Storage) begin(planID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != "" {
		return &BusyError{s.running}
	}
	s.running = planID
	return nil
}

func (s *Storage) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = ""
}

// plan makes a plan and remembers it.
func (s *Storage) plan(ctx context.Context, id string, request Request) ([]Item, error) {
	found, err := s.scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	items := Plan(found, request)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans = append(s.plans, keptPlan{id, append([]Item{}, items...)})
	if len(s.plans) > keptPlans {
		s.plans = s.plans[1:]
	}
	return items, nil
}

func (s *Storage) remembered(id string) ([]Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plans {
		if p.id == id {
			return append([]Item{}, p.items...), nil
		}
	}
	return nil, ErrUnknownPlan
}

// apply moves the planned items into the trash, each by itself: one that cannot be moved stops no other. A plan that was
// not made just now is looked at again first.
func (s *Storage) apply(ctx context.Context, items []Item, fresh bool) {
	dir, err := s.trash.open(true)
	links, around := linkCounter{}, s.around
	around.mounts = mountPoints()
	for i := range items {
		item := &items[i]
		switch {
		case item.Outcome != Planned:
			continue
		case err != nil:
			item.skip(reasonFor(err))
			continue
		case ctx.Err() != nil:
			item.skip(ctx.Err().Error())
			continue
		}
		if !fresh && !s.lookAgain(ctx, item, around, links) {
			continue
		}
		s.move(ctx, item, dir)
	}
	if err != nil {
		return
	}
	dir.close()
	s.trash.empty()
	budget, cancel := context.WithTimeout(ctx, deleteGrace)
	defer cancel()
	s.trash.wait(budget)
}

// lookAgain measures an item of an older plan anew, and reports whether it may still go.
func (s *Storage) lookAgain(ctx context.Context, item *Item, around surroundings, links linkCounter) bool {
	unit, err := inspect(ctx, s.root, item.Path, around, links)
	switch {
	case err != nil:
		item.skip(reasonFor(err))
	case unit.Refuse != "":
		item.skip(unit.Refuse)
	case unit.id != item.id:
		item.skip(reasonChanged)
	default:
		item.Bytes, item.Files, item.partial = unit.Bytes, unit.Files, unit.partial
		return true
	}
	return false
}

// move renames one item into the trash while the box is idle, and makes sure that what it moved is what was planned.
func (s *Storage) move(ctx context.Context, item *Item, dir handle) {
	parent, err := s.root.descend(path.Dir(item.Path))
	if err != nil {
		item.skip(reasonFor(err))
		return
	}
	defer parent.close()
	base, entry := path.Base(item.Path), newName()
	s.trash.hold(entry) // until it has been looked at
	idle := s.options.Guard.WhileIdle(func() {
		st, err := parent.stat(base)
		switch {
		case err != nil:
			item.skip(reasonFor(err))
		case identityOf(st) != item.id:
			item.skip(reasonChanged)
		default:
			if err := rename(parent, base, dir, entry); err != nil {
				item.skip(reasonFor(err))
			} else {
				item.Outcome = Moved
			}
		}
	})
	if !idle {
		item.skip(reasonRunning)
	}
	if item.Outcome == Moved {
		if reason := s.verify(ctx, item, dir, entry); reason != "" {
			item.skip(reason)
			if err := dir.move(entry, parent, base); err != nil {
				s.options.Log.Warn("moved by mistake and not put back", "path", item.Path, "trash", entry, "error", err)
				return // held for ever
			}
		}
	}
	s.trash.release(entry)
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
func (s *Storage) verify(ctx context.Context, item *Item, dir handle, entry string) (reason string) {
	st, err := dir.stat(entry)
	if err != nil || identityOf(st) != item.id {
		return reasonChanged
	}
	if !item.partial {
		return ""
	}
	m := measurement{ctx: context.WithoutCancel(ctx), dev: st.Dev, links: linkCounter{}, unlock: true, bytes: allocated(st)}
	_ = m.directory(dir, entry) // ends early only with its context
	switch {
	case m.checkout:
		return reasonCheckout
	case m.mount:
		return reasonMount
	}
	item.Bytes, item.Files = m.bytes+linkCounter{}.take(m.links), m.files
	return ""
}
