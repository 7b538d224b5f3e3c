package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of the labels of sweeps.
var (
	sweepKinds   = []string{"due", "orphan", "workspace", "events"}
	sweepResults = []string{"deleted", "gone", "failed"}
)

type sweeps struct {
	took  *prometheus.HistogramVec
	items *prometheus.CounterVec
}

func newSweeps(r prometheus.Registerer) sweeps {
	m := sweeps{
		took: histogram(r, "automation_sweep_duration_seconds", "How long passes took that look for what to remove.",
			[]float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300}, "kind"),
		items: counter(r, "automation_sweep_items_total", "What sweeps removed, or tried to: sandboxes that were due or nobody's, old workspaces of local mode and old records.", "kind", "result"),
	}
	startAll(m.took, sweepKinds)
	start(m.items, sweepKinds, sweepResults)
	return m
}

// Swept measures one pass (watchdog.Watchdog.Swept); removed is what the pass removed itself, failed what it could not remove.
func (m *Metrics) Swept(kind string, took time.Duration, removed, failed int) {
	kind = known(kind, sweepKinds)
	m.sweeps.took.WithLabelValues(kind).Observe(seconds(took))
	m.sweeps.items.WithLabelValues(kind, "deleted").Add(float64(removed))
	m.sweeps.items.WithLabelValues(kind, "failed").Add(float64(failed))
}
