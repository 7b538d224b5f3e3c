package bench

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"automation/models"
	"automation/tests/cloudstub"
)

// How full the database of BenchmarkFull is: runs of ten automations that have ended, and boxes that rest.
const (
	fullRuns  = 1_000_000
	fullBoxes = 100_000
)

// BenchmarkFull measures passes that find nothing to do, and the first pages of lists, in a database that is full.
func BenchmarkFull(b *testing.B) {
	eachDatabase(b, func(b *testing.B, db *database) {
		automations := db.fill(sized(fullRuns), sized(fullBoxes))
		db.passes(b)
		s := db.serve(append(own, cloud(cloudstub.New(b))[1:]...)...)
		for name, path := range map[string]string{
			"runs-of-one-ms":  "/" + automations[0].String() + "/runs?limit=50",
			"runs-ms":         "/runs?limit=50",
			"failed-runs-ms":  "/runs?limit=50&status=FAILED",
			"sandboxes-ms":    "/sandboxes?limit=50",
			"paused-boxes-ms": "/sandboxes?limit=50&state=suspended",
			"due-boxes-ms":    "/sandboxes?limit=50&due_within=3600",
			"attention-ms":    "/sandboxes?limit=50&needs_attention=true",
			"automations-ms":  "?limit=50",
			"sweeps-ms":       "/sweeps?limit=50",
			"backends-ms":     "/backends",
		} {
			var times []time.Duration
			for range 9 {
				began := time.Now()
				status, answer := s.call(http.MethodGet, "/api/automation/v1"+path, "")
				require.Equal(b, http.StatusOK, status, "%s: %s", path, answer)
				times = append(times, time.Since(began))
			}
			b.ReportMetric(median(times), name)
		}
	})
}

// passes measures those of the duties, in this process.
func (db *database) passes(b *testing.B) {
	store, err := models.Open(b.Context(), db.dsn)
	require.NoError(b, err)
	defer func() { require.NoError(b, store.Close()) }()
	place := models.Place{Backend: "openhands"}
	for name, pass := range map[string]func(context.Context) error{
		"sweep-ms": func(ctx context.Context) error {
			if _, err := store.OrderDue(ctx, []models.Place{place}, 100, time.Hour); err != nil {
				return err
			}
			_, err := store.NextDueAt(ctx, []models.Place{place})
			return err
		},
		"settle-ms": func(ctx context.Context) error {
			if _, err := store.NextStepAt(ctx, place); err != nil {
				return err
			}
			_, err := store.ClaimBoxes(ctx, place, 1, time.Minute, time.Minute)
			return err
		},
		"schedule-ms": func(ctx context.Context) error {
			if _, err := store.DueSchedules(ctx, 100); err != nil {
				return err
			}
			_, err := store.NextScheduleAt(ctx)
			return err
		},
		"stale-ms": func(ctx context.Context) error {
			if _, err := store.NextStaleAt(ctx, models.Reach{In: []models.Place{place}, Rest: true}); err != nil {
				return err
			}
			_, err := store.ClaimStale(ctx, models.Reach{In: []models.Place{place}, Rest: true}, 1, time.Minute)
			return err
		},
		"repair-ms": func(ctx context.Context) error {
			_, err := store.RepairStamps(ctx, time.Hour, 100)
			return err
		},
	} {
		var times []time.Duration
		for range 51 {
			began := time.Now()
			require.NoError(b, pass(b.Context()), name)
			times = append(times, time.Since(began))
		}
		b.ReportMetric(median(times), name)
	}
}

// fill stores ended runs of ten automations of the local user, as many of each, and paused boxes of some of the first, which
// are due in a day. It multiplies one row of each kind inside the database.
func (db *database) fill(runs, boxes int) []uuid.UUID {
	db.b.Helper()
	var ids []uuid.UUID
	for range 10 {
		a := db.automation(func(a *models.Automation) { a.OrgID, a.UserID = localOrg, localUser })
		ids = append(ids, a.ID)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	for n, id := range ids {
		db.multiply(`INSERT INTO automation_runs (id, automation_id, org_id, status, attempt, created_at, started_at, completed_at, trigger_source)
			SELECT `+db.uuidOf(n)+`, ?0, ?1, CASE WHEN n % 10 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 1, `+db.before()+`, ?2, ?2, 'MANUAL' FROM series`,
			runs/len(ids), id, localOrg, now)
	}
	each := boxes / len(ids)
	for n, id := range ids {
		db.multiply(`INSERT INTO sandboxes (id, org_id, user_id, automation_id, run_id, backend, location, created_by, desired, observed, generation,
				ordered_at, ordered_by, order_reason, attempts, awake_epoch, output_epoch, reclaimed_epoch, exported_epoch, tried, observed_at, searches,
				export_tries, url, session_key, created_at, kept_by, kept_reason, note, needs_attention, reclaimed_bytes)
			SELECT `+db.uuidOf(n)+`, ?1, ?3, ?0, `+db.uuidOf(n)+`, 'openhands', '', 'dispatch', 'suspended', 'suspended', 2,
				?2, 'callback', 'callback', 0, 1, 1, 1, 1, '[]', ?2, 0, 0, '', '', `+db.before()+`, '', '', '', '', 0 FROM series`,
			each, id, localOrg, now, localUser)
	}
	db.exec("INSERT INTO sandbox_identities (sandbox_id, kind, provider_id, url, session_key, seen_at) SELECT id, 'box', 'sbx-' || CAST(id AS TEXT), '', '', created_at FROM sandboxes")
	db.exec("UPDATE automation_runs SET box_id = id, sandbox_cleanup_due_at = ? WHERE id IN (SELECT id FROM sandboxes)", now.Add(24*time.Hour))
	db.exec("ANALYZE")
	return ids
}

// multiply runs an INSERT … SELECT over series(n), the numbers from 1.
func (db *database) multiply(statement string, most int, args ...any) {
	db.b.Helper()
	series := "WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < ?4) "
	args = append(args, make([]any, 4-len(args))...)
	db.exec(series+statement, append(args, most)...)
}

// uuidOf is an expression for an id that follows from n and a number of the automation, so that boxes and runs find each other.
func (db *database) uuidOf(automation int) string {
	id := "'0197a000-0000-7000-800" + string(rune('0'+automation)) + "-' || "
	if db.raw.Dialect().Name() == dialect.PG {
		return "CAST(" + id + "lpad(CAST(n AS TEXT), 12, '0') AS uuid)"
	}
	return id + "printf('%012d', n)"
}

// before is an expression for a time n seconds ago, in the layout in which times are stored.
func (db *database) before() string {
	if db.raw.Dialect().Name() == dialect.PG {
		return "CAST(?2 AS timestamptz) - n * interval '1 second'"
	}
	return "strftime('%Y-%m-%d %H:%M:%S', ?2, '-' || n || ' seconds') || '+00:00'"
}
