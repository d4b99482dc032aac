package tracing

import (
	"context"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond/middleware"
)

// scope names this package to whoever looks at its spans.
const scope = "github.com/millpond-go/millpond/middleware/tracing"

// Tracing is a Watermill middleware that makes a span of each attempt, and a
// middleware.Observer that says on it what became of the attempt. One Tracing may
// serve many handlers at once.
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

// WithTracerProvider sets where spans go. Nil is as without it.
//
// Default: otel.GetTracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) { o.provider = p }
}

// WithPropagator sets how the publisher's trace context is read from the metadata.
// Nil is as without it. The link to the attempt before is W3C Trace Context in
// any case.
//
// Default: W3C Trace Context and Baggage.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(o *options) { o.propagator = p }
}

// New returns a Tracing.
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
		o.propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	return &Tracing{tracer: o.provider.Tracer(scope), propagator: o.propagator}
}

// Inject writes the trace context of ctx into the metadata of msg, which is about
// to be published.
func (t *Tracing) Inject(ctx context.Context, msg *message.Message) {
	t.propagator.Inject(ctx, propagation.MapCarrier(msg.Metadata))
}

type spanKey struct{}

// Middleware returns h with a span around each call. It belongs before
// DelayedRetry in AddMiddleware, so that the span lasts until the message is handed
// over. The handler finds the span in the message's context. What h produces
// carries it on, unless it has a trace context of its own.
func (t *Tracing) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		d := middleware.DeliveryOf(ctx, msg)
		parent, before := t.parents(ctx, msg, d)
		ctx, span := t.tracer.Start(parent, "process "+destination(ctx, d),
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attributes(ctx, msg, d)...),
			trace.WithLinks(before...),
		)
		defer span.End()
		if made := span.SpanContext(); d != nil && made.SpanID() != trace.SpanContextFromContext(parent).SpanID() {
			d.SetTraceparent(traceparent(made))
		}
		msg.SetContext(context.WithValue(ctx, spanKey{}, span))
		produced, err := h(msg)
		if err != nil { // DelayedRetry has settled nothing, or is not there
			span.SetStatus(codes.Error, middleware.Event{Err: err}.ErrorText())
		}
		for _, out := range produced {
			if out != nil && !trace.SpanContextFromContext(t.extract(context.Background(), out)).IsValid() {
				t.Inject(ctx, out)
			}
		}
		return produced, err
	}
}

// parents returns a context with the span that an attempt is a child of, and a
// link to the attempt before, if there was one.
func (t *Tracing) parents(ctx context.Context, msg *message.Message, d *middleware.Attached) (context.Context, []trace.Link) {
	// Somebody outside may have made a span of the message already.
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
	return ctx, []trace.Link{{
		SpanContext: before, Attributes: []attribute.KeyValue{attribute.String("millpond.link", "attempt_before")},
	}}
}

func (t *Tracing) extract(ctx context.Context, msg *message.Message) context.Context {
	return t.propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata))
}

// w3c writes and reads the note millpond-traceparent.
var w3c propagation.TraceContext

const traceparentField = "traceparent"

func traceparent(sc trace.SpanContext) string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier[traceparentField]
}

func parse(traceparent string) trace.SpanContext {
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.MapCarrier{traceparentField: traceparent}))
}

// destination is the queue, for routing keys may be without number.
func destination(ctx context.Context, d *middleware.Attached) string {
	if d != nil && d.Queue != "" {
		return d.Queue
	}
	return message.SubscribeTopicFromCtx(ctx)
}

// attributes are those of OpenTelemetry's conventions for messaging, and ours.
func attributes(ctx context.Context, msg *message.Message, d *middleware.Attached) []attribute.KeyValue {
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
		return append(a, semconv.MessagingMessageID(msg.UUID), semconv.MessagingDestinationName(destination(ctx, d)))
	}
	e := d.Event(ctx, "", d.Arrived)
	if e.CorrelationID != "" {
		a = append(a, semconv.MessagingMessageConversationID(e.CorrelationID))
	}
	if e.LastDelay > 0 {
		a = append(a, seconds("millpond.delay_asked", e.LastDelay), seconds("millpond.delay_measured", e.DelayMeasured))
	}
	a = append(a, semconv.MessagingMessageID(e.MessageID), semconv.MessagingSystemRabbitMQ)
	exchange, key := d.State.OriginExchange, d.State.OriginRoutingKey
	if exchange == "" && key == "" {
		return append(a, semconv.MessagingDestinationName(e.Queue))
	}
	return append(a,
		semconv.MessagingDestinationName(name(exchange, key, e.Queue)),
		semconv.MessagingRabbitMQDestinationRoutingKey(key))
}

// name is the destination as the conventions for RabbitMQ want it of a consumer:
// exchange, routing key and queue, without what is empty; a routing key that is
// the queue's name is there once.
func name(exchange, key, queue string) string {
	if key == queue {
		key = ""
	}
	parts := slices.DeleteFunc([]string{exchange, key, queue}, func(part string) bool { return part == "" })
	return strings.Join(parts, ":")
}
