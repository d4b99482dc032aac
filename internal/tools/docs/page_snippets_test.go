package docs_test

// The Go of docs/*.md, compiled: documents_test.go looks for each of its lines here.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

var _ = []any{delayNames, sharedWithDeadLetters, quickRetry, withTLS, withoutURLs}

func delayNames() topology.Strategy {
	strategy := topology.PerQueue{
		WaitName: func(queue string, delay time.Duration) string {
			return fmt.Sprintf("%s.delay_%ds", queue, delay/time.Second)
		},
	}
	return strategy
}

func sharedWithDeadLetters(
	client *topology.Client, policy backoff.Policy,
) (topology.Strategy, *middleware.DelayedRetry, error) {
	strategy := topology.Shared{
		Prefix: "shop",
		Dead: topology.DeadLetters{Target: func(queue string) topology.Route {
			return topology.Route{Exchange: "dead-letters", RoutingKey: queue}
		}},
	}
	retry, err := middleware.NewDelayedRetry(client, policy,
		middleware.WithDefaultClass(header.ClassPermanent), // only marked errors
	)
	return strategy, retry, err
}

func quickRetry(router *message.Router, retry *middleware.DelayedRetry) {
	router.AddMiddleware(
		retry.Middleware,
		// One more quick try; leave it out otherwise.
		wmiddleware.Retry{MaxRetries: 1, InitialInterval: 50 * time.Millisecond}.Middleware,
	)
}

func withTLS(
	ctx context.Context, ourCA *x509.CertPool, ourClient tls.Certificate,
) (*topology.Client, error) {
	cfg := amqp.NewDurableQueueConfig("amqps://orders-service:…@broker.example:5671/shop")
	cfg.Connection.TLSConfig = &tls.Config{
		RootCAs:      ourCA,                        // default: the system's
		Certificates: []tls.Certificate{ourClient}, // where the broker asks for one
	}
	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
	return client, err
}

func withoutURLs(
	client *topology.Client, policy backoff.Policy,
) (*middleware.DelayedRetry, error) {
	retry, err := middleware.NewDelayedRetry(client, policy,
		middleware.WithErrorText(middleware.RedactURLs))
	return retry, err
}
