package models

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// WriteBatch commits writes as the writer commits what waited together; nothing else may write meanwhile.
func (s *Store) WriteBatch(ctx context.Context, fns ...func(context.Context, bun.IDB) error) []error {
	jobs := make([]*job, len(fns))
	for n, fn := range fns {
		jobs[n] = &job{ctx: ctx, fn: fn, done: make(chan error, 1)}
	}
	s.writer.commit(jobs)
	errs := make([]error, len(jobs))
	for n, j := range jobs {
		errs[n] = <-j.done
	}
	return errs
}

// Watch adds a query hook to all handles; before the first write only.
func (s *Store) Watch(hook bun.QueryHook) {
	s.db = s.db.WithQueryHook(hook)
	if s.writer != nil {
		s.writer.db = s.writer.db.WithQueryHook(hook)
	}
}

// Seal and Unseal open the sealing of secrets to tests.
func (s *Store) Seal(plain string) (string, error)    { return s.seal(plain) }
func (s *Store) Unseal(sealed string) (string, error) { return s.unseal(sealed) }

// SetReading gives the clock a reading of the database's clock, just made.
func (s *Store) SetReading(reading time.Time) time.Duration {
	return s.clock.set(reading, s.clock.mono())
}

// DueWork names the statements that ask what is due, by the partial index that each must use.
func (s *Store) DueWork(now time.Time) map[string]*bun.SelectQuery {
	return map[string]*bun.SelectQuery{
		"automations_next_run":         selectScheduled(s.db, (*Automation)(nil)).Column("a.id").Where("a.next_run_at <= ?", now).Limit(10),
		"automation_runs_pending":      dispatchable(s.db, (*Run)(nil)).Column("r.id").Limit(10),
		"automation_runs_provisioning": provisioning(s.db, (*Run)(nil)).Column("r.id").Limit(10),
		"automation_runs_check":        checkDue(s.db, Reach{In: []Place{{Backend: "fake"}}}, now).Limit(10),
		"automation_runs_aftercare":    awaitingCare(s.db, (*Run)(nil)).Column("r.id").Where("r.aftercare_at <= ?", now).Limit(1),
		"automation_runs_timeout":      timedOut(s.db, now, now).Limit(10),
	}
}
