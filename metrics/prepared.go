package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"automation/sandbox"
)

// The values of the labels of what is done in boxes before they are paused or deleted.
var (
	reclaimTriggers = []string{"stop", "manual"}
	stepResults     = []string{"ok", "skipped", "failed"}
)

type prepared struct {
	reclaims, freed, exports, exported *prometheus.CounterVec
	took                               *prometheus.HistogramVec
}

func newPrepared(r prometheus.Registerer) prepared {
	m := prepared{
		reclaims: counter(r, "automation_reclaim_passes_total", "Passes in which a sandbox freed what can be rebuilt.", "trigger", "result"),
		freed:    counter(r, "automation_reclaim_freed_bytes_total", "What sandboxes have freed.", "trigger"),
		took: histogram(r, "automation_reclaim_pass_duration_seconds", "How long such a pass took.",
			[]float64{0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60}, "trigger"),
		exports:  counter(r, "automation_exports_total", "Exports of histories before sandboxes were paused or deleted.", "result"),
		exported: counter(r, "automation_export_bytes_total", "What was exported."),
	}
	start(m.reclaims, reclaimTriggers, stepResults)
	start(m.freed, reclaimTriggers)
	startAll(m.took, reclaimTriggers)
	start(m.exports, stepResults)
	start(m.exported)
	return m
}

// Prepared counts a step in a box before it is paused or deleted (sandbox.SettlerConfig.Prepared).
func (m *Metrics) Prepared(step sandbox.Step, outcome string, bytes int64, took time.Duration) {
	switch step {
	case sandbox.StepReclaim:
		m.reclaimed("stop", outcome, bytes, took)
	case sandbox.StepExport:
		m.prepared.exports.WithLabelValues(known(outcome, stepResults)).Inc()
		m.prepared.exported.WithLabelValues().Add(float64(bytes))
	default: // what is stored of the run is no figure of its own
	}
}

// ReclaimedByHand counts a pass that a person asked for (router.Deps.Reclaimed).
func (m *Metrics) ReclaimedByHand(bytes int64, took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.reclaimed("manual", outcome, bytes, took)
}

func (m *Metrics) reclaimed(trigger, outcome string, bytes int64, took time.Duration) {
	m.prepared.reclaims.WithLabelValues(trigger, known(outcome, stepResults)).Inc()
	m.prepared.freed.WithLabelValues(trigger).Add(float64(bytes))
	m.prepared.took.WithLabelValues(trigger).Observe(seconds(took))
}
