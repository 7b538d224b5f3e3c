package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"automation/models"
	"automation/sandbox/sandboxtest"
)

func TestEachExecutionIsASpan(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)))
	defer otel.SetTracerProvider(noop.NewTracerProvider())
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		started := []*models.Run{}
		r.dispatch.Started = func(run *models.Run) { started = append(started, run) }
		run := r.pending()
		r.execute()
		require.Len(r, recorder.Ended(), 1)
		span := recorder.Ended()[0]
		require.Equal(r, "dispatch run", span.Name())
		require.Contains(r, span.Attributes(), attribute.String("run_id", run.ID.String()))
		require.Len(r, started, 1, "told once that the command starts")
		require.Equal(r, run.ID, started[0].ID)
		require.NotNil(r, started[0].StartedAt)
	})
}
