package models

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// CreatedByRuntime is Sandbox.CreatedBy of a box that serves one conversation; it has no run, and the settler creates it.
const CreatedByRuntime = "runtime"

// Errors of OpenRuntime.
var (
	// ErrWorkspaceFixed means that the conversation has another workspace than the one asked for: it never changes.
	ErrWorkspaceFixed = errors.New("the conversation has another workspace")
	// ErrWorkspaceTaken means that another conversation works on the same checkout: there is one box to a workspace.
	ErrWorkspaceTaken = errors.New("another conversation works on this workspace")
)

// Runtime is a row of runtimes: a conversation that has a box of its own. It is the identity that survives an eviction and
// the loss of the box (S3-017).
type Runtime struct {
	bun.BaseModel `bun:"table:runtimes,alias:rt"`

	OrgID          uuid.UUID  `bun:"org_id,pk"`
	ConversationID uuid.UUID  `bun:"conversation_id,pk"`
	UserID         uuid.UUID  `bun:"user_id"`
	Backend        string     `bun:"backend"`
	Location       string     `bun:"location"`
	Workspace      string     `bun:"workspace"`   // a caller's own checkout on the host, never reclaimed or removed; "": the box's own
	SessionKey     string     `bun:"session_key"` // of its agent server; sealed in the row
	SecretKey      string     `bun:"secret_key"`  // with which its agent server encrypts what it keeps; sealed in the row
	BoxID          *uuid.UUID `bun:"box_id"`      // its newest box; nil before the first, and when that row was purged
	CreatedAt      time.Time  `bun:"created_at"`

	Box      *Sandbox `bun:"-"` // of BoxID, with identities; nil where there is none
	Attached bool     `bun:"-"` // a request, stream or relay into the box is open
}

// Place is where the box of the conversation is made.
func (r *Runtime) Place() Place { return Place{Backend: r.Backend, Location: r.Location} }

// OpenRuntime returns a conversation's runtime whose box runs or will: it makes the row at the first call, a box row where
// there is none that could serve, and orders an evicted box running. want holds whose it is, Place, Workspace ("": as it is) and
// the keys that a new row gets. made says that the row is new. who is "user:<id>". ErrWorkspaceFixed, ErrWorkspaceTaken.
//
// The caller wakes the settler, which creates the box; however many callers come, there is one row, and so one box (S3-024).
func (s *Store) OpenRuntime(ctx context.Context, want Runtime, who string) (r *Runtime, made bool, err error) {
	row := want
	if row.SessionKey, err = s.seal(want.SessionKey); err != nil {
		return nil, false, err
	}
	if row.SecretKey, err = s.seal(want.SecretKey); err != nil {
		return nil, false, err
	}
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		row := row
		row.BoxID, row.CreatedAt = nil, s.Now()
		n, err := affected(tx.NewInsert().Model(&row).On("CONFLICT (org_id, conversation_id) DO NOTHING").Exec(ctx))
		if isUnique(err) {
			return ErrWorkspaceTaken
		}
		if err != nil {
			return fmt.Errorf("insert the runtime of conversation %s: %w", want.ConversationID, err)
		}
		made = n == 1
		r = &Runtime{OrgID: want.OrgID, ConversationID: want.ConversationID}
		if err := s.lock(tx.NewSelect().Model(r).WherePK(), "UPDATE").Scan(ctx); err != nil {
			return fmt.Errorf("lock the runtime of conversation %s: %w", want.ConversationID, err)
		}
		if want.Workspace != "" && want.Workspace != r.Workspace {
			return ErrWorkspaceFixed
		}
		return s.wakeRuntimeTx(ctx, tx, r, who)
	})
	if err != nil {
		return nil, false, err
	}
	return r, made, s.completeRuntimes(ctx, []*Runtime{r})
}

// wakeRuntimeTx gives a locked runtime a box that runs or will.
func (s *Store) wakeRuntimeTx(ctx context.Context, tx bun.IDB, r *Runtime, who string) error {
	now := s.Now()
	if r.BoxID != nil {
		box, err := s.lockBox(ctx, tx, *r.BoxID)
		if err != nil {
			return err
		}
		if box.Desired != WantDeleted && !box.lost() {
			if box.Desired == WantRunning && box.Observed != SeenFailed {
				return touchTx(ctx, tx, box.ID, now) // opening it is an access (S3-011)
			}
			return orderTx(ctx, tx, box.ID, order{to: WantRunning, who: who, why: "access", now: now})
		}
		err = orderTx(ctx, tx, box.ID, order{to: WantDeleted, who: who, why: "the conversation gets a new box", now: now})
		if err != nil && !errors.Is(err, ErrDeletionOrdered) {
			return err
		}
	}
	box := &Sandbox{
		ID: newID(), OrgID: r.OrgID, UserID: r.UserID, Backend: r.Backend, Location: r.Location, CreatedBy: CreatedByRuntime,
		Desired: WantRunning, Observed: SeenProvisioning, Generation: 1, OrderedAt: now, OrderedBy: who, OrderReason: "opened",
		NextStepAt: &now, LastAccessAt: &now, AwakeEpoch: 1, Tried: []string{}, CreatedAt: now,
	}
	if _, err := tx.NewInsert().Model(box).Exec(ctx); err != nil {
		return fmt.Errorf("insert the box of conversation %s: %w", r.ConversationID, err)
	}
	_, err := tx.NewUpdate().Model(r).Set("box_id = ?", box.ID).WherePK().Exec(ctx)
	if err != nil {
		return fmt.Errorf("point conversation %s to its box: %w", r.ConversationID, err)
	}
	r.BoxID = &box.ID
	return appendEventsTx(ctx, tx, now, []Event{box.event("ordered", who, "running: opened", now)})
}

