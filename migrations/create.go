package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/lib/pq"
)

// CreateDatabase creates the PostgreSQL database that dsn names, through the database "postgres" of the same server; nil
// when it is there (AUTOMATION_CREATE_DATABASE_IF_MISSING).
func CreateDatabase(ctx context.Context, dsn string) error {
	target, err := url.Parse(dsn)
	if err != nil {
		return errors.New("create the database: its URL cannot be read")
	}
	name := strings.TrimPrefix(target.Path, "/")
	target.Path = "/postgres"
	db, err := sql.Open("postgres", target.String())
	if err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	defer db.Close()
	var there bool
	if err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
		return fmt.Errorf("look for database %q: %w", name, err)
	}
	if there {
		return nil
	}
	_, err = db.ExecContext(ctx, "CREATE DATABASE "+pq.QuoteIdentifier(name))
	var refused *pq.Error
	if errors.As(err, &refused) && (refused.Code == "42P04" || refused.Code == "23505") { // another process was first
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
	}
	return nil
}
