package customer

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"automation/models"
)

// SessionState is where a session stands.
type SessionState string

// The states (S2-046): queued → active → stopped or failed, which are final. Queued is shown as active with that reason.
const (
	Queued  SessionState = "queued"
	Active  SessionState = "active"
	Stopped SessionState = "stopped"
	Failed  SessionState = "failed"
)

// Reasons of a state (S2-042).
const (
	ReasonNone        = ""
	ReasonExited      = "exited"
	ReasonStopped     = "stopped_by_user"
	ReasonKilled      = "killed"
	ReasonPaused      = "sandbox_paused"
	ReasonDeleted     = "sandbox_deleted"
	ReasonStartFailed = "start_failed"
	ReasonLost        = "lost"
)

// Errors that callers decide on.
var (
	// ErrStopping means that the present session of a sandbox is being stopped: a new one can start when it has ended.
	ErrStopping = errors.New("the session is being stopped")
	// ErrTicket means that a ticket is unknown, used or too old.
	ErrTicket = errors.New("ticket is not valid")
)

// Session is a row of agent_sessions: one server that a customer started in a sandbox. A sandbox has at most one that is open.
type Session struct {
	bun.BaseModel `bun:"table:agent_sessions,alias:a"`

	ID          string       `bun:"id,pk"` // sxe_ and 24 hexadecimal digits (S2-040)
	SandboxID   uuid.UUID    `bun:"sandbox_id"`
	OrgID       uuid.UUID    `bun:"org_id"`
	CreatedAt   time.Time    `bun:"created_at"`
	CreatedBy   string       `bun:"created_by"`
	State       SessionState `bun:"state"`
	Reason      string       `bun:"reason"`
	ExitCode    *int         `bun:"exit_code"`
	CommandID   *string      `bun:"command_id"`    // of the command in the box; nil: not known to have started
	StartSentAt *time.Time   `bun:"start_sent_at"` // written before the start is sent
	AwakeEpoch  int64        `bun:"awake_epoch"`   // of the box, when it was sent
	StopAskedAt *time.Time   `bun:"stop_asked_at"`
	ClosedAt    *time.Time   `bun:"closed_at"`
	PurgedAt    *time.Time   `bun:"purged_at"` // what it printed is gone
	UpdatedAt   time.Time    `bun:"updated_at"`
	LastSeq     int64        `bun:"last_seq"`   // of the newest line; of the exit line once it is closed
	Bytes       int64        `bun:"bytes"`      // that the server printed
	KeptBytes   int64        `bun:"kept_bytes"` // of them that are stored
	KeptFrom    int64        `bun:"kept_from"`  // FirstSeq of the oldest chunk that is stored; 0: all are
	LeaseToken  *uuid.UUID   `bun:"lease_token"`
	LeaseUntil  *time.Time   `bun:"lease_until"`
}

// Truncated reports whether not all that the server printed is stored.
func (s *Session) Truncated() bool { return s.KeptBytes < s.Bytes }

// Closed reports whether the session has ended.
func (s *Session) Closed() bool { return s.ClosedAt != nil }

var sessionID = regexp.MustCompile(`^sxe_[0-9a-f]{24}$`)

// IsSessionID reports whether id has the form of a session's (S2-040).
func IsSessionID(id string) bool { return sessionID.MatchString(id) }

func newSessionID() string {
	raw := make([]byte, 12)
	_, _ = rand.Read(raw) // never fails
	return "sxe_" + hex.EncodeToString(raw)
}

// StartSession returns the open session of a sandbox, or a new one that is queued (S2-021). ErrStopping while one ends.
func (s *Store) StartSession(ctx context.Context, orgID, sandboxID uuid.UUID, who string) (session *Session, err error) {
	for range startTries {
		err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
			session, err = s.open(ctx, tx, orgID, sandboxID, who)
			return err
		})
		if !errors.Is(err, errRaced) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start an agent in %s: %w", sandboxID, err)
	}
	return session, nil
}

// startTries bounds how often another may start a session just when it is found that there is none.
const startTries = 5

var errRaced = errors.New("another has just started a session")

