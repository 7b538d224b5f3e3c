package config

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// The beginnings of a DSN.
const (
	sqlitePrefix   = "sqlite:"
	postgresPrefix = "postgres://"
)

// errDatabaseURL says what AUTOMATION_DB_URL may be.
var errDatabaseURL = errors.New("want sqlite+aiosqlite:///FILE (four slashes: absolute), or " +
	"postgresql+asyncpg://USER:PASS@HOST:PORT/NAME")

// deriveDatabase applies the rule of which database: PostgreSQL when AUTOMATION_DB_URL says so or any of host, name, user or
// password is set, else a SQLite file in the data folder.
func (c *Config) deriveDatabase(r *reader) {
	d := &c.Database
	switch {
	case d.URL != "":
		dsn, err := databaseDSN(d.URL.Reveal(), d.SSLMode)
		if err != nil {
			r.problem("AUTOMATION_DB_URL", withoutPassword(d.URL.Reveal()), err.Error())
		}
		d.DSN = Secret(dsn)
	case c.IsSet("AUTOMATION_DB_HOST") || c.IsSet("AUTOMATION_DB_NAME") || c.IsSet("AUTOMATION_DB_USER") ||
		c.IsSet("AUTOMATION_DB_PASS"):
		d.DSN = Secret(d.postgresDSN())
	default:
		d.DSN = Secret(sqlitePrefix + filepath.Join(c.Storage.DataDir, "automation.db"))
	}
}

// Postgres reports whether the database is PostgreSQL; otherwise it is SQLite.
func (d Database) Postgres() bool { return strings.HasPrefix(d.DSN.Reveal(), postgresPrefix) }

// SQLitePath is the database file, or "" on PostgreSQL.
func (d Database) SQLitePath() string {
	path, ok := strings.CutPrefix(d.DSN.Reveal(), sqlitePrefix)
	if !ok {
		return ""
	}
	return path
}

// Migrates reports whether serve brings the schema up by itself: always on SQLite.
func (d Database) Migrates() bool { return d.MigrateOnStartup || !d.Postgres() }

// MaxConnections is the largest number of connections to PostgreSQL.
func (d Database) MaxConnections() int { return d.PoolSize + d.MaxOverflow }

func (d Database) postgresDSN() string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(d.User, d.Pass.Reveal()),
		Path:   "/" + d.Name,
	}
	query := url.Values{"sslmode": {sslMode(d.SSLMode)}}
	if strings.HasPrefix(d.Host, "/") { // the folder of a Unix socket
		u.Host = ":" + strconv.Itoa(d.Port)
		query.Set("host", d.Host)
	} else {
		u.Host = net.JoinHostPort(strings.Trim(d.Host, "[]"), strconv.Itoa(d.Port))
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// sslMode is what the Python service's driver does when nothing is said: encrypted where the server can.
func sslMode(mode string) string {
	if mode == "" {
		return "prefer"
	}
	return mode
}

// databaseDSN turns a SQLAlchemy-style URL, or a plain one, into a DSN.
func databaseDSN(raw, mode string) (string, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return "", errDatabaseURL
	}
	engine, _, _ := strings.Cut(scheme, "+")
	switch engine {
	case "sqlite":
		return sqliteDSN(rest)
	case "postgres", "postgresql":
		return postgresURL(rest, mode)
	}
	return "", errDatabaseURL
}

// sqliteDSN takes what follows "sqlite:". Three slashes come before a path from the working directory, four make it
// absolute.
func sqliteDSN(rest string) (string, error) {
	if strings.HasPrefix(rest, "//") {
		if rest, _ = strings.CutPrefix(rest, "//"); !strings.HasPrefix(rest, "/") {
			return "", errDatabaseURL
		}
		rest = rest[1:]
	}
	if rest == "" || rest == ":memory:" || strings.ContainsAny(rest, "?\x00") || strings.HasPrefix(rest, "file:") {
		return "", fmt.Errorf("%w; the file is one on disk, without a query", errDatabaseURL)
	}
	path, err := filepath.Abs(rest)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errDatabaseURL, err)
	}
	return sqlitePrefix + path, nil
}

// postgresURL takes what follows "postgresql:". The names that only the Python drivers know are translated or dropped.
func postgresURL(rest, mode string) (string, error) {
	u, err := url.Parse("postgres:" + rest)
	if err != nil || !strings.HasPrefix(rest, "//") || strings.Trim(u.Path, "/") == "" || !validPort(u.Port()) || u.Fragment != "" {
		return "", errDatabaseURL
	}
	query := u.Query()
	if ssl := query.Get("ssl"); ssl != "" && !query.Has("sslmode") {
		query.Set("sslmode", ssl)
	}
	for _, name := range []string{"ssl", "prepared_statement_cache_size", "async_fallback"} {
		query.Del(name)
	}
	if !query.Has("sslmode") {
		query.Set("sslmode", sslMode(mode))
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// SealingKeys returns the keys that seal secrets at rest: the configured ones; on PostgreSQL otherwise one derived from the
// service key or the local key, the same on every replica; on SQLite otherwise none, and the caller makes one in the data
// folder. The error is an *Error.
func (c Config) SealingKeys() ([][]byte, error) {
	if len(c.Database.SecretKeys) > 0 || !c.Database.Postgres() {
		return c.Database.SecretKeys, nil
	}
	source := c.Auth.ServiceKey
	if source == "" {
		source = c.Auth.LocalAPIKey
	}
	if source == "" {
		return nil, &Error{Problems: []Problem{{
			Name: "AUTOMATION_SECRET_KEY",
			Want: "want 32 bytes in base64 to seal secrets in PostgreSQL, e.g. from: openssl rand -base64 32",
		}}}
	}
	key, err := hkdf.Key(sha256.New, []byte(source), nil, "automation secrets at rest", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key that seals secrets: %w", err)
	}
	return [][]byte{key}, nil
}
