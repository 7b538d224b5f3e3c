package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// each runs a test on an empty database of both dialects.
func each(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Run(sqliteDialect, func(t *testing.T) { test(t, "sqlite:"+filepath.Join(t.TempDir(), "a b%.db")) })
	t.Run(postgresDialect, func(t *testing.T) { test(t, emptyPostgres(t)) })
}

// emptyPostgres makes a database for one test.
func emptyPostgres(t *testing.T) string {
	admin := os.Getenv("TEST_POSTGRES_URL")
	if admin == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("TEST_POSTGRES_URL is not set")
		}
		t.Skip("TEST_POSTGRES_URL is not set")
	}
	name := fmt.Sprintf("automation_migrate_%d_%d", os.Getpid(), time.Now().UnixNano())
	db := handle(t, admin)
	_, err := db.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		require.NoError(t, err)
	})
	return regexp.MustCompile(`/[^/?]*(\?|$)`).ReplaceAllString(admin, "/"+name+"$1")
}

// handle opens a database for raw SQL.
func handle(t *testing.T, dsn string) *sql.DB {
	target, err := open(dsn, false)
	require.NoError(t, err)
	t.Cleanup(func() { _ = target.db.Close() })
	return target.db
}

func dialectOf(dsn string) string {
	if strings.HasPrefix(dsn, "sqlite:") {
		return sqliteDialect
	}
	return postgresDialect
}

func present(t *testing.T, dsn string) catalog {
	c, err := readCatalog(t.Context(), handle(t, dsn), dialectOf(dsn))
	require.NoError(t, err)
	return c
}

func exec(t *testing.T, dsn string, statements ...string) {
	for _, statement := range statements {
		_, err := handle(t, dsn).Exec(statement)
		require.NoError(t, err, statement)
	}
}

func TestSixMigrateUpAtOnceAllSucceed(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		var group errgroup.Group
		for range 6 {
			group.Go(func() error { return Up(t.Context(), dsn) })
		}
		require.NoError(t, group.Wait())
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.Equal(t, State{Version: Latest(), Latest: Latest()}, st)
		require.NoError(t, st.Err())
	})
}

func TestS1_008_UpDownUpIsClean(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		first := present(t, dsn)
		require.NoError(t, Down(t.Context(), dsn, 0))
		require.Empty(t, present(t, dsn))
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.ErrorIs(t, st.Err(), ErrMissing)
		require.ErrorIs(t, Down(t.Context(), dsn, 0), ErrMissing)
		require.NoError(t, Up(t.Context(), dsn))
		require.Equal(t, first, present(t, dsn))
	})
}

func TestS1_008_TheStampIsAStepOfItsOwnWithACleanWayDown(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		const stamp = 2 // the version of the step
		require.NoError(t, Up(t.Context(), dsn))
		require.NoError(t, Down(t.Context(), dsn, stamp))
		after := present(t, dsn)
		now := "'2026-01-02 03:04:05+00:00'"
		exec(t, dsn,
			`INSERT INTO automations (id, user_id, org_id, name, trigger, tags, tarball_path, entrypoint, overlap, state, created_at, updated_at)
			VALUES ('00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000002', '00000000-0000-4000-8000-000000000003',
			'n', '{}', '[]', 't', 'e', 'Allow', 'ACTIVE', `+now+`, `+now+`)`,
			`INSERT INTO automation_runs (id, automation_id, org_id, status, attempt, created_at, sandbox_cleanup_due_at)
			VALUES ('00000000-0000-4000-8000-000000000004', '00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000003',
			'FAILED', 1, `+now+`, `+now+`)`)
		require.NoError(t, Down(t.Context(), dsn, stamp-1))
		before := present(t, dsn)
		require.Subset(t, after, before)
		require.ElementsMatch(t, []string{
			"automation_runs.sandbox_cleanup_due_at", "automation_runs#automation_runs_cleanup_due",
		}, difference(after, before))
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.ErrorIs(t, st.Err(), ErrOld)
		require.NoError(t, Up(t.Context(), dsn))
		require.Subset(t, present(t, dsn), after)
		var stamps int
		require.NoError(t, handle(t, dsn).QueryRow("SELECT count(*) FROM automation_runs WHERE sandbox_cleanup_due_at IS NULL").Scan(&stamps))
		require.Equal(t, 1, stamps, "the row outlives its stamp")
	})
}