// open returns the open session of a sandbox, made now where there was none; errRaced where another made one meanwhile. A new
// one is the newest whatever clock the one before it was made by.
func (s *Store) open(ctx context.Context, tx bun.IDB, orgID, sandboxID uuid.UUID, who string) (*Session, error) {
	last, now := new(Session), s.core.Now()
	switch err := newest(tx, last, sandboxID).Scan(ctx); {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return nil, err
	case !last.Closed() && last.StopAskedAt != nil:
		return nil, ErrStopping
	case !last.Closed():
		return last, nil
	case !now.After(last.CreatedAt):
		now = last.CreatedAt.Add(time.Microsecond)
	}
	session := &Session{
		ID: newSessionID(), SandboxID: sandboxID, OrgID: orgID, CreatedAt: now, CreatedBy: who, UpdatedAt: now, State: Queued,
	}
	n, err := changed(tx.NewInsert().Model(session).On("CONFLICT (sandbox_id) WHERE closed_at IS NULL DO NOTHING").Exec(ctx))
	if err == nil && n == 0 {
		err = errRaced
	}
	return session, err
}

func newest(db bun.IDB, session *Session, sandboxID uuid.UUID) *bun.SelectQuery {
	return db.NewSelect().Model(session).Where("a.sandbox_id = ?", sandboxID).OrderExpr("a.created_at DESC, a.id DESC").Limit(1)
}

// NewestSession returns the present session of a sandbox, open or not; models.ErrNotFound before the first.
func (s *Store) NewestSession(ctx context.Context, sandboxID uuid.UUID) (*Session, error) {
	session := new(Session)
	return session, missing(newest(s.core.Reads(), session, sandboxID).Scan(ctx), "newest session of %s", sandboxID)
}

// Session returns one; models.ErrNotFound.
func (s *Store) Session(ctx context.Context, id string) (*Session, error) {
	session := &Session{ID: id}
	return session, missing(s.core.Reads().NewSelect().Model(session).WherePK().Scan(ctx), "session %s", id)
}

// StopSession asks the open session of a sandbox to end; one whose start was never sent ends with it (S2-034). It returns the
// newest session as it is then; models.ErrNotFound before the first.
func (s *Store) StopSession(ctx context.Context, sandboxID uuid.UUID) (session *Session, err error) {
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.core.Now()
		_, err := tx.NewUpdate().Model((*Session)(nil)).
			Set("stop_asked_at = ?0, updated_at = ?0", now).
			Where("sandbox_id = ?", sandboxID).Where("closed_at IS NULL AND stop_asked_at IS NULL").Exec(ctx)
		if err != nil {
			return err
		}
		_, err = tx.NewUpdate().Model((*Session)(nil)).
			Set("state = ?, reason = ?, closed_at = ?, last_seq = last_seq + 1", Stopped, ReasonStopped, now).
			Set("lease_token = NULL, lease_until = NULL").
			Where("sandbox_id = ?", sandboxID).Where("closed_at IS NULL AND start_sent_at IS NULL").Exec(ctx)
		if err != nil {
			return err
		}
		session = new(Session)
		return missing(newest(tx, session, sandboxID).Scan(ctx), "newest session")
	})
	if err != nil {
		return nil, fmt.Errorf("stop the agent in %s: %w", sandboxID, err)
	}
	return session, nil
}

// ClaimSessions gives up to limit open sessions in boxes of places that nobody collects to token until until.
func (s *Store) ClaimSessions(ctx context.Context, places []models.Place, token uuid.UUID, until time.Time, limit int) (claimed []*Session, err error) {
	if len(places) == 0 {
		return nil, nil
	}
	if some, err := s.freeSessions(s.core.Reads(), places, 1).Exists(ctx); err != nil || !some {
		return nil, missing(err, "look for sessions that nobody collects") // as it mostly is: nothing is written
	}
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		claimed = nil
		free := s.lock(s.freeSessions(tx, places, limit))
		// They are picked in a CTE, which PostgreSQL evaluates once: a plain sub-select may be run again and lock more.
		return tx.NewUpdate().With("picked", free).Model(&claimed).
			Set("lease_token = ?, lease_until = ?", token, until).
			Where("id IN (SELECT id FROM picked)").
			Returning("*").
			Scan(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("claim sessions: %w", err)
	}
	return claimed, nil
}

