package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// Location returns the UUID of the data directory, which is the location of boxes that can only be reached from it
// (Capabilities.Placed). It is made at the first call and kept in the file "location"; callers that race get the same one.
func Location(dataDir string) (uuid.UUID, error) {
	path := filepath.Join(dataDir, "location")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeLocation(dataDir, path); err != nil {
			return uuid.Nil, err
		}
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read location: %w", err)
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return uuid.Nil, fmt.Errorf("%s: %w", path, err)
	}
	return id, nil
}

// makeLocation links a finished file into place, so that nobody reads half of one and the first writer wins.
func makeLocation(dataDir, path string) error {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	f, err := os.CreateTemp(dataDir, ".location-*")
	if err != nil {
		return fmt.Errorf("make location: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(uuid.NewString() + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make location: %w", err)
	}
	return nil
}
