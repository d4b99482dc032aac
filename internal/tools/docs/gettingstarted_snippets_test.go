package docs_test

// The Go of docs/getting-started.md behind its program, compiled: documents_test.go looks for
// each line here.

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/topology"
)

func addMiddlewares(router *message.Router, retry *middleware.DelayedRetry) {
	router.AddMiddleware(
		wmiddleware.CorrelationID, // outside: middlewares that do not fail
		retry.Middleware,
		wmiddleware.Timeout(30*time.Second), // inside: middlewares whose errors count as failures
		wmiddleware.Recoverer,
	)
}

func publishLater(
	ctx context.Context, client *topology.Client, cfg amqp.Config, msg *message.Message,
) error {
	pub, err := client.NewPublisher(cfg, topology.WithDelays(3*time.Second))
	if err != nil {
		return err
	}
	msg.SetContext(delay.WithContext(ctx, delay.For(3*time.Second)))
	err = pub.Publish("orders", msg)
	return err
}

func followTheService(client *topology.Client) (*middleware.DelayedRetry, error) {
	health, err := adaptive.New(time.Minute) // counts the attempts of the last minute
	if err != nil {
		return nil, err
	}
	policy := backoff.Adaptive{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8},
		Health: health.Recent,
	}
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(health))
	return retry, err
}

var _ = []any{addMiddlewares, publishLater, followTheService}
