package tracing_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
)

const patience = 60 * time.Second

var errFailed = errors.New("no stock")

// recorder keeps the spans that have ended.
func recorder(t *testing.T) (*tracetest.InMemoryExporter, trace.TracerProvider) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return exporter, provider
}

// service is a router on a queue of a real broker.
type service struct {
	url, queue string
	spans      *tracetest.InMemoryExporter
	provider   trace.TracerProvider
}

func serve(t *testing.T, policy backoff.List, h message.NoPublishHandlerFunc, outer ...message.HandlerMiddleware) *service {
	t.Helper()
	s := &service{url: testbroker.URL(t), queue: testbroker.Queue(t)}
	s.spans, s.provider = recorder(t)
	tracer := tracing.New(tracing.WithTracerProvider(s.provider))
	cfg := wamqp.NewDurableQueueConfig(s.url)
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{}, topology.WithObserver(tracer))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	plan, err := topology.PlanFor(topology.PerQueue{}, s.queue, policy)
	require.NoError(t, err)
	for _, q := range plan.Queues {
		testbroker.Delete(t, q.Name)
	}
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
	require.NoError(t, err)
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(tracer))
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	router.AddMiddleware(outer...)
	router.AddMiddleware(tracer.Middleware, retry.Middleware)
	router.AddConsumerHandler("billing", s.queue, sub, h)
	running := make(chan error, 1)
	go func() { running <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case <-time.After(patience):
		t.Fatal("router did not start")
	}
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-running)
	})
	return s
}

func (s *service) publish(t *testing.T, headers amqp.Table) {
	t.Helper()
	err := testbroker.Channel(t, s.url).PublishWithContext(t.Context(), "", s.queue, true, false, amqp.Publishing{
		MessageId: "m-1", CorrelationId: "c-1", Headers: headers, Body: []byte("secret"),
	})
	require.NoError(t, err)
}

// ended waits for n spans.
func (s *service) ended(t *testing.T, n int) tracetest.SpanStubs {
	t.Helper()
	testbroker.WaitFor(t, "the spans", patience, func() bool { return len(s.spans.GetSpans()) >= n })
	return s.spans.GetSpans()
}

// Three attempts through two real wait queues: children of the publisher's span,
// each linked to the one before. What the publisher wrote arrives each time.
func TestAttemptsAreOneChain(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	type arrived struct{ parent, state, handlerSpan string }
	seen := make(chan arrived, 3)
	s := serve(t, backoff.List{100 * time.Millisecond, 300 * time.Millisecond}, func(msg *message.Message) error {
		seen <- arrived{msg.Metadata["traceparent"], msg.Metadata["tracestate"], trace.SpanContextFromContext(msg.Context()).SpanID().String()}
		if calls.Add(1) < 3 {
			return errFailed
		}
		return nil
	})
	publishing, span := s.provider.Tracer("shop").Start(t.Context(), "publish orders", trace.WithSpanKind(trace.SpanKindProducer))
	span.End()
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(publishing, headers)
	s.publish(t, amqp.Table{"traceparent": headers["traceparent"], "tracestate": "shop=1"})

	spans := s.ended(t, 4)[1:]
	for i, got := range spans {
		require.Equal(t, "process "+s.queue, got.Name)
		require.Equal(t, trace.SpanKindConsumer, got.SpanKind)
		require.Equal(t, span.SpanContext().TraceID(), got.SpanContext.TraceID(), "attempt %d", i+1)
		require.Equal(t, span.SpanContext().SpanID(), got.Parent.SpanID(), "attempt %d", i+1)
		require.Equal(t, "shop=1", got.SpanContext.TraceState().String())
		if i == 0 {
			require.Empty(t, got.Links)
		} else {
			require.Len(t, got.Links, 1, "attempt %d", i+1)
			require.Equal(t, spans[i-1].SpanContext.SpanID(), got.Links[0].SpanContext.SpanID())
			require.Equal(t, spans[i-1].SpanContext.TraceID(), got.Links[0].SpanContext.TraceID())
		}
		require.Equal(t, arrived{headers["traceparent"], "shop=1", got.SpanContext.SpanID().String()}, <-seen)

		a := values(got.Attributes)
		require.GreaterOrEqual(t, len(a), 8)
		for key, want := range map[attribute.Key]any{
			"messaging.system": "rabbitmq", "messaging.operation.type": "process", "messaging.operation.name": "process",
			"messaging.destination.name": s.queue, "messaging.rabbitmq.destination.routing_key": s.queue,
			"messaging.message.id": "m-1", "messaging.message.conversation_id": "c-1", "messaging.message.body.size": int64(6),
			"millpond.attempt": int64(i + 1), "millpond.handler": "billing",
		} {
			require.Equal(t, want, a[key], key)
		}
		if i == 2 {
			require.Equal(t, codes.Unset, got.Status.Code)
			require.Empty(t, got.Events)
			require.Equal(t, .3, a["millpond.delay_asked"])
			continue
		}
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "no stock"}, got.Status)
		require.Equal(t, []string{"exception", "millpond.retried"}, names(got.Events))
		require.Equal(t, "no stock", values(got.Events[0].Attributes)["exception.message"])
		require.Equal(t, "retryable", values(got.Events[1].Attributes)["millpond.class"])
		require.Equal(t, []float64{.1, .3}[i], values(got.Events[1].Attributes)["millpond.delay_given"])
	}
}

