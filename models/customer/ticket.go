package customer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

// TicketLife is how long a ticket can be used (S2-008).
const TicketLife = time.Minute

// ticketPrefix starts every ticket.
const ticketPrefix = "sxt_"

// IsTicket reports whether a credential has the shape of a ticket.
func IsTicket(secret string) bool { return strings.HasPrefix(secret, ticketPrefix) }

// ticket is a row of agent_tickets: one relay into the server of one session.
type ticket struct {
	bun.BaseModel `bun:"table:agent_tickets,alias:t"`

	Hash      []byte     `bun:"hash,pk"`
	OrgID     uuid.UUID  `bun:"org_id"`
	SandboxID uuid.UUID  `bun:"sandbox_id"`
	SessionID string     `bun:"session_id"`
	CreatedBy string     `bun:"created_by"`
	ExpiresAt time.Time  `bun:"expires_at"`
	UsedAt    *time.Time `bun:"used_at"`
}

// IssueTicket makes a ticket for one relay into the server of a session, in the name of who.
func (s *Store) IssueTicket(ctx context.Context, session *Session, who string) (secret string, expires time.Time, err error) {
	secret, expires = newSecret(ticketPrefix), s.core.Now().Add(TicketLife)
	row := &ticket{
		Hash: hashOf(secret), OrgID: session.OrgID, SandboxID: session.SandboxID, SessionID: session.ID, CreatedBy: who, ExpiresAt: expires,
	}
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		_, err := tx.NewInsert().Model(row).Exec(ctx)
		return err
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue a ticket for session %s: %w", session.ID, err)
	}
	return secret, expires, nil
}

// UseTicket takes a ticket for a sandbox of a tenant, this once, and returns whose it was and of which session. ErrTicket.
func (s *Store) UseTicket(ctx context.Context, secret string, orgID, sandboxID uuid.UUID) (who, sessionID string, err error) {
	row := &ticket{Hash: hashOf(secret)}
	err = s.core.Write(ctx, func(ctx context.Context, tx bun.IDB) error {
		now := s.core.Now()
		n, err := changed(tx.NewUpdate().Model(row).WherePK().
			Set("used_at = ?", now).
			Where("org_id = ? AND sandbox_id = ?", orgID, sandboxID).
			Where("used_at IS NULL").Where("expires_at > ?", now).
			Returning("*").Exec(ctx))
		if err == nil && n == 0 {
			err = ErrTicket
		}
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("use a ticket: %w", err)
	}
	return row.CreatedBy, row.SessionID, nil
}
