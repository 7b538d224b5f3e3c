package watchdog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox/sandboxtest"
)

func TestAutoDisable_ARunThatTheWatchdogEndsCounts(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		rules := models.DisableRules{Consecutive: 1, Window: time.Hour}
		r.Watchdog, _ = r.process(r.db.Open(r.T, models.WithClock(r.clock.Now), models.WithDisableRules(rules)))
		run, box := r.running()
		r.exit(run, box, "", "boom", 2)
		r.timedOut(run)
		r.stale()
		require.Equal(r, models.RunFailed, r.run(run.ID).Status)
		off := must(r.store.Automation(r.Context(), r.auto.OrgID, r.auto.ID))
		require.False(r, off.Enabled())
		require.Contains(r, string(off.DisabledDetail), run.ID.String())
	})
}
