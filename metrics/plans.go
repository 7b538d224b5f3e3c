package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"automation/models"
)

// awake are the states in which a box takes a slot at its provider: it runs, or is on its way to or from it (S1-048). What is
// missing or failed is not counted: nobody can say whether its provider still counts it.
var awake = []models.Observed{models.SeenProvisioning, models.SeenRunning, models.SeenDeleting}

// collectPlans shows what boxes take of what a provider's plan allows, and what they cost: limits and prices are those that the
// operator configured, and without one there is no such sample.
func (s *state) collectPlans(c models.Census, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	n := map[models.BoxState]int{}
	for _, b := range c.Boxes {
		n[models.BoxState{Backend: b.Backend, Observed: b.Observed}] += b.N
	}
	for _, provider := range s.config.Serves {
		used := 0
		for _, seen := range awake {
			used += n[models.BoxState{Backend: provider, Observed: seen}]
		}
		gauge(s.slots, float64(used), provider, "used")
	}
	for provider, limit := range s.config.Slots {
		gauge(s.slots, float64(limit), provider, "limit")
	}
	for provider, price := range s.config.Prices {
		cost := func(seen models.Observed, hourly float64) {
			gauge(s.costs, hourly*float64(n[models.BoxState{Backend: provider, Observed: seen}]), provider, string(seen))
		}
		for _, seen := range awake {
			cost(seen, price.Awake)
		}
		cost(models.SeenSuspended, price.Paused)
	}
}
