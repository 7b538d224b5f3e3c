package main

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"automation/router"
	"automation/sandbox"
)

// gate is sandbox.Access as the router asks for it.
type gate struct{ access *sandbox.Access }

// Enter implements router.Access: the box is attached before it is woken, so that nothing suspends it in between.
func (g gate) Enter(ctx context.Context, boxID uuid.UUID, who string) (router.Way, error) {
	leave, err := g.access.Attach(ctx, boxID)
	if err != nil {
		return router.Way{}, err
	}
	box, err := g.access.Enter(ctx, uuid.Nil, boxID, who)
	if err != nil {
		leave()
		if errors.Is(err, sandbox.ErrNotReady) {
			err = errors.Join(router.ErrStarting, err)
		}
		return router.Way{}, err
	}
	return router.Way{URL: box.URL, Key: box.SessionKey, Leave: leave}, nil
}
