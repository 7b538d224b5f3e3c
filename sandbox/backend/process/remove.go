package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// remove deletes the box's directory: everything else first, its record last, so that a removal that is cut short still
// shows whose box it was. Nothing of the box runs any more.
func (x box) remove(ctx context.Context) error {
	points, err := mountsBelow(x.dir)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("remove box: %s is a mount point, unmount it first", points[0])
	}
	boxes, err := os.OpenRoot(filepath.Dir(x.dir))
	if err != nil {
		return fmt.Errorf("remove box: %w", err)
	}
	defer boxes.Close()
	return sweep{ctx: ctx, last: []string{"control", lockFile, recordFile}}.remove(boxes, filepath.Base(x.dir))
}

// removeIn deletes an entry of dir, whatever it is; one that is not there is no error.
func removeIn(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	defer root.Close()
	return sweep{ctx: context.Background()}.remove(root, name)
}

// sweep deletes by directory handles: it never follows a link and never leaves the root it began in.
type sweep struct {
	ctx  context.Context
	last []string // names that are removed after their siblings, in this order
}

// remove deletes the entry of dir, and goes on past what it cannot delete to free what is beside it.
func (s sweep) remove(dir *os.Root, name string) error {
	if err := s.ctx.Err(); err != nil {
		return fmt.Errorf("remove box: %w", err)
	}
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove box: %w", err)
	}
	if info.IsDir() {
		if err := s.empty(dir, name, info); err != nil {
			return err
		}
	}
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove box: %w", err)
	}
	return nil
}

// empty deletes what is in a directory; read-only and unreadable ones are made ours to change first.
func (s sweep) empty(dir *os.Root, name string, info fs.FileInfo) error {
	const owner = 0o700
	if mode := info.Mode(); mode.Perm()&owner != owner {
		// Refused where it belongs to somebody else; then opening it decides.
		_ = dir.Chmod(name, mode.Perm()|owner)
	}
	sub, err := dir.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove box: %w", err)
	}
	defer sub.Close()
	if opened, err := sub.Stat("."); err != nil || !os.SameFile(info, opened) {
		return errors.Join(fmt.Errorf("remove box: %s was replaced meanwhile", name), err)
	}
	names, err := readNames(sub)
	if err != nil {
		return err
	}
	slices.SortStableFunc(names, func(a, b string) int { return slices.Index(s.last, a) - slices.Index(s.last, b) })
	var failed error
	for _, n := range names {
		if err := s.remove(sub, n); err != nil && failed == nil {
			failed = err // one is told of; thousands would say no more
		}
	}
	return failed
}

// readNames lists a directory by its handle.
func readNames(dir *os.Root) ([]string, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, fmt.Errorf("remove box: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("remove box: %w", err)
	}
	return names, nil
}
