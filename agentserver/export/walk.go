package export

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
)

// walk calls f for a directory and everything beneath it, in the order of the names, which may be any bytes (fs.WalkDir wants
// UTF-8). It follows no link. What cannot be read is left out. f returns fs.SkipDir to leave out what is beneath a directory.
func walk(ctx context.Context, root *os.Root, name string, entry fs.DirEntry, f func(name string, entry fs.DirEntry) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f(name, entry)
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	if err != nil || !entry.IsDir() {
		return err
	}
	dir, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil //nolint:nilerr // left out
	}
	entries, _ := dir.ReadDir(-1) // what could be read
	_ = dir.Close()               // only read from
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, below := range entries {
		if err := walk(ctx, root, path.Join(name, below.Name()), below, f); err != nil {
			return err
		}
	}
	return nil
}

// walkAll walks the whole of a root, which is "." itself.
func walkAll(ctx context.Context, root *os.Root, f func(name string, entry fs.DirEntry) error) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	return walk(ctx, root, ".", fs.FileInfoToDirEntry(info), f)
}
