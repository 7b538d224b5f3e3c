package models_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"modernc.org/sqlite"

	"automation/models"
	"automation/models/modelstest"
)

type write = func(context.Context, bun.IDB) error

// insertUpload returns a write that leaves one row.
func insertUpload(name string) write {
	return func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(&models.Upload{
			ID: uuid.Must(uuid.NewV7()), UserID: modelstest.User, OrgID: modelstest.Org, Name: name,
			Status: models.UploadUploading, BlobKey: name, CreatedAt: modelstest.Start, UpdatedAt: modelstest.Start,
		}).Exec(ctx)
		return err
	}
}

// uploads returns the names of the rows that insertUpload left.
func uploads(t *testing.T, s *models.Store) []string {
	t.Helper()
	list, _, err := s.ListUploads(t.Context(), modelstest.Org, modelstest.User, "", 1000, 0)
	require.NoError(t, err)
	names := []string{}
	for _, u := range list {
		names = append(names, u.Name)
	}
	return names
}

// commits counts the transactions that were committed.
type commits struct{ n atomic.Int64 }

func (c *commits) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if e.Query == "COMMIT" {
		c.n.Add(1)
	}
	return ctx
}

func (*commits) AfterQuery(context.Context, *bun.QueryEvent) {}

// holdWriter starts a write that holds the writer until release is called.
func holdWriter(t *testing.T, s *models.Store) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		err := s.Write(t.Context(), func(context.Context, bun.IDB) error {
			close(held)
			<-free
			return nil
		})
		if err != nil {
			t.Errorf("the write that holds the writer: %v", err)
		}
	})
	<-held
	return func() { close(free); done.Wait() }
}

func TestWritesThatWaitedShareOneCommit(t *testing.T) {
	db := modelstest.NewSQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := db.Open(t)
		count := new(commits)
		s.Watch(count)
		release := holdWriter(t, s)
		var group sync.WaitGroup
		for n := range 100 {
			group.Go(func() {
				if err := s.Write(t.Context(), insertUpload(strconv.Itoa(n))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		release()
		group.Wait()
		require.EqualValues(t, 2, count.n.Load(), "the holder's, and one for all the others")
		require.Len(t, uploads(t, s), 100)
	})
}

func TestACallerThatGivesUpBeforeItsTurnIsSkipped(t *testing.T) {
	db := modelstest.NewSQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := db.Open(t)
		release := holdWriter(t, s)
		// The first is gathered into the next batch and holds it; the second waits in that batch; the third in the queue.
		ctx, cancel := context.WithCancel(t.Context())
		first, free := make(chan struct{}), make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			if err := s.Write(t.Context(), func(context.Context, bun.IDB) error { close(first); <-free; return nil }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		gaveUp := make(chan error, 2)
		give := func(name string) { group.Go(func() { gaveUp <- s.Write(ctx, insertUpload(name)) }) }
		give("in the batch")
		synctest.Wait()
		release()
		<-first
		give("in the queue")
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		close(free)
		group.Wait()
		require.Empty(t, uploads(t, s))
		require.ErrorIs(t, s.Write(ctx, insertUpload("not even queued")), context.Canceled)
	})
}

func TestAfterItsTurnAWriteRunsToItsEndWithoutItsCaller(t *testing.T) {
	s := modelstest.NewSQLite(t).Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		cancel()
		if ctx.Err() != nil {
			return errors.New("the write sees its caller's end")
		}
		return insertUpload("kept")(ctx, tx)
	})
	require.NoError(t, err)
	require.Equal(t, []string{"kept"}, uploads(t, s))
}

func TestAFailedWriteTakesBackItsOwnWorkOnly(t *testing.T) {
	s := modelstest.NewSQLite(t).Open(t)
	refused := errors.New("refused")
	errs := s.WriteBatch(t.Context(),
		insertUpload("before"),
		func(ctx context.Context, tx bun.IDB) error {
			return errors.Join(insertUpload("taken back")(ctx, tx), refused)
		},
		func(ctx context.Context, tx bun.IDB) error {
			if err := insertUpload("taken back")(ctx, tx); err != nil {
				return err
			}
			panic("out of order")
		},
		func(ctx context.Context, tx bun.IDB) error {
			_, err := tx.NewRaw("INSERT INTO nowhere VALUES (1)").Exec(ctx)
			return err
		},
		insertUpload("after"),
	)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], refused)
	require.ErrorContains(t, errs[2], "out of order")
	require.ErrorContains(t, errs[3], "nowhere")
	require.NoError(t, errs[4])
	require.ElementsMatch(t, []string{"before", "after"}, uploads(t, s))
}

