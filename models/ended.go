package models

import (
	"context"

	"github.com/uptrace/bun"
)

// RunEnd is told of a run that became terminal.
type RunEnd struct {
	Run        *Run // of a skipped run only its id, status, trigger and times
	Reconciled bool // a late callback made COMPLETED of a run that was FAILED for its time (S1-017)
}

// WithRunEnds has tell called for every run that becomes terminal, once its transaction is committed: by callback, watchdog,
// cancel and dispatch, and also where runs are skipped in bulk. tell must not block and must not call the Store.
func WithRunEnds(tell func(RunEnd)) Option { return func(o *options) { o.tell = tell } }

type runEndsKey struct{}

// write is the one door for writes: every transaction of this package runs through it. What ended in fn is told after the
// commit, and only then.
func (s *Store) write(ctx context.Context, fn writeFunc) error {
	if s.tell == nil {
		return s.commit(ctx, fn)
	}
	var ends []RunEnd
	err := s.commit(ctx, func(ctx context.Context, tx bun.IDB) error {
		ends = nil // fn may be tried again
		return fn(context.WithValue(ctx, runEndsKey{}, &ends), tx)
	})
	if err != nil {
		return err
	}
	for _, end := range ends {
		s.tell(end)
	}
	return nil
}

// ended notes runs that end in the transaction of ctx.
func ended(ctx context.Context, reconciled bool, runs ...*Run) {
	ends, ok := ctx.Value(runEndsKey{}).(*[]RunEnd)
	if !ok {
		return
	}
	for _, r := range runs {
		*ends = append(*ends, RunEnd{Run: r, Reconciled: reconciled})
	}
}
