package backend

import (
	"context"
	"fmt"
	"iter"

	"github.com/google/uuid"

	"automation/sandbox"
	"automation/sandbox/backend/docker"
)

func init() { register("docker", docker.Capabilities, newDocker) }

// newDocker opens the backend whose boxes are containers of an engine on this machine.
func newDocker(d Deps, c docker.Config) (sandbox.Backend, error) {
	return docker.New(c, docker.Options{DataDir: d.DataDir, Log: d.Log, Now: d.Now})
}

// LocationOf returns where the boxes of a placed backend can be reached: its own word for it, else the data folder's.
func LocationOf(b sandbox.Backend, dataDir string) (string, error) {
	if d, ok := b.(*docker.Backend); ok {
		return d.Location(), nil
	}
	id, err := Location(dataDir)
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// Watch returns how a provider tells what happens to the boxes of a deployment without being asked; nil where it does not.
func Watch(b sandbox.Backend, deployment uuid.UUID) func(context.Context) iter.Seq2[sandbox.Change, error] {
	d, ok := b.(*docker.Backend)
	if !ok {
		return nil
	}
	return func(ctx context.Context) iter.Seq2[sandbox.Change, error] { return d.Watch(ctx, deployment) }
}

// Workspace returns what checks a caller's own directory for a box of b, and resolves it; nil where boxes take none.
func Workspace(b sandbox.Backend) func(path string) (string, error) {
	if d, ok := b.(*docker.Backend); ok {
		return d.Workspace
	}
	return nil
}

// Start does what a provider's settings want done when the service starts: conversations of an earlier start may lose their
// running boxes, never their files.
func Start(ctx context.Context, b sandbox.Backend, deployment uuid.UUID) error {
	d, ok := b.(*docker.Backend)
	if !ok || !d.RemovesAtStart() {
		return nil
	}
	if _, err := d.RemoveConversations(ctx, deployment); err != nil {
		return fmt.Errorf("remove the containers of conversations: %w", err)
	}
	return nil
}

// StopsWithService reports whether the boxes of conversations are to be suspended when the service stops (S3-014).
func StopsWithService(b sandbox.Backend) bool {
	d, ok := b.(*docker.Backend)
	return !ok || d.StopsWithService()
}
