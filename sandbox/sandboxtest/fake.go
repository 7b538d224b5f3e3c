// Package sandboxtest proves backends and stands in for them: Exercise holds the promises of sandbox.Backend as tests, Fake
// is a provider in memory that records every call and plays each suspend kind, lookup quirk and fault, and AgentServer is
// the agent server of its boxes.
package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// Quirks says which kind of provider a Fake plays. The zero value is the kindest: suspends in place with memory, lists
// exactly, does everything at once.
type Quirks struct {
	Suspend     sandbox.SuspendKind // "" is memory
	NewIdentity bool                // a resume names a new box id (always so for the snapshot kind)
	RotateKey   bool                // a resume changes the key and the URL

	NoList   bool // List is errors.ErrUnsupported
	NoLabels bool // boxes carry no label: Create's is dropped
	ListLag  int  // a box shows only after this many lists: listing is eventual

	SlowCreate  int // looks (Inspect calls) until a created box runs
	SlowSuspend int // looks until an accepted suspend shows
	SlowResume  int // looks until an accepted resume shows
	SlowDelete  int // looks until an accepted delete shows; Delete answers ErrBusy

	Activity      bool // the last activity is shown
	LookingCounts bool // looking at a box counts as activity
	FalseGone     bool // Capabilities admit that a delete's ErrGone may be a lie; LieGone makes it one
	Placed        bool // boxes are reachable only from their location
	Expiry        time.Duration
	Idle          sandbox.Timer // the native idle timer

	WakeSuspends bool // waking one box may suspend another

	CallsPerSecond float64 // that the provider documents
}

// Fake is a provider in memory; it is safe for concurrent use. Use NewFake.
type Fake struct {
	Quirks Quirks
	Agents *AgentServer // serves the boxes' agent servers when set

	calls

	mu     sync.Mutex
	things map[string]*thing
	specs  map[uuid.UUID]sandbox.Spec // what each box was asked for with
	names  int
	lies   int
}

// thing is what the provider has under one id: a box or a snapshot.
type thing struct {
	id       string
	kind     models.IdentityKind
	box      uuid.UUID // workspace it was made for, also where the provider keeps no label
	label    sandbox.Label
	owner    sandbox.Owner
	state    models.Observed
	next     models.Observed // state it moves to
	looks    int             // looks left until it does
	lists    int             // lists that left it out so far
	url, key string
	activity *time.Time
	expires  *time.Time
	made     int
}

// labels are what the thing was made with, for one made from it.
func (t *thing) labels() sandbox.Label {
	return sandbox.Label{Deployment: t.label.Deployment, WorkspaceID: t.box}
}

// NewFake returns a provider without boxes.
func NewFake(q Quirks) *Fake {
	if q.Suspend == "" {
		q.Suspend = sandbox.SuspendMemory
	}
	return &Fake{Quirks: q, things: map[string]*thing{}, specs: map[uuid.UUID]sandbox.Spec{}}
}

var _ sandbox.Backend = (*Fake)(nil)

// Capabilities follow from the quirks.
func (f *Fake) Capabilities() sandbox.Capabilities {
	q := f.Quirks
	return sandbox.Capabilities{
		Suspend:       q.Suspend,
		SameIdentity:  !q.NewIdentity && q.Suspend != sandbox.SuspendSnapshot,
		List:          !q.NoList,
		ExactList:     !q.NoList && !q.NoLabels && q.ListLag == 0,
		Labels:        !q.NoLabels,
		LastActivity:  q.Activity,
		LookingCounts: q.LookingCounts,
		FalseGone:     q.FalseGone,
		WakeSuspends:  q.WakeSuspends,
		Placed:        q.Placed,
		NativeIdle:    q.Idle,
		NativeExpiry:  sandbox.Timer{Supported: q.Expiry > 0, Action: "delete", Max: q.Expiry},

		CallsPerSecond: q.CallsPerSecond,
	}
}

// Create makes a box and names it.
func (f *Fake) Create(ctx context.Context, spec sandbox.Spec, seen func(sandbox.Identity) error) error {
	return f.call(ctx, "Create", spec.Label.WorkspaceID, nil, func() error {
		f.mu.Lock()
		f.specs[spec.Label.WorkspaceID] = spec
		f.mu.Unlock()
		box := f.add(models.IdentityBox, spec.Label, spec.Owner)
		if err := seen(f.identity(box)); err != nil {
			f.remove(box.id)
			return fmt.Errorf("create stopped: %w", err)
		}
		return nil
	})
}