// freeSessions selects open sessions in boxes of places that nobody collects.
func (s *Store) freeSessions(db bun.IDB, places []models.Place, limit int) *bun.SelectQuery {
	return db.NewSelect().Model((*Session)(nil)).Column("a.id").
		Where("a.sandbox_id IN (?)", boxesOf(db, places)).
		Where("a.closed_at IS NULL").
		Where("a.lease_until IS NULL OR a.lease_until <= ?", s.core.Now()).
		OrderExpr("a.created_at, a.id").Limit(int64(limit))
}

// boxesOf selects the boxes of places.
func boxesOf(db bun.IDB, places []models.Place) *bun.SelectQuery {
	return db.NewSelect().Model((*models.Sandbox)(nil)).Column("s.id").WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
		for _, p := range places {
			q = q.WhereOr("s.backend = ? AND s.location = ?", p.Backend, p.Location)
		}
		return q
	})
}

// held is a write to an open session by the one that collects it; models.ErrLeaseLost when that is another by now, or it has
// ended.
func (s *Store) held(ctx context.Context, id string, token uuid.UUID, what string, set func(*bun.UpdateQuery) *bun.UpdateQuery) (*Session, error) {
	session := &Session{ID: id}
	err := s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		q := set(tx.NewUpdate().Model(session).WherePK().Where("lease_token = ?", token).Where("closed_at IS NULL"))
		n, err := changed(q.Returning("*").Exec(ctx))
		if err == nil && n == 0 {
			err = models.ErrLeaseLost
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s of session %s: %w", what, id, err)
	}
	return session, nil
}

// RenewSession prolongs the lease and returns the session as it is: its stop may be asked for.
func (s *Store) RenewSession(ctx context.Context, id string, token uuid.UUID, until time.Time) (*Session, error) {
	return s.held(ctx, id, token, "renew the lease", func(q *bun.UpdateQuery) *bun.UpdateQuery { return q.Set("lease_until = ?", until) })
}

// ReleaseSession gives a session up, for another to collect.
func (s *Store) ReleaseSession(ctx context.Context, id string, token uuid.UUID) error {
	_, err := s.held(ctx, id, token, "release the lease", func(q *bun.UpdateQuery) *bun.UpdateQuery { return q.Set("lease_until = NULL, lease_token = NULL") })
	return err
}

// SendStart records that the start goes out now, in the box's time awake epoch, and returns the session; models.ErrLeaseLost
// where the stop came first.
func (s *Store) SendStart(ctx context.Context, id string, token uuid.UUID, epoch int64) (*Session, error) {
	now := s.core.Now()
	return s.held(ctx, id, token, "record the start", func(q *bun.UpdateQuery) *bun.UpdateQuery {
		return q.Set("start_sent_at = COALESCE(start_sent_at, ?0), updated_at = ?0", now).Set("awake_epoch = ?", epoch).
			Where("stop_asked_at IS NULL")
	})
}

// SessionStarted stores the command that the box named: a fact, whoever holds the lease.
func (s *Store) SessionStarted(ctx context.Context, id, commandID string) error {
	err := s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewUpdate().Model((*Session)(nil)).
			Set("command_id = ?, state = ?, reason = ?, updated_at = ?", commandID, Active, ReasonNone, s.core.Now()).
			Where("id = ?", id).Where("closed_at IS NULL").Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("record the command of session %s: %w", id, err)
	}
	return nil
}

// End is how a session ended.
type End struct {
	State    SessionState // Stopped or Failed
	Reason   string
	ExitCode *int
}

// CloseSession ends a session, as its customer asked where that was so: its exit line follows the newest line.
// models.ErrLeaseLost when another holds it, or it has ended.
func (s *Store) CloseSession(ctx context.Context, id string, token uuid.UUID, end End) error {
	now := s.core.Now()
	_, err := s.held(ctx, id, token, "record the end", func(q *bun.UpdateQuery) *bun.UpdateQuery {
		return q.Set("state = CASE WHEN stop_asked_at IS NULL THEN ? ELSE ? END", end.State, Stopped).
			Set("reason = CASE WHEN stop_asked_at IS NULL THEN ? ELSE ? END", end.Reason, ReasonStopped).
			Set("exit_code = ?", end.ExitCode).
			Set("closed_at = ?0, updated_at = ?0, last_seq = last_seq + 1", now).
			Set("lease_token = NULL, lease_until = NULL")
	})
	return err
}
