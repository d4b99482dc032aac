package docs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// The Go of docs/*.md, compiled: TestDocumentsShowGoThatCompiles looks for each of its lines here.
var _ = []any{
	delayNames, sharedWithDeadLetters, withTLS, withoutURLs, addMiddlewares, publishLater,
	followTheService, leaving,
}

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

func addMiddlewares(router *message.Router, retries *millpond.Retries) {
	router.AddMiddleware(
		wmiddleware.CorrelationID, // outside: middlewares that do not fail
		retries.Retry.Middleware,
		wmiddleware.Timeout(30*time.Second), // inside: middlewares whose errors count as failures
		wmiddleware.Recoverer,
	)
}

func publishLater(
	ctx context.Context, retries *millpond.Retries, cfg amqp.Config, msg *message.Message,
) error {
	pub, err := retries.Client.NewPublisher(cfg, topology.WithDelays(3*time.Second))
	if err != nil {
		return err
	}
	msg.SetContext(delay.WithContext(ctx, delay.For(3*time.Second)))
	err = pub.Publish("orders", msg)
	return err
}

func followTheService(ctx context.Context, cfg amqp.Config) (*millpond.Retries, error) {
	health, err := adaptive.New(time.Minute) // counts the attempts of the last minute
	if err != nil {
		return nil, err
	}
	policy := backoff.Adaptive{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8},
		Health: health.Recent,
	}
	retries, err := millpond.Open(ctx, cfg, policy,
		millpond.WithRetry(middleware.WithObserver(health)))
	return retries, err
}

func leaving(
	client *topology.Client, cfg amqp.Config, policy backoff.Policy,
) (*middleware.DelayedRetry, *topology.Subscriber, error) {
	retry, err := middleware.NewDelayedRetry(client, backoff.None{})
	if err != nil {
		return nil, nil, err
	}
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy)) // the old policy
	return retry, sub, err
}

// Given a queue with wait queues, when its service gets the policy None, then the option of its
// subscriber decides which queues it declares.
func TestQueuesThatLeavingDeclares(t *testing.T) {
	t.Parallel()
	names := func(policies ...backoff.Policy) (found []string) {
		plan, err := topology.PlanFor(topology.PerQueue{}, "orders", policies...)
		require.NoError(t, err)
		for _, q := range plan.Queues {
			found = append(found, q.Name)
		}
		return found
	}
	require.Equal(t, []string{"orders.wait.2s", "orders.wait.5s", "orders.dlq"},
		names(backoff.List{2 * time.Second, 5 * time.Second}))
	require.Equal(t, []string{"orders.wait.1s", "orders.dlq"}, names(backoff.None{}))
	require.Equal(t, []string{
		"orders.wait.1s", "orders.wait.5s", "orders.wait.30s", "orders.wait.2m", "orders.wait.10m",
		"orders.wait.1h", "orders.dlq",
	}, names())
}
