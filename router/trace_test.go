package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"automation/router"
)

func TestEachRequestIsASpanOfItsCallersTraceAndCounted(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)))
	defer otel.SetTracerProvider(noop.NewTracerProvider())
	type seen struct {
		route, method string
		status        int
		trace         trace.TraceID
	}
	var counted []seen
	once(t, func(t *testing.T, w *world) {
		counted = nil
		w.call("tok-alice", "GET", "runs", nil, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is(200)
		require.Equal(t, 404, w.call("tok-alice", "GET", "/nowhere", nil).Code)
		spans := recorder.Ended()
		require.Len(t, spans, 2)
		require.Equal(t, "GET "+base+"/v1/runs", spans[0].Name())
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", spans[0].SpanContext().TraceID().String())
		require.Equal(t, "b7ad6b7169203331", spans[0].Parent().SpanID().String())
		require.Contains(t, spans[0].Attributes(), attribute.Int("http.response.status_code", 200))
		require.False(t, spans[1].Parent().IsValid())
		require.Equal(t, []seen{
			{base + "/v1/runs", "GET", 200, spans[0].SpanContext().TraceID()}, {"", "GET", 404, spans[1].SpanContext().TraceID()},
		}, counted)
	}, func(d *router.Deps) {
		d.Observe = func(ctx context.Context, route, method string, status int, _ time.Duration) {
			counted = append(counted, seen{route, method, status, trace.SpanContextFromContext(ctx).TraceID()})
		}
	})
}
