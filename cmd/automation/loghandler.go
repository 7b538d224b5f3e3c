package main

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"automation/router"
)

// logKeys are the keys that lines have in common, in the order in which they are written; others follow.
var logKeys = strings.Fields(`
	component event request_id trace_id run_id automation_id workspace_id sandbox_id conversation_id provider tenant_id
	actor reason outcome attempt due_at delay_seconds dry_run bytes duration_ms status_code error error_kind`)

// logHandler brings every line into one form before next writes it: keys in a fixed order, groups flat ("a.b"), durations in
// milliseconds or seconds by their key, times in UTC, an event that names the kind of line, request and trace of the context.
// Secrets are taken out (redact), and failures that repeat are counted instead of repeated (repeats).
type logHandler struct {
	next    slog.Handler
	secrets *secrets
	repeats *repeats
	attrs   []slog.Attr // of With, in their form
	prefix  string      // of WithGroup
}

func newLogHandler(next slog.Handler) *logHandler {
	return &logHandler{next: next, secrets: &secrets{}, repeats: newRepeats(next)}
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = slices.Clip(h.attrs)
	for _, a := range attrs {
		with.attrs = h.flatten(with.attrs, h.prefix, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	with := *h
	if name != "" {
		with.prefix += name + "."
	}
	return &with
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	attrs := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = h.flatten(attrs, h.prefix, a)
		return true
	})
	attrs = append([]slog.Attr{slog.String("event", eventOf(r.Message))}, attrs...)
	if id := router.RequestID(ctx); id != "" {
		attrs = append([]slog.Attr{slog.String("request_id", id)}, attrs...)
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		attrs = append(attrs, slog.String("trace_id", span.TraceID().String()))
	}
	line := slog.NewRecord(r.Time.UTC(), r.Level, h.secrets.redact(r.Message), r.PC)
	line.AddAttrs(ordered(attrs)...)
	if r.Level >= slog.LevelWarn && h.repeats.count(line) {
		return nil
	}
	return h.next.Handle(ctx, line)
}

// eventOf is the machine's name of a message, which is constant: "run ended" is run_ended.
func eventOf(message string) string {
	words := strings.FieldsFunc(strings.ToLower(message), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	return strings.Join(words, "_")
}

// ordered puts the common keys first. Of a key that is there twice the last value counts.
func ordered(attrs []slog.Attr) []slog.Attr {
	last := make(map[string]int, len(attrs))
	for n, a := range attrs {
		last[a.Key] = n
	}
	var kept []slog.Attr
	for n, a := range attrs {
		if last[a.Key] == n {
			kept = append(kept, a)
		}
	}
	rank := func(a slog.Attr) int {
		if n := slices.Index(logKeys, a.Key); n >= 0 {
			return n
		}
		return len(logKeys)
	}
	slices.SortStableFunc(kept, func(a, b slog.Attr) int { return rank(a) - rank(b) })
	return kept
}

// flatten appends an attribute in its form: without secrets, and a group as its members.
func (h *logHandler) flatten(to []slog.Attr, prefix string, a slog.Attr) []slog.Attr {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range value.Group() {
			to = h.flatten(to, prefix, member)
		}
		return to
	}
	if a.Key == "" {
		return to
	}
	key := prefix + a.Key
	if isSecretKey(key) {
		return append(to, slog.String(key, hiddenSecret))
	}
	switch value.Kind() {
	case slog.KindDuration:
		return append(to, durationAttr(key, value.Duration()))
	case slog.KindTime:
		return append(to, slog.Time(key, value.Time().UTC()))
	case slog.KindString:
		return append(to, slog.String(key, h.secrets.redact(value.String())))
	case slog.KindAny:
		return withErrorKind(append(to, slog.Any(key, h.plain(value.Any()))), key, value.Any())
	default: // numbers and truth values
		return append(to, slog.Attr{Key: key, Value: value})
	}
}

// durationAttr names the unit in the key.
func durationAttr(key string, d time.Duration) slog.Attr {
	switch {
	case key == "duration" || strings.HasSuffix(key, "_ms"):
		return slog.Int64(strings.TrimSuffix(key, "_ms")+"_ms", d.Milliseconds())
	case strings.HasSuffix(key, "_seconds"):
		return slog.Float64(key, d.Seconds())
	}
	return slog.Float64(key+"_seconds", d.Seconds())
}

// plain is any other value without secrets: as text where it has one, as JSON where that hides none.
func (h *logHandler) plain(v any) any {
	switch t := v.(type) {
	case nil:
		return nil
	case error:
		return h.secrets.redact(t.Error())
	case encoding.TextMarshaler:
		text, err := t.MarshalText()
		if err != nil {
			return hiddenSecret
		}
		return h.secrets.redact(string(text))
	case fmt.Stringer:
		return h.secrets.redact(t.String())
	}
	text, err := json.Marshal(v)
	if err != nil {
		return h.secrets.redact(fmt.Sprint(v))
	}
	if clean := h.secrets.redact(string(text)); clean != string(text) {
		return clean
	}
	return v
}