// Inspect shows the newest living thing among the open identities; a box comes before its snapshot.
func (f *Fake) Inspect(ctx context.Context, box sandbox.Ref) (obs sandbox.Observation, err error) {
	err = f.call(ctx, "Inspect", box.WorkspaceID, box.Identities, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, t := range f.living(box) {
			f.look(t)
		}
		alive := f.living(box)
		if len(alive) == 0 {
			return sandbox.ErrGone
		}
		obs = f.observe(alive[0])
		return nil
	})
	return obs, err
}

// Suspend stops the box the way the quirks say.
func (f *Fake) Suspend(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	if f.Quirks.Suspend == sandbox.SuspendNone {
		return f.call(ctx, "Suspend", box.WorkspaceID, box.Identities, func() error { return errors.ErrUnsupported })
	}
	return f.call(ctx, "Suspend", box.WorkspaceID, box.Identities, func() error {
		t, err := f.newest(box)
		if err != nil || t.state == models.SeenSuspended || t.kind == models.IdentitySnapshot {
			return err
		}
		if f.Quirks.Suspend == sandbox.SuspendSnapshot {
			snapshot := f.add(models.IdentitySnapshot, t.labels(), t.owner)
			if err := seen(f.identity(snapshot)); err != nil {
				return err
			}
			f.remove(t.id)
			return nil
		}
		f.move(t, models.SeenSuspended, f.Quirks.SlowSuspend)
		return nil
	})
}

// Resume wakes the box; from a snapshot it makes a new one.
func (f *Fake) Resume(ctx context.Context, box sandbox.Ref, seen func(sandbox.Identity) error) error {
	if f.Quirks.Suspend == sandbox.SuspendNone {
		return f.call(ctx, "Resume", box.WorkspaceID, box.Identities, func() error { return errors.ErrUnsupported })
	}
	return f.call(ctx, "Resume", box.WorkspaceID, box.Identities, func() error {
		t, err := f.newest(box)
		if err != nil {
			return err
		}
		f.mu.Lock()
		awake := t.kind == models.IdentityBox && t.state != models.SeenSuspended && t.next != models.SeenSuspended
		f.mu.Unlock()
		if awake {
			return nil
		}
		woken := t
		if f.Quirks.NewIdentity || t.kind == models.IdentitySnapshot {
			woken = f.add(models.IdentityBox, t.labels(), t.owner)
			if t.kind == models.IdentityBox {
				f.remove(t.id)
			}
		}
		f.wake(woken)
		return seen(f.identity(woken))
	})
}

// Delete removes all open identities.
func (f *Fake) Delete(ctx context.Context, box sandbox.Ref) error {
	return f.call(ctx, "Delete", box.WorkspaceID, box.Identities, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		alive := f.living(box)
		if len(alive) == 0 {
			return sandbox.ErrGone
		}
		if f.lies > 0 {
			f.lies--
			return sandbox.ErrGone
		}
		if f.Quirks.SlowDelete == 0 {
			for _, t := range alive {
				f.drop(t.id)
			}
			return nil
		}
		for _, t := range alive {
			if t.state != models.SeenDeleting {
				t.state, t.next, t.looks = models.SeenDeleting, models.SeenDeleted, f.Quirks.SlowDelete
				f.serve(t)
			}
		}
		return sandbox.ErrBusy
	})
}

// List yields what carries exactly the deployment label (all boxes where the provider keeps no labels).
func (f *Fake) List(ctx context.Context, label sandbox.Label) iter.Seq2[sandbox.Observation, error] {
	return func(yield func(sandbox.Observation, error) bool) {
		var found []sandbox.Observation
		err := f.call(ctx, "List", label.WorkspaceID, nil, func() error {
			if f.Quirks.NoList {
				return errors.ErrUnsupported
			}
			found = f.list(label)
			return nil
		})
		if err != nil {
			yield(sandbox.Observation{}, err)
			return
		}
		for _, obs := range found {
			if !yield(obs, nil) {
				return
			}
		}
	}
}

func (f *Fake) list(label sandbox.Label) []sandbox.Observation {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []sandbox.Observation
	for _, t := range f.sorted() {
		if t.lists < f.Quirks.ListLag {
			t.lists++
			continue
		}
		fits := t.label.Deployment == label.Deployment && (label.WorkspaceID == uuid.Nil || label.WorkspaceID == t.label.WorkspaceID)
		if f.Quirks.NoLabels || fits {
			found = append(found, f.observe(t))
		}
	}
	return found
}

