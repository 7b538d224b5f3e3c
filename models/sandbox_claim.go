package models

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Place is a backend and a location that a process serves.
type Place struct {
	Backend  string
	Location string
}

// Claim is a leased box with what a step is decided on.
type Claim struct {
	Box        *Sandbox // with identities
	Run        *Run     // nil when the box has none
	Newest     bool     // the box is its run's newest
	KeepAlive  bool     // of the automation; false where the box is ordered deleted, which nothing holds up
	AttachedAt bool     // a live attachment exists; false where the box is ordered deleted
	Token      uuid.UUID
	Generation int64
	Now        time.Time
}

// interruptionsMost is how often the budget of the steps before a suspend or delete (prepare_until) begins anew because the
// claim that had it ended early, by a crash, a stop or an error: a box whose preparation kills the service is not prepared for
// ever, and one whose holder was gone for an hour is prepared all the same.
const interruptionsMost = 3

// Of a claim that ended early: it counts as a failed try, but not of a resume, which nobody waits for any longer.
const (
	interruptedTries  = "CASE WHEN desired = 'running' THEN attempts ELSE attempts + 1 END"
	interruptedBudget = "CASE WHEN attempts < ? THEN NULL ELSE prepare_until END"
)

// ClaimBoxes leases up to n boxes of the place with next_step_at <= now and no live lease, earliest first, each with a new
// token, for lease. prepare_until is stored at the first claim after an order, and anew when a lease is taken over that ran
// out.
func (s *Store) ClaimBoxes(ctx context.Context, p Place, n int, lease, budget time.Duration) ([]Claim, error) {
	if n <= 0 {
		return nil, nil
	}
	token := uuid.New()
	var claims []Claim
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		var boxes []*Sandbox
		// The rows are picked in a CTE, which PostgreSQL evaluates once: a plain sub-select may be run again and lock more than n.
		err := tx.NewUpdate().
			With("picked", s.claimable(tx, p, now).Limit(int64(n))).
			Model(&boxes).
			Set("lease_token = ?", token).
			Set("lease_until = ?", now.Add(lease)).
			Set("attempts = CASE WHEN lease_until IS NULL THEN attempts ELSE "+interruptedTries+" END").
			Set("prepare_until = COALESCE(CASE WHEN lease_until IS NULL THEN prepare_until ELSE "+interruptedBudget+" END, ?)",
				interruptionsMost, now.Add(budget)).
			Where("id IN (SELECT id FROM picked)").
			Returning("*").
			Scan(ctx)
		if err != nil {
			return fmt.Errorf("claim boxes of %s: %w", p.Backend, err)
		}
		slices.SortFunc(boxes, func(a, b *Sandbox) int {
			return cmp.Or(a.NextStepAt.Compare(*b.NextStepAt), slices.Compare(a.ID[:], b.ID[:]))
		})
		claims, err = s.claims(ctx, tx, boxes, now)
		return err
	})
	return claims, err
}

// claimable selects the ids of the place's boxes that have work and no live lease, and locks them where the engine has row
// locks, passing over those that another process is claiming.
func (s *Store) claimable(db bun.IDB, p Place, now time.Time) *bun.SelectQuery {
	q := db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.id").
		Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
		Where("s.next_step_at <= ?", now).
		Where("s.lease_until IS NULL OR s.lease_until <= ?", now)
	if s.dialect == SQLite { // of equal times the row made first: the index has them so, and no batch is read to sort it
		return q.OrderExpr("s.next_step_at, s.rowid")
	}
	return s.lock(q.OrderExpr("s.next_step_at, s.id"), "UPDATE SKIP LOCKED")
}

// claims reads what steps are decided on: runs, automations, identities and attachments, one statement each.
func (s *Store) claims(ctx context.Context, db bun.IDB, boxes []*Sandbox, now time.Time) ([]Claim, error) {
	if len(boxes) == 0 {
		return nil, nil
	}
	if err := s.completeBoxes(ctx, db, boxes); err != nil {
		return nil, err
	}
	runs, err := runsOf(ctx, db, boxes)
	if err != nil {
		return nil, err
	}
	staying := slices.DeleteFunc(slices.Clone(boxes), func(b *Sandbox) bool { return b.Desired == WantDeleted })
	keepAlive, err := keepAliveOf(ctx, db, staying) // neither holds a delete up
	if err != nil {
		return nil, err
	}
	attached, err := attachedOf(ctx, db, boxIDs(staying), now)
	if err != nil {
		return nil, err
	}
	claims := make([]Claim, len(boxes))
	for n, b := range boxes {
		claims[n] = Claim{Box: b, Token: *b.LeaseToken, Generation: b.Generation, AttachedAt: attached[b.ID], Now: now}
		if b.RunID != nil {
			claims[n].Run = runs[*b.RunID]
			claims[n].Newest = claims[n].Run != nil && claims[n].Run.BoxID != nil && *claims[n].Run.BoxID == b.ID
		}
		if b.AutomationID != nil {
			claims[n].KeepAlive = keepAlive[*b.AutomationID]
		}
	}
	return claims, nil
}

func boxIDs(boxes []*Sandbox) []uuid.UUID {
	ids := make([]uuid.UUID, len(boxes))
	for n, b := range boxes {
		ids[n] = b.ID
	}
	return ids
}

