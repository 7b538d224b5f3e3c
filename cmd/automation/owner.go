package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"automation/config"
	"automation/migrations"
)

// errOwned means that another process owns the SQLite file.
var errOwned = errors.New("another process owns the database")

const (
	ownerWait = 10 * time.Second       // a restart overlaps with the process it replaces
	ownerPoll = 100 * time.Millisecond // a file lock has no event to wait for
)

// own takes the SQLite file for the life of this process (design: one process owns a SQLite file) and returns how to give
// it back. The error is errOwned, naming the owner's process id.
func own(ctx context.Context, path string) (release func() error, err error) {
	file := path + ".owner.lock"
	lock := flock.New(file)
	ctx, cancel := context.WithTimeout(ctx, ownerWait)
	defer cancel()
	held, err := lock.TryLockContext(ctx, ownerPoll)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	if !held {
		pid, _ := os.ReadFile(file) // the owner wrote it; without it the name of the file must do
		return nil, fmt.Errorf("%w %s: process %s", errOwned, path, strings.TrimSpace(string(pid)))
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", file, err), lock.Unlock())
	}
	return lock.Unlock, nil
}

// prepareDatabase makes what must be there before the schema: the folder of a SQLite file, or, where configured, the database.
func prepareDatabase(ctx context.Context, db config.Database) error {
	if path := db.SQLitePath(); path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("make the folder of the database: %w", err)
		}
		return nil
	}
	if !db.CreateIfMissing {
		return nil
	}
	return migrations.CreateDatabase(ctx, db.DSN.Reveal())
}