// Without a publisher that traces, the attempts are one trace all the same; the
// last one says that the message was dead-lettered.
func TestAttemptsAreOneTraceWithoutAPublisher(t *testing.T) {
	t.Parallel()
	s := serve(t, backoff.List{100 * time.Millisecond}, func(*message.Message) error { return errFailed })
	s.publish(t, nil)
	spans := s.ended(t, 2)
	first, second := spans[0], spans[1]
	require.False(t, first.Parent.IsValid())
	require.Equal(t, first.SpanContext.TraceID(), second.SpanContext.TraceID())
	require.Equal(t, first.SpanContext.SpanID(), second.Parent.SpanID())
	require.Len(t, second.Links, 1)
	require.Equal(t, first.SpanContext.SpanID(), second.Links[0].SpanContext.SpanID())
	require.Equal(t, []string{"exception", "millpond.dead_lettered"}, names(second.Events))
	require.Equal(t, "exhausted", values(second.Events[1].Attributes)["millpond.reason"])
	require.Equal(t, int64(2), values(second.Events[1].Attributes)["millpond.failures"])
}

// The router nacks after the attempt has ended well: the Subscriber sets the
// message aside, and its next attempt links to that one.
func TestAMessageThatIsNackedStaysInTheChain(t *testing.T) {
	t.Parallel()
	var nacks atomic.Int32
	s := serve(t, backoff.List{100 * time.Millisecond}, func(*message.Message) error { return nil },
		func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := h(msg)
				if nacks.Add(1) == 1 {
					return nil, errFailed
				}
				return produced, err
			}
		})
	s.publish(t, nil)
	spans := s.ended(t, 2)
	require.Len(t, spans[1].Links, 1)
	require.Equal(t, spans[0].SpanContext.SpanID(), spans[1].Links[0].SpanContext.SpanID())
}

func values(attributes []attribute.KeyValue) map[attribute.Key]any {
	found := map[attribute.Key]any{}
	for _, a := range attributes {
		found[a.Key] = a.Value.AsInterface()
	}
	return found
}

func names(events []sdktrace.Event) []string {
	var found []string
	for _, e := range events {
		found = append(found, e.Name)
	}
	return found
}

// once lets one delivery through, and returns its notes and its span.
func once(t *testing.T, h message.HandlerFunc, delivery middleware.Delivery, opts ...tracing.Option) (header.RetryState, tracetest.SpanStub) {
	t.Helper()
	spans, provider := recorder(t)
	tracer := tracing.New(append([]tracing.Option{tracing.WithTracerProvider(provider)}, opts...)...)
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second}, middleware.WithObserver(tracer))
	require.NoError(t, err)
	delivery.Queue = "orders"
	msg := middlewaretest.NewMessage(delivery, []byte("secret"))
	_, _ = tracer.Middleware(retry.Middleware(h))(msg)
	require.Len(t, spans.GetSpans(), 1)
	var notes header.RetryState
	if calls := broker.Calls(); len(calls) > 0 {
		notes = calls[0].Notes
	}
	return notes, spans.GetSpans()[0]
}

func failing(err error) message.HandlerFunc {
	return middlewaretest.Consumer(func(*message.Message) error { return err })
}

