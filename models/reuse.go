package models

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"modernc.org/sqlite"
)

// reusing opens connections to a SQLite file that keep the statements they have compiled. bun writes values into the text of
// a statement, so that nearly every text is new, and to compile it costs the engine about as much as to run it. So the values
// that tell two statements of the same making apart are lifted out of the text into parameters first.
type reusing struct {
	driver.Connector
	most int // statements a connection keeps
}

// engineConn is what a connection of the driver can do beyond compiling.
type engineConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	sqlite.HookRegisterer
}

// engineStmt is a compiled statement.
type engineStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// engineRows is what a query answers.
type engineRows interface {
	driver.Rows
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// Connect opens one connection.
func (r reusing) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := r.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, ok := opened.(engineConn)
	if !ok {
		_ = opened.Close()
		return nil, fmt.Errorf("connection %T of SQLite lacks an interface", opened)
	}
	return &reusingConn{engineConn: conn, most: r.most, kept: map[string]engineStmt{}}, nil
}

// reusingConn keeps compiled statements that nobody uses at the moment. Like every connection it is used by one goroutine at
// a time.
type reusingConn struct {
	engineConn
	most int
	kept map[string]engineStmt
}

// Close closes the kept statements too.
func (c *reusingConn) Close() error {
	c.forget()
	return c.engineConn.Close()
}

// ExecContext runs a statement that answers no rows.
func (c *reusingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	text, values, ok := lift(query)
	if !ok || len(args) > 0 {
		return c.engineConn.ExecContext(ctx, query, args)
	}
	stmt, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	result, err := stmt.ExecContext(ctx, values)
	if err != nil {
		_ = stmt.Close()
		return nil, err
	}
	c.keep(text, stmt)
	return result, nil
}

// QueryContext runs a statement that answers rows; it is kept again when they are closed.
func (c *reusingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	text, values, ok := lift(query)
	if !ok || len(args) > 0 {
		return c.engineConn.QueryContext(ctx, query, args)
	}
	stmt, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	answer, err := stmt.QueryContext(ctx, values)
	if err != nil {
		_ = stmt.Close()
		return nil, err
	}
	rows, ok := answer.(engineRows)
	if !ok {
		_ = answer.Close()
		_ = stmt.Close()
		return nil, fmt.Errorf("rows %T of SQLite lack an interface", answer)
	}
	return &reusingRows{engineRows: rows, conn: c, text: text, stmt: stmt}, nil
}

func (c *reusingConn) take(ctx context.Context, text string) (engineStmt, error) {
	if stmt := c.kept[text]; stmt != nil {
		delete(c.kept, text)
		return stmt, nil
	}
	made, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	stmt, ok := made.(engineStmt)
	if !ok {
		_ = made.Close()
		return nil, fmt.Errorf("statement %T of SQLite lacks an interface", made)
	}
	return stmt, nil
}

// keep forgets everything where there is too much: what is used often is soon there again.
func (c *reusingConn) keep(text string, stmt engineStmt) {
	if len(c.kept) >= c.most {
		c.forget()
	}
	if twin := c.kept[text]; twin != nil { // made while this one's rows were open
		_ = twin.Close()
	}
	c.kept[text] = stmt
}

func (c *reusingConn) forget() {
	for _, stmt := range c.kept {
		_ = stmt.Close()
	}
	clear(c.kept)
}

type reusingRows struct {
	engineRows
	conn *reusingConn
	text string
	stmt engineStmt
}

// Close ends the query. A statement whose rows ended badly is not used again.
func (r *reusingRows) Close() error {
	err := r.engineRows.Close()
	if r.stmt == nil {
		return err
	}
	if err == nil {
		r.conn.keep(r.text, r.stmt)
	} else {
		_ = r.stmt.Close()
	}
	r.stmt = nil
	return err
}

// What is lifted: values that are long, or numbers of some size. Short ones are states, limits and the like, of which there
// are few, and by which the planner finds the indexes of a part of a table.
const (
	liftBytes  = 20
	liftDigits = 4
	liftMost   = 100      // values; a statement with more is one of a batch, hardly made twice
	liftText   = 16 << 10 // bytes of such a statement
)

// lift makes of a statement one with parameters, and their values. Not ok: it is to be run as it is (a setting, a script,
// one with parameters, one that is too long to keep).
func lift(query string) (text string, values []driver.NamedValue, ok bool) {
	if len(query) > liftText || !repeats(query) {
		return "", nil, false
	}
	var b strings.Builder
	b.Grow(len(query))
	done := 0 // up to here is written
	put := func(from, to int, value any) {
		b.WriteString(query[done:from])
		b.WriteByte('?')
		values = append(values, driver.NamedValue{Ordinal: len(values) + 1, Value: value})
		done = to
	}
	for i := 0; i < len(query); {
		from := i
		switch ch := query[i]; {
		case ch == ';' || ch == '?' || ch == '-' && strings.HasPrefix(query[i:], "--") || ch == '/' && strings.HasPrefix(query[i:], "/*"):
			return "", nil, false
		case ch == '\'' || ch == '"':
			if i = quoted(query, i); i < 0 {
				return "", nil, false
			}
			if ch == '\'' && i-from-2 >= liftBytes {
				put(from, i, strings.ReplaceAll(query[from+1:i-1], "''", "'"))
			}
		case (ch == 'X' || ch == 'x') && strings.HasPrefix(query[i+1:], "'"):
			if i = quoted(query, i+1); i < 0 {
				return "", nil, false
			}
			if blob, err := hex.DecodeString(query[from+2 : i-1]); err == nil && len(blob) > 0 {
				put(from, i, blob)
			}
		case ch >= '0' && ch <= '9':
			i = word(query, i)
			if n, err := strconv.ParseInt(query[from:i], 10, 64); err == nil && i-from >= liftDigits {
				put(from, i, n)
			}
		case named(ch):
			i = word(query, i)
		default:
			i++
		}
	}
	b.WriteString(query[done:])
	return b.String(), values, len(values) <= liftMost
}

// repeats reports whether a statement is of a kind that is made again and again.
func repeats(query string) bool {
	for _, kind := range []string{"SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ", "SAVEPOINT ", "RELEASE "} {
		if strings.HasPrefix(query, kind) {
			return true
		}
	}
	return false
}

// quoted is where the text or name ends whose quotation mark is at i; -1: nowhere.
func quoted(query string, i int) int {
	mark := query[i]
	for i++; i < len(query); i++ {
		if query[i] != mark {
			continue
		}
		if i+1 < len(query) && query[i+1] == mark {
			i++
			continue
		}
		return i + 1
	}
	return -1
}

// word is where the name or number ends that begins at i.
func word(query string, i int) int {
	for i < len(query) && named(query[i]) {
		i++
	}
	return i
}

func named(ch byte) bool {
	return ch == '_' || ch == '.' || ch >= '0' && ch <= '9' || ch >= 'a' && ch <= 'z' || ch >= 'A' && ch <= 'Z' || ch >= 0x80
}
