package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"automation/blob"
	"automation/blob/blobtest"
)

// store is what every kind of store does.
type store interface {
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	Open(ctx context.Context, key string) (io.ReadCloser, error)
	Delete(ctx context.Context, key string) error
}

// each runs test on every kind of store; keys lists what it holds.
func each(t *testing.T, test func(t *testing.T, s store, keys func() []string)) {
	t.Helper()
	t.Run("folder", func(t *testing.T) {
		dir := t.TempDir()
		test(t, open(t, dir), func() []string { return files(t, dir) })
	})
	t.Run("S3", func(t *testing.T) {
		played := blobtest.NewS3(t)
		test(t, openS3(t, played), played.Keys)
		require.Zero(t, played.Unfinished(), "no parts are left behind")
	})
}

func openS3(t *testing.T, played *blobtest.S3, edit ...func(*blob.S3Config)) *blob.S3 {
	t.Helper()
	s, err := blob.OpenS3(t.Context(), config(t, played, edit...))
	require.NoError(t, err)
	return s
}

func config(t *testing.T, played *blobtest.S3, edit ...func(*blob.S3Config)) blob.S3Config {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := blob.S3Config{
		Endpoint: played.Endpoint(), Bucket: blobtest.Bucket, AccessKey: blobtest.AccessKey, SecretKey: blobtest.SecretKey, Transport: transport,
	}
	for _, change := range edit {
		change(&c)
	}
	return c
}

// large is more than a store sends at once.
var large = strings.Repeat("0123456789abcdef", 20<<20/16)

func TestABlobIsReadAsWritten(t *testing.T) {
	each(t, func(t *testing.T, s store, keys func() []string) {
		for _, content := range []string{"one", "two", "", large} {
			size, err := s.Put(t.Context(), "outputs/a.ndjson", iotest.HalfReader(strings.NewReader(content)))
			require.NoError(t, err)
			require.Equal(t, int64(len(content)), size)
			same := content == read(t, s, "outputs/a.ndjson") // a failure shows no megabytes
			require.True(t, same, "%d bytes", len(content))
		}
		require.Equal(t, []string{"outputs/a.ndjson"}, keys())
	})
}

func TestAMissingBlob(t *testing.T) {
	each(t, func(t *testing.T, s store, _ func() []string) {
		_, err := s.Open(t.Context(), "none")
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.NoError(t, s.Delete(t.Context(), "none"))
		require.NoError(t, s.Delete(t.Context(), "no/such/folder"))

		_, err = s.Put(t.Context(), "uploads/x.tar", strings.NewReader("x"))
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context(), "uploads/x.tar"))
		_, err = s.Open(t.Context(), "uploads/x.tar")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
}

func TestKeysThatLeadElsewhereAreRefused(t *testing.T) {
	each(t, func(t *testing.T, s store, keys func() []string) {
		for _, key := range []string{"", ".", "..", "../x", "a/../../x", "a/../b", "/etc/passwd", "a//b", "a/", "./a", `a\b`, "a\x00b", "a\nb", "c:x", ".partial", ".partial/x", "\xff"} {
			_, err := s.Put(t.Context(), key, strings.NewReader("x"))
			require.ErrorIs(t, err, blob.ErrKey, "%q", key)
			_, err = s.Open(t.Context(), key)
			require.ErrorIs(t, err, blob.ErrKey, "%q", key)
			require.ErrorIs(t, s.Delete(t.Context(), key), blob.ErrKey, "%q", key)
		}
		require.Empty(t, keys())
	})
}

func TestAFailedPutLeavesWhatWasThere(t *testing.T) {
	for name, begin := range map[string]string{"at its start": "half", "after its first part": large} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s store, keys func() []string) {
				_, err := s.Put(t.Context(), "k", strings.NewReader("old"))
				require.NoError(t, err)

				broken := errors.New("connection reset")
				_, err = s.Put(t.Context(), "k", io.MultiReader(strings.NewReader(begin), iotest.ErrReader(broken)))
				require.ErrorIs(t, err, broken)

				ctx, cancel := context.WithCancel(t.Context())
				_, err = s.Put(ctx, "k", io.MultiReader(strings.NewReader(begin), readerFunc(func([]byte) (int, error) {
					cancel()
					return 0, nil
				})))
				require.ErrorIs(t, err, context.Canceled)

				require.Equal(t, "old", read(t, s, "k"))
				require.Equal(t, []string{"k"}, keys())
			})
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestABucketIsCheckedBeforeItIsUsed(t *testing.T) {
	played := blobtest.NewS3(t)
	_, err := blob.OpenS3(t.Context(), config(t, played, func(c *blob.S3Config) { c.AccessKey = "somebody" }))
	require.ErrorContains(t, err, blobtest.Bucket, "the key is not let in")
	played.Drop()
	_, err = blob.OpenS3(t.Context(), config(t, played))
	require.ErrorIs(t, err, fs.ErrNotExist)
	s := openS3(t, played, func(c *blob.S3Config) { c.CreateBucket = true })
	_, err = s.Put(t.Context(), "k", strings.NewReader("x"))
	require.NoError(t, err)
}

func TestAStoreThatFailsForAMomentIsAskedAgainAndOneThatFailsSaysSo(t *testing.T) {
	played := blobtest.NewS3(t)
	s := openS3(t, played)
	failures := 1
	played.Fail(func(r *http.Request) int {
		if failures--; failures >= 0 && r.Method == http.MethodGet {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	_, err := s.Put(t.Context(), "k", bytes.NewReader([]byte("x")))
	require.NoError(t, err)
	failures = 1
	require.Equal(t, "x", read(t, s, "k"))
	played.Fail(func(*http.Request) int { return http.StatusForbidden })
	_, err = s.Open(t.Context(), "k")
	require.Error(t, err)
	require.NotErrorIs(t, err, fs.ErrNotExist)
	require.Error(t, s.Delete(t.Context(), "k"))
}
