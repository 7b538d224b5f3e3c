package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// lost makes a box row whose Create was sent and whose answer never came: the process died, or the answer was lost. made
// says whether the provider has the box.
func (r *rig) lost(made bool, change ...func(*models.Sandbox)) *models.Sandbox {
	r.Helper()
	b := modelstest.NewBox(r.store)
	b.Observed, b.ObservedAt, b.AwakeEpoch, b.Identities = models.SeenProvisioning, nil, 0, nil
	for _, c := range change {
		c(b)
	}
	if made {
		spec := sandbox.Spec{Label: sandbox.Label{Deployment: r.deploy, WorkspaceID: b.ID}}
		require.NoError(r, r.fake.Create(r.Context(), spec, func(sandbox.Identity) error { return nil }))
	}
	modelstest.Box(r.T, r.store, b)
	r.order(b.ID, models.WantDeleted, "dispatch")
	return r.box(b.ID)
}

func TestALostCreateIsFoundByItsLabelAndDeleted(t *testing.T) {
	for name, quirks := range map[string]sandboxtest.Quirks{"exact list": {}, "eventual list": {ListLag: 2}} {
		t.Run(name, func(t *testing.T) {
			each(t, quirks, withDelay, func(r *rig) {
				foreign := r.fake.Plant(sandbox.Label{Deployment: modelstest.Org}) // S0-002: not ours, not touched
				box := r.lost(true)
				r.settleFor(20 * time.Minute)
				b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Len(r, b.Identities, 1)
				require.Equal(r, []string{foreign}, r.fake.Alive())
			})
		})
	}
}

func TestALostCreateThatIsNotFoundIsMissingAfterItsSearches(t *testing.T) {
	each(t, sandboxtest.Quirks{ListLag: 100}, withDelay, func(r *rig) {
		box := r.lost(true)
		start := r.clock.Now()
		var searches []time.Duration
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method == "List" {
				searches = append(searches, r.clock.Now().Sub(start).Round(time.Second))
			}
		})
		r.settleFor(24 * time.Hour)
		require.Equal(r, []time.Duration{0, time.Minute, 5 * time.Minute, 15 * time.Minute}, searches)
		r.is(box.ID, models.WantDeleted, models.SeenMissing, true)
		require.Contains(r, r.events(box.ID), "create_not_found failed")
		require.Zero(r, r.fake.Count("Delete"))

		// A late arrival: the orphan pass sees it in the list and names it.
		named := r.fake.Identity(box.ID)
		found, err := r.store.SightOrphan(r.Context(), place, models.Listed{Kind: named.Kind, ProviderID: named.ProviderID, WorkspaceID: box.ID, Observed: models.SeenRunning}, time.Hour)
		require.NoError(r, err)
		require.True(r, found)
		r.settleFor(time.Minute)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, r.fake.Alive())
	})
}

func TestAnExactListIsAskedOnce(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.lost(false)
		r.settleFor(24 * time.Hour)
		require.Equal(r, 1, r.fake.Count("List"))
		r.is(box.ID, models.WantDeleted, models.SeenMissing, true)
	})
}

func TestASearchThatFailsIsNoSearch(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.lost(true)
		r.fake.Fail("List", &sandbox.ProviderError{Status: 503}, errors.New("reset"))
		r.settle()
		b := r.is(box.ID, models.WantDeleted, models.SeenProvisioning, false)
		require.Zero(r, b.Searches)
		r.settleFor(time.Minute)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
	})
}

func TestWithoutLabelsALostCreateIsUnaccountedAndNeverDeletedByUs(t *testing.T) {
	for name, quirks := range map[string]sandboxtest.Quirks{"no labels": {NoLabels: true}, "no list": {NoList: true}} {
		t.Run(name, func(t *testing.T) {
			each(t, quirks, withDelay, func(r *rig) {
				box := r.lost(true)
				r.settleFor(24 * time.Hour)
				b := r.is(box.ID, models.WantDeleted, models.SeenMissing, true)
				require.Equal(r, sandbox.AttentionUnaccounted, b.NeedsAttention)
				require.Contains(r, r.events(box.ID), "unaccounted failed")
				require.Zero(r, r.fake.Count("Delete"))
				require.Len(r, r.fake.Alive(), 1)
			})
		})
	}
}

func TestACreateThatWasNeverSentIsClosedWithoutACall(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.lost(false, func(b *models.Sandbox) { b.CreateSentAt, b.CreateEndedAt = nil, nil })
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, r.fake.Calls())
	})
}

func TestACrashDuringCreateIsLookedUpFromTheLeasesEnd(t *testing.T) {
	one(t, sandboxtest.Quirks{ListLag: 1}, withDelay, func(r *rig) {
		box := r.lost(true, func(b *models.Sandbox) { b.CreateEndedAt = nil })
		r.settleFor(2 * time.Minute)
		b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.NotNil(r, b.CreateEndedAt)
		require.Equal(r, 2, r.fake.Count("List"))
	})
}

func TestAnIdentityThatIsNamedWhileTheBoxIsDeletedIsDeletedToo(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.paused()
		hold := r.fake.HoldAnswer("Delete")
		r.due(run)
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(context.Background(), place)
			done <- err
		}()
		<-hold.Entered
		late := r.fake.Plant(sandbox.Label{Deployment: r.deploy, WorkspaceID: box.ID})
		require.NoError(r, r.store.RecordIdentity(r.Context(), models.Identity{SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: late}))
		hold.Release()
		require.NoError(r, <-done)
		r.settle()
		b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, b.Open())
		require.Empty(r, r.fake.Alive())
	})
}
