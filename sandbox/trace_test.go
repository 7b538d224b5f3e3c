package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestEachClaimOfABoxIsASpan(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)))
	defer otel.SetTracerProvider(noop.NewTracerProvider())
	one(t, sandboxtest.Quirks{}, sandbox.Settings{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		spans := recorder.Ended()
		require.NotEmpty(r, spans)
		last := spans[len(spans)-1]
		require.Equal(r, "settle sandbox", last.Name())
		require.Contains(r, last.Attributes(), attribute.String("workspace_id", box.ID.String()))
		require.Contains(r, last.Attributes(), attribute.String("desired", "deleted"))
	})
}
