package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/google/uuid"
	"golang.org/x/text/unicode/norm"

	"automation/models"
)

// internalScheme starts the paths of tarballs that were uploaded here.
const internalScheme = "oh-internal://"

// largestUpload is the contract's limit, in bytes.
const largestUpload = 1 << 20

// uploadKinds are the content types of a tarball.
var uploadKinds = []string{
	"application/gzip", "application/octet-stream", "application/x-compressed-tar", "application/x-gzip", "application/x-tar",
}

// The parameters of the routes of uploads.
var (
	uploadForm = []field{
		{name: "name", required: true, rule: text(1, 255)},
		{name: "description", rule: text(0, 2000)},
	}
	uploadQuery = append(slices.Clone(paging), field{name: "status", rule: oneOf("enum",
		string(models.UploadUploading), string(models.UploadCompleted), string(models.UploadFailed))})
)

type uploadList struct {
	Uploads []uploadObject `json:"uploads"`
	Total   int            `json:"total"`
}

const noUpload = "Upload not found"

// createUpload is POST /v1/uploads (contract section 2.6). The body is read first, so that one that breaks off leaves nothing;
// then the row comes before the file, so that a file never lies in the store without one.
func (s *server) createUpload(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, uploadForm...)
	if err := c.err(); err != nil {
		return err
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !slices.Contains(uploadKinds, strings.ToLower(strings.TrimSpace(kind))) {
		return unsupportedMedia("Content-Type must be one of: " + strings.Join(uploadKinds, ", "))
	}
	if r.ContentLength > largestUpload {
		return tooLarge(fmt.Sprintf("File too large. Maximum size is %d bytes", largestUpload))
	}
	content, err := s.readBody(w, r, largestUpload)
	big := new(http.MaxBytesError)
	if err != nil && !errors.As(err, &big) {
		return err
	}
	u := newUpload(who, get[string](in, "name"))
	u.Description = opt[string](in, "description")
	if err != nil { // longer than its header said
		message := fmt.Sprintf("File size exceeds limit of %d bytes", largestUpload)
		u.Status, u.ErrorMessage = models.UploadFailed, &message
	}
	if err := s.Store.CreateUpload(r.Context(), u); err != nil {
		return err
	}
	if u.Status != models.UploadFailed {
		if err := s.storeUpload(r.Context(), u, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return created(w, s.showUpload(u))
}

// storeUpload stores the file and then says so in the row, which is written even when the caller has gone.
func (s *server) storeUpload(ctx context.Context, u *models.Upload, content io.Reader) error {
	size, err := s.Blob.Put(ctx, u.BlobKey, content)
	if err == nil {
		u.Status, u.SizeBytes = models.UploadCompleted, &size
	} else {
		message := "The file could not be stored"
		u.Status, u.ErrorMessage = models.UploadFailed, &message
	}
	if writeErr := s.Store.UpdateUpload(context.WithoutCancel(ctx), u); writeErr != nil {
		return writeErr
	}
	if err != nil {
		return fmt.Errorf("store upload %s: %w", u.ID, err)
	}
	return nil
}

// listUploads is GET /v1/uploads: the caller's own.
func (s *server) listUploads(w http.ResponseWriter, r *http.Request, who Caller) error {
	var c check
	in := c.query(r, uploadQuery...)
	if err := c.err(); err != nil {
		return err
	}
	limit, offset := page(in)
	status := models.UploadStatus(get[string](in, "status"))
	found, total, err := s.Store.ListUploads(r.Context(), who.OrgID, who.UserID, status, limit, offset)
	if err != nil {
		return err
	}
	list := make([]uploadObject, 0, len(found))
	for _, u := range found {
		list = append(list, s.showUpload(u))
	}
	return ok(w, uploadList{list, total})
}

// upload reads the caller's own upload named in the path.
func (s *server) upload(r *http.Request, who Caller) (*models.Upload, error) {
	var c check
	id := c.pathID(r, "upload_id")
	if err := c.err(); err != nil {
		return nil, err
	}
	u, err := s.Store.Upload(r.Context(), who.OrgID, id)
	if err != nil {
		return nil, as404(err, noUpload)
	}
	if u.UserID != who.UserID || u.DeletedAt != nil {
		return nil, notFound(noUpload)
	}
	return u, nil
}

// getUpload is GET /v1/uploads/{id}.
func (s *server) getUpload(w http.ResponseWriter, r *http.Request, who Caller) error {
	u, err := s.upload(r, who)
	if err != nil {
		return err
	}
	return one(w, r, s.showUpload(u))
}

// deleteUpload is DELETE /v1/uploads/{id}: the file first, then the row.
func (s *server) deleteUpload(w http.ResponseWriter, r *http.Request, who Caller) error {
	u, err := s.upload(r, who)
	if err == nil {
		err = s.Blob.Delete(r.Context(), u.BlobKey)
	}
	if err == nil {
		err = as404(s.Store.DeleteUpload(r.Context(), u.ID), noUpload)
	}
	if err != nil {
		return err
	}
	return noContent(w)
}

// internalUpload finds the upload that a tarball path names, deleted ones too, within the organization.
func (s *server) internalUpload(ctx context.Context, orgID uuid.UUID, path string) (*models.Upload, error) {
	id, err := uuid.Parse(strings.TrimPrefix(path, internalScheme+"uploads/"))
	if err != nil {
		return nil, unprocessable("Invalid internal upload URL format. Expected: oh-internal://uploads/{uuid}")
	}
	u, err := s.Store.Upload(ctx, orgID, id)
	return u, as404(err, noUpload)
}

// streamFile sends a tarball under the automation's name.
func streamFile(w http.ResponseWriter, file io.Reader, name string) error {
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Content-Disposition", disposition(name))
	_, err := io.Copy(w, file)
	return err
}

// disposition names the download: what a header or a file system would misread is left out, and a name beyond ASCII is given
// twice, plain and encoded.
func disposition(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || strings.ContainsRune(`"\/`, r) {
			return -1
		}
		return r
	}, name)
	plain := strings.TrimSpace(strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return -1
		}
		return r
	}, norm.NFKD.String(name)))
	if plain == "" {
		plain = "automation"
	}
	value := `attachment; filename="` + plain + `.tar"`
	if plain != name {
		value += "; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(name+".tar"), "+", "%20")
	}
	return value
}
