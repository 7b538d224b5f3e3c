package sandboxtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

// Subject is a backend under Exercise.
type Subject struct {
	Backend  sandbox.Backend
	Location string        // where its boxes can be reached; "" for remote providers
	Within   time.Duration // how long a state may take to show; 0: 30 s
}

// Exercise proves the promises of sandbox.Backend. open returns a fresh backend each time; what the cases make they delete.
func Exercise(t *testing.T, open func(t *testing.T) Subject) {
	cases := []struct {
		name string
		run  func(*exercise)
	}{
		{"an identity is named before Create returns, and Inspect finds it running", (*exercise).creates},
		{"Create deletes what it made when naming it fails", (*exercise).createStopped},
		{"delete twice is fine", (*exercise).deletesTwice},
		{"an unknown id is ErrGone, however odd", (*exercise).unknown},
		{"S0-126 what Capabilities deny is errors.ErrUnsupported", (*exercise).denied},
		{"S0-125 suspend and resume round, repeated, with the flags kept", (*exercise).suspends},
		{"resume of a running box is nil and makes nothing new", (*exercise).resumesRunning},
		{"a suspended box is deleted too", (*exercise).deletesSuspended},
		{"S0-002 List yields a deployment's boxes exactly", (*exercise).lists},
		{"an ended context is noticed promptly", (*exercise).cancels},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			if s.Within == 0 {
				s.Within = 30 * time.Second
			}
			c.run(&exercise{T: t, Subject: s, deployment: uuid.New()})
		})
	}
}

type exercise struct {
	*testing.T
	Subject
	deployment uuid.UUID
}

// box is what the settler would have in rows: the ref of one box and its naming.
type box struct {
	mu  sync.Mutex
	ref sandbox.Ref
}

func (b *box) seen(i sandbox.Identity) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, known := range b.ref.Identities {
		if known.Kind == i.Kind && known.ProviderID == i.ProviderID {
			b.ref.Identities[n] = i
			return nil
		}
	}
	b.ref.Identities = append(b.ref.Identities, i)
	return nil
}

func (e *exercise) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), e.Within)
	e.Cleanup(cancel)
	return ctx
}

func (e *exercise) create() *box { return e.createFor(e.deployment) }

func (e *exercise) createFor(deployment uuid.UUID) *box {
	b := &box{ref: sandbox.Ref{WorkspaceID: uuid.Must(uuid.NewV7()), Location: e.Location, Owner: sandbox.Owner{OrgID: uuid.New(), UserID: uuid.New()}}}
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: deployment, WorkspaceID: b.ref.WorkspaceID}, Owner: b.ref.Owner}
	require.NoError(e, e.Backend.Create(e.ctx(), spec, b.seen))
	require.NotEmpty(e, b.ref.Identities, "Create returned without naming anything")
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), e.Within)
		defer cancel()
		e.drain(ctx, b)
	})
	e.shows(b, models.SeenRunning)
	return b
}

// drain deletes a box and waits until the provider shows it gone.
func (e *exercise) drain(ctx context.Context, b *box) {
	for {
		err := e.Backend.Delete(ctx, b.ref)
		if err == nil || errors.Is(err, sandbox.ErrGone) {
			return
		}
		require.ErrorIs(e, err, sandbox.ErrBusy)
		e.pause(ctx)
		if _, err := e.Backend.Inspect(ctx, b.ref); errors.Is(err, sandbox.ErrGone) {
			return
		}
	}
}

// shows waits until Inspect shows a state, and returns what it saw.
func (e *exercise) shows(b *box, want models.Observed) sandbox.Observation {
	ctx := e.ctx()
	for {
		obs, err := e.Backend.Inspect(ctx, b.ref)
		require.NoError(e, err)
		if obs.State == want {
			return obs
		}
		e.pause(ctx)
	}
}

func (e *exercise) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
		require.NoError(e, ctx.Err())
	case <-time.After(10 * time.Millisecond):
	}
}

func (e *exercise) creates() {
	b := e.create()
	obs := e.shows(b, models.SeenRunning)
	require.NotEmpty(e, obs.Identity.ProviderID)
	require.Equal(e, models.IdentityBox, obs.Identity.Kind)
	require.NotEmpty(e, obs.Identity.URL, "a running box has an agent server")
	require.NotEmpty(e, obs.Identity.Key)
}

func (e *exercise) createStopped() {
	stopping := errors.New("stopping")
	var named []sandbox.Identity
	workspace := uuid.Must(uuid.NewV7())
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: e.deployment, WorkspaceID: workspace}}
	err := e.Backend.Create(e.ctx(), spec, func(i sandbox.Identity) error {
		named = append(named, i)
		return stopping
	})
	require.ErrorIs(e, err, stopping)
	_, err = e.Backend.Inspect(e.ctx(), sandbox.Ref{WorkspaceID: workspace, Location: e.Location, Identities: named})
	require.ErrorIs(e, err, sandbox.ErrGone)
}

func (e *exercise) deletesTwice() {
	b := e.create()
	e.drain(e.ctx(), b)
	_, err := e.Backend.Inspect(e.ctx(), b.ref)
	require.ErrorIs(e, err, sandbox.ErrGone)
	for range 2 {
		if err := e.Backend.Delete(e.ctx(), b.ref); err != nil {
			require.ErrorIs(e, err, sandbox.ErrGone)
		}
	}
}

