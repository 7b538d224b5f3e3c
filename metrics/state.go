package metrics

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"automation/models"
)

const (
	// censusEvery is how long a census is shown before the next one is taken; a slow one is shown for censusShare times what
	// it took, so that scrapes cost the database 1 % of its time at most.
	censusEvery  = 15 * time.Second
	censusShare  = 100
	censusWithin = 5 * time.Second
)

// states are the values of the label state of boxes, statuses those of runs.
var (
	states = []models.Observed{
		models.SeenProvisioning, models.SeenRunning, models.SeenSuspended, models.SeenDeleting, models.SeenMissing, models.SeenFailed,
	}
	statuses = []models.RunStatus{
		models.RunPending, models.RunRunning, models.RunCompleted, models.RunFailed, models.RunCancelled, models.RunSkipped,
	}
)

// WatchState adds how many rows are in which state: census is models.Store.Census.
func (m *Metrics) WatchState(census func(context.Context) (models.Census, error)) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.registry.MustRegister(&state{
		config: m.config, census: census,
		runs:  desc("automation_runs", "Runs in the database.", "status"),
		boxes: desc("automation_sandboxes", "Sandboxes that are not known to be deleted, by what the provider last showed.", "provider", "state", "kept"),
		held: desc("automation_sandbox_storage_bytes",
			"What sandboxes that are not known to be deleted last said they hold, by what the provider last showed.", "provider", "state"),
		slots: desc("automation_sandbox_slots",
			"Sandboxes that are awake, or on their way to or from it, and how many may be (AUTOMATION_SANDBOX_SLOTS).", "provider", "kind"),
		costs: desc("automation_sandbox_estimated_cost_per_hour",
			"What sandboxes cost an hour by the prices that are configured (AUTOMATION_SANDBOX_PRICES).", "provider", "state"),
		orphans:   desc("automation_sandbox_orphans", "Sandboxes that a provider listed as ours and no row owned, until they are gone.", "provider"),
		pending:   desc("automation_sandbox_cleanup_pending", "Sandboxes whose due date is ahead.", "provider"),
		overdue:   desc("automation_sandbox_cleanup_overdue", "Sandboxes past their due date, or ordered deleted, and not gone.", "provider"),
		oldest:    desc("automation_sandbox_cleanup_oldest_overdue_seconds", "How long the first of them is overdue; 0: none is.", "provider"),
		backlog:   desc("automation_sweep_backlog", "What sweeps have still to remove.", "kind"),
		migration: desc("automation_migration_version", "Version of the schema."),
		dirty:     desc("automation_migration_dirty", "1: a migration was cut short."),
	})
}

// state collects the gauges of a census, which it keeps for a while.
type state struct {
	config Config
	census func(context.Context) (models.Census, error)

	runs, boxes, held, slots, costs, orphans, pending, overdue, oldest, backlog, migration, dirty *prometheus.Desc

	mu     sync.Mutex
	latest models.Census
	err    error
	until  time.Time // latest and err are shown
}

// Describe implements prometheus.Collector.
func (s *state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.runs, s.boxes, s.held, s.slots, s.costs, s.orphans, s.pending, s.overdue, s.oldest, s.backlog, s.migration, s.dirty,
	} {
		out <- d
	}
}

// read returns the census to show.
func (s *state) read() (models.Census, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if began.Before(s.until) {
		return s.latest, s.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), censusWithin)
	defer cancel()
	s.latest, s.err = s.census(ctx)
	s.until = time.Now().Add(max(censusEvery, censusShare*time.Since(began)))
	return s.latest, s.err
}

// Collect implements prometheus.Collector. Where the database does not answer the gauges are left out: no value is better
// than an old one.
func (s *state) Collect(out chan<- prometheus.Metric) {
	c, err := s.read()
	if err != nil {
		out <- prometheus.NewInvalidMetric(s.runs, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, status := range statuses {
		gauge(s.runs, float64(c.Runs[status]), strings.ToLower(string(status)))
	}
	s.collectBoxes(c, gauge)
	s.collectPlans(c, gauge)
	gauge(s.migration, float64(c.Migration))
	dirty := 0.0
	if c.Dirty {
		dirty = 1
	}
	gauge(s.dirty, dirty)
}

type boxLabels struct {
	provider, state string
	kept            bool
}

func (s *state) collectBoxes(c models.Census, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	counts, orphans := map[boxLabels]int{}, map[string]int{}
	held := map[boxLabels]int64{}
	cleanups := map[string]models.Cleanup{}
	for _, provider := range s.config.Serves {
		cleanups[provider], orphans[provider] = models.Cleanup{}, 0
		for _, state := range states {
			held[boxLabels{provider: provider, state: string(state)}] = 0
			counts[boxLabels{provider, string(state), false}], counts[boxLabels{provider, string(state), true}] = 0, 0
		}
	}
	for _, b := range c.Boxes {
		provider := known(b.Backend, s.config.Backends)
		counts[boxLabels{provider, string(b.Observed), b.Kept}] += b.N
		orphans[provider] += b.Orphans
	}
	for at, bytes := range c.Held {
		held[boxLabels{provider: known(at.Backend, s.config.Backends), state: string(at.Observed)}] += bytes
	}
	for backend, late := range c.Cleanups {
		provider := known(backend, s.config.Backends)
		sum := cleanups[provider]
		sum.Pending += late.Pending
		sum.Overdue += late.Overdue
		sum.OldestOverdue = max(sum.OldestOverdue, late.OldestOverdue)
		cleanups[provider] = sum
	}
	for l, n := range counts {
		gauge(s.boxes, float64(n), l.provider, l.state, strconv.FormatBool(l.kept))
	}
	for l, bytes := range held {
		gauge(s.held, float64(bytes), l.provider, l.state)
	}
	nobodys, late := 0, 0
	for provider, n := range orphans {
		gauge(s.orphans, float64(n), provider)
		nobodys += n
	}
	for provider, n := range cleanups {
		gauge(s.pending, float64(n.Pending), provider)
		gauge(s.overdue, float64(n.Overdue), provider)
		gauge(s.oldest, n.OldestOverdue.Seconds(), provider)
		late += n.Overdue
	}
	gauge(s.backlog, float64(late), "due")
	gauge(s.backlog, float64(nobodys), "orphan")
}
