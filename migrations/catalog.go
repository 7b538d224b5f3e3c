package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// catalog lists what a schema consists of, sorted: a line a column ("table.column", with " not null") and a line an index
// ("table#index"). It is the same on both dialects, so the scratch schema of one tells about the other.
type catalog []string

// sqliteCatalog and postgresCatalog yield rows of table, name, kind (column, index) and whether null is refused. Indexes
// that belong to a primary key are left out, for SQLite has none of its own for them.
const (
	sqliteCatalog = `
SELECT t.name, c.name, 'column', c."notnull" FROM sqlite_master AS t, pragma_table_info(t.name) AS c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'
UNION ALL
SELECT i.tbl_name, i.name, 'index', 0 FROM sqlite_master AS i WHERE i.type = 'index' AND i.sql IS NOT NULL`
	postgresCatalog = `
SELECT table_name, column_name, 'column', CASE is_nullable WHEN 'NO' THEN 1 ELSE 0 END FROM information_schema.columns
WHERE table_schema = current_schema()
UNION ALL
SELECT t.relname, i.relname, 'index', 0 FROM pg_index AS x
JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid
WHERE t.relnamespace = current_schema()::regnamespace AND NOT x.indisprimary`
)

// readCatalog reads what is there, schema_migrations left out.
func readCatalog(ctx context.Context, db *sql.DB, dialect string) (catalog, error) {
	query := postgresCatalog
	if dialect == sqliteDialect {
		query = sqliteCatalog
	}
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var c catalog
	for rows.Next() {
		var table, name, kind string
		var notNull bool
		if err := rows.Scan(&table, &name, &kind, &notNull); err != nil {
			return nil, fmt.Errorf("read the catalog: %w", err)
		}
		switch {
		case table == "schema_migrations":
		case kind == "index":
			c = append(c, table+"#"+name)
		case notNull:
			c = append(c, table+"."+name+" not null")
		default:
			c = append(c, table+"."+name)
		}
	}
	slices.Sort(c)
	return c, rows.Err()
}

// expected returns the catalogs of all versions, 0 first, by playing the SQLite steps in memory.
func expected(ctx context.Context) ([]catalog, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	steps, err := fs.Glob(files, "sqlite/*.up.sql")
	if err != nil {
		return nil, err
	}
	catalogs := []catalog{nil}
	for _, step := range steps {
		text, err := files.ReadFile(step)
		if err != nil {
			return nil, err
		}
		if _, err := db.ExecContext(ctx, string(text)); err != nil {
			return nil, fmt.Errorf("play %s: %w", step, err)
		}
		c, err := readCatalog(ctx, db, sqliteDialect)
		if err != nil {
			return nil, err
		}
		catalogs = append(catalogs, c)
	}
	return catalogs, nil
}

// matching returns the version whose tables are there. Tables that no version knows are somebody else's and do not count.
func (t *target) matching(ctx context.Context, latest uint) (uint, error) {
	versions, err := expected(ctx)
	if err != nil {
		return 0, err
	}
	present, err := readCatalog(ctx, t.db, t.dialect)
	if err != nil {
		return 0, err
	}
	known := map[string]bool{}
	for _, c := range versions {
		for _, line := range c {
			known[tableOf(line)] = true
		}
	}
	present = slices.DeleteFunc(present, func(line string) bool { return !known[tableOf(line)] })
	for version := latest; ; version-- {
		if slices.Equal(versions[version], present) {
			return version, nil
		}
		if version == 0 {
			return 0, fmt.Errorf("the tables are those of no version: restore the database from a backup")
		}
	}
}

func tableOf(line string) string { return line[:strings.IndexAny(line, ".#")] }