// interrupt ends the context of the statement that calls the SQL function test_interrupt().
var interrupt atomic.Pointer[context.CancelFunc]

func init() {
	sqlite.MustRegisterScalarFunction("test_interrupt", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		(*interrupt.Load())()
		return "x", nil
	})
}

func TestAnErrorThatEndsTheTransactionFailsTheWholeBatchWithItsCause(t *testing.T) {
	endless := func(ctx context.Context, tx bun.IDB) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		interrupt.Store(&cancel)
		_, err := tx.NewRaw(`INSERT INTO deployment (id)
			WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT test_interrupt() || i FROM n`).Exec(ctx)
		return err
	}
	for name, c := range map[string]struct {
		bad   write
		cause string
	}{
		"reported": {bad: endless, cause: "canceled"},
		"swallowed": {
			bad: func(ctx context.Context, tx bun.IDB) error {
				_ = endless(ctx, tx)
				_ = insertUpload("would commit by itself")(ctx, tx)
				return nil
			},
			cause: "rolled the transaction back",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := modelstest.NewSQLite(t).Open(t)
			after := func(ctx context.Context, tx bun.IDB) error {
				_ = insertUpload("would commit by itself")(ctx, tx)
				return nil
			}
			for _, err := range s.WriteBatch(t.Context(), insertUpload("before"), c.bad, after) {
				require.ErrorContains(t, err, "transaction ended")
				require.ErrorContains(t, err, c.cause)
			}
			require.Empty(t, uploads(t, s))
			require.NoError(t, s.Write(t.Context(), insertUpload("next")), "the writer goes on")
			require.Equal(t, []string{"next"}, uploads(t, s))
		})
	}
}

func TestAWriteInsideAWriteIsRefused(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		err := s.Write(t.Context(), func(ctx context.Context, _ bun.IDB) error {
			return s.Write(ctx, insertUpload("inner"))
		})
		require.ErrorContains(t, err, "inside a write")
	})
}

func TestAPanicIsAnErrorOnBothDialects(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		err := s.Write(t.Context(), func(ctx context.Context, tx bun.IDB) error {
			if err := insertUpload("taken back")(ctx, tx); err != nil {
				return err
			}
			panic("out of order")
		})
		require.ErrorContains(t, err, "out of order")
		require.Empty(t, uploads(t, s))
		require.NoError(t, s.Write(t.Context(), insertUpload("next")))
	})
}

// A failing test calls Goexit, in a closure too; that must not hang every later write.
func TestAWriteThatEndsItsGoroutineFailsAlone(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		err := s.Write(t.Context(), func(ctx context.Context, tx bun.IDB) error {
			if err := insertUpload("gone")(ctx, tx); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
		require.ErrorContains(t, err, "ended its goroutine")
		require.NoError(t, s.Write(t.Context(), insertUpload("later")))
		require.Equal(t, []string{"later"}, uploads(t, s))
	})
}

