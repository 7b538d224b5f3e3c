package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"automation/loop"
)

// WatchLoops adds how the duties of this process are: status is loop.Runner.Status.
func (m *Metrics) WatchLoops(status func() []loop.Status) {
	m.registry.MustRegister(&loops{
		status: status,
		last: prometheus.NewDesc("automation_loop_last_success_timestamp_seconds",
			"When a pass of the loop last succeeded; when the loop began before the first.", []string{"loop"}, nil),
		iterations: prometheus.NewDesc("automation_loop_iterations_total", "Passes of the loop.", []string{"loop", "result"}, nil),
		lag: prometheus.NewDesc("automation_loop_lag_seconds",
			"How much longer than its interval the last success of the loop is ago.", []string{"loop"}, nil),
	})
}

type loops struct {
	status                func() []loop.Status
	last, iterations, lag *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (l *loops) Describe(out chan<- *prometheus.Desc) {
	out <- l.last
	out <- l.iterations
	out <- l.lag
}

// Collect implements prometheus.Collector.
func (l *loops) Collect(out chan<- prometheus.Metric) {
	for _, s := range l.status() {
		out <- prometheus.MustNewConstMetric(l.iterations, prometheus.CounterValue, float64(s.Passes-s.Failures), s.Name, "ok")
		out <- prometheus.MustNewConstMetric(l.iterations, prometheus.CounterValue, float64(s.Failures), s.Name, "error")
		last := s.LastSuccess
		if last.IsZero() {
			last = s.Began
		}
		if last.IsZero() { // not begun yet
			continue
		}
		out <- prometheus.MustNewConstMetric(l.last, prometheus.GaugeValue, float64(last.UnixMilli())/1000, s.Name)
		out <- prometheus.MustNewConstMetric(l.lag, prometheus.GaugeValue, seconds(time.Since(last)-s.Every), s.Name)
	}
}
