package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"automation/models"
)

// The values of the labels of runs.
var (
	outcomes = []string{"completed", "failed", "timed_out", "cancelled", "skipped"}
	triggers = []string{"cron", "event", "manual"}
	fired    = []string{"created", "skipped", "repeated"}
	missed   = []string{"deadline", "overlap", "disabled", "down"}
)

type runs struct {
	finished, reconciled, fires, missed *prometheus.CounterVec
	duration                            *prometheus.HistogramVec
	queue, delay                        prometheus.Histogram
}

func newRuns(r prometheus.Registerer) runs {
	waits := []float64{0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}
	m := runs{
		finished:   counter(r, "automation_runs_finished_total", "Runs that ended.", "outcome", "trigger"),
		reconciled: counter(r, "automation_runs_reconciled_total", "Ended runs that a late callback changed.", "from", "to"),
		fires:      counter(r, "automation_schedule_fires_total", "Schedules that were due: a run was created, created as skipped, or had been by another process.", "result"),
		missed: counter(r, "automation_schedule_missed_total",
			"Due schedules without a run of their own: too late to catch up, an earlier run was active, not evaluable, or earlier instants that passed unseen.", "reason"),
		duration: histogram(r, "automation_run_duration_seconds", "From the claim of a run to its end.",
			[]float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200}, "outcome"),
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "automation_run_queue_seconds", Help: "From the creation of a run to its claim by dispatch.", Buckets: waits,
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "automation_run_start_delay_seconds", Help: "From a run's scheduled instant to the start of its command.", Buckets: waits,
		}),
	}
	r.MustRegister(m.queue, m.delay)
	start(m.finished, outcomes, triggers)
	start(m.reconciled, []string{"timed_out"}, []string{"completed"})
	start(m.fires, fired)
	start(m.missed, missed)
	startAll(m.duration, outcomes)
	return m
}

// RunEnded counts a run that became terminal (models.WithRunEnds).
func (m *Metrics) RunEnded(e models.RunEnd) {
	if e.Reconciled {
		m.runs.reconciled.WithLabelValues("timed_out", "completed").Inc()
		return
	}
	outcome := outcomeOf(e.Run)
	trigger := string(models.TriggerManual)
	if e.Run.TriggerSource != nil {
		trigger = string(*e.Run.TriggerSource)
	}
	m.runs.finished.WithLabelValues(outcome, known(trigger, triggers)).Inc()
	if e.Run.StartedAt != nil && e.Run.CompletedAt != nil {
		m.runs.duration.WithLabelValues(outcome).Observe(seconds(e.Run.CompletedAt.Sub(*e.Run.StartedAt)))
	}
}

func outcomeOf(r *models.Run) string {
	if r.Status == models.RunFailed && r.ErrorDetail != nil && strings.HasPrefix(*r.ErrorDetail, models.TimedOutPrefix) {
		return "timed_out"
	}
	return known(strings.ToLower(string(r.Status)), outcomes)
}

// RunStarted measures how long a run has waited until its command starts (scheduler.Dispatch.Started).
func (m *Metrics) RunStarted(r *models.Run) {
	if r.StartedAt != nil {
		m.runs.queue.Observe(seconds(r.StartedAt.Sub(r.CreatedAt)))
	}
	if r.ScheduledFor != nil {
		m.runs.delay.Observe(seconds(m.config.Now().Sub(*r.ScheduledFor)))
	}
}

// SchedulesFired counts what became of due schedules (scheduler.Schedules.Fired).
func (m *Metrics) SchedulesFired(fires []models.Fire, created []*models.Run) {
	of := map[string]*models.Run{}
	for _, r := range created {
		of[r.AutomationID.String()] = r
	}
	for _, f := range fires {
		switch r := of[f.AutomationID.String()]; {
		case f.Disable != "":
			m.runs.missed.WithLabelValues("disabled").Inc()
			continue
		case f.At == nil:
			m.runs.missed.WithLabelValues("deadline").Inc()
			continue
		case r == nil:
			m.runs.fires.WithLabelValues("repeated").Inc()
			continue
		case r.Status == models.RunSkipped:
			m.runs.fires.WithLabelValues("skipped").Inc()
			m.runs.missed.WithLabelValues("overlap").Inc()
		default:
			m.runs.fires.WithLabelValues("created").Inc()
		}
		if f.At.After(f.Was) {
			m.runs.missed.WithLabelValues("down").Inc()
		}
	}
}

// seconds is d for a histogram; clocks that differ by a hair make no negative time.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }
