package models

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"modernc.org/sqlite"
)

// What can be wrong with the database itself, whatever was asked of it.
var (
	// ErrUnavailable means that it does not answer, or not now: trying again later helps.
	ErrUnavailable = errors.New("the database does not answer")
	// ErrFull means that its disk is full: somebody has to make room.
	ErrFull = errors.New("the disk of the database is full")
)

// The primary result codes of SQLite for what Fault knows.
const (
	sqliteBusy     = 5
	sqliteLocked   = 6
	sqliteIO       = 10
	sqliteFull     = 13
	sqliteCantOpen = 14
)

// pqFull is PostgreSQL's SQLSTATE of a full disk; pqAway are those, and the classes, of a server that is going, coming or busy.
const pqFull = "53100"

var (
	pqAwayClasses = []pqerror.Class{"08", "53", "57", "58"} // connection, resources, intervention, system
	pqAway        = []pqerror.Code{"25006", "55000"}        // read only, and no connections allowed: it is being moved
)

// Fault tells whether err comes from the database itself: ErrUnavailable, ErrFull, or nil when it does not.
func Fault(err error) error {
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		switch lite.Code() & 0xff {
		case sqliteFull:
			return ErrFull
		case sqliteBusy, sqliteLocked, sqliteIO, sqliteCantOpen:
			return ErrUnavailable
		}
		return nil
	}
	if pg, ok := errors.AsType[*pq.Error](err); ok {
		switch {
		case pg.Code == pqFull:
			return ErrFull
		case slices.Contains(pqAwayClasses, pg.Code.Class()), slices.Contains(pqAway, pg.Code):
			return ErrUnavailable
		}
		return nil
	}
	_, network := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return ErrFull
	case network, errors.Is(err, driver.ErrBadConn), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, ErrClosed):
		return ErrUnavailable
	}
	return nil
}
