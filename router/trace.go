package router

import (
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// tracer makes the spans of requests; they cost nothing until somebody sets a provider.
var tracer = otel.Tracer("automation/router")

// traced begins the span of a request, below the caller's where traceparent names one.
func traced(r *http.Request) (*http.Request, trace.Span) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
	return r.WithContext(ctx), span
}

// endSpan ends the span of a request.
func endSpan(span trace.Span, method, route string, status int) {
	if span.IsRecording() {
		span.SetName(method + " " + route)
		span.SetAttributes(
			attribute.String("http.request.method", method), attribute.String("http.route", route), attribute.Int("http.response.status_code", status),
		)
		if status == 0 || status/100 == 5 {
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}
