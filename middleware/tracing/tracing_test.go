package tracing_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
)

// foreign is a publisher's span.
const foreign = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var (
	errFailed = errors.New("no stock")
	second    = backoff.List{time.Second}
)

// recorder keeps the spans that have ended.
func recorder(t *testing.T) (*tracetest.InMemoryExporter, trace.TracerProvider) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return exporter, provider
}

// service is a service on a queue of a real broker whose spans are kept.
type service struct {
	*rig.Service
	spans    *tracetest.InMemoryExporter
	provider trace.TracerProvider
}

func serve(
	t *testing.T, policy backoff.List, h message.NoPublishHandlerFunc,
	outer ...message.HandlerMiddleware,
) *service {
	t.Helper()
	s := &service{}
	s.spans, s.provider = recorder(t)
	tracer := tracing.New(tracing.WithTracerProvider(s.provider))
	s.Service = rig.Start(t, rig.Config{
		Policy: policy, Handle: h, Outer: append(outer, tracer.Middleware),
		ClientOptions: []topology.Option{topology.WithObserver(tracer)},
		RetryOptions:  []middleware.Option{middleware.WithObserver(tracer)},
	})
	return s
}

func (s *service) publish(headers amqp.Table) {
	s.T.Helper()
	s.Publish(amqp.Publishing{
		MessageId: "m-1", CorrelationId: "c-1", Headers: headers, Body: []byte("secret"),
	})
}

// ended waits for n spans.
func (s *service) ended(n int) tracetest.SpanStubs {
	s.T.Helper()
	rig.WaitFor(s.T, "the spans", func() bool { return len(s.spans.GetSpans()) >= n })
	return s.spans.GetSpans()
}

// requireLink asserts that one span links to another.
func requireLink(t *testing.T, from, to tracetest.SpanStub) {
	t.Helper()
	require.Len(t, from.Links, 1)
	require.Equal(t, to.SpanContext.SpanID(), from.Links[0].SpanContext.SpanID())
	require.Equal(t, to.SpanContext.TraceID(), from.Links[0].SpanContext.TraceID())
}

