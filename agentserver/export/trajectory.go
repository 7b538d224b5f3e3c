package export

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// longest bounds one file of a history, in bytes: it is read whole to be redacted.
const longest = 256 << 20

// ErrTooLarge means that one file of a history is beyond all measure.
var ErrTooLarge = errors.New("file too large to export")

// Trajectory writes the history in a conversation's directory as a zip of `<name>/…` without secrets; what a server is just
// writing and what another kind of agent keeps for itself (acp) stays out. The caller closes the directory.
func Trajectory(ctx context.Context, w io.Writer, dir *os.Root, name string, redactor *Redactor) error {
	entries, err := entriesOf(ctx, dir)
	if err != nil {
		return fmt.Errorf("export history: %w", err)
	}
	for _, e := range entries { // all before the first, so that what one file calls a secret is hidden in every other
		if text, err := e.read(ctx, dir); err == nil && e.isJSON() {
			redactor.Learn(text)
		}
	}
	archive := zip.NewWriter(w)
	for _, e := range entries {
		err := e.write(ctx, archive, dir, name, redactor)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // taken away meanwhile
			return fmt.Errorf("export history: %s: %w", e.path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("export history: %w", err)
	}
	return nil
}

// trajectoryEntry is a file or directory of a history.
type trajectoryEntry struct {
	path     string // "." is the conversation itself
	dir      bool
	modified time.Time
}

func (e trajectoryEntry) isJSON() bool {
	return strings.HasSuffix(e.path, ".json") || strings.HasSuffix(e.path, ".jsonl")
}

// entriesOf lists what is exported: ordinary files and the directories that they lie in.
func entriesOf(ctx context.Context, dir *os.Root) (all []trajectoryEntry, err error) {
	err = walkAll(ctx, dir, func(name string, d fs.DirEntry) error {
		switch {
		case name == "acp" && d.IsDir():
			return fs.SkipDir
		case strings.HasSuffix(name, ".tmp"), !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, trajectoryEntry{name, d.IsDir(), info.ModTime()})
		}
		return nil
	})
	return all, err
}

// read reads a file whole. A directory has no text.
func (e trajectoryEntry) read(ctx context.Context, dir *os.Root) ([]byte, error) {
	if e.dir || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	file, err := dir.OpenFile(e.path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fs.ErrNotExist
	case info.Size() > longest:
		return nil, ErrTooLarge
	}
	return io.ReadAll(io.LimitReader(file, longest))
}

func (e trajectoryEntry) write(ctx context.Context, archive *zip.Writer, dir *os.Root, name string, redactor *Redactor) error {
	text, err := e.read(ctx, dir)
	if err != nil {
		return err
	}
	header := &zip.FileHeader{Name: path.Join(name, e.path), Method: zip.Deflate, Modified: e.modified}
	if e.dir {
		header.Name, header.Method = header.Name+"/", zip.Store
	}
	to, err := archive.CreateHeader(header)
	if err != nil || e.dir {
		return err
	}
	if e.isJSON() {
		text = redactor.JSON(text)
	} else {
		text = []byte(redactor.Text(string(text)))
	}
	_, err = to.Write(text)
	return err
}