func TestCloseCommitsWhatIsQueuedAndRefusesWhatComesLater(t *testing.T) {
	db := modelstest.NewSQLite(t)
	synctest.Test(t, func(t *testing.T) {
		s := db.Open(t)
		release := holdWriter(t, s)
		var group sync.WaitGroup
		for n := range 5 {
			group.Go(func() {
				if err := s.Write(t.Context(), insertUpload(strconv.Itoa(n))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		group.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		release()
		group.Wait()
		require.ErrorIs(t, s.Write(t.Context(), insertUpload("late")), models.ErrClosed)
		require.Len(t, uploads(t, db.Open(t)), 5)
	})
}

func TestPostgresRepeatsASerializationFailureAndGivesUpInTheEnd(t *testing.T) {
	s := modelstest.NewPostgres(t).Open(t)
	failing := func(times int) (write, *int) {
		tries := new(int)
		return func(ctx context.Context, tx bun.IDB) error {
			if *tries++; *tries <= times {
				_, err := tx.NewRaw("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$").Exec(ctx)
				return err
			}
			return insertUpload("done")(ctx, tx)
		}, tries
	}
	passing, tries := failing(3)
	require.NoError(t, s.Write(t.Context(), passing))
	require.Equal(t, 4, *tries)
	require.Equal(t, []string{"done"}, uploads(t, s))
	hopeless, tries := failing(1000)
	require.ErrorContains(t, s.Write(t.Context(), hopeless), "again")
	require.Less(t, *tries, 20)
}

func TestADeadlockOnPostgresIsRepeated(t *testing.T) {
	s := modelstest.NewPostgres(t).Open(t)
	a, b := modelstest.Automation(t, s), modelstest.Automation(t, s)
	var met sync.WaitGroup
	met.Add(2)
	lockBoth := func(first, second *models.Automation) write {
		var once sync.Once
		return func(ctx context.Context, tx bun.IDB) error {
			for n, x := range []*models.Automation{first, second} {
				if _, err := tx.NewUpdate().Model(x).Set("name = ?", "locked").WherePK().Exec(ctx); err != nil {
					return err
				}
				if n == 0 {
					once.Do(func() { met.Done(); met.Wait() })
				}
			}
			return nil
		}
	}
	errs := make(chan error, 2)
	go func() { errs <- s.Write(t.Context(), lockBoth(a, b)) }()
	go func() { errs <- s.Write(t.Context(), lockBoth(b, a)) }()
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
}

func TestUniqueViolationsAreRecognized(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		a := modelstest.Automation(t, s)
		insert := func(id uuid.UUID, at time.Time) error {
			return s.Write(t.Context(), func(ctx context.Context, tx bun.IDB) error {
				_, err := tx.NewInsert().Model(&models.Run{
					ID: id, AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunPending, ScheduledFor: &at, CreatedAt: at,
				}).Exec(ctx)
				return err
			})
		}
		id := uuid.Must(uuid.NewV7())
		require.NoError(t, insert(id, modelstest.Start))
		require.True(t, models.IsUnique(insert(id, modelstest.Start.Add(time.Second))), "primary key")
		require.True(t, models.IsUnique(insert(uuid.Must(uuid.NewV7()), modelstest.Start)), "unique index")
		require.False(t, models.IsUnique(errors.New("other")))
		require.False(t, models.IsUnique(s.CreateRun(t.Context(), &models.Run{AutomationID: uuid.New()})))
	})
}

func TestOneVersionNewerIsServed(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		_, err := db.Raw().Exec("ALTER TABLE automation_runs ADD COLUMN added_later text")
		require.NoError(t, err)
		s := db.Open(t)
		r, _ := modelstest.Running(t, s, modelstest.Automation(t, s))
		_, err = s.Run(t.Context(), modelstest.Org, r.ID)
		require.NoError(t, err)
		runs, err := s.ClaimStale(t.Context(), everywhere, 10, time.Minute)
		require.NoError(t, err)
		require.Empty(t, runs)
	})
}

// TestBR_12_TimesAreStoredInOneLayout reads every time column of SQLite as the text that it is: only one layout keeps the
// order of text the order of time.
func TestBR_12_TimesAreStoredInOneLayout(t *testing.T) {
	s := modelstest.NewSQLite(t).Open(t)
	a := modelstest.Automation(t, s, func(a *models.Automation) {
		at := time.Date(2026, 3, 29, 3, 30, 0, 123456789, time.FixedZone("somewhere", 2*3600))
		a.NextRunAt = &at
	})
	r, _ := modelstest.Running(t, s, a)
	finish(t, s, r, models.Outcome{Status: models.RunCompleted}, suspendFor(time.Hour))
	raw := modelstest.Of(t, s).Raw()
	var columns []struct{ Table, Name string }
	require.NoError(t, raw.NewRaw(`SELECT m.name AS "table", c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c
		WHERE m.type = 'table' AND c.type = 'TIMESTAMP'`).Scan(t.Context(), &columns))
	found := 0
	for _, c := range columns {
		var values []string
		require.NoError(t, raw.NewRaw("SELECT "+c.Name+" || '' FROM "+c.Table+" WHERE "+c.Name+" IS NOT NULL").Scan(t.Context(), &values))
		for _, v := range values {
			require.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00:00$`, v, "%s.%s", c.Table, c.Name)
			require.False(t, strings.HasSuffix(strings.TrimSuffix(v, "+00:00"), "0") && strings.Contains(v, "."), v)
			found++
		}
	}
	require.Greater(t, found, 10)
}
