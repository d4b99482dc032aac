package main

// The pieces of Go in docs/*.md that need more than the library's own module; the
// tests of examples/basic look for their lines here.

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wmetrics "github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

var _ = []any{watched, stacked, withoutARouter}

var ErrAlreadyShipped = errors.New("already shipped")

func watched(
	ctx context.Context, cfg amqp.Config, strategy topology.Strategy, policy backoff.Policy,
	router *message.Router, registry *prometheus.Registry, logger watermill.LoggerAdapter,
) error {
	m, err := metrics.New()
	problems := []error{err}
	t := tracing.New()
	client, err := topology.Open(ctx, cfg.Connection, strategy,
		topology.WithLogger(logger), topology.WithObserver(m, t))
	problems = append(problems, err)
	retry, err := middleware.NewDelayedRetry(client, policy)
	problems = append(problems, err)
	router.AddMiddleware(t.Middleware, retry.Middleware)

	plan, err := topology.PlanFor(strategy, "orders", retry.PoliciesFor("orders", "orders")...)
	problems = append(problems, err)
	operator, err := operate.Open(ctx, cfg.Connection.AmqpURI)
	problems = append(problems, err)
	depth, err := metrics.NewCollector(client, operator, []topology.Plan{plan})
	registry.MustRegister(m, depth)
	return errors.Join(append(problems, err)...)
}

func stacked(
	router *message.Router, retry *middleware.DelayedRetry, deduplicator *wmiddleware.Deduplicator,
	registry *prometheus.Registry, settings gobreaker.Settings,
) {
	router.AddMiddleware(
		wmiddleware.CorrelationID,
		wmiddleware.NewThrottle(100, time.Second).Middleware,
		retry.Middleware,
		deduplicator.Middleware, // KeyFactory: middleware.DeduplicationKey
		wmiddleware.NewIgnoreErrors([]error{ErrAlreadyShipped}).Middleware,
		wmetrics.NewPrometheusMetricsBuilder(registry, "", "").NewRouterMiddleware().Middleware,
		wmiddleware.NewCircuitBreaker(settings).Middleware, // with middleware.WithSnoozeFor
		wmiddleware.Retry{MaxRetries: 2, InitialInterval: 10 * time.Millisecond}.Middleware,
		wmiddleware.Timeout(30*time.Second),
		wmiddleware.Recoverer,
	)
}

func withoutARouter(
	retries *millpond.Retries, messages <-chan *message.Message,
	handleOrder message.NoPublishHandlerFunc,
) {
	handle := retries.Retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, handleOrder(msg)
	})
	for msg := range messages {
		if _, err := handle(msg); err != nil {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
}
