package metrics

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// methods are the values of the label method.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// unmatched is the route of requests that no route answers.
const unmatched = "unmatched"

type requests struct {
	total  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	routes map[string]bool // filled before the first request, only read afterwards
}

func newRequests(r prometheus.Registerer) requests {
	return requests{
		total: counter(r, "automation_http_requests_total", "Requests by route template and answer.", "route", "method", "code"),
		took: histogram(r, "automation_http_request_duration_seconds", "How long requests took.",
			[]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}, "route", "method", "code"),
		routes: map[string]bool{},
	}
}

// Route makes a route template known, before the first request; requests of other routes count as unmatched.
func (m *Metrics) Route(method, route string) {
	if trimmed := strings.TrimSuffix(route, "/"); trimmed != "" {
		route = trimmed
	}
	m.requests.routes[route] = true
	if known(method, methods) != other {
		m.requests.total.WithLabelValues(route, method, "200")
	}
}

// Request counts a request and measures it (router.Deps.Observe); a trace that is recorded becomes its exemplar.
func (m *Metrics) Request(ctx context.Context, route, method string, status int, took time.Duration) {
	if !m.requests.routes[route] {
		route = unmatched
	}
	method, code := known(method, methods), other
	if status >= 100 && status < 600 {
		code = strconv.Itoa(status)
	}
	m.requests.total.WithLabelValues(route, method, code).Inc()
	observer := m.requests.took.WithLabelValues(route, method, code)
	span := trace.SpanContextFromContext(ctx)
	if exemplars, ok := observer.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		exemplars.ObserveWithExemplar(seconds(took), prometheus.Labels{"trace_id": span.TraceID().String()})
		return
	}
	observer.Observe(seconds(took))
}