func difference(a, b catalog) (only []string) {
	in := map[string]bool{}
	for _, line := range b {
		in[line] = true
	}
	for _, line := range a {
		if !in[line] {
			only = append(only, line)
		}
	}
	return only
}

func TestS1_007_ThePartialIndexIsInBothCatalogs(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		query := "SELECT sql FROM sqlite_master WHERE name = 'automation_runs_cleanup_due'"
		if dialectOf(dsn) == postgresDialect {
			query = "SELECT indexdef FROM pg_indexes WHERE indexname = 'automation_runs_cleanup_due'"
		}
		var definition string
		require.NoError(t, handle(t, dsn).QueryRow(query).Scan(&definition))
		require.Regexp(t, `WHERE \(?sandbox_cleanup_due_at IS NOT NULL`, definition)
	})
}

func TestS1_006_TheDueDateIsNullableAndHoldsAnInstantWithItsZone(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		query, kind := `SELECT type, "notnull" = 0 FROM pragma_table_info('automation_runs') WHERE name = 'sandbox_cleanup_due_at'`, "TIMESTAMP"
		if dialectOf(dsn) == postgresDialect {
			query, kind = `SELECT data_type, is_nullable = 'YES' FROM information_schema.columns
				WHERE table_name = 'automation_runs' AND column_name = 'sandbox_cleanup_due_at'`, "timestamp with time zone"
		}
		var found string
		var nullable bool
		require.NoError(t, handle(t, dsn).QueryRow(query).Scan(&found, &nullable))
		require.Equal(t, kind, found)
		require.True(t, nullable)
	})
}

func TestS1_006_TheStampIsNullableAndKnowsItsZone(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		require.Contains(t, present(t, dsn), "automation_runs.sandbox_cleanup_due_at", "without not null")
		if dialectOf(dsn) == sqliteDialect {
			return // text with the zone in it
		}
		var kind string
		query := "SELECT data_type FROM information_schema.columns WHERE column_name = 'sandbox_cleanup_due_at'"
		require.NoError(t, handle(t, dsn).QueryRow(query).Scan(&kind))
		require.Equal(t, "timestamp with time zone", kind)
	})
}

func TestBothDialectsHaveTheSameTables(t *testing.T) {
	versions, err := expected(t.Context())
	require.NoError(t, err)
	require.Len(t, versions, int(Latest())+1)
	dsn := emptyPostgres(t)
	require.NoError(t, Up(t.Context(), dsn))
	for version := Latest(); version > 0; version-- {
		require.NoError(t, Down(t.Context(), dsn, version))
		require.Equal(t, versions[version], present(t, dsn), "version %d", version)
	}
}

func TestS1_009_StepsAreOneUnbrokenLineOnBothDialects(t *testing.T) {
	for _, dialect := range []string{sqliteDialect, postgresDialect} {
		steps, err := iofs.New(files, dialect)
		require.NoError(t, err)
		names, err := fs.Glob(files, dialect+"/*")
		require.NoError(t, err)
		require.Len(t, names, 2*int(Latest()), "one pair a step")
		version, err := steps.First()
		require.NoError(t, err)
		for want := uint(1); want <= Latest(); want++ {
			require.Equal(t, want, version)
			requireStep(t, steps, version)
			if want < Latest() {
				version, err = steps.Next(version)
				require.NoError(t, err)
			}
		}
	}
}

func requireStep(t *testing.T, steps source.Driver, version uint) {
	up, name, err := steps.ReadUp(version)
	require.NoError(t, err)
	require.NoError(t, up.Close())
	down, back, err := steps.ReadDown(version)
	require.NoError(t, err)
	require.NoError(t, down.Close())
	require.Equal(t, name, back)
}

func TestADatabaseOfThePythonServiceIsRefusedBeforeAnyDDL(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		exec(t, dsn, "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL)")
		before := present(t, dsn)
		require.ErrorIs(t, Up(t.Context(), dsn), ErrForeign)
		require.ErrorIs(t, Down(t.Context(), dsn, 0), ErrForeign)
		_, err := Repair(t.Context(), dsn)
		require.ErrorIs(t, err, ErrForeign)
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.ErrorIs(t, st.Err(), ErrForeign)
		require.Equal(t, before, present(t, dsn))
		var tables int
		query := "SELECT count(*) FROM sqlite_master WHERE name = 'schema_migrations'"
		if dialectOf(dsn) == postgresDialect {
			query = "SELECT count(*) FROM pg_tables WHERE tablename = 'schema_migrations'"
		}
		require.NoError(t, handle(t, dsn).QueryRow(query).Scan(&tables))
		require.Zero(t, tables)
	})
}

