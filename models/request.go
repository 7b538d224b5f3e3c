package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// RequestLife is how long a request with an Idempotency-Key is remembered.
const RequestLife = 24 * time.Hour

// Request is a row of requests: one that brought an Idempotency-Key, and what it was answered. The key is its caller's own.
type Request struct {
	bun.BaseModel `bun:"table:requests,alias:q"`

	OrgID       uuid.UUID `bun:"org_id,pk"`
	UserID      uuid.UUID `bun:"user_id,pk"`
	Key         string    `bun:"key,pk"`
	Fingerprint string    `bun:"fingerprint"` // tells another request with the same key
	BegunAt     time.Time `bun:"begun_at"`
	Status      int       `bun:"status"` // of the answer; 0: not known
	ContentType string    `bun:"content_type"`
	Answer      []byte    `bun:"answer"`
}

// BeginRequest remembers r, which begins now, and returns nil; or it returns the request that began with the same key within
// RequestLife, and remembers nothing.
func (s *Store) BeginRequest(ctx context.Context, r *Request) (earlier *Request, err error) {
	err = s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		earlier = nil
		r.BegunAt, r.Status, r.ContentType, r.Answer = s.Now(), 0, "", []byte{}
		n, err := affected(tx.NewInsert().Model(r).
			On("CONFLICT (org_id, user_id, key) DO UPDATE").
			Set("fingerprint = EXCLUDED.fingerprint, begun_at = EXCLUDED.begun_at, status = 0, content_type = '', answer = EXCLUDED.answer").
			Where("q.begun_at <= ?", r.BegunAt.Add(-RequestLife)).
			Exec(ctx))
		if err != nil || n == 1 {
			return err
		}
		earlier = &Request{OrgID: r.OrgID, UserID: r.UserID, Key: r.Key}
		return tx.NewSelect().Model(earlier).WherePK().Scan(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("begin request: %w", err)
	}
	return earlier, nil
}

// AnswerRequest remembers the answer that r has, for the same request sent again.
func (s *Store) AnswerRequest(ctx context.Context, r *Request) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model(r).Column("status", "content_type", "answer").WherePK().Where("begun_at = ?", r.BegunAt).Exec(ctx)
		if err != nil {
			return fmt.Errorf("remember the answer of a request: %w", err)
		}
		return nil
	})
}

// ForgetRequest frees the key of r, which has done nothing.
func (s *Store) ForgetRequest(ctx context.Context, r *Request) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if _, err := tx.NewDelete().Model(r).WherePK().Where("begun_at = ?", r.BegunAt).Exec(ctx); err != nil {
			return fmt.Errorf("forget a request: %w", err)
		}
		return nil
	})
}

// PurgeRequests removes up to limit requests that are past RequestLife. It returns how many went.
func (s *Store) PurgeRequests(ctx context.Context, limit int) (int, error) {
	gone := 0
	err := s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		old := tx.NewSelect().Model((*Request)(nil)).Column("q.org_id", "q.user_id", "q.key").
			Where("q.begun_at <= ?", s.Now().Add(-RequestLife)).OrderExpr("q.begun_at").Limit(int64(limit))
		var err error
		gone, err = affected(tx.NewDelete().Model((*Request)(nil)).
			Where("(org_id, user_id, key) IN (?)", s.lock(old, "UPDATE SKIP LOCKED")).
			Exec(ctx))
		if err != nil {
			return fmt.Errorf("purge requests: %w", err)
		}
		return nil
	})
	return gone, err
}
