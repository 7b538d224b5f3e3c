package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// A run of local mode has no box that a settler takes to rest. What is to be done when it has ended (its command stopped, its
// finish response read) is done by the aftercare duty; aftercare_at says when, and is written by the statement that ends it.

// needsAftercare sets when an ended run without a box is looked after: at once, if its command was ever started.
func (r *Run) needsAftercare(now time.Time) {
	if r.AftercareAt = nil; r.BoxID == nil && r.StartingAt != nil {
		r.AftercareAt = &now
	}
}

// awaitingCare selects ended runs that are to be looked after, earliest first.
func awaitingCare(db bun.IDB, model any) *bun.SelectQuery {
	return db.NewSelect().Model(model).Where("r.aftercare_at IS NOT NULL").OrderExpr("r.aftercare_at")
}

// ClaimAftercare claims the ended run that is to be looked after first, by moving its aftercare_at to now + hold; nil: none
// is due.
func (s *Store) ClaimAftercare(ctx context.Context, hold time.Duration) (*Run, error) {
	var claimed *Run
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		claimed = nil
		now := s.Now()
		var runs []*Run
		q := awaitingCare(tx, &runs).Where("r.aftercare_at <= ?", now).Limit(1)
		if err := s.lock(q, "NO KEY UPDATE SKIP LOCKED").Scan(ctx); err != nil || len(runs) == 0 {
			return err
		}
		until := now.Add(hold)
		runs[0].AftercareAt = &until
		claimed = runs[0]
		_, err := tx.NewUpdate().Model(claimed).Column("aftercare_at").WherePK().Exec(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim a run to look after: %w", err)
	}
	return claimed, nil
}

// NextAftercareAt returns when ClaimAftercare has work at the earliest, or nil.
func (s *Store) NextAftercareAt(ctx context.Context) (*time.Time, error) {
	next, err := earliest(ctx, awaitingCare(s.db, (*Run)(nil)).Column("r.aftercare_at"))
	if err != nil {
		return nil, fmt.Errorf("look for the next run to look after: %w", err)
	}
	return next, nil
}

// SetAftercare says when an ended run is looked after again; nil: nothing is left to do.
func (s *Store) SetAftercare(ctx context.Context, runID uuid.UUID, at *time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		return oneRun(ctx, tx, runID, tx.NewUpdate().Model((*Run)(nil)).Set("aftercare_at = ?", at).Where("id = ?", runID))
	})
}

// RunEnds tells of each of the ids that is a run when that ended; nil: it has not.
func (s *Store) RunEnds(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*time.Time, error) {
	ends := map[uuid.UUID]*time.Time{}
	for len(ids) > 0 {
		chunk := ids[:min(len(ids), rowsPerStatement)]
		ids = ids[len(chunk):]
		var runs []*Run
		err := s.db.NewSelect().Model(&runs).Column("r.id", "r.status", "r.completed_at").Where("r.id IN (?)", bun.List(chunk)).Scan(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for the ends of runs: %w", err)
		}
		for _, r := range runs {
			ends[r.ID] = nil
			if r.Status.Terminal() {
				ends[r.ID] = r.CompletedAt
			}
		}
	}
	return ends, nil
}