func runsOf(ctx context.Context, db bun.IDB, boxes []*Sandbox) (map[uuid.UUID]*Run, error) {
	var ids []uuid.UUID
	for _, b := range boxes {
		if b.RunID != nil {
			ids = append(ids, *b.RunID)
		}
	}
	byID := make(map[uuid.UUID]*Run, len(ids))
	if len(ids) == 0 {
		return byID, nil
	}
	var runs []*Run
	if err := db.NewSelect().Model(&runs).Where("r.id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return nil, fmt.Errorf("read the runs of boxes: %w", err)
	}
	for _, r := range runs {
		byID[r.ID] = r
	}
	return byID, nil
}

func keepAliveOf(ctx context.Context, db bun.IDB, boxes []*Sandbox) (map[uuid.UUID]bool, error) {
	var ids []uuid.UUID
	for _, b := range boxes {
		if b.AutomationID != nil {
			ids = append(ids, *b.AutomationID)
		}
	}
	keep := make(map[uuid.UUID]bool, len(ids))
	if len(ids) == 0 {
		return keep, nil
	}
	var alive []uuid.UUID
	err := db.NewSelect().Model((*Automation)(nil)).
		Column("a.id").
		Where("a.id IN (?)", bun.List(ids)).
		Where("a.keep_alive").
		Scan(ctx, &alive)
	if err != nil {
		return nil, fmt.Errorf("read keep_alive of automations: %w", err)
	}
	for _, id := range alive {
		keep[id] = true
	}
	return keep, nil
}

// NextStepAt returns the earliest time at which ClaimBoxes has work for the place: the later of next_step_at and the end of
// a lease, per row; nil when everything is at rest.
func (s *Store) NextStepAt(ctx context.Context, p Place) (*time.Time, error) {
	// Two short look-ups instead of a minimum over all rows that have work: the first row without a lease, and the few leased.
	now := s.Now()
	var rows []*Sandbox
	if err := nextUnleased(s.db, p, now).Scan(ctx, &rows); err != nil {
		return nil, fmt.Errorf("look for the next step of %s: %w", p.Backend, err)
	}
	if len(rows) > 0 && !rows[0].NextStepAt.After(now) {
		return rows[0].NextStepAt, nil // work is due: nothing else matters
	}
	var leased []*Sandbox
	if err := leasedSteps(s.db, p, now).Scan(ctx, &leased); err != nil {
		return nil, fmt.Errorf("look for leased steps of %s: %w", p.Backend, err)
	}
	var next *time.Time
	for _, b := range append(rows, leased...) {
		at := *b.NextStepAt
		if b.Leased(now) && b.LeaseUntil.After(at) {
			at = *b.LeaseUntil
		}
		if next == nil || at.Before(*next) {
			next = &at
		}
	}
	return next, nil
}

func nextUnleased(db bun.IDB, p Place, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.next_step_at", "s.lease_until").
		Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
		Where("s.next_step_at IS NOT NULL").
		Where("s.lease_until IS NULL OR s.lease_until <= ?", now).
		OrderExpr("s.next_step_at").
		Limit(1)
}

func leasedSteps(db bun.IDB, p Place, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model((*Sandbox)(nil)).
		Column("s.next_step_at", "s.lease_until").
		Where("s.lease_until > ?", now).
		Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
		Where("s.next_step_at IS NOT NULL")
}

// Renew prolongs the lease WHERE lease_token = token and returns the row's generation; ErrLeaseLost.
func (s *Store) Renew(ctx context.Context, boxID, token uuid.UUID, lease time.Duration) (generation int64, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		err := tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("lease_until = ?", s.Now().Add(lease)).
			Where("id = ? AND lease_token = ?", boxID, token).
			Returning("generation").
			Scan(ctx, &generation)
		return leaseLost(err, "renew the lease of box %s", boxID)
	})
	return generation, err
}

// leaseLost says what was done when err came, and maps "no rows" of a statement under a lease token to ErrLeaseLost.
func leaseLost(err error, format string, args ...any) error {
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrLeaseLost
	}
	return notFound(err, format, args...)
}

// Reload reads a claimed box anew under the same token (after an identity was recorded, or the generation changed).
func (s *Store) Reload(ctx context.Context, boxID, token uuid.UUID) (Claim, error) {
	box := new(Sandbox)
	err := s.db.NewSelect().Model(box).Where("s.id = ? AND s.lease_token = ?", boxID, token).Scan(ctx)
	if err != nil {
		return Claim{}, leaseLost(err, "read box %s again", boxID)
	}
	claims, err := s.claims(ctx, s.db, []*Sandbox{box}, s.Now())
	if err != nil {
		return Claim{}, err
	}
	return claims[0], nil
}

// Release gives the lease back before the work is done, WHERE lease_token = token, and keeps next_step_at. A lease that is no
// longer token's is nothing to give back: no error.
func (s *Store) Release(ctx context.Context, boxID, token uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := released(tx).
			Where("id = ? AND lease_token = ?", boxID, token).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("release the lease of box %s: %w", boxID, err)
		}
		return nil
	})
}

// released ends claims whose work is not done.
func released(tx bun.IDB) *bun.UpdateQuery {
	return tx.NewUpdate().Model((*Sandbox)(nil)).
		Set("lease_token = NULL, lease_until = NULL").
		Set("attempts = "+interruptedTries).
		Set("prepare_until = "+interruptedBudget, interruptionsMost)
}

// ReleaseAll clears every lease: on SQLite at start, where one process owns the file.
func (s *Store) ReleaseAll(ctx context.Context) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := released(tx).
			Where("lease_until IS NOT NULL").
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("release all leases: %w", err)
		}
		return nil
	})
}
