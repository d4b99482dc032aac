package tracing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/middleware"
)

// scope names this package in its spans.
const scope = "github.com/millpond-go/millpond/middleware/tracing"

// Tracing is a Watermill middleware that makes a span of each attempt, and a
// middleware.Observer that adds the outcome to the span. One Tracing may serve many
// handlers at once.
type Tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

var _ middleware.Observer = (*Tracing)(nil)

// Option changes a Tracing.
type Option func(*options)

type options struct {
	provider   trace.TracerProvider
	propagator propagation.TextMapPropagator
}

// WithTracerProvider sets the destination of the spans. Nil means the default.
//
// Default: otel.GetTracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) { o.provider = p }
}

// WithPropagator sets how the publisher's trace context is read from the metadata. Nil
// means the default. The link to the attempt before is always W3C Trace Context.
//
// Default: W3C Trace Context and Baggage.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(o *options) { o.propagator = p }
}

// New returns a Tracing. It cannot fail: every value of an option is valid.
func New(opts ...Option) *Tracing {
	var o options
	for _, option := range opts {
		if option != nil {
			option(&o)
		}
	}
	if o.provider == nil {
		o.provider = otel.GetTracerProvider()
	}
	if o.propagator == nil {
		o.propagator = propagation.NewCompositeTextMapPropagator(
			propagation.TraceContext{}, propagation.Baggage{})
	}
	return &Tracing{tracer: o.provider.Tracer(scope), propagator: o.propagator}
}

// Inject writes the trace context of ctx into the metadata of msg, which is about
// to be published.
func (t *Tracing) Inject(ctx context.Context, msg *message.Message) {
	t.propagator.Inject(ctx, propagation.MapCarrier(msg.Metadata))
}

type spanKey struct{}

// Middleware returns h with a span around each call. It belongs before DelayedRetry in
// AddMiddleware, so that the span lasts until the message is handed over. The handler
// finds the span in the message's context. The messages that h produces carry the
// span on, unless they already have a trace context.
func (t *Tracing) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		d := attached.Of(ctx, msg)
		parent, before := t.parents(ctx, msg, d)
		ctx, span := t.tracer.Start(parent, "process "+destination(ctx, d),
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attributes(ctx, msg, d)...),
			trace.WithLinks(before...),
		)
		defer span.End()
		made, outer := span.SpanContext(), trace.SpanContextFromContext(parent)
		if d != nil && made.SpanID() != outer.SpanID() { // equal without an SDK
			d.State.Traceparent = traceparent(made)
		}
		msg.SetContext(context.WithValue(ctx, spanKey{}, span))
		produced, err := h(msg)
		if err != nil { // DelayedRetry has not settled the message, or is missing
			span.SetStatus(codes.Error, middleware.Event{Err: err}.ErrorText())
		}
		for _, out := range produced {
			if out == nil {
				continue
			}
			own := trace.SpanContextFromContext(t.extract(context.Background(), out))
			if !own.IsValid() {
				t.Inject(ctx, out)
			}
		}
		return produced, err
	}
}

// parents returns a context with the parent span of an attempt, and a link to the
// attempt before, if there was one.
func (t *Tracing) parents(
	ctx context.Context, msg *message.Message, d *attached.Delivery,
) (context.Context, []trace.Link) {
	// A middleware outside may have made a span of the message already.
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = t.extract(ctx, msg)
	}
	if d == nil || d.State.Traceparent == "" {
		return ctx, nil
	}
	before := parse(d.State.Traceparent)
	if !before.IsValid() {
		return ctx, nil
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, before)
	}
	link := attribute.String("millpond.link", "attempt_before")
	return ctx, []trace.Link{{SpanContext: before, Attributes: []attribute.KeyValue{link}}}
}

func (t *Tracing) extract(ctx context.Context, msg *message.Message) context.Context {
	return t.propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata))
}

// w3c writes and reads the header millpond-traceparent.
var w3c propagation.TraceContext

