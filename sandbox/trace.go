package sandbox

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"automation/models"
)

// tracer makes the spans of settling; they cost nothing until somebody sets a provider.
var tracer = otel.Tracer("automation/sandbox")

// traced begins the span of one claim's chain; end gets its error.
func traced(ctx context.Context, b *models.Sandbox) (inside context.Context, end func(error)) {
	ctx, span := tracer.Start(ctx, "settle sandbox")
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("workspace_id", b.ID.String()), attribute.String("provider", b.Backend),
			attribute.String("desired", string(b.Desired)), attribute.String("observed", string(b.Observed)),
		)
	}
	return ctx, func(err error) {
		if err != nil && span.IsRecording() {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
