package storage

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Result is what a pass did, or would do.
type Result struct {
	PlanID          string  `json:"plan_id"`
	DryRun          bool    `json:"dry_run"`
	DurationSeconds float64 `json:"duration_seconds"`
	FreedBytes      int64   `json:"freed_bytes"` // of a dry run: that would be
	Items           []Item  `json:"items"`

	Held time.Duration `json:"-"` // the longest that a conversation was held idle for one item
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
	result.FreedBytes = Freed(result.Items)
	if !request.DryRun {
		result.FreedBytes = s.apply(ctx, result.Items, fresh)
	}
	for _, item := range result.Items {
		result.Held = max(result.Held, item.held)
	}
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
	found, err := s.scan(ctx, func(t Tenant) bool { return request.wants(t.ID) }, aim{
		dependencies: s.sheds(request), runtimes: request.Tier != TierCaches && request.Tier != TierDependencies, dry: request.DryRun,
	})
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	items := Plan(found, request, s.options.Settings)
	kept := slices.Clone(items)
	for i := range kept {
		kept[i].unit.links = nil // it is measured anew before it goes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans = append(s.plans, keptPlan{id, kept})
	if len(s.plans) > keptPlans {
		s.plans = s.plans[1:]
	}
	return items, nil
}

// sheds reports whether a request may take dependencies: when it does not, whatever is found, nobody need look for them.
func (s *Storage) sheds(request Request) bool {
	switch request.Tier {
	case TierCaches:
		return false
	case TierPolicy, "":
		return overBudget(s.filesystem(), s.options.Settings) > 0
	case TierDependencies, TierRuntime:
	}
	return true
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
// not made just now is looked at again first. It returns what was freed: all that was moved but what cannot be deleted.
func (s *Storage) apply(ctx context.Context, items []Item, fresh bool) int64 {
	before := s.undeletable(ctx)
	var now *Scan
	if !fresh {
		now = s.lookAgain(ctx, items)
	}
	for i := range items {
		item := &items[i]
		switch {
		case item.Outcome != Planned:
			continue
		case ctx.Err() != nil:
			item.skip(ctx.Err().Error())
			continue
		case !fresh && !item.renew(now):
			continue
		}
		s.move(ctx, item)
		if item.Outcome == Moved {
			s.walks.forget(item.ConversationID)
		}
	}
	s.confirm(items)
	account(items)
	budget, cancel := context.WithTimeout(ctx, deleteGrace)
	defer cancel()
	for _, a := range s.areas {
		a.trash.empty()
	}
	for _, a := range s.areas {
		a.trash.wait(budget)
	}
	return max(0, Freed(items)-max(0, s.undeletable(ctx)-before))
}

// undeletable is what the trash holds that was tried and not deleted, in bytes.
func (s *Storage) undeletable(ctx context.Context) int64 {
	var total int64
	for _, a := range s.areas {
		if len(a.trash.stuck("")) == 0 {
			continue
		}
		if bytes, err := a.trash.size(ctx); err == nil {
			total += bytes
		}
	}
	return total
}

// lookAgain scans anew whoever is in an older plan. nil: it could not.
func (s *Storage) lookAgain(ctx context.Context, items []Item) *Scan {
	planned := func(tier Tier) bool {
		return slices.ContainsFunc(items, func(i Item) bool { return i.Tier == tier && i.Outcome == Planned })
	}
	found, err := s.scan(ctx, func(t Tenant) bool {
		return slices.ContainsFunc(items, func(i Item) bool { return i.ConversationID == t.ID && i.Outcome == Planned })
	}, aim{dependencies: planned(TierDependencies), runtimes: planned(TierRuntime)})
	if err != nil {
		return nil
	}
	return &found
}

// renew takes what a new look found of an item, and reports whether it may still go.
func (i *Item) renew(now *Scan) bool {
	if now == nil {
		i.skip(reasonUnread)
		return false
	}
	for _, t := range now.Tenants {
		for _, unit := range t.Units {
			if t.ID != i.ConversationID || unit.Path != i.unit.Path || unit.Tier != i.unit.Tier {
				continue
			}
			switch {
			case unit.Refuse != "":
				i.skip(unit.Refuse)
			case unit.id != i.unit.id:
				i.skip(reasonChanged)
			default:
				i.unit, i.Files = unit, unit.Files
				if i.Tier != TierRuntime { // that was planned for its age
					i.lastActive = t.LastActive
				}
				return true
			}
			return false
		}
	}
	i.skip(reasonGone)
	return false
}
