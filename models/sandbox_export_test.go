package models

import "github.com/uptrace/bun"

// The queries behind the claims, for their plans.
func (s *Store) ClaimQuery(p Place) *bun.SelectQuery {
	return s.claimable(s.db, p, s.Now()).Limit(16)
}

func (s *Store) NextStepQueries(p Place) (unleased, leased *bun.SelectQuery) {
	return nextUnleased(s.db, p, s.Now()), leasedSteps(s.db, p, s.Now())
}

func (s *Store) DueQuery(places []Place) *bun.SelectQuery {
	return s.lock(dueBoxes(s.db, places, s.Now(), 0), "UPDATE OF r SKIP LOCKED").Limit(50)
}

func (s *Store) NextDueQuery(places []Place) *bun.SelectQuery {
	return nextDue(s.db, places, s.Now())
}

func (s *Store) RepairQueries() (pointless, invalid *bun.SelectQuery) {
	return pointlessStamps(s.db, s.Now()).Limit(50), invalidStamps(s.db, s.Now()).Limit(50)
}

func (s *Store) KnownQuery(p Place) *bun.SelectQuery {
	return knownBoxes(s.db, p, s.Now(), s.Now())
}
