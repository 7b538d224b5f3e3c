package watchdog

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestOrphans_BoxNobodyOwnsIsQuarantinedThenDeleted(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		_, owned := r.running()
		r.fake.Plant(sandbox.Label{Deployment: r.Deployment, WorkspaceID: uuid.New()})
		foreign := r.fake.Plant(sandbox.Label{Deployment: uuid.New(), WorkspaceID: uuid.New()})
		n, err := r.orphans(r.Context(), place)
		require.NoError(r, err)
		require.Equal(r, 1, n)
		r.settle()
		require.Len(r, r.fake.Alive(), 3, "quarantined")
		n, err = r.orphans(r.Context(), place)
		require.NoError(r, err)
		require.Zero(r, n, "seen once")
		r.settleFor(quarantine + time.Minute)
		require.ElementsMatch(r, []string{foreign, r.fake.Identity(owned.ID).ProviderID}, r.fake.Alive(), "S0-002 another deployment's box is not ours to delete")
	})
}

func TestOrphans_RowWhoseBoxIsGoneBecomesMissing(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		_, vanished := r.finished()
		_, there := r.finished()
		r.clock.Advance(time.Minute)
		r.fake.Vanish(vanished.ID)
		_, err := r.orphans(r.Context(), place)
		require.NoError(r, err)
		r.settle()
		require.Equal(r, models.SeenMissing, r.box(vanished.ID).Observed)
		require.Equal(r, models.SeenSuspended, r.box(there.ID).Observed)
	})
}

// A provider that does not know a box for a moment, and lists it afterwards, must not cost its run the output, nor leave it running.
func TestOrphans_BoxThatIsListedAfterAllIsNotMissing(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "what it printed\n", "", 0)
		r.finish(run.ID, models.RunCompleted)
		r.fake.Fail("Inspect", sandbox.ErrGone)
		r.settle()
		require.Equal(r, models.SeenMissing, r.box(box.ID).Observed)
		require.Nil(r, r.box(box.ID).NextStepAt)
		for range 2 { // the second pass changes nothing
			_, err := r.orphans(r.Context(), place)
			require.NoError(r, err)
			r.settle()
			require.Equal(r, models.SeenSuspended, r.box(box.ID).Observed)
			require.Equal(r, models.SeenSuspended, r.fake.State(box.ID))
			require.Contains(r, r.blobs.get(*r.run(run.ID).OutputKey), `"exit"`)
			r.deferred(run.ID)
		}
		require.Equal(r, 1, r.fake.Count("Suspend"))
	})
}

func TestOrphans_OnlyWhatWasKnownBeforeTheListCounts(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.running()
		r.clock.Advance(time.Minute)
		var late *models.Sandbox
		w := *r.Watchdog
		w.Backends = map[models.Place]sandbox.Backend{place: listHook{r.fake, func() { _, late = r.running() }}}
		_, err := w.orphans(r.Context(), place)
		require.NoError(r, err)
		require.Nil(r, r.box(late.ID).NextStepAt, "a box made while the list was read is not judged by it")
		require.Len(r, r.fake.Alive(), 2)
	})
}

// listHook makes something happen after the list was read.
type listHook struct {
	*sandboxtest.Fake
	after func()
}

func (h listHook) List(ctx context.Context, l sandbox.Label) iter.Seq2[sandbox.Observation, error] {
	all := slices.Collect(func(yield func(sandbox.Observation) bool) {
		for obs := range h.Fake.List(ctx, l) {
			if !yield(obs) {
				return
			}
		}
	})
	return func(yield func(sandbox.Observation, error) bool) {
		h.after()
		for _, obs := range all {
			if !yield(obs, nil) {
				return
			}
		}
	}
}

func TestBR24_NothingIsConcludedFromABrokenList(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		_, box := r.finished()
		r.clock.Advance(time.Minute)
		for _, err := range []error{errors.New("503"), sandbox.ErrRefused} {
			r.fake.FailAlways("List", err)
			_, got := r.orphans(r.Context(), place)
			require.ErrorIs(r, got, err)
			require.Nil(r, r.box(box.ID).NextStepAt)
		}
	})
}
