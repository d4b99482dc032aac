package tracing

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond/middleware"
)

// Observe implements middleware.Observer. It says on the span of the attempt what
// became of it. Events without a span of Middleware are not traced: what the
// Subscriber decides by itself happens before there is one, or after.
func (t *Tracing) Observe(ctx context.Context, e middleware.Event) {
	span, _ := ctx.Value(spanKey{}).(trace.Span)
	if span == nil || !span.IsRecording() || e.Kind == middleware.EventHandled {
		return
	}
	if e.Kind == middleware.EventFailing && e.Tries > 1 { // each try would be an event
		return
	}
	if e.Err != nil && e.Kind != middleware.EventSnoozed {
		text := e.ErrorText()
		span.AddEvent(semconv.ExceptionEventName, trace.WithTimestamp(e.At), trace.WithAttributes(
			semconv.ExceptionType(fmt.Sprintf("%T", e.Err)), semconv.ExceptionMessage(text),
		))
		if e.Kind != middleware.EventFailing {
			span.SetStatus(codes.Error, text)
		}
	}
	span.AddEvent("millpond."+string(e.Kind), trace.WithTimestamp(e.At), trace.WithAttributes(said(e)...))
}

// said are the fields of an event that say something.
func said(e middleware.Event) []attribute.KeyValue {
	var a []attribute.KeyValue
	for _, text := range []struct{ key, value string }{
		{"millpond.class", string(e.Class)}, {"millpond.reason", string(e.Reason)},
	} {
		if text.value != "" {
			a = append(a, attribute.String(text.key, text.value))
		}
	}
	for _, delay := range []struct {
		key   string
		value time.Duration
	}{
		{"millpond.delay_asked", e.DelayAsked}, {"millpond.delay_given", e.DelayGiven},
		{"millpond.age", e.Age}, {"millpond.held", e.Held},
	} {
		if delay.value > 0 {
			a = append(a, seconds(delay.key, delay.value))
		}
	}
	if e.Tries > 0 {
		a = append(a, attribute.Int("millpond.tries", e.Tries))
	}
	return append(a, attribute.Int("millpond.failures", e.Failures))
}

// seconds is a duration in the unit that OpenTelemetry uses.
func seconds(key string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(key, d.Seconds())
}
