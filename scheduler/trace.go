package scheduler

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"automation/models"
)

// tracer makes the spans of dispatch; they cost nothing until somebody sets a provider.
var tracer = otel.Tracer("automation/scheduler")

// traced begins the span of one execution; end gets its error.
func traced(ctx context.Context, r *models.Run) (inside context.Context, end func(error)) {
	ctx, span := tracer.Start(ctx, "dispatch run")
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("run_id", r.ID.String()), attribute.String("automation_id", r.AutomationID.String()), attribute.Int("attempt", r.Attempt),
		)
	}
	return ctx, func(err error) {
		if err != nil && span.IsRecording() {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