// Given a publisher that traces, when three attempts pass two real wait queues, then
// they are children of the publisher's span, each linked to the attempt before. The
// publisher's headers arrive each time.
func TestAttemptsAreOneChain(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	type arrived struct{ parent, state, handlerSpan string }
	seen := make(chan arrived, 3)
	policy := backoff.List{100 * time.Millisecond, 300 * time.Millisecond}
	s := serve(t, policy, func(msg *message.Message) error {
		own := trace.SpanContextFromContext(msg.Context()).SpanID().String()
		seen <- arrived{msg.Metadata["traceparent"], msg.Metadata["tracestate"], own}
		if calls.Add(1) < 3 {
			return errFailed
		}
		return nil
	})
	publishing, span := s.provider.Tracer("shop").Start(t.Context(), "publish orders",
		trace.WithSpanKind(trace.SpanKindProducer))
	span.End()
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(publishing, headers)
	s.publish(amqp.Table{"traceparent": headers["traceparent"], "tracestate": "shop=1"})

	spans := s.ended(4)[1:]
	for i, got := range spans {
		require.Equal(t, "process "+s.Queue, got.Name)
		require.Equal(t, trace.SpanKindConsumer, got.SpanKind)
		require.Equal(t, span.SpanContext().TraceID(), got.SpanContext.TraceID(), "attempt %d", i+1)
		require.Equal(t, span.SpanContext().SpanID(), got.Parent.SpanID(), "attempt %d", i+1)
		require.Equal(t, "shop=1", got.SpanContext.TraceState().String())
		if i == 0 {
			require.Empty(t, got.Links)
		} else {
			requireLink(t, got, spans[i-1])
		}
		own := got.SpanContext.SpanID().String()
		require.Equal(t, arrived{headers["traceparent"], "shop=1", own}, <-seen)

		a := values(got.Attributes)
		require.GreaterOrEqual(t, len(a), 8)
		for key, want := range map[attribute.Key]any{
			"messaging.system": "rabbitmq", "messaging.operation.type": "process",
			"messaging.operation.name": "process", "messaging.destination.name": s.Queue,
			"messaging.rabbitmq.destination.routing_key": s.Queue, "messaging.message.id": "m-1",
			"messaging.message.conversation_id": "c-1", "messaging.message.body.size": int64(6),
			"millpond.attempt": int64(i + 1), "millpond.handler": "handler",
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

// Given a publisher that does not trace, when a message fails, then its attempts are
// one trace. The last span says that the message was dead-lettered.
func TestAttemptsAreOneTraceWithoutAPublisher(t *testing.T) {
	t.Parallel()
	policy := backoff.List{100 * time.Millisecond}
	s := serve(t, policy, func(*message.Message) error { return errFailed })
	s.publish(nil)
	spans := s.ended(2)
	first, second := spans[0], spans[1]
	require.False(t, first.Parent.IsValid())
	require.Equal(t, first.SpanContext.TraceID(), second.SpanContext.TraceID())
	require.Equal(t, first.SpanContext.SpanID(), second.Parent.SpanID())
	requireLink(t, second, first)
	require.Equal(t, []string{"exception", "millpond.dead_lettered"}, names(second.Events))
	require.Equal(t, "exhausted", values(second.Events[1].Attributes)["millpond.reason"])
	require.Equal(t, int64(2), values(second.Events[1].Attributes)["millpond.failures"])
}

// Given a successful attempt, when the router nacks the message, then the Subscriber
// sets it aside, and the next attempt links to the first.
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
	s.publish(nil)
	spans := s.ended(2)
	requireLink(t, spans[1], spans[0])
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

// once handles one delivery, and returns its state and its span.
func once(
	t *testing.T, h message.HandlerFunc, delivery middleware.Delivery,
) (state header.RetryState, span tracetest.SpanStub) {
	t.Helper()
	spans, provider := recorder(t)
	tracer := tracing.New(tracing.WithTracerProvider(provider))
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, second, middleware.WithObserver(tracer))
	require.NoError(t, err)
	delivery.Queue = "orders"
	msg := middlewaretest.NewMessage(delivery, []byte("secret"))
	_, _ = tracer.Middleware(retry.Middleware(h))(msg)
	require.Len(t, spans.GetSpans(), 1)
	if calls := broker.Calls(); len(calls) > 0 {
		state = calls[0].State
	}
	return state, spans.GetSpans()[0]
}

func failing(err error) message.HandlerFunc {
	return middlewaretest.Consumer(func(*message.Message) error { return err })
}

func TestForgedTraceparentIsNoLink(t *testing.T) {
	t.Parallel()
	for _, forged := range []string{
		"x", "00-00000000000000000000000000000000-0000000000000000-01", "ff" + foreign[2:],
	} {
		state, span := once(t, failing(errFailed),
			middleware.Delivery{State: header.RetryState{Traceparent: forged}})
		require.Empty(t, span.Links)
		require.Contains(t, state.Traceparent, span.SpanContext.SpanID().String())
	}
}

func TestSnoozeIsNoError(t *testing.T) {
	t.Parallel()
	snooze := middleware.Snooze(errFailed, time.Minute)
	_, span := once(t, failing(snooze), middleware.Delivery{})
	require.Equal(t, []string{"millpond.snoozed"}, names(span.Events))
	require.Equal(t, codes.Unset, span.Status.Code)
}

func TestPanicIsTracedWithoutItsStack(t *testing.T) {
	t.Parallel()
	_, span := once(t, middlewaretest.Consumer(func(*message.Message) error {
		panic("no stock")
	}), middleware.Delivery{})
	require.Equal(t, "panic: no stock", span.Status.Description)
	require.Equal(t, map[attribute.Key]any{
		"exception.type": "*middleware.PanicError", "exception.message": "panic: no stock",
	}, values(span.Events[0].Attributes))
}

func TestInterruptionIsAnError(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	state, span := once(t, middlewaretest.Consumer(func(*message.Message) error {
		close(gone)
		return errFailed
	}), middleware.Delivery{Gone: gone})
	require.Empty(t, state)
	require.Equal(t, []string{"exception", "millpond.requeued"}, names(span.Events))
	require.Equal(t, codes.Error, span.Status.Code)
}

// Given a span that a middleware outside made of the message, then it is the parent.
func TestSpanFromOutsideIsTheParent(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t)
	tracer := tracing.New(tracing.WithTracerProvider(provider))
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	msg.Metadata.Set("traceparent", foreign)
	ctx, outside := provider.Tracer("other").Start(msg.Context(), "receive")
	msg.SetContext(ctx)
	_, err := tracer.Middleware(failing(errFailed))(msg)
	require.ErrorIs(t, err, errFailed)
	outside.End()
	require.Equal(t, outside.SpanContext().SpanID(), spans.GetSpans()[0].Parent.SpanID())
	require.Equal(t, codes.Error, spans.GetSpans()[0].Status.Code)
}

// Produced messages carry the span on, unless they have one.
func TestProducedMessagesAreTraced(t *testing.T) {
	t.Parallel()
	out := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil), nil}
	out[1].Metadata.Set("traceparent", foreign)
	produce := func(*message.Message) ([]*message.Message, error) { return out, nil }
	_, span := once(t, produce, middleware.Delivery{})
	require.Contains(t, out[0].Metadata["traceparent"], span.SpanContext.SpanID().String())
	require.Equal(t, foreign, out[1].Metadata["traceparent"])
}

// Without an SDK no header is written, and the publisher's context reaches the handler.
func TestWithoutAnSDKNothingIsTraced(t *testing.T) {
	t.Parallel()
	tracer := tracing.New()
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, second, middleware.WithObserver(tracer))
	require.NoError(t, err)
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	msg.Metadata.Set("traceparent", foreign)
	_, err = tracer.Middleware(retry.Middleware(failing(errFailed)))(msg)
	require.NoError(t, err)
	require.Empty(t, broker.Calls()[0].State.Traceparent)
	span := trace.SpanContextFromContext(msg.Context()).SpanID().String()
	require.Equal(t, "00f067aa0ba902b7", span)
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

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }
