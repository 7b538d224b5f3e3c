// Package migrations holds the schema of the service as numbered steps, one pair of files a dialect, and moves a database
// between them. Steps are golang-migrate's; what it lacks is added here: a lock between processes on SQLite, refusals before
// anything is touched, and a repair that looks at the tables instead of guessing.
package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

//go:embed sqlite/*.sql postgres/*.sql
var files embed.FS

// Errors that callers decide on. The commands named in them are the way out.
var (
	// ErrForeign means that the database belongs to the Python service: it is never touched.
	ErrForeign = errors.New("the database belongs to the Python service (alembic_version is there, schema_migrations is not): give this service a database of its own")
	// ErrMissing means that there is no schema yet.
	ErrMissing = errors.New("the database has no schema: run `automation migrate up`")
	// ErrOld means that steps are missing.
	ErrOld = errors.New("the schema is older than this program: run `automation migrate up`")
	// ErrNewer means that the schema is more than one step ahead of this program, which is more than it can serve.
	ErrNewer = errors.New("the schema is newer than this program can serve: run a newer one")
	// ErrDirty means that a step was cut short, or its end not recorded.
	ErrDirty = errors.New("a migration did not finish: run `automation migrate repair`, then `automation migrate up`")
)

// lockWait is how long a migration waits for another process that migrates.
const lockWait = 5 * time.Minute

// Up brings a database to the newest version; nil when it is there, or one version ahead. dsn is as for models.Open. Any
// number of processes may call it at once. ErrForeign, ErrNewer, ErrDirty.
func Up(ctx context.Context, dsn string) error {
	return change(ctx, dsn, func(st State, m *migrate.Migrate) error {
		if st.Version > st.Latest {
			return st.Err()
		}
		return m.Up()
	})
}

// Down takes a database back to version to; 0 leaves nothing but an empty schema_migrations. ErrForeign, ErrMissing, ErrNewer
// and ErrDirty; an error also when to lies ahead.
func Down(ctx context.Context, dsn string, to uint) error {
	return change(ctx, dsn, func(st State, m *migrate.Migrate) error {
		switch {
		case st.Version == 0:
			return ErrMissing
		case st.Version > st.Latest:
			return fmt.Errorf("%w (it is at version %d, the newest known here is %d)", ErrNewer, st.Version, st.Latest)
		case to > st.Version:
			return fmt.Errorf("version %d lies ahead: the schema is at %d", to, st.Version)
		case to == 0:
			return m.Down()
		default:
			return m.Migrate(to)
		}
	})
}

// Repair takes the dirty mark from a database whose last step was cut short. A step is one transaction, so the tables are
// those of exactly one version: Repair finds which, and records it. It changes no table. The returned State is the one after.
func Repair(ctx context.Context, dsn string) (st State, err error) {
	err = locked(ctx, dsn, func(t *target) (err error) {
		st, err = t.repair(ctx)
		return err
	})
	return st, err
}

func (t *target) repair(ctx context.Context) (st State, err error) {
	if err := t.refuseForeign(ctx); err != nil {
		return st, err
	}
	driver, err := t.driver()
	if err != nil {
		return st, err
	}
	defer func() { _ = driver.Close() }()
	if err := driver.Lock(); err != nil {
		return st, fmt.Errorf("lock the database: %w", err)
	}
	defer func() { err = errors.Join(err, driver.Unlock()) }()
	st, err = t.state(ctx)
	if err != nil || !st.Dirty {
		return st, err
	}
	version, err := t.matching(ctx, st.Latest)
	if err != nil {
		return st, err
	}
	recorded := int(version)
	if version == 0 {
		recorded = database.NilVersion
	}
	if err := driver.SetVersion(recorded, false); err != nil {
		return st, fmt.Errorf("record version %d: %w", version, err)
	}
	st.Version, st.Dirty = version, false
	return st, nil
}

// change runs one golang-migrate operation under the lock.
func change(ctx context.Context, dsn string, operate func(State, *migrate.Migrate) error) error {
	return locked(ctx, dsn, func(t *target) error {
		if err := t.refuseForeign(ctx); err != nil {
			return err
		}
		driver, err := t.driver()
		if err != nil {
			return err
		}
		defer func() { _ = driver.Close() }()
		st, err := t.state(ctx)
		if err != nil {
			return err
		}
		source, err := iofs.New(files, t.dialect)
		if err != nil {
			return fmt.Errorf("read the steps: %w", err)
		}
		m, err := migrate.NewWithInstance("iofs", source, t.dialect, driver)
		if err != nil {
			return fmt.Errorf("prepare the migration: %w", err)
		}
		m.LockTimeout = lockWait
		stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
		defer stop()
		return translate(operate(st, m))
	})
}

// translate maps golang-migrate's errors to ours. Whether a database is dirty is only known once its lock is held, for a
// migration under way elsewhere looks the same.
func translate(err error) error {
	var dirty migrate.ErrDirty
	switch {
	case err == nil, errors.Is(err, migrate.ErrNoChange):
		return nil
	case errors.As(err, &dirty):
		return fmt.Errorf("version %d: %w", dirty.Version, ErrDirty)
	default:
		return fmt.Errorf("migrate: %w", err)
	}
}

// Latest returns the newest version that this program knows.
func Latest() uint {
	steps, err := fs.Glob(files, "sqlite/*.up.sql")
	if err != nil {
		return 0 // only a malformed pattern fails
	}
	return uint(len(steps))
}

// Digest names the schema: it differs wherever a step of any dialect differs.
func Digest() string {
	sum := sha256.New()
	names, err := fs.Glob(files, "*/*.sql")
	if err != nil {
		return "" // only a malformed pattern fails
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return "" // an embedded file that was just listed is there
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}
