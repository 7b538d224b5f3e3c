package models

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// Step is the record of one step of the settler or of dispatch: an observation (written WHERE lease_token = token, whatever
// the generation) and decisions (written by the same UPDATE, but keeping the old values when the generation has changed).
type Step struct {
	BoxID      uuid.UUID
	Token      uuid.UUID
	Generation int64
	Name       string // step name, for events and tried

	// Observation.
	Observed      *Observed
	Woke          bool       // seen awake after not being awake: awake_epoch + 1, tried cleared
	Answered      *bool      // true: answered_at is set when NULL; false: answered_at = NULL
	ExpiresAt     *time.Time // the provider's expiry
	URL           *string
	SessionKey    *string
	OutputDone    bool // output_epoch = awake_epoch
	ReclaimedDone bool
	ExportedDone  bool // ends the count of failed export tries
	FreedBytes    int64
	Storage       json.RawMessage // the box's own storage status; nil: not read
	ExportTried   bool            // export_tries + 1, export_tried_at = now
	ExportStale   bool            // what was exported in this time awake does not count any more: the box runs on

	// Decisions.
	Tried          bool       // add Name to tried
	Next           *time.Time // next_step_at; nil: at rest
	Attempts       int
	LastError      *string
	NeedsAttention string
	Searches       int
	// Adopt takes over what the provider shows of a row at rest: desired is set to it, event adopted, no new generation. It is
	// left out where deletion is ordered, and where the present order was never seen fulfilled: that one is still to be done.
	Adopt *Desired
	// ClearStamp clears the run's stamp in the same transaction, provided this is the run's newest box (the first Delete
	// call was made, success or not: S1-033).
	ClearStamp bool
	// Waited says that none of the steps before a suspend or delete was made: their budget (prepare_until) begins anew at the
	// next claim.
	Waited bool

	Release bool    // give the lease back with this record
	Events  []Event // appended in the same transaction
}

// stepColumns is what a Step may change.
var stepColumns = []string{
	"observed", "observed_at", "answered_at", "expires_at", "suspended_at", "deleted_at", "url", "session_key",
	"awake_epoch", "output_epoch", "reclaimed_epoch", "exported_epoch", "reclaimed_bytes", "storage", "storage_at", "export_tries", "export_tried_at",
	"tried", "next_step_at", "attempts", "last_error", "needs_attention", "searches", "desired", "prepare_until",
	"lease_token", "lease_until",
}

// RecordStep writes a Step. changed reports that the generation is no longer Step.Generation (decisions were not written; an
// order is waiting). ErrLeaseLost when the token is not the row's: nothing but facts may be written then.
//
// An observation "deleted" becomes "missing", with the next step now, where an identity was named that nobody saw gone: a box
// is deleted when every one of its identities is.
func (s *Store) RecordStep(ctx context.Context, st Step) (changed bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if st.ClearStamp {
			if err := s.holdRunOf(ctx, tx, st.BoxID); err != nil {
				return err
			}
		}
		box := new(Sandbox)
		q := tx.NewSelect().Model(box).Where("s.id = ? AND s.lease_token = ?", st.BoxID, st.Token)
		if err := s.lock(q, "UPDATE").Scan(ctx); err != nil {
			return leaseLost(err, "record step %s of box %s", st.Name, st.BoxID)
		}
		now := s.Now() // under the lock: an order that we waited for came before
		changed = box.Generation != st.Generation
		events := slices.Clone(st.Events)
		rested := box.rested()
		s.observe(box, st, changed, now)
		if !changed {
			if box.decide(st, rested) {
				events = append(events, box.event("adopted", "settler", string(box.Desired), now))
			}
			if err := clearStampTx(ctx, tx, box, st); err != nil {
				return err
			}
		}
		if err := endBoxTx(ctx, tx, box, now); err != nil {
			return err
		}
		if st.Release {
			box.LeaseToken, box.LeaseUntil = nil, nil
		}
		_, err := tx.NewUpdate().Model(box).Column(stepColumns...).WherePK().Where("lease_token = ?", st.Token).Exec(ctx)
		if err != nil {
			return fmt.Errorf("record step %s of box %s: %w", st.Name, st.BoxID, err)
		}
		for n := range events {
			events[n] = box.about(events[n])
		}
		return appendEventsTx(ctx, tx, now, events)
	})
	return changed, err
}

// rested reports whether the present order needs nothing more: the provider has shown the ordered state since, or a state in
// which nothing can be done.
func (b *Sandbox) rested() bool {
	if b.ObservedAt == nil || b.ObservedAt.Before(b.OrderedAt) {
		return false
	}
	switch b.Observed {
	case SeenFailed, SeenDeleted:
		return true
	case SeenMissing: // what comes back was not gone, and is still to be suspended
		return b.Desired != WantSuspended
	default:
		return string(b.Observed) == string(b.Desired)
	}
}

