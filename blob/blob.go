// Package blob keeps streams of bytes under keys: uploads, outputs of runs, exports. A blob is there whole or not at all. Users
// declare the methods that they need.
package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// ErrKey means that a key is no plain relative path.
var ErrKey = errors.New("not a valid blob key")

const (
	// partial is the folder of what is being written. No key may begin with it.
	partial = ".partial"
	// abandoned is the age at which a partial blob has lost its writer: no upload or export takes that long.
	abandoned = 24 * time.Hour
)

// Folder keeps blobs as files in one folder. Links that lead out of it are not followed.
type Folder struct {
	root *os.Root
}

// Open makes the folder where it is missing (0700), and removes what writers that died have left in it.
func Open(dir string) (*Folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make blob folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open blob folder: %w", err)
	}
	f := &Folder{root: root}
	if err := f.sweep(time.Now().Add(-abandoned)); err != nil {
		return nil, errors.Join(fmt.Errorf("clear partial blobs: %w", err), root.Close())
	}
	return f, nil
}

// Close ends the use of the folder.
func (f *Folder) Close() error { return f.root.Close() }

// Put stores what r gives under key, in place of what was there, and returns its size in bytes. It is on disk when Put
// returns; after an error, or when ctx ends first, what was there is unchanged.
func (f *Folder) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if err := check(key); err != nil {
		return 0, err
	}
	if err := f.root.MkdirAll(path.Dir(key), 0o700); err != nil {
		return 0, fmt.Errorf("put blob %s: %w", key, err)
	}
	temporary := path.Join(partial, rand.Text())
	size, err := f.write(ctx, temporary, r)
	if err == nil {
		err = f.root.Rename(temporary, key)
	}
	if err != nil {
		_ = f.root.Remove(temporary) // else the sweep of the next start takes it
		return 0, fmt.Errorf("put blob %s: %w", key, err)
	}
	for dir := path.Dir(key); ; dir = path.Dir(dir) {
		if err := f.sync(dir); err != nil {
			return 0, fmt.Errorf("put blob %s: %w", key, err)
		}
		if dir == "." {
			return size, nil
		}
	}
}

// Open returns a reader of the blob; fs.ErrNotExist where there is none.
func (f *Folder) Open(_ context.Context, key string) (io.ReadCloser, error) {
	if err := check(key); err != nil {
		return nil, err
	}
	file, err := f.root.Open(key)
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", key, err)
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return nil, fmt.Errorf("open blob %s: %w", key, fs.ErrNotExist)
	}
	return file, nil
}

// Delete removes the blob. One that is not there is no error.
func (f *Folder) Delete(_ context.Context, key string) error {
	if err := check(key); err != nil {
		return err
	}
	if err := f.root.Remove(key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete blob %s: %w", key, err)
	}
	return nil
}

func (f *Folder) write(ctx context.Context, name string, r io.Reader) (int64, error) {
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	size, err := io.Copy(file, reader{ctx, r})
	if err == nil {
		err = file.Sync()
	}
	return size, errors.Join(err, file.Close())
}

// sync makes the names in a folder last.
func (f *Folder) sync(dir string) error {
	d, err := f.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// sweep removes partial blobs last written before then.
func (f *Folder) sweep(then time.Time) error {
	if err := f.root.MkdirAll(partial, 0o700); err != nil {
		return err
	}
	entries, err := fs.ReadDir(f.root.FS(), partial)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.ModTime().After(then) {
			continue
		}
		if err == nil {
			err = f.root.Remove(path.Join(partial, entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// check accepts keys like outputs/<run>.ndjson: relative, clean, without links upwards, control characters or backslashes.
func check(key string) error {
	odd := func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' || c == ':' }
	if !fs.ValidPath(key) || key == "." || key == partial || strings.HasPrefix(key, partial+"/") || strings.IndexFunc(key, odd) >= 0 {
		return fmt.Errorf("%w: %q", ErrKey, key)
	}
	return nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
