package sandbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// unexported makes a paused box whose history was not exported, and lets a sweep order it deleted.
func (r *rig) unexported() *models.Sandbox {
	r.Helper()
	run, box := r.paused()
	modelstest.Set(r.T, r.store, box, "exported_epoch = 0")
	r.due(run)
	return box
}

// down lets the provider answer nothing but err, until it is nil.
func (r *rig) down(err error) {
	for _, method := range []string{"Inspect", "Resume", "Suspend", "Delete", "List"} {
		r.fake.FailAlways(method, err)
	}
}

func TestS0_155_AnOutageOfTheProviderCostsNoHistory(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.unexported()
		r.down(&sandbox.ProviderError{Status: 503})
		r.settleFor(3 * time.Hour)
		require.NotContains(r, r.events(box.ID), "history_lost failed")
		require.NotNil(r, r.box(box.ID).NextStepAt)
		r.down(nil)
		r.settleFor(time.Hour)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.NotContains(r, r.events(box.ID), "history_lost failed")
	})
}

func TestS0_155_ABoxThatCannotBeLookedAtForADayGoesAllTheSame(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.unexported()
		r.fake.FailFor("Inspect", box.ID, &sandbox.ProviderError{Status: 500})
		r.fake.FailFor("Resume", box.ID, &sandbox.ProviderError{Status: 500})
		r.settleFor(23 * time.Hour)
		require.NotEmpty(r, r.fake.Alive())
		r.settleFor(3 * time.Hour)
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Contains(r, r.events(box.ID), "history_lost failed")
	})
}

// One box that the provider cannot show must not be the one that is tried whenever a call is let through.
func TestABoxThatCannotBeLookedAtDoesNotKeepTheBreakerOpen(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		spoilt := r.unexported()
		run, box := r.paused()
		r.due(run)
		shut := sandbox.Decorate(r.fake, sandbox.Limits{PerSecond: 10000, Burst: 1000, Failures: 1, Open: 200 * time.Millisecond})
		r.config.Backends = map[string]*sandbox.Decorated{modelstest.Backend: shut}
		r.settler = sandbox.NewSettler(r.config)
		r.fake.FailFor("Inspect", spoilt.ID, errors.New("connection reset"))
		for range 3 {
			_, err := r.settler.Pass(r.Context(), place)
			require.NoError(r, err)
			require.Eventually(r, func() bool { wait, _ := shut.ClosedIn(); return wait == 0 }, 5*time.Second, time.Millisecond)
		}
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
	})
}
