package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/tracing"
)

func ExampleNew() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	t := tracing.New(tracing.WithTracerProvider(provider))

	broker := middlewaretest.NewBroker()
	policy := backoff.List{time.Second}
	retry, err := middleware.NewDelayedRetry(broker, policy, middleware.WithObserver(t))
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("no stock")
	}))
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	broker.Run(t.Middleware(handler), msg)
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name, len(span.Links), span.Events[1].Name)
	}
	// Output:
	// process orders 0 millpond.retried
	// process orders 1 millpond.dead_lettered
}

// Every option: the provider of spans, and the format of the publisher's context.
func ExampleNew_options() {
	options := []tracing.Option{
		tracing.WithTracerProvider(noop.NewTracerProvider()),
		tracing.WithPropagator(propagation.TraceContext{}),
	}
	var t *tracing.Tracing = tracing.New(options...)
	fmt.Println(t != nil)
	// Output: true
}
