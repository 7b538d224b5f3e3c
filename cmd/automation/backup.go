package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"automation/config"
	"automation/models"
)

func newBackup(io Streams) *cobra.Command {
	return &cobra.Command{
		Use: "backup FOLDER", Short: "Copy the SQLite database, the keys and the stored files into a new folder, also while serve runs",
		Args: cobra.ExactArgs(1),
		Long: "Copies what cannot be made again into a new folder: the database as it is at one moment, the keys of the data folder and\n" +
			"the stored files. Boxes are not copied. docs/OPERATIONS.md says how to restore it. PostgreSQL has its own tools.",
		Example: "  automation backup /var/backups/automation-2026-12-24",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			cfg, err := config.Load(io.Env)
			if err != nil {
				return err
			}
			if err := backup(ctx, cfg, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintln(io.Out, args[0])
			return err
		},
	}
}

// databaseFile is the name of the SQLite file in the data folder and in a backup.
const databaseFile = "automation.db"

// backup copies what is needed to go on elsewhere into folder, which must not be there yet. Files that rows name are copied
// after the rows, so that none is missing but what was removed meanwhile.
func backup(ctx context.Context, cfg config.Config, folder string) error {
	path := cfg.Database.SQLitePath()
	if path == "" {
		return usageError{errors.New("the database is PostgreSQL: use pg_dump, and copy " + cfg.Storage.BlobDir)}
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	if err := os.Mkdir(folder, 0o700); errors.Is(err, fs.ErrExist) {
		return usageError{fmt.Errorf("%s is there already: want the name of a new folder", folder)}
	} else if err != nil {
		return err
	}
	store, err := models.OpenReadOnly(ctx, cfg.Database.DSN.Reveal())
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	whole, err := filepath.Abs(filepath.Join(folder, databaseFile))
	if err != nil {
		return err
	}
	if err := errors.Join(store.Backup(ctx, whole), os.Chmod(whole, 0o600)); err != nil {
		return err
	}
	for _, name := range []string{secretKeyFile, apiKeyFile, "location"} {
		if err := copyFile(filepath.Join(cfg.Storage.DataDir, name), filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(cfg.Storage.BlobDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.CopyFS(filepath.Join(folder, "blobs"), os.DirFS(cfg.Storage.BlobDir))
}

// copyFile copies a small file, for its owner alone; one that is not there is passed over.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}
