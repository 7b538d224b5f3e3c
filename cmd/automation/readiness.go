package main

import (
	"context"
	"time"

	"automation/migrations"
	"automation/router"
)

// askWithin bounds the questions that one probe asks the database.
const askWithin = 2 * time.Second

// checks are what readiness depends on: the database answers and has the schema of this program, its clock and ours agree,
// and each duty of this process makes its passes. A service that stops is not ready, first of all.
func (a *App) checks(ctx context.Context) []router.Check {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	when := func(wrong bool, problem string) string {
		if wrong {
			return problem
		}
		return ""
	}
	version, dirty, err := a.store.SchemaVersion(ctx)
	latest := migrations.Latest()
	schema := when(err == nil && (version < latest || version > latest+1), "schema at another version")
	checks := []router.Check{
		{Name: "serving", Problem: when(a.leaving.ask(), "stopping")},
		{Name: "database", Problem: when(err != nil, "database unavailable")},
		{Name: "migrations", Problem: when(err == nil && dirty, "migration cut short") + schema},
		{Name: "clock", Problem: when(time.Duration(a.skew.Load()).Abs() > mostSkew, "clock skew")},
	}
	now := time.Now()
	for _, s := range a.duties.Status() {
		name := "loop " + s.Name
		problem := s.Problem(now)
		checks = append(checks, router.Check{Name: name, Problem: when(problem != "", name+" "+problem)})
	}
	return checks
}
