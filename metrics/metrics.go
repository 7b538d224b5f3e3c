// Package metrics holds what the service counts for its operators, in the OpenMetrics format: every family, its closed label
// sets and the registry. The parts know nothing of it: they have hooks, and this package's methods fit them. Labels never
// carry ids, names or error texts; every counter starts at 0.
package metrics

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config says what is measured.
type Config struct {
	Version  string
	Commit   string
	Backends []string         // known ones: the values of the label provider
	Serves   []string         // of them those with boxes of this process: their counters start at 0
	Slots    map[string]int   // how many boxes may be awake at a backend at a time, where that is known
	Prices   map[string]Price // what an hour of a box costs at a backend, where that is known
	Now      func() time.Time
	Log      *slog.Logger // of scrapes that fail in part
}

// Price is what one hour of a box costs at a backend, in the operator's own currency.
type Price struct{ Awake, Paused float64 }

// Metrics is the registry with its collectors. Its methods are safe for concurrent use.
type Metrics struct {
	config   Config
	registry *prometheus.Registry
	runs     runs
	boxes    boxes
	sweeps   sweeps
	prepared prepared
	requests requests
	agents   agents
}

// New makes the registry with every family whose values are counted here, and those of the Go runtime and the process.
func New(c Config) *Metrics {
	m := &Metrics{config: c, registry: prometheus.NewRegistry()}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "automation_build_info", Help: "What runs here; always 1.",
		ConstLabels: prometheus.Labels{"version": c.Version, "commit": c.Commit, "go_version": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.runs, m.boxes = newRuns(m.registry), newBoxes(m.registry, c.Serves)
	m.sweeps, m.prepared, m.requests = newSweeps(m.registry), newPrepared(m.registry), newRequests(m.registry)
	m.agents = newAgents(m.registry)
	return m
}

// WatchPools adds the statistics of connection pools.
func (m *Metrics) WatchPools(pools map[string]*sql.DB) {
	for name, db := range pools {
		m.registry.MustRegister(collectors.NewDBStatsCollector(db, name))
	}
}

// Handler answers scrapes, in the OpenMetrics format where it is asked for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, ErrorLog: scrapeLog{m.config.Log},
		MaxRequestsInFlight: 4,
	})
}

// scrapeLog writes what went wrong in a scrape.
type scrapeLog struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	if l.log != nil {
		l.log.Warn("metrics incomplete", "error", fmt.Sprint(v...))
	}
}

// other stands for what is not in a closed set.
const other = "other"

// known is the value of a label with a closed set.
func known(value string, set []string) string {
	if slices.Contains(set, value) {
		return value
	}
	return other
}

// each calls f with every combination of the values of labels.
func each(f func(values ...string), sets ...[]string) {
	values := make([]string, len(sets))
	var next func(n int)
	next = func(n int) {
		if n == len(sets) {
			f(slices.Clone(values)...)
			return
		}
		for _, v := range sets[n] {
			values[n] = v
			next(n + 1)
		}
	}
	next(0)
}

// start sets every combination of a counter to 0.
func start(c *prometheus.CounterVec, sets ...[]string) {
	each(func(values ...string) { c.WithLabelValues(values...) }, sets...)
}

// startAll makes every combination of a histogram appear.
func startAll(h *prometheus.HistogramVec, sets ...[]string) {
	each(func(values ...string) { h.WithLabelValues(values...) }, sets...)
}

func counter(r prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func histogram(r prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(h)
	return h
}