func (f *Fake) sorted() []*thing {
	all := make([]*thing, 0, len(f.things))
	for _, t := range f.things {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *thing) int { return a.made - b.made })
	return all
}

func (f *Fake) add(kind models.IdentityKind, label sandbox.Label, owner sandbox.Owner) *thing {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names++
	t := &thing{id: fmt.Sprintf("%s %d/ä", kind, f.names), kind: kind, box: label.WorkspaceID, label: label, owner: owner, made: f.names}
	if f.Quirks.NoLabels {
		t.label = sandbox.Label{}
	}
	if f.Quirks.Expiry > 0 {
		at := time.Now().Add(f.Quirks.Expiry)
		t.expires = &at
	}
	t.state = models.SeenSuspended
	if kind == models.IdentityBox {
		t.state, t.next, t.looks = models.SeenProvisioning, models.SeenRunning, f.Quirks.SlowCreate
		f.credentials(t)
		f.settle(t)
	}
	f.things[t.id] = t
	return t
}

func (f *Fake) credentials(t *thing) {
	t.key = "key-" + uuid.NewString()
	t.url = "http://192.0.2.1/" + uuid.NewString() // a net for documentation: never answers
	if f.Agents != nil {
		t.url = f.Agents.Box(t.id).open(t.key)
	}
}

// wake lets a suspended thing run, with new credentials where the provider rotates them.
func (f *Fake) wake(t *thing) {
	f.mu.Lock()
	if f.Quirks.RotateKey {
		f.credentials(t)
	}
	f.mu.Unlock()
	f.move(t, models.SeenRunning, f.Quirks.SlowResume)
}

func (f *Fake) move(t *thing, to models.Observed, looks int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.next, t.looks = to, looks
	f.settle(t)
}

// look lets time pass for a thing: one step nearer to the state it moves to.
func (f *Fake) look(t *thing) {
	if t.next == "" {
		return
	}
	if t.looks > 0 {
		t.looks--
		return
	}
	f.settle(t)
}

func (f *Fake) settle(t *thing) {
	if t.next == "" || t.looks > 0 {
		f.serve(t)
		return
	}
	t.state, t.next = t.next, ""
	if t.state == models.SeenDeleted {
		f.drop(t.id)
		return
	}
	f.serve(t)
}

// serve opens or closes the thing's agent server, as its state is.
func (f *Fake) serve(t *thing) {
	if f.Agents != nil && t.kind == models.IdentityBox {
		f.Agents.Box(t.id).up(t.state == models.SeenRunning)
	}
}

func (f *Fake) drop(id string) {
	if t := f.things[id]; t != nil {
		t.state = models.SeenDeleted
		f.serve(t)
		delete(f.things, id)
	}
}

func (f *Fake) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(id)
}

// living returns what of the identities exists, boxes before snapshots, newest first.
func (f *Fake) living(box sandbox.Ref) []*thing {
	var alive []*thing
	for _, i := range box.Identities {
		if t := f.things[i.ProviderID]; t != nil && t.kind == i.Kind {
			alive = append(alive, t)
		}
	}
	slices.SortFunc(alive, func(a, b *thing) int {
		if a.kind != b.kind {
			if a.kind == models.IdentityBox {
				return -1
			}
			return 1
		}
		return b.made - a.made
	})
	return alive
}

func (f *Fake) newest(box sandbox.Ref) (*thing, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alive := f.living(box)
	if len(alive) == 0 {
		return nil, sandbox.ErrGone
	}
	if alive[0].state == models.SeenDeleting {
		return nil, sandbox.ErrBusy
	}
	return alive[0], nil
}

func (f *Fake) identity(t *thing) sandbox.Identity {
	return sandbox.Identity{Kind: t.kind, ProviderID: t.id, URL: t.url, Key: t.key}
}

func (f *Fake) observe(t *thing) sandbox.Observation {
	obs := sandbox.Observation{State: t.state, Identity: f.identity(t), Label: t.label, ExpiresAt: t.expires}
	if f.Quirks.Activity {
		obs.LastActivity = t.activity
	}
	if t.state == models.SeenFailed {
		obs.Detail = "image_pull_error"
	}
	return obs
}
