package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox/sandboxtest"
)

func TestAutoDisable_ARunThatDispatchEndsCounts(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		rules := models.DisableRules{Consecutive: 1, Window: time.Hour}
		r.dispatch, r.schedule = r.duties(r.db.Open(r.T, models.WithClock(r.clock.Now), models.WithDisableRules(rules)))
		r.auto = r.automation(func(a *models.Automation) { a.TarballPath = "ftp://example.test/code" })
		run := r.pending()
		r.execute()
		require.Equal(r, models.RunFailed, r.run(run.ID).Status)
		off, err := r.store.Automation(r.Context(), r.auto.OrgID, r.auto.ID)
		require.NoError(r, err)
		require.False(r, off.Enabled())
		require.Contains(r, string(off.DisabledDetail), run.ID.String())
	})
}