func (e *exercise) unknown() {
	kept := e.create()
	for _, id := range []string{uuid.NewString(), "a/b", "../" + kept.ref.Identities[0].ProviderID, "ä ?#%2F&x=1", "..", " "} {
		ref := sandbox.Ref{WorkspaceID: uuid.Must(uuid.NewV7()), Location: e.Location, Identities: []sandbox.Identity{{Kind: models.IdentityBox, ProviderID: id}}}
		_, err := e.Backend.Inspect(e.ctx(), ref)
		require.ErrorIs(e, err, sandbox.ErrGone, "inspect %q", id)
		require.ErrorIs(e, e.Backend.Delete(e.ctx(), ref), sandbox.ErrGone, "delete %q", id)
	}
	e.shows(kept, models.SeenRunning)
}

func (e *exercise) denied() {
	c := e.Backend.Capabilities()
	if !c.CanSuspend() {
		b := e.create()
		require.ErrorIs(e, e.Backend.Suspend(e.ctx(), b.ref, b.seen), errors.ErrUnsupported)
		require.ErrorIs(e, e.Backend.Resume(e.ctx(), b.ref, b.seen), errors.ErrUnsupported)
	}
	if !c.List {
		for _, err := range e.Backend.List(e.ctx(), sandbox.Label{Deployment: e.deployment}) {
			require.ErrorIs(e, err, errors.ErrUnsupported)
		}
	}
	require.Equal(e, c, e.Backend.Capabilities(), "capabilities never change")
}

func (e *exercise) suspends() {
	c := e.Backend.Capabilities()
	if !c.CanSuspend() {
		return
	}
	b := e.create()
	for range 2 {
		before := e.shows(b, models.SeenRunning).Identity
		for range 2 { // suspending a suspended box is nil
			require.NoError(e, e.Backend.Suspend(e.ctx(), b.ref, b.seen))
			e.shows(b, models.SeenSuspended)
		}
		for range 2 {
			require.NoError(e, e.Backend.Resume(e.ctx(), b.ref, b.seen))
			e.shows(b, models.SeenRunning)
		}
		after := e.shows(b, models.SeenRunning).Identity
		require.Equal(e, c.SameIdentity, before.ProviderID == after.ProviderID, "same_identity is what Capabilities say")
		require.NotEmpty(e, after.URL)
		require.NoError(e, b.seen(after))
	}
}

func (e *exercise) resumesRunning() {
	if !e.Backend.Capabilities().CanSuspend() {
		return
	}
	b := e.create()
	before := e.shows(b, models.SeenRunning).Identity.ProviderID
	require.NoError(e, e.Backend.Resume(e.ctx(), b.ref, b.seen))
	require.Equal(e, before, e.shows(b, models.SeenRunning).Identity.ProviderID)
}

func (e *exercise) deletesSuspended() {
	if !e.Backend.Capabilities().CanSuspend() {
		return
	}
	b := e.create()
	require.NoError(e, e.Backend.Suspend(e.ctx(), b.ref, b.seen))
	e.shows(b, models.SeenSuspended)
	e.drain(e.ctx(), b)
	_, err := e.Backend.Inspect(e.ctx(), b.ref)
	require.ErrorIs(e, err, sandbox.ErrGone)
}

func (e *exercise) lists() {
	c := e.Backend.Capabilities()
	if !c.List || !c.Labels {
		return
	}
	mine, foreign := e.create(), e.createFor(uuid.New())
	if c.CanSuspend() { // all states are listed
		require.NoError(e, e.Backend.Suspend(e.ctx(), mine.ref, mine.seen))
		e.shows(mine, models.SeenSuspended)
	}
	ctx := e.ctx()
	for {
		listed := map[uuid.UUID]bool{}
		for obs, err := range e.Backend.List(ctx, sandbox.Label{Deployment: e.deployment}) {
			require.NoError(e, err)
			require.Equal(e, e.deployment, obs.Label.Deployment)
			require.NotEmpty(e, obs.Identity.ProviderID)
			listed[obs.Label.WorkspaceID] = true
		}
		require.NotContains(e, listed, foreign.ref.WorkspaceID)
		if listed[mine.ref.WorkspaceID] {
			return
		}
		require.False(e, c.ExactList, "an exact list shows a box at once")
		e.pause(ctx)
	}
}

func (e *exercise) cancels() {
	b := e.create()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	started := time.Now()
	_, err := e.Backend.Inspect(ended, b.ref)
	require.Error(e, err)
	require.NotErrorIs(e, err, sandbox.ErrGone, "could not ask is never gone")
	require.Error(e, e.Backend.Delete(ended, b.ref))
	spec := sandbox.Spec{Label: sandbox.Label{Deployment: e.deployment, WorkspaceID: uuid.Must(uuid.NewV7())}}
	require.Error(e, e.Backend.Create(ended, spec, func(sandbox.Identity) error { return nil }))
	require.Less(e, time.Since(started), 5*time.Second)
	e.shows(b, models.SeenRunning)
}
