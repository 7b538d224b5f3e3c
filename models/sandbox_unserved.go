package models

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"
)

// UnservedPlaces returns the places, beside those given, that have a box with something to do by now: a step that is due, or
// a due stamp. Such rows are left as they are for a process that serves them (BR-03).
func (s *Store) UnservedPlaces(ctx context.Context, served []Place) ([]Place, error) {
	now := s.Now()
	elsewhere := func(q *bun.SelectQuery) *bun.SelectQuery {
		q = q.Distinct().Column("s.backend", "s.location")
		for _, p := range served {
			q = q.Where("NOT (s.backend = ? AND s.location = ?)", p.Backend, p.Location)
		}
		return q
	}
	steps := elsewhere(s.db.NewSelect().TableExpr("sandboxes AS s")).Where("s.next_step_at <= ?", now)
	stamps := elsewhere(s.db.NewSelect().TableExpr("automation_runs AS r").Join("JOIN sandboxes AS s ON s.id = r.box_id")).
		Where("r.sandbox_cleanup_due_at <= ?", now).
		Where("s.desired <> ?", WantDeleted)
	var places []Place
	err := s.db.NewSelect().TableExpr("(? UNION ?) AS p", steps, stamps).Column("p.backend", "p.location").
		OrderExpr("p.backend, p.location").Scan(ctx, &places)
	if err != nil {
		return nil, fmt.Errorf("look for places that nobody serves: %w", err)
	}
	return places, nil
}
