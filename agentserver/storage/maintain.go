package storage

import (
	"context"
	"errors"
	"fmt"
)

// Maintain is a pass of the server's own, to be called every few minutes and once at start: it notes that the box is awake,
// tries again what could not be deleted, takes the caches of the runtimes that have stopped since the last time, archives
// those whose retention is over, and sheds what the disk budget asks for. It never moves the idle clock.
func (s *Storage) Maintain(ctx context.Context) error {
	s.ledger.tick()
	for _, a := range s.areas {
		a.trash.empty()
	}
	tenants, err := s.tenants(ctx)
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	retains := s.options.Settings.RetentionDays > 0
	var stopped []string
	states := make(map[string]string, len(tenants))
	for _, t := range tenants {
		states[t.ID] = t.State
		if t.State == StateStopped && s.states[t.ID] != StateStopped {
			stopped = append(stopped, t.ID)
		}
		_, own := t.Retention.After(0)
		retains = retains || own || t.State == StateArchived
	}
	s.states = states
	if len(stopped) > 0 {
		if err := s.pass(ctx, Request{Tier: TierCaches, ConversationIDs: stopped}); err != nil {
			return err
		}
	}
	if retains || s.options.Settings.DiskBudget > 0 {
		return s.pass(ctx, Request{timed: true})
	}
	return nil
}

// pass runs one pass, unless another one is running: the next maintenance does the same.
func (s *Storage) pass(ctx context.Context, request Request) error {
	result, err := s.Reclaim(ctx, request)
	if _, busy := errors.AsType[*BusyError](err); busy {
		return nil
	}
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	if result.FreedBytes > 0 {
		s.options.Log.Info("disk space freed", "bytes", result.FreedBytes, "plan", result.PlanID)
	}
	return nil
}
