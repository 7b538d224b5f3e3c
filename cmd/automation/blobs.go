package main

import (
	"context"
	"path/filepath"

	"automation/blob"
	"automation/config"
	"automation/sandbox"
)

// blobStore keeps uploads, run outputs and exports.
type blobStore interface {
	sandbox.ExportBlobs
	Close() error
}

// stagingFolder, in the data folder, is where exports are checked before they are stored.
const stagingFolder = "staging"

// openBlobs opens the store of blobs, and what takes exports to it.
func (a *App) openBlobs(ctx context.Context) (err error) {
	if a.blobs, err = openStore(ctx, a.config.Storage); err != nil {
		return err
	}
	a.onClose(a.blobs.Close)
	a.exports, err = sandbox.NewExporter(sandbox.ExporterConfig{
		Store: a.store, Blobs: a.blobs, Staging: filepath.Join(a.config.Storage.DataDir, stagingFolder),
	})
	return err
}

// openStore opens the folder or the bucket that the settings name.
func openStore(ctx context.Context, s config.Storage) (blobStore, error) {
	if !s.InBucket() {
		return blob.Open(s.BlobDir)
	}
	return blob.OpenS3(ctx, blob.S3Config{
		Endpoint: s.Endpoint, Secure: s.Secure, Region: s.Region, Bucket: s.Bucket, CreateBucket: s.CreateBucket,
		AccessKey: s.AccessKey.Reveal(), SecretKey: s.SecretKey.Reveal(),
	})
}

var (
	_ blobStore = (*blob.Folder)(nil)
	_ blobStore = (*blob.S3)(nil)
)
