package session

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"automation/models/customer"
)

// Step takes one step of the collector that holds session under token and whose box has not answered since silent; it returns
// since when it has not then.
func (s *Sessions) Step(ctx context.Context, session *customer.Session, token uuid.UUID, silent time.Time) (time.Time, error) {
	c := &collector{
		s: s, id: session.ID, boxID: session.SandboxID, session: session, token: token, log: slog.New(slog.DiscardHandler),
		poked: make(chan struct{}, 1), silent: silent,
	}
	err := c.step(ctx)
	return c.silent, err
}

// MostReaders is how many readers a session has here.
const MostReaders = mostReaders
