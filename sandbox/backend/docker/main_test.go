package docker

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/tests/dockerengine"
)

// root is this tree as the tests of this package see it.
const root = "../../.."

// rig is a backend on the real engine with a data root and a deployment of its own.
type rig struct {
	*Backend
	*testing.T
	deployment uuid.UUID
}

// open returns one; what it made is removed with the test.
func open(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	c := Config{
		Host: dockerengine.Host(t), Image: dockerengine.Bare(t, root), Pull: PullNever, Suspend: SuspendStop, StopGraceSeconds: 10,
		OnStart: OnStartAdopt, OnStop: OnStopStop, MemoryBytes: 256 << 20, CPUs: 2, Processes: 128,
	}
	for _, edit := range change {
		edit(&c)
	}
	b, err := New(c, Options{DataDir: t.TempDir()})
	require.NoError(t, err)
	r := &rig{Backend: b, T: t, deployment: uuid.New()}
	t.Cleanup(func() {
		for o, err := range b.List(context.Background(), sandbox.Label{Deployment: r.deployment}) {
			require.NoError(t, err)
			require.NoError(t, b.Delete(r.ctx(), sandbox.Ref{WorkspaceID: o.Label.WorkspaceID}))
		}
		require.NoError(t, b.Close())
	})
	return r
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.Cleanup(cancel)
	return ctx
}

// create makes a box that runs, for a conversation where spec says so.
func (r *rig) create(change ...func(*sandbox.Spec)) sandbox.Ref {
	r.Helper()
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: uuid.Must(uuid.NewV7())}}
	for _, edit := range change {
		edit(&spec)
	}
	require.NoError(r, r.Create(r.ctx(), spec, nothing))
	ref := sandbox.Ref{WorkspaceID: spec.Label.WorkspaceID}
	require.Equal(r, models.SeenRunning, r.inspect(ref).State)
	return ref
}

func (r *rig) inspect(ref sandbox.Ref) sandbox.Observation {
	r.Helper()
	o, err := r.Inspect(r.ctx(), ref)
	require.NoError(r, err)
	return o
}

func nothing(sandbox.Identity) error { return nil }