const traceparentField = "traceparent"

func traceparent(sc trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier[traceparentField]
}

func parse(traceparent string) trace.SpanContext {
	carrier := propagation.MapCarrier{traceparentField: traceparent}
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), carrier))
}

// destination is the queue, because the number of routing keys has no bound.
func destination(ctx context.Context, d *attached.Delivery) string {
	if d != nil && d.Queue != "" {
		return d.Queue
	}
	return message.SubscribeTopicFromCtx(ctx)
}

// attributes follow OpenTelemetry's conventions for messaging; more begin with
// millpond.
func attributes(
	ctx context.Context, msg *message.Message, d *attached.Delivery,
) []attribute.KeyValue {
	a := []attribute.KeyValue{
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingOperationName("process"),
		semconv.MessagingMessageBodySize(len(msg.Payload)),
		attribute.Int("millpond.attempt", middleware.Attempt(ctx)),
	}
	if handler := message.HandlerNameFromCtx(ctx); handler != "" {
		a = append(a, attribute.String("millpond.handler", handler))
	}
	if d == nil {
		return append(a, semconv.MessagingMessageID(msg.UUID),
			semconv.MessagingDestinationName(destination(ctx, d)))
	}
	ids, times := d.IDsThen(), d.Times(d.Arrived)
	if ids.Correlation != "" {
		a = append(a, semconv.MessagingMessageConversationID(ids.Correlation))
	}
	if times.LastDelay > 0 {
		a = append(a, seconds("millpond.delay_asked", times.LastDelay),
			seconds("millpond.delay_measured", times.DelayMeasured))
	}
	a = append(a, semconv.MessagingMessageID(ids.Message), semconv.MessagingSystemRabbitMQ)
	exchange, key := d.State.OriginExchange, d.State.OriginRoutingKey
	if exchange == "" && key == "" {
		return append(a, semconv.MessagingDestinationName(d.Queue))
	}
	return append(a,
		semconv.MessagingDestinationName(name(exchange, key, d.Queue)),
		semconv.MessagingRabbitMQDestinationRoutingKey(key))
}

// name is the destination in the conventions for consumers of RabbitMQ: exchange,
// routing key and queue, without empty parts. A routing key equal to the queue's name
// appears once.
func name(exchange, key, queue string) string {
	if key == queue {
		key = ""
	}
	parts := []string{exchange, key, queue}
	empty := func(part string) bool { return part == "" }
	return strings.Join(slices.DeleteFunc(parts, empty), ":")
}

// Observe implements middleware.Observer. It adds the outcome of the attempt to its
// span. It ignores events without a span of Middleware: the Subscriber makes some
// decisions before the span begins, or after it ended.
func (t *Tracing) Observe(ctx context.Context, e middleware.Event) {
	span, _ := ctx.Value(spanKey{}).(trace.Span)
	if span == nil || !span.IsRecording() || e.Kind == middleware.EventHandled {
		return
	}
	if e.Kind == middleware.EventFailing && e.Tries > 1 { // one event for all tries
		return
	}
	if e.Err != nil && e.Kind != middleware.EventSnoozed {
		text := e.ErrorText()
		kind := semconv.ExceptionType(fmt.Sprintf("%T", e.Err))
		span.AddEvent(semconv.ExceptionEventName, trace.WithTimestamp(e.At),
			trace.WithAttributes(kind, semconv.ExceptionMessage(text)))
		if e.Kind != middleware.EventFailing {
			span.SetStatus(codes.Error, text)
		}
	}
	span.AddEvent("millpond."+string(e.Kind), trace.WithTimestamp(e.At),
		trace.WithAttributes(outcome(e)...))
}

// outcome returns the fields of an event that are not empty.
func outcome(e middleware.Event) []attribute.KeyValue {
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
		{"millpond.delay_asked", e.DelayAsked},
		{"millpond.delay_given", e.DelayGiven},
		{"millpond.age", e.Age},
		{"millpond.held", e.Held},
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