// lost reports whether nothing of the box is left at its provider, as last seen since the present order.
func (b *Sandbox) lost() bool {
	gone := b.Observed == SeenMissing || b.Observed == SeenDeleted
	return gone && b.NextStepAt == nil
}

// Runtime returns a conversation's runtime with its box; orgID uuid.Nil means any organization. ErrNotFound when there is none.
func (s *Store) Runtime(ctx context.Context, orgID, conversationID uuid.UUID) (*Runtime, error) {
	r := new(Runtime)
	q := s.db.NewSelect().Model(r).Where("rt.conversation_id = ?", conversationID)
	if orgID != uuid.Nil {
		q = q.Where("rt.org_id = ?", orgID)
	}
	if err := q.Limit(1).Scan(ctx); err != nil {
		return nil, notFound(err, "read the runtime of conversation %s", conversationID)
	}
	return r, s.completeRuntimes(ctx, []*Runtime{r})
}

// RuntimeOfBox returns the runtime whose newest box this is, else ErrNotFound.
func (s *Store) RuntimeOfBox(ctx context.Context, boxID uuid.UUID) (*Runtime, error) {
	r := new(Runtime)
	if err := s.db.NewSelect().Model(r).Where("rt.box_id = ?", boxID).Scan(ctx); err != nil {
		return nil, notFound(err, "read the runtime of box %s", boxID)
	}
	return r, s.completeRuntimes(ctx, []*Runtime{r})
}

// Runtimes returns a page of an organization's runtimes with their boxes, newest first, and how many there are.
func (s *Store) Runtimes(ctx context.Context, orgID uuid.UUID, limit, offset int) ([]*Runtime, int, error) {
	var list []*Runtime
	q := s.db.NewSelect().Model(&list).Where("rt.org_id = ?", orgID)
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count runtimes: %w", err)
	}
	err = q.OrderExpr("rt.created_at DESC, rt.conversation_id").Limit(int64(limit)).Offset(int64(offset)).Scan(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list runtimes: %w", err)
	}
	return list, int(total), s.completeRuntimes(ctx, list)
}

// completeRuntimes opens the keys of runtimes and fills in their boxes.
func (s *Store) completeRuntimes(ctx context.Context, list []*Runtime) error {
	var ids []uuid.UUID
	for _, r := range list {
		r.SessionKey, r.SecretKey = s.openKey(r.SessionKey), s.openKey(r.SecretKey)
		if r.BoxID != nil {
			ids = append(ids, *r.BoxID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var boxes []*Sandbox
	now := s.Now()
	if err := selectBoxes(s.db, &boxes, now).Where("s.id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return fmt.Errorf("read the boxes of runtimes: %w", err)
	}
	if err := s.completeBoxes(ctx, s.db, boxes); err != nil {
		return err
	}
	attached, err := attachedOf(ctx, s.db, ids, now)
	if err != nil {
		return err
	}
	byID := make(map[uuid.UUID]*Sandbox, len(boxes))
	for _, b := range boxes {
		byID[b.ID] = b
	}
	for _, r := range list {
		if r.BoxID != nil {
			r.Box, r.Attached = byID[*r.BoxID], attached[*r.BoxID]
		}
	}
	return nil
}

// SuspendRuntimes orders suspended the boxes of all conversations of a place that are not, and returns their ids (S3-014).
func (s *Store) SuspendRuntimes(ctx context.Context, p Place, who, why string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		ids = nil
		var awake []uuid.UUID
		q := tx.NewSelect().Model((*Sandbox)(nil)).Column("s.id").
			Where("s.backend = ? AND s.location = ?", p.Backend, p.Location).
			Where("s.created_by = ?", CreatedByRuntime).
			Where("s.desired = ?", WantRunning).
			Where("s.observed <> ?", SeenDeleted).
			OrderExpr("s.id")
		if err := s.lock(q, "UPDATE").Scan(ctx, &awake); err != nil {
			return fmt.Errorf("look for awake runtimes of %s: %w", p.Backend, err)
		}
		boxes, err := orderBoxesTx(ctx, tx, awake, order{to: WantSuspended, who: who, why: why, now: s.Now()})
		ids = boxIDs(boxes)
		return err
	})
	return ids, err
}

// CountAwake counts the boxes of ids that still run, or are on their way to.
func (s *Store) CountAwake(ctx context.Context, ids []uuid.UUID) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	n, err := s.db.NewSelect().Model((*Sandbox)(nil)).
		Where("s.id IN (?)", bun.List(ids)).
		Where("s.observed IN (?)", bun.List([]Observed{SeenRunning, SeenProvisioning, SeenFailed})).
		Where("s.next_step_at IS NOT NULL").
		Count(ctx)
	if err != nil {
		return 0, fmt.Errorf("count awake boxes: %w", err)
	}
	return int(n), nil
}

// NudgeUnlike has the settler look at a box whose provider tells that it is now in state, where the row says otherwise and
// nobody works on it; false when the row agrees or is not ours to look at.
func (s *Store) NudgeUnlike(ctx context.Context, boxID uuid.UUID, state Observed) (bool, error) {
	nudged := false
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		n, err := affected(tx.NewUpdate().Model((*Sandbox)(nil)).
			Set("next_step_at = ?", now).
			Where("id = ?", boxID).
			Where("observed NOT IN (?)", bun.List([]Observed{state, SeenDeleted})).
			Where("lease_until IS NULL OR lease_until <= ?", now).
			Where("next_step_at IS NULL OR next_step_at > ?", now).
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("nudge box %s: %w", boxID, err)
		}
		nudged = n == 1
		return nil
	})
	return nudged, err
}
