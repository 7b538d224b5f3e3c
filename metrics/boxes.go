package metrics

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"automation/models"
	"automation/sandbox"
)

// The values of the labels of boxes.
var (
	operations = []string{"create", "inspect", "pause", "resume", "delete", "list"}
	results    = []string{"ok", "not_found", "refused", "rate_limited", "timeout", "error"}
	reasons    = []string{"due", "immediate", "cancelled", "manual", "orphan", "policy"}
)

// operationOf names the methods of sandbox.Backend.
var operationOf = map[string]string{
	"Create": "create", "Inspect": "inspect", "Suspend": "pause", "Resume": "resume", "Delete": "delete", "List": "list",
}

type boxes struct {
	operations, deletes *prometheus.CounterVec
	took, age           *prometheus.HistogramVec
}

func newBoxes(r prometheus.Registerer, serves []string) boxes {
	m := boxes{
		operations: counter(r, "automation_sandbox_operations_total", "Calls to providers by how they ended.", "provider", "operation", "result"),
		deletes:    counter(r, "automation_sandbox_deletes_total", "Deletes of sandboxes by why they were ordered and how they went.", "provider", "reason", "result"),
		took: histogram(r, "automation_sandbox_operation_duration_seconds", "How long calls to providers took.",
			[]float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}, "provider", "operation"),
		age: histogram(r, "automation_sandbox_age_at_deletion_seconds", "How old sandboxes were when they were gone.",
			[]float64{60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400}, "provider", "reason"),
	}
	start(m.operations, serves, operations, results)
	start(m.deletes, serves, reasons, results)
	startAll(m.took, serves, operations)
	startAll(m.age, serves, reasons)
	return m
}

// ProviderCall returns the Observe of a provider's limits (sandbox.Limits).
func (m *Metrics) ProviderCall(provider string) func(method string, took time.Duration, err error) {
	provider = known(provider, m.config.Backends)
	return func(method string, took time.Duration, err error) {
		operation := known(operationOf[method], operations)
		m.boxes.operations.WithLabelValues(provider, operation, resultOf(err)).Inc()
		m.boxes.took.WithLabelValues(provider, operation).Observe(seconds(took))
	}
}

// BoxDeleted counts an answer to a delete (sandbox.SettlerConfig.Deletes).
func (m *Metrics) BoxDeleted(b *models.Sandbox, err error) {
	provider, reason := known(b.Backend, m.config.Backends), reasonOf(b)
	m.boxes.deletes.WithLabelValues(provider, reason, resultOf(err)).Inc()
	gone := err == nil || errors.Is(err, sandbox.ErrGone)
	if gone {
		m.boxes.age.WithLabelValues(provider, reason).Observe(seconds(m.config.Now().Sub(b.CreatedAt)))
	}
	if reason != "due" && reason != "orphan" { // no sweep ordered it
		return
	}
	result := "failed"
	switch {
	case err == nil:
		result = "deleted"
	case gone:
		result = "gone"
	}
	m.sweeps.items.WithLabelValues(reason, result).Inc()
}

// reasonOf says why a box was ordered deleted.
func reasonOf(b *models.Sandbox) string {
	switch {
	case b.OrderedBy == "janitor":
		return "due"
	case b.OrderedBy == "orphans":
		return "orphan"
	case b.OrderReason == "cancelled":
		return "cancelled"
	case strings.HasPrefix(b.OrderedBy, "user:"):
		return "manual"
	case b.OrderedBy == "settler":
		return "policy"
	}
	return "immediate"
}

// resultOf says how a call to a provider ended.
func resultOf(err error) string {
	var answer *sandbox.ProviderError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, sandbox.ErrGone):
		return "not_found"
	case errors.As(err, &answer) && answer.Status == http.StatusTooManyRequests:
		return "rate_limited"
	case errors.Is(err, sandbox.ErrRefused), errors.Is(err, sandbox.ErrQuota), errors.Is(err, sandbox.ErrInvalid), errors.Is(err, errors.ErrUnsupported):
		return "refused"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "error"
}
