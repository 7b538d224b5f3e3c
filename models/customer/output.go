package customer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"automation/models"
)

// Bounds of what is stored of one session.
const (
	KeptBytes = 8 << 20 // raw bytes, the newest (S2-054)
	// keptMarks is how many chunks keep their place after their lines are dropped, so that a reader who comes back is told how
	// much was lost.
	keptMarks = 1024
	dropBatch = 256 // chunks that are looked at together
)

// Chunk is a row of agent_output: consecutive lines, as they are sent.
type Chunk struct {
	bun.BaseModel `bun:"table:agent_output,alias:o"`

	SessionID string `bun:"session_id,pk"`
	FirstSeq  int64  `bun:"first_seq,pk"`
	LastSeq   int64  `bun:"last_seq"`
	AtByte    int64  `bun:"at_byte"` // bytes that were printed before it
	Bytes     int64  `bun:"bytes"`   // raw bytes in its lines
	Span      int64  `bun:"span"`    // Bytes and those that its gap lines say are lost
	Lines     []byte `bun:"lines"`   // NDJSON; nil once it is dropped
}

// AppendOutput stores the next chunk of a session, drops the oldest beyond KeptBytes, and prolongs the lease.
// models.ErrLeaseLost when another collects the session, or it has ended; the chunk's AtByte is set.
func (s *Store) AppendOutput(ctx context.Context, token uuid.UUID, until time.Time, c *Chunk) error {
	err := s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		session := &Session{ID: c.SessionID}
		n, err := changed(tx.NewUpdate().Model(session).WherePK().
			Where("lease_token = ?", token).Where("closed_at IS NULL").Where("last_seq < ?", c.FirstSeq).
			Set("last_seq = ?", c.LastSeq).
			Set("bytes = bytes + ?", c.Span).
			Set("kept_bytes = kept_bytes + ?", c.Bytes).
			Set("updated_at = ?, lease_until = ?", s.core.Now(), until).
			Returning("*").Exec(ctx))
		if err != nil {
			return err
		}
		if n == 0 {
			return models.ErrLeaseLost
		}
		c.AtByte = session.Bytes - c.Span
		if _, err := tx.NewInsert().Model(c).Exec(ctx); err != nil {
			return err
		}
		if session.KeptBytes <= KeptBytes {
			return nil
		}
		return dropOldest(ctx, tx, session)
	})
	if err != nil {
		return fmt.Errorf("store output of session %s: %w", c.SessionID, err)
	}
	return nil
}

// dropOldest drops the lines of the oldest chunks until what is left is within KeptBytes. Chunks may be tiny: then many go for
// one that comes.
func dropOldest(ctx context.Context, tx bun.IDB, session *Session) error {
	from := session.KeptFrom
	for session.KeptBytes > KeptBytes {
		var oldest []*Chunk
		err := tx.NewSelect().Model(&oldest).Column("first_seq", "last_seq", "bytes").
			Where("o.session_id = ? AND o.first_seq >= ?", session.ID, session.KeptFrom).
			OrderExpr("o.first_seq").Limit(dropBatch).Scan(ctx)
		if err != nil || len(oldest) == 0 {
			return err
		}
		for _, c := range oldest {
			if session.KeptBytes > KeptBytes {
				session.KeptBytes -= c.Bytes
				session.KeptFrom = c.LastSeq + 1
			}
		}
	}
	_, err := tx.NewUpdate().Model((*Chunk)(nil)).Set("lines = NULL").
		Where("session_id = ? AND first_seq >= ? AND first_seq < ?", session.ID, from, session.KeptFrom).Exec(ctx)
	if err != nil {
		return err
	}
	marks := tx.NewSelect().Model((*Chunk)(nil)).Column("o.first_seq").
		Where("o.session_id = ? AND o.first_seq < ?", session.ID, session.KeptFrom).
		OrderExpr("o.first_seq DESC").Limit(1).Offset(keptMarks)
	_, err = tx.NewDelete().Model((*Chunk)(nil)).Where("session_id = ? AND first_seq < (?)", session.ID, marks).Exec(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NewUpdate().Model(session).Column("kept_bytes", "kept_from").WherePK().Exec(ctx)
	return err
}

// Output returns the first stored chunk with lines after seq after, in part or whole; nil when nothing is stored after it.
func (s *Store) Output(ctx context.Context, sessionID string, after int64) (*Chunk, error) {
	c := new(Chunk)
	err := s.from(c, sessionID, after).Where("o.lines IS NOT NULL").Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read output of session %s: %w", sessionID, err)
	}
	return c, nil
}

// from selects the chunk with the line after seq after: the first that begins after it, or the one before that where it
// reaches further. Those before are not looked at.
func (s *Store) from(c *Chunk, sessionID string, after int64) *bun.SelectQuery {
	begins := s.core.Reads().NewSelect().Model((*Chunk)(nil)).ColumnExpr("COALESCE(MAX(o.first_seq), 0)").
		Where("o.session_id = ? AND o.first_seq <= ?", sessionID, after+1)
	return s.core.Reads().NewSelect().Model(c).
		Where("o.session_id = ? AND o.first_seq >= (?)", sessionID, begins).
		Where("o.last_seq > ?", after).
		OrderExpr("o.first_seq").Limit(1)
}

// ByteAt returns how many bytes were printed before the chunk that holds the line after seq after, so far as that is still
// known.
func (s *Store) ByteAt(ctx context.Context, sessionID string, after int64) (int64, error) {
	if after == 0 {
		return 0, nil
	}
	var at int64
	err := s.from(nil, sessionID, after).Column("o.at_byte").Scan(ctx, &at)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("read the place of output of session %s: %w", sessionID, err)
	}
	return at, nil
}

// PurgeOutput drops what up to limit sessions printed that closed before a time. How they ended stays known (S2-066).
func (s *Store) PurgeOutput(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		var old []string
		err := s.lock(tx.NewSelect().Model((*Session)(nil)).Column("a.id").
			Where("a.closed_at IS NOT NULL AND a.purged_at IS NULL").Where("a.closed_at <= ?", before).
			OrderExpr("a.closed_at").Limit(int64(limit))).Scan(ctx, &old)
		if purged = len(old); err != nil || purged == 0 {
			return err
		}
		if _, err := tx.NewDelete().Model((*Chunk)(nil)).Where("session_id IN (?)", bun.List(old)).Exec(ctx); err != nil {
			return err
		}
		_, err = tx.NewUpdate().Model((*Session)(nil)).Set("purged_at = ?, kept_bytes = 0", s.core.Now()).Where("id IN (?)", bun.List(old)).Exec(ctx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge output of sessions: %w", err)
	}
	return purged, nil
}