// observe takes over what a step saw. What was seen while an order came in says nothing about the time after it: it counts as
// older than the order, so that the next step looks again.
func (s *Store) observe(b *Sandbox, st Step, changed bool, now time.Time) {
	if st.Woke {
		b.AwakeEpoch++
		b.Tried = []string{}
	}
	if st.Observed != nil {
		b.see(*st.Observed, now)
		if changed && !now.Before(b.OrderedAt) {
			before := b.OrderedAt.Add(-time.Microsecond)
			b.ObservedAt = &before
		}
	}
	if st.Answered != nil && !*st.Answered {
		b.AnsweredAt = nil
	} else if st.Answered != nil && b.AnsweredAt == nil {
		b.AnsweredAt = &now
	}
	if st.ExpiresAt != nil {
		b.ExpiresAt = st.ExpiresAt
	}
	if st.URL != nil {
		b.URL = *st.URL
	}
	if st.SessionKey != nil {
		b.SessionKey = s.sealKey(*st.SessionKey)
	}
	b.mark(st, now)
}

// see sets the observed state and the times that follow from it.
func (b *Sandbox) see(state Observed, now time.Time) {
	switch {
	case state == SeenSuspended && b.Observed != SeenSuspended:
		b.SuspendedAt = &now
	case state == SeenRunning:
		b.SuspendedAt = nil
	case state == SeenDeleted && b.DeletedAt == nil:
		b.DeletedAt = &now
	}
	b.Observed, b.ObservedAt = state, &now
}

// mark sets the success markers of the present awake epoch.
func (b *Sandbox) mark(st Step, now time.Time) {
	if st.OutputDone {
		b.OutputEpoch = b.AwakeEpoch
	}
	if st.ReclaimedDone {
		b.ReclaimedEpoch, b.ReclaimedBytes = b.AwakeEpoch, st.FreedBytes
	}
	if st.Storage != nil {
		b.Storage, b.StorageAt = storable(st.Storage), &now
	}
	if st.ExportTried {
		b.ExportTries, b.ExportTriedAt = b.ExportTries+1, &now
	}
	if st.ExportStale {
		b.ExportedEpoch = 0
	}
	if st.ExportedDone {
		b.ExportedEpoch, b.ExportTries = b.AwakeEpoch, 0
	}
}

// RecordStorage stores what a box's own agent server says of its disk: a fact, whatever is ordered.
func (s *Store) RecordStorage(ctx context.Context, boxID uuid.UUID, status json.RawMessage) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("storage = ?", string(storable(status))).
			Set("storage_at = ?", s.Now()).
			Where("id = ?", boxID).
			Exec(ctx)
		if err != nil {
			return fmt.Errorf("record the storage of box %s: %w", boxID, err)
		}
		return nil
	})
}

// storable replaces the one character that JSON can write and no column takes.
func storable(raw json.RawMessage) json.RawMessage {
	return bytes.ReplaceAll(raw, []byte(`\u0000`), []byte(`\ufffd`))
}

// decide takes over the decisions of a step and reports whether a state was adopted.
func (b *Sandbox) decide(st Step, rested bool) (adopted bool) {
	b.NextStepAt, b.Attempts, b.LastError = st.Next, st.Attempts, st.LastError
	b.NeedsAttention, b.Searches = st.NeedsAttention, st.Searches
	if st.Waited {
		b.PrepareUntil = nil
	}
	if st.Tried && !slices.Contains(b.Tried, st.Name) {
		b.Tried = append(b.Tried, st.Name)
	}
	if st.Adopt == nil || !rested || b.Desired == WantDeleted || *st.Adopt == WantDeleted || *st.Adopt == b.Desired {
		return false
	}
	b.Desired = *st.Adopt
	return true
}

// clearStampTx clears the stamp of the run whose newest box this is.
func clearStampTx(ctx context.Context, tx bun.IDB, b *Sandbox, st Step) error {
	if !st.ClearStamp || b.RunID == nil {
		return nil
	}
	_, err := tx.NewUpdate().Model((*Run)(nil)).
		Set("sandbox_cleanup_due_at = NULL").
		Where("id = ? AND box_id = ?", *b.RunID, b.ID).
		Where("sandbox_cleanup_due_at IS NOT NULL").
		Exec(ctx)
	if err != nil {
		return fmt.Errorf("clear the stamp of run %s: %w", *b.RunID, err)
	}
	return nil
}

// endBoxTx removes what only a living box needs from a box that is deleted. One with an identity that nobody saw gone (named
// while the step ran) is not, and one that is ordered deleted and missing does not rest before that identity was asked about.
func endBoxTx(ctx context.Context, tx bun.IDB, b *Sandbox, now time.Time) error {
	resting := b.Desired == WantDeleted && b.Observed == SeenMissing && b.NextStepAt == nil
	if b.Observed != SeenDeleted && !resting {
		return nil
	}
	open, err := tx.NewSelect().Model((*Identity)(nil)).Where("i.sandbox_id = ? AND i.gone_at IS NULL", b.ID).Exists(ctx)
	if err != nil {
		return fmt.Errorf("look for open identities of box %s: %w", b.ID, err)
	}
	if open {
		b.Observed, b.DeletedAt, b.NextStepAt = SeenMissing, nil, &now
		return nil
	}
	if resting {
		return nil
	}
	_, err = tx.NewDelete().Model((*attachment)(nil)).Where("sandbox_id = ?", b.ID).Exec(ctx)
	if err != nil {
		return fmt.Errorf("remove the attachments of box %s: %w", b.ID, err)
	}
	return nil
}
