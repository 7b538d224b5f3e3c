package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/uptrace/bun"
	"modernc.org/sqlite"
)

// maxBatch is the largest number of writes that share one SQLite transaction (design section 4, "Writes").
const maxBatch = 128

// writeFunc is one write: it only reads, decides and writes through tx. It does no I/O of its own and never calls write. It
// may run more than once (PostgreSQL repeats a serialization failure), so it sets its results anew each time.
type writeFunc = func(ctx context.Context, tx bun.IDB) error

// writer is the one goroutine that writes to a SQLite file. What waits while a transaction commits shares the next one, each
// write in a savepoint of its own, so that a file that costs one fsync a commit serves thousands of writes a second.
type writer struct {
	db      *bun.DB
	queue   chan *job
	stop    chan struct{} // closed by close
	stopped chan struct{} // closed when the goroutine has returned
	once    sync.Once
	ended   atomic.Bool // SQLite itself ended the transaction at hand
}

// job is one write on its way through the writer.
type job struct {
	ctx   context.Context
	fn    writeFunc
	state atomic.Int32
	done  chan error // one value
	err   error      // what fn said; the writer's alone
}

// The states of a job: whoever moves it from waiting decides whether it runs.
const (
	jobWaiting int32 = iota
	jobTaken
	jobAbandoned
)

func newWriter(db *sql.DB, wrap func(*sql.DB) *bun.DB) *writer {
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	db.SetConnMaxLifetime(0)
	w := &writer{queue: make(chan *job), stop: make(chan struct{}), stopped: make(chan struct{})}
	w.db = wrap(db).WithQueryHook(refuseAfterEnd{&w.ended})
	go w.run()
	return w
}

// do runs fn in the next batch and returns when that batch is committed. A caller that gives up before fn's turn is
// skipped; afterwards fn runs to its end, and do waits for it.
func (w *writer) do(ctx context.Context, fn writeFunc) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{ctx: ctx, fn: fn, done: make(chan error, 1)}
	select {
	case w.queue <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.stopped:
		return ErrClosed
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		if j.state.CompareAndSwap(jobWaiting, jobAbandoned) {
			return ctx.Err()
		}
		return <-j.done
	}
}

// close stops the writer after what is queued.
func (w *writer) close() error {
	w.once.Do(func() { close(w.stop) })
	<-w.stopped
	return w.db.Close()
}

func (w *writer) run() {
	defer close(w.stopped)
	for {
		select {
		case j := <-w.queue:
			w.commit(w.gather(j))
		case <-w.stop:
			for batch := w.gather(); len(batch) > 0; batch = w.gather() {
				w.commit(batch)
			}
			return
		}
	}
}

// gather adds what is waiting to batch.
func (w *writer) gather(batch ...*job) []*job {
	for len(batch) < maxBatch {
		select {
		case j := <-w.queue:
			batch = append(batch, j)
		default:
			return batch
		}
	}
	return batch
}

// commit runs a batch and tells every caller: its own error, or the error that ended the transaction for all.
func (w *writer) commit(batch []*job) {
	cause := w.transact(batch)
	for _, j := range batch {
		if cause != nil {
			j.err = cause
		}
		j.done <- j.err
	}
}

func (w *writer) transact(batch []*job) error {
	ctx := context.Background()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("open the writing connection: %w", err)
	}
	defer func() { _ = conn.Close() }()
	w.ended.Store(false)
	if err := conn.Raw(w.watch); err != nil {
		return fmt.Errorf("watch for rollbacks: %w", err)
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, j := range batch {
		if !j.state.CompareAndSwap(jobWaiting, jobTaken) {
			continue
		}
		j.err = w.inSavepoint(tx, j)
		if w.ended.Load() {
			_ = tx.Rollback() // SQLite has rolled back already; this only frees the handle
			return fmt.Errorf("transaction ended: %w", j.err)
		}
	}
	if err := tx.Commit(); err != nil {
		_ = tx.Rollback()
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// savepoint is the name of all: one ends before the next begins, and statements that are the same are compiled once.
const savepoint = "write"

// inSavepoint runs one write so that its failure takes back its own work only. An error of the savepoint itself means that
// the transaction is of no more use, so it is marked ended.
func (w *writer) inSavepoint(tx bun.Tx, j *job) error {
	if _, err := tx.Exec("SAVEPOINT " + savepoint); err != nil {
		w.ended.Store(true)
		return err
	}
	err := call(inWrite(context.WithoutCancel(j.ctx)), tx, j.fn)
	if w.ended.Load() {
		if err == nil {
			err = errRolledBack
		}
		return err
	}
	end := "RELEASE " + savepoint
	if err != nil {
		end = "ROLLBACK TO " + savepoint + "; RELEASE " + savepoint
	}
	if _, endErr := tx.Exec(end); endErr != nil {
		w.ended.Store(true)
		return errors.Join(err, endErr)
	}
	return err
}

// watch marks the transaction ended when SQLite rolls it back by itself: an interrupted statement, a full disk, an I/O
// error. The hook stays silent on ROLLBACK TO.
func (w *writer) watch(driverConn any) error {
	hooks, ok := driverConn.(sqlite.HookRegisterer)
	if !ok {
		return fmt.Errorf("driver connection %T has no rollback hook", driverConn)
	}
	hooks.RegisterRollbackHook(func() { w.ended.Store(true) })
	return nil
}

// errRolledBack is what a write gets that swallowed the error which ended the transaction.
var errRolledBack = errors.New("SQLite rolled the transaction back")

// refuseAfterEnd is a query hook that stops every statement after the transaction has ended: outside a transaction SQLite
// would commit it by itself.
type refuseAfterEnd struct{ ended *atomic.Bool }

// BeforeQuery hands out a context that is over, which database/sql refuses before it reaches SQLite.
func (h refuseAfterEnd) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	if !h.ended.Load() {
		return ctx
	}
	over, cancel := context.WithCancelCause(ctx)
	cancel(errRolledBack)
	return over
}

// AfterQuery does nothing.
func (refuseAfterEnd) AfterQuery(context.Context, *bun.QueryEvent) {}

// errGoexit is what a write gets that ended its goroutine, as the failure of a test inside it does.
var errGoexit = errors.New("write ended its goroutine")

// call runs fn and turns its panic into an error. It does so on a goroutine of fn's own, so that one that ends it (Goexit) does
// not take the writer, or the caller's open transaction, along.
func call(ctx context.Context, tx bun.IDB, fn writeFunc) error {
	err := errGoexit
	var own sync.WaitGroup
	own.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("write panicked: %v\n%s", v, debug.Stack())
			}
		}()
		err = fn(ctx, tx)
	})
	own.Wait()
	return err
}

type inWriteKey struct{}

// inWrite marks the context of a write, so that a write inside it is refused instead of waiting for itself for ever.
func inWrite(ctx context.Context) context.Context {
	return context.WithValue(ctx, inWriteKey{}, true)
}

func isInWrite(ctx context.Context) bool { return ctx.Value(inWriteKey{}) != nil }
