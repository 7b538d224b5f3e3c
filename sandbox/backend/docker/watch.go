package docker

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"automation/models"
	"automation/sandbox"
)

// stateOf is what an event of the engine says about a box; others say nothing.
var stateOf = map[events.Action]models.Observed{
	events.ActionStart:   models.SeenRunning,
	events.ActionUnPause: models.SeenRunning,
	events.ActionPause:   models.SeenSuspended,
	events.ActionDie:     models.SeenSuspended,
	events.ActionDestroy: models.SeenSuspended, // its files are kept; where they are gone too, a look says so
}

// Watch yields what happens to the containers of a deployment, from the engine's own events, until ctx ends or the engine goes
// away, which is the error. The first thing it yields is the zero Change: from now on nothing is missed.
func (b *Backend) Watch(ctx context.Context, deployment uuid.UUID) iter.Seq2[sandbox.Change, error] {
	return func(yield func(sandbox.Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Without a question first the stream of an engine that is down would look like one in which nothing happens.
		if _, err := b.engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
			yield(sandbox.Change{}, classify("watch the engine", err))
			return
		}
		stream := b.engine.Events(ctx, client.EventsListOptions{Filters: deploymentFilter(deployment).Add("type", string(events.ContainerEventType))})
		if !yield(sandbox.Change{}, nil) {
			return
		}
		for {
			select {
			case err := <-stream.Err:
				if err == nil {
					err = errors.New("the engine ended its events")
				}
				yield(sandbox.Change{}, classify("watch the engine", err))
				return
			case message := <-stream.Messages:
				change, ok := changeOf(message)
				if ok && !yield(change, nil) {
					return
				}
			}
		}
	}
}

func changeOf(m events.Message) (sandbox.Change, bool) {
	state, known := stateOf[m.Action]
	id, err := uuid.Parse(m.Actor.Attributes[labelWorkspace])
	return sandbox.Change{WorkspaceID: id, State: state}, known && err == nil
}

// RemoveConversations drops the containers of a deployment's conversations, and keeps their files (S3-020).
func (b *Backend) RemoveConversations(ctx context.Context, deployment uuid.UUID) (removed int, err error) {
	containers, err := b.containers(ctx, deployment)
	if err != nil {
		return 0, err
	}
	for id, v := range containers {
		if v.labels[labelConversation] == "" {
			continue
		}
		if err := b.remove(ctx, id); err != nil && !errors.Is(err, sandbox.ErrGone) {
			return removed, fmt.Errorf("remove the container of box %s: %w", id, err)
		}
		removed++
	}
	return removed, nil
}

// RemovesAtStart reports whether RemoveConversations is wanted when the service starts.
func (b *Backend) RemovesAtStart() bool { return b.config.OnStart == OnStartRemove }
