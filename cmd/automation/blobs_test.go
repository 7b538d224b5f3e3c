package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/blob/blobtest"
)

func bucketEnv(bucket *blobtest.S3) []string {
	return []string{
		"FILE_STORE=s3", "AWS_S3_BUCKET=" + blobtest.Bucket, "AWS_S3_ENDPOINT=http://" + bucket.Endpoint(), "AWS_S3_SECURE=false",
		"AWS_ACCESS_KEY_ID=" + blobtest.AccessKey, "AWS_SECRET_ACCESS_KEY=" + blobtest.SecretKey,
	}
}

func TestBlobsGoToTheBucketThatIsConfigured(t *testing.T) {
	bucket := blobtest.NewS3(t)
	app := startService(t, bucketEnv(bucket)...)
	c := newClient(app.apiURL(), scriptKey)
	defer c.close()
	_, err := c.upload(t.Context(), "run.sh", "echo hi")
	require.NoError(t, err)
	require.Len(t, bucket.Keys(), 1)
	require.NoDirExists(t, app.config.Storage.BlobDir)
}

func TestTheDoctorLooksAtTheBucket(t *testing.T) {
	bucket := blobtest.NewS3(t)
	look := func() string {
		var out, said bytes.Buffer
		env := append(bucketEnv(bucket), "HOME="+t.TempDir(), "AUTOMATION_DATA_DIR="+t.TempDir(), "AWS_S3_AUTO_CREATE_BUCKET=true")
		Main(context.Background(), []string{"doctor"}, Streams{Env: env, Out: &out, Err: &said})
		return out.String()
	}
	require.Regexp(t, `(?m)^ok +bucket +blobs at 127`, look())
	bucket.Drop()
	require.Regexp(t, `(?m)^fail +bucket `, look())
	require.Regexp(t, `(?m)^fail +bucket `, look(), "it makes none")
}
