// Package filetree removes the files of a box from this host, whatever is in them: for backends whose boxes keep theirs here.
package filetree

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

// Remove deletes an entry of dir, whatever it is; one that is not there is no error. Names in last are removed after their
// siblings, in this order, so that a removal that is cut short still shows whose files they were.
func Remove(ctx context.Context, dir, name string, last ...string) error {
	points, err := mountsBelow(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("remove box: %s is a mount point, unmount it first", points[0])
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("remove box: %w", err)
	}
	defer root.Close()
	return sweep{ctx: ctx, last: last}.remove(root, name)
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
	err = dir.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remove box: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrNotExist) { // removed by another Delete
		return nil, fmt.Errorf("remove box: %w", err)
	}
	return names, nil
}