func TestForgedTraceparentIsNoLink(t *testing.T) {
	t.Parallel()
	for _, forged := range []string{"x", "00-00000000000000000000000000000000-0000000000000000-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		notes, span := once(t, failing(errFailed), middleware.Delivery{State: header.RetryState{Traceparent: forged}})
		require.Empty(t, span.Links)
		require.Contains(t, notes.Traceparent, span.SpanContext.SpanID().String())
	}
}

func TestSettingAsideIsNoError(t *testing.T) {
	t.Parallel()
	_, span := once(t, failing(middleware.Snooze(errFailed, time.Minute)), middleware.Delivery{})
	require.Equal(t, []string{"millpond.snoozed"}, names(span.Events))
	require.Equal(t, codes.Unset, span.Status.Code)
}

func TestPanicIsTracedWithoutItsStack(t *testing.T) {
	t.Parallel()
	_, span := once(t, func(*message.Message) ([]*message.Message, error) { panic("no stock") }, middleware.Delivery{})
	require.Equal(t, "panic: no stock", span.Status.Description)
	require.Equal(t, map[attribute.Key]any{
		"exception.type": "*middleware.PanicError", "exception.message": "panic: no stock",
	}, values(span.Events[0].Attributes))
}

func TestInterruptionIsAnError(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	notes, span := once(t, middlewaretest.Consumer(func(*message.Message) error { close(gone); return errFailed }),
		middleware.Delivery{Gone: gone})
	require.Empty(t, notes)
	require.Equal(t, []string{"exception", "millpond.requeued"}, names(span.Events))
	require.Equal(t, codes.Error, span.Status.Code)
}

// A span that somebody outside has made of the message is the parent.
func TestSpanFromOutsideIsTheParent(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t)
	tracer := tracing.New(tracing.WithTracerProvider(provider))
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	msg.Metadata.Set("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	ctx, outside := provider.Tracer("other").Start(msg.Context(), "receive")
	msg.SetContext(ctx)
	_, err := tracer.Middleware(failing(errFailed))(msg)
	require.ErrorIs(t, err, errFailed)
	outside.End()
	require.Equal(t, outside.SpanContext().SpanID(), spans.GetSpans()[0].Parent.SpanID())
	require.Equal(t, codes.Error, spans.GetSpans()[0].Status.Code)
}

// What the handler produces carries the span on, unless it has one.
func TestProducedMessagesAreTraced(t *testing.T) {
	t.Parallel()
	const own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	out := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil), nil}
	out[1].Metadata.Set("traceparent", own)
	_, span := once(t, func(*message.Message) ([]*message.Message, error) { return out, nil }, middleware.Delivery{})
	require.Contains(t, out[0].Metadata["traceparent"], span.SpanContext.SpanID().String())
	require.Equal(t, own, out[1].Metadata["traceparent"])
}

// Without an SDK nothing is noted, and the publisher's context reaches the handler.
func TestWithoutAnSDKNothingIsTraced(t *testing.T) {
	t.Parallel()
	const publisher = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	tracer := tracing.New()
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second}, middleware.WithObserver(tracer))
	require.NoError(t, err)
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	msg.Metadata.Set("traceparent", publisher)
	_, err = tracer.Middleware(retry.Middleware(failing(errFailed)))(msg)
	require.NoError(t, err)
	require.Empty(t, broker.Calls()[0].Notes.Traceparent)
	require.Equal(t, "00f067aa0ba902b7", trace.SpanContextFromContext(msg.Context()).SpanID().String())
}

// A message of another Pub/Sub, which has no delivery.
func TestMessageWithoutADelivery(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t)
	msg := message.NewMessage("uuid", nil)
	_, err := tracing.New(tracing.WithTracerProvider(provider)).Middleware(failing(nil))(msg)
	require.NoError(t, err)
	require.Equal(t, "uuid", values(spans.GetSpans()[0].Attributes)["messaging.message.id"])
}

func TestOnlyTheAPIIsUsed(t *testing.T) {
	t.Parallel()
	deps, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(deps), "go.opentelemetry.io/otel/trace")
	for dep := range strings.Lines(string(deps)) {
		require.False(t, strings.HasPrefix(dep, "go.opentelemetry.io/otel/sdk"), dep)
		require.NotContains(t, dep, "millpond/topology")
	}
}
