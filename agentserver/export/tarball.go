package export

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// manifestName is the file in a tarball that says what is in it.
const manifestName = "archive_manifest.json"

// manifest is the content of that file.
type manifest struct {
	Excludes   []string `json:"excludes"`
	FileCount  int      `json:"file_count"`
	Format     string   `json:"format"`
	Source     string   `json:"source"`
	TotalBytes int64    `json:"total_bytes"`
}

// Tarball writes the regular files and directories of the workspace; links stay out, what cannot be read is left out.
func (w *Workspace) Tarball(ctx context.Context, to io.Writer) error {
	root, err := os.OpenRoot(w.Root)
	if err != nil {
		return fmt.Errorf("tarball: %w", err)
	}
	defer root.Close()
	packed := gzip.NewWriter(to)
	archive := tar.NewWriter(packed)
	about := manifest{Excludes: append([]string{}, w.excludes...), Format: "tar.gz", Source: filepath.Base(w.Root)}
	own := false // the workspace has a file of that name
	err = walkAll(ctx, root, func(name string, d fs.DirEntry) error {
		switch {
		case name != "." && (excluded(name, d.IsDir(), w.excludes) || sensitive(name)):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		size, err := addTo(archive, root, name, path.Join(about.Source, name))
		if !d.IsDir() && err == nil {
			about.FileCount++
			about.TotalBytes += size
			own = own || name == manifestName
		}
		if errors.Is(err, errLeftOut) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tarball: %w", err)
	}
	if !own {
		text, err := json.MarshalIndent(about, "", "  ")
		if err != nil {
			return fmt.Errorf("tarball: %w", err)
		}
		header := &tar.Header{Name: path.Join(about.Source, manifestName), Mode: 0o644, Size: int64(len(text)), Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("tarball: %w", err)
		}
		if _, err := archive.Write(text); err != nil {
			return fmt.Errorf("tarball: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), packed.Close()); err != nil {
		return fmt.Errorf("tarball: %w", err)
	}
	return nil
}

var errLeftOut = errors.New("left out")

// addTo adds one file or directory. Its size is that of the open file: what is written to it meanwhile is cut or filled up, so
// that the archive stays whole.
func addTo(archive *tar.Writer, root *os.Root, name, as string) (int64, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, errLeftOut
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		return 0, errLeftOut
	}
	header := &tar.Header{Name: as, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX, Typeflag: tar.TypeDir}
	if info.IsDir() {
		header.Name += "/"
		return 0, archive.WriteHeader(header)
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return 0, err
	}
	_, err = io.CopyN(archive, io.MultiReader(file, zeros{}), info.Size())
	return info.Size(), err
}

// zeros is a reader that never ends.
type zeros struct{}

// Read fills p with zeros.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// excluded reports whether a path matches a pattern, by the same rules as pathSpecs.
func excluded(name string, dir bool, patterns []string) bool {
	parts := strings.Split(name, "/")
	for _, pattern := range patterns {
		wanted := strings.Split(strings.TrimRight(pattern, "/"), "/")
		only := strings.HasSuffix(pattern, "/")
		for from := range parts {
			if len(wanted) > 1 && from > 0 {
				break
			}
			for i, part := range wanted {
				if from+i >= len(parts) {
					break
				}
				if match, _ := path.Match(part, parts[from+i]); !match {
					break
				}
				last := from+i == len(parts)-1
				if i == len(wanted)-1 && (!only || dir || !last) {
					return true
				}
			}
		}
	}
	return false
}

// sensitive reports whether a file of git holds addresses with logins; none is exported, whatever was asked for.
func sensitive(name string) bool {
	parts := strings.Split(name, "/")
	at := slices.Index(parts, ".git")
	if at < 0 || at == len(parts)-1 {
		return false
	}
	inside := parts[at+1:]
	return slices.Contains(inside, "logs") || slices.Contains([]string{
		"config", "config.worktree", "credentials", ".git-credentials", "FETCH_HEAD",
	}, inside[len(inside)-1])
}