func TestOneVersionNewerIsServedMoreIsRefused(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		exec(t, dsn, fmt.Sprintf("UPDATE schema_migrations SET version = %d", Latest()+1))
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.NoError(t, st.Err())
		require.NoError(t, Up(t.Context(), dsn))
		require.ErrorIs(t, Down(t.Context(), dsn, 0), ErrNewer)
		exec(t, dsn, fmt.Sprintf("UPDATE schema_migrations SET version = %d", Latest()+2))
		st, err = Status(t.Context(), dsn)
		require.NoError(t, err)
		require.ErrorIs(t, st.Err(), ErrNewer)
		require.ErrorIs(t, Up(t.Context(), dsn), ErrNewer)
	})
}

func TestBR_15_RepairFindsTheVersionThatIsReallyThere(t *testing.T) {
	for name, c := range map[string]struct {
		marked, really uint
		up             bool
	}{
		"up cut short before its commit":      {marked: Latest(), really: Latest() - 1},
		"up committed, its end not recorded":  {marked: Latest(), really: Latest()},
		"down cut short before its commit":    {marked: Latest() - 1, really: Latest()},
		"the first step cut short":            {marked: 1, really: 0},
		"the last way down not recorded":      {marked: 0, really: 0},
		"down committed, its end not written": {marked: Latest() - 1, really: Latest() - 1},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, dsn string) {
				require.NoError(t, Up(t.Context(), dsn))
				require.NoError(t, Down(t.Context(), dsn, c.really))
				exec(t, dsn, "DELETE FROM schema_migrations",
					fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, true)", c.marked))
				err := Up(t.Context(), dsn)
				require.ErrorIs(t, err, ErrDirty)
				require.ErrorContains(t, err, "automation migrate repair")
				before := present(t, dsn)

				st, err := Repair(t.Context(), dsn)
				require.NoError(t, err)
				require.Equal(t, State{Version: c.really, Latest: Latest()}, st)
				require.Equal(t, before, present(t, dsn), "no table changes")
				require.NoError(t, Up(t.Context(), dsn))
			})
		})
	}
}

func TestRepairRefusesTablesOfNoVersionAndLeavesACleanDatabase(t *testing.T) {
	each(t, func(t *testing.T, dsn string) {
		require.NoError(t, Up(t.Context(), dsn))
		st, err := Repair(t.Context(), dsn)
		require.NoError(t, err)
		require.Equal(t, Latest(), st.Version)
		exec(t, dsn, "DROP TABLE uploads", "UPDATE schema_migrations SET dirty = true")
		_, err = Repair(t.Context(), dsn)
		require.ErrorContains(t, err, "no version")
		st, err = Status(t.Context(), dsn)
		require.NoError(t, err)
		require.True(t, st.Dirty)
	})
}

func TestStatusOnlyReads(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "none.db")
	st, err := Status(t.Context(), "sqlite:"+path)
	require.NoError(t, err)
	require.ErrorIs(t, st.Err(), ErrMissing)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, entries)

	each(t, func(t *testing.T, dsn string) {
		exec(t, dsn, "CREATE TABLE somebody_elses (id integer)")
		st, err := Status(t.Context(), dsn)
		require.NoError(t, err)
		require.ErrorIs(t, st.Err(), ErrMissing)
		require.Equal(t, catalog{"somebody_elses.id"}, present(t, dsn))
	})
}

func TestAMigrationThatWaitsForAnotherGivesUpWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	err := locked(t.Context(), "sqlite:"+path, func(*target) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return Up(ctx, "sqlite:"+path)
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestEveryDatabaseHasADeploymentIDOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		each(t, func(t *testing.T, dsn string) {
			require.NoError(t, Up(t.Context(), dsn))
			var id string
			require.NoError(t, handle(t, dsn).QueryRow("SELECT id FROM deployment").Scan(&id))
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
			require.False(t, seen[id])
			seen[id] = true
		})
	}
}
