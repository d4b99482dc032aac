package topology_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// sharedRow is the scenario row "shared": two queues with policies of their own
// share one set of wait queues; 1/10/100/500/500 s, 500 times as fast; only errors
// marked retryable are retried; past the limit to the dead-letter exchange.
func sharedRow(t *testing.T, strategy topology.Strategy) {
	url := testbroker.URL(t)
	ch := testbroker.Channel(t, url)
	dlx := testbroker.Queue(t) + ".dlx"
	require.NoError(t, ch.ExchangeDeclare(dlx, "topic", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(dlx, false, false) })
	graveyard := testbroker.Queue(t) + "-dead"
	testbroker.Delete(t, graveyard)
	_, err := ch.QueueDeclare(graveyard, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(graveyard, "dead.#", dlx, false, nil))
	strategy = rig.WithDeadLetters(strategy, topology.DeadLetters{Target: func(queue string) topology.Route {
		return topology.Route{Exchange: dlx, RoutingKey: "dead." + queue}
	}})

	long := backoff.Exponential{Initial: 2 * time.Millisecond, Factor: 10, Max: time.Second, Retries: 5}
	short := backoff.List{200 * time.Millisecond, time.Second}
	longDelays, _ := backoff.Delays(long)
	first, err := strategy.Plan("a", longDelays)
	require.NoError(t, err)
	second, err := strategy.Plan("b", short)
	require.NoError(t, err)
	known := map[string]bool{}
	for _, q := range first.Queues {
		known[q.Name] = true
	}
	for _, q := range second.Queues {
		require.True(t, known[q.Name], "a new queue needs only its policy, not %s", q.Name)
	}

	var longCalls, shortCalls, unmarked rig.Timeline
	serve := func(policy backoff.Policy, calls *rig.Timeline) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Strategy: strategy, Policy: policy,
			RetryOptions: []middleware.Option{middleware.WithDefaultClass(header.ClassPermanent)},
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				if string(msg.Payload) == "unmarked" {
					unmarked.Add()
					return nil, rig.ErrFailed
				}
				calls.Add()
				return nil, fmt.Errorf("try again: %w", middleware.Retryable(rig.ErrFailed))
			},
		})
	}
	a, b := serve(long, &longCalls), serve(short, &shortCalls)
	a.Publish(amqp.Publishing{Body: []byte("long")})
	b.Publish(amqp.Publishing{Body: []byte("short")})
	b.Publish(amqp.Publishing{Body: []byte("unmarked")})

	dead := map[string]amqp.Delivery{}
	for range 3 {
		d := rig.Take(t, url, graveyard)
		dead[string(d.Body)] = d
	}
	longCalls.RequireGaps(t, 2*time.Millisecond, 20*time.Millisecond, 200*time.Millisecond, time.Second, time.Second)
	shortCalls.RequireGaps(t, 200*time.Millisecond, time.Second)
	require.Equal(t, 1, unmarked.Count())
	require.Equal(t, "permanent", dead["unmarked"].Headers[header.DeadReason])
	require.Equal(t, "exhausted", dead["long"].Headers[header.DeadReason])
	require.Equal(t, "dead."+a.Queue, dead["long"].RoutingKey)
	require.Equal(t, "exhausted", dead["short"].Headers[header.DeadReason])
}
