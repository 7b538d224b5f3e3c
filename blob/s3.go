package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	// partBytes is how much of a blob is held in memory and sent at once. Smaller blobs are one request.
	partBytes = 16 << 20
	// metaWithin bounds a call that moves no content.
	metaWithin = 30 * time.Second
	// tries is how often a request is sent before its failure is told.
	tries = 3
)

// S3Config is where a bucket is and who may use it.
type S3Config struct {
	Endpoint     string // host, and port where it is not the usual one
	Secure       bool   // https
	Region       string // "": asked for
	Bucket       string
	CreateBucket bool // where it is missing
	// AccessKey and SecretKey; both empty: the role of the machine.
	AccessKey, SecretKey string
	Transport            http.RoundTripper // nil: the library's
}

// S3 keeps blobs as objects of one bucket. An object is there whole or not at all, which is the service's promise; what was
// sent in parts is joined by its last request.
type S3 struct {
	core   *minio.Core
	bucket string
}

// OpenS3 checks that the bucket is there and may be used.
func OpenS3(ctx context.Context, c S3Config) (*S3, error) {
	who := credentials.NewStaticV4(c.AccessKey, c.SecretKey, "")
	if c.AccessKey == "" {
		who = credentials.NewIAM("")
	}
	core, err := minio.NewCore(c.Endpoint, &minio.Options{
		Creds: who, Secure: c.Secure, Region: c.Region, Transport: c.Transport, MaxRetries: tries,
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s at %s: %w", c.Bucket, c.Endpoint, err)
	}
	ctx, cancel := context.WithTimeout(ctx, metaWithin)
	defer cancel()
	there, err := core.BucketExists(ctx, c.Bucket)
	if err == nil && !there {
		if !c.CreateBucket {
			return nil, fmt.Errorf("bucket %s at %s: %w", c.Bucket, c.Endpoint, fs.ErrNotExist)
		}
		err = core.MakeBucket(ctx, c.Bucket, minio.MakeBucketOptions{Region: c.Region})
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s at %s: %w", c.Bucket, c.Endpoint, err)
	}
	return &S3{core: core, bucket: c.Bucket}, nil
}

// Close ends the use of the bucket.
func (*S3) Close() error { return nil }

// Put stores what r gives under key, in place of what was there, and returns its size in bytes. After an error, or when ctx
// ends first, what was there is unchanged.
func (s *S3) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if err := check(key); err != nil {
		return 0, err
	}
	r = reader{ctx, r}
	var head bytes.Buffer
	n, err := io.CopyN(&head, r, partBytes)
	options := minio.PutObjectOptions{PartSize: partBytes, DisableMultipart: errors.Is(err, io.EOF)}
	body, size := io.Reader(&head), n
	switch {
	case err == nil: // there may be more
		body, size = io.MultiReader(&head, r), -1
	case !errors.Is(err, io.EOF):
		return 0, fmt.Errorf("put blob %s: %w", key, err)
	}
	done, err := s.core.Client.PutObject(ctx, s.bucket, key, body, size, options)
	if err != nil {
		s.abandon(ctx, key, size)
		return 0, fmt.Errorf("put blob %s: %w", key, err)
	}
	return done.Size, nil
}

// abandon removes the parts of a blob that was not finished: they would be kept, and paid for, unseen.
func (s *S3) abandon(ctx context.Context, key string, size int64) {
	if size >= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), metaWithin)
	defer cancel()
	_ = s.core.RemoveIncompleteUpload(ctx, s.bucket, key) // else the bucket's own rule for old parts takes them
}

// Open returns a reader of the blob; fs.ErrNotExist where there is none.
func (s *S3) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := check(key); err != nil {
		return nil, err
	}
	body, _, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", key, missing(err))
	}
	return body, nil
}

// Delete removes the blob. One that is not there is no error.
func (s *S3) Delete(ctx context.Context, key string) error {
	if err := check(key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, metaWithin)
	defer cancel()
	err := missing(s.core.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{}))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete blob %s: %w", key, err)
	}
	return nil
}

// missing makes the service's word for an object that is not there the one that callers look for.
func missing(err error) error {
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
