package models

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// UploadStatus is the state of an upload (contract section 2.6).
type UploadStatus string

// The states of an upload.
const (
	UploadUploading UploadStatus = "UPLOADING"
	UploadCompleted UploadStatus = "COMPLETED"
	UploadFailed    UploadStatus = "FAILED"
)

// Upload is a row of uploads: a tarball that automations name as oh-internal://uploads/{id}.
type Upload struct {
	bun.BaseModel `bun:"table:uploads,alias:u"`

	ID           uuid.UUID    `bun:"id,pk"`
	UserID       uuid.UUID    `bun:"user_id"`
	OrgID        uuid.UUID    `bun:"org_id"`
	Name         string       `bun:"name"`
	Description  *string      `bun:"description"`
	Status       UploadStatus `bun:"status"`
	ErrorMessage *string      `bun:"error_message"`
	SizeBytes    *int64       `bun:"size_bytes"`
	BlobKey      string       `bun:"blob_key"`
	CreatedAt    time.Time    `bun:"created_at"`
	UpdatedAt    time.Time    `bun:"updated_at"`
	DeletedAt    *time.Time   `bun:"deleted_at"`
}

// CreateUpload inserts u; ID and times are set here when zero.
func (s *Store) CreateUpload(ctx context.Context, u *Upload) error {
	now := s.Now()
	if u.ID == uuid.Nil {
		u.ID = newID()
	}
	if u.CreatedAt.IsZero() {
		u.CreatedAt = now
	}
	if u.UpdatedAt.IsZero() {
		u.UpdatedAt = u.CreatedAt
	}
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		if _, err := tx.NewInsert().Model(u).Exec(ctx); err != nil {
			return fmt.Errorf("create upload %s: %w", u.ID, err)
		}
		return nil
	})
}

// UpdateUpload writes status, error_message and size_bytes, and moves updated_at. ErrNotFound.
func (s *Store) UpdateUpload(ctx context.Context, u *Upload) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		u.UpdatedAt = s.Now()
		return oneUpload(ctx, u.ID, tx.NewUpdate().Model(u).
			Column("status", "error_message", "size_bytes", "updated_at").
			WherePK())
	})
}

// Upload returns an upload of the organization, deleted ones too; ErrNotFound.
func (s *Store) Upload(ctx context.Context, orgID, id uuid.UUID) (*Upload, error) {
	u := new(Upload)
	err := s.db.NewSelect().Model(u).Where("u.id = ?", id).Where("u.org_id = ?", orgID).Scan(ctx)
	if err != nil {
		return nil, notFound(err, "read upload %s", id)
	}
	return u, nil
}

// ListUploads returns a page of the user's live uploads, newest first, and the total; status "" means all.
func (s *Store) ListUploads(ctx context.Context, orgID, userID uuid.UUID, status UploadStatus, limit, offset int) ([]*Upload, int, error) {
	var uploads []*Upload
	q := s.db.NewSelect().Model(&uploads).
		Where("u.org_id = ?", orgID).
		Where("u.user_id = ?", userID).
		Where("u.deleted_at IS NULL")
	if status != "" {
		q = q.Where("u.status = ?", status)
	}
	total, err := q.Count(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("count uploads: %w", err)
	}
	if err := q.OrderExpr("u.created_at DESC, u.id DESC").Limit(int64(limit)).Offset(int64(offset)).Scan(ctx); err != nil {
		return nil, 0, fmt.Errorf("list uploads: %w", err)
	}
	return uploads, int(total), nil
}

// DeleteUpload soft-deletes; the caller removes the blob before. ErrNotFound when it is deleted already.
func (s *Store) DeleteUpload(ctx context.Context, id uuid.UUID) error {
	return s.write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.Now()
		return oneUpload(ctx, id, tx.NewUpdate().Model((*Upload)(nil)).
			Set("deleted_at = ?", now).
			Set("updated_at = ?", now).
			Where("id = ?", id).
			Where("deleted_at IS NULL"))
	})
}

// dropUploadTx soft-deletes an upload that no live automation of its organization names.
func dropUploadTx(ctx context.Context, tx bun.IDB, u *Upload, now time.Time) (removed bool, err error) {
	named := tx.NewSelect().Model((*Automation)(nil)).
		ColumnExpr("1").
		Where("a.org_id = ?", u.OrgID).
		Where("a.tarball_path = ?", "oh-internal://uploads/"+u.ID.String()).
		Where("a.deleted_at IS NULL")
	n, err := affected(tx.NewUpdate().Model((*Upload)(nil)).
		Set("deleted_at = ?", now).
		Set("updated_at = ?", now).
		Where("id = ?", u.ID).
		Where("deleted_at IS NULL").
		Where("NOT EXISTS (?)", named).
		Exec(ctx))
	if err != nil {
		return false, fmt.Errorf("delete upload %s: %w", u.ID, err)
	}
	return n == 1, nil
}

// oneUpload runs an update of one upload.
func oneUpload(ctx context.Context, id uuid.UUID, q *bun.UpdateQuery) error {
	n, err := affected(q.Exec(ctx))
	if err != nil {
		return fmt.Errorf("write upload %s: %w", id, err)
	}
	if n == 0 {
		return fmt.Errorf("upload %s: %w", id, ErrNotFound)
	}
	return nil
}
