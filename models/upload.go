package models

import (
	"context"
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
func (s *Store) CreateUpload(ctx context.Context, u *Upload) error { panic("unwritten") }

// UpdateUpload writes status, error_message and size_bytes.
func (s *Store) UpdateUpload(ctx context.Context, u *Upload) error { panic("unwritten") }

// Upload returns an upload of the organization, deleted ones too; ErrNotFound.
func (s *Store) Upload(ctx context.Context, orgID, id uuid.UUID) (*Upload, error) {
	panic("unwritten")
}

// ListUploads returns a page of the user's live uploads, newest first, and the total; status "" means all.
func (s *Store) ListUploads(ctx context.Context, orgID, userID uuid.UUID, status UploadStatus, limit, offset int) ([]*Upload, int, error) {
	panic("unwritten")
}

// DeleteUpload soft-deletes; the caller removes the blob before.
func (s *Store) DeleteUpload(ctx context.Context, id uuid.UUID) error { panic("unwritten") }
