package sandboxtest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/sandbox"
)

// What a provider does by itself, or shows when asked outside the contract.

// Alive returns the ids of all boxes and snapshots that exist, oldest first.
func (f *Fake) Alive() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, t := range f.sorted() {
		ids = append(ids, t.id)
	}
	return ids
}

// State returns what a box is at the provider: the newest of a workspace; missing when it has none.
func (f *Fake) State(workspace uuid.UUID) models.Observed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.of(workspace); t != nil {
		return t.state
	}
	return models.SeenMissing
}

// Identity returns the newest thing of a workspace as the provider names it; zero when it has none.
func (f *Fake) Identity(workspace uuid.UUID) sandbox.Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.of(workspace); t != nil {
		return f.identity(t)
	}
	return sandbox.Identity{}
}

// Asked returns what the last Create of a workspace asked for.
func (f *Fake) Asked(workspace uuid.UUID) sandbox.Spec {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.specs[workspace]
}

// IdlePause suspends a box the way a provider's own timer does.
func (f *Fake) IdlePause(workspace uuid.UUID) { f.set(workspace, models.SeenSuspended) }

// Wake lets a suspended box run, the way a person at the provider's own console does.
func (f *Fake) Wake(workspace uuid.UUID) { f.set(workspace, models.SeenRunning) }

// Boot starts a box the way the provider's own UI would; it shows it starting until Wake.
func (f *Fake) Boot(workspace uuid.UUID) { f.set(workspace, models.SeenProvisioning) }

// Break puts a box into the provider's error state.
func (f *Fake) Break(workspace uuid.UUID) { f.set(workspace, models.SeenFailed) }

// Vanish removes a box without anybody's call: expiry, or a person.
func (f *Fake) Vanish(workspace uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.of(workspace); t != nil {
		f.drop(t.id)
	}
}

// Active sets the last activity that the provider shows of a box.
func (f *Fake) Active(workspace uuid.UUID, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.of(workspace); t != nil {
		t.activity = &at
	}
}

// LieGone lets the next n deletes answer ErrGone although the box exists.
func (f *Fake) LieGone(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lies = n
}

// Plant makes a box that no Create asked for, with any label, and returns its id.
func (f *Fake) Plant(label sandbox.Label) string {
	return f.add(models.IdentityBox, label, sandbox.Owner{}).id
}

func (f *Fake) set(workspace uuid.UUID, to models.Observed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.of(workspace); t != nil {
		t.state, t.next = to, ""
		f.serve(t)
	}
}

func (f *Fake) of(workspace uuid.UUID) *thing {
	all := f.sorted()
	slices.Reverse(all)
	for _, t := range all {
		if t.box == workspace {
			return t
		}
	}
	return nil
}
