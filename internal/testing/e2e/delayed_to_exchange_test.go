package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given messages that an exchange gets after a delay, by way of a queue and Watermill's Forwarder,
// when each is due, then it is routed with its own key. A message that the exchange routes nowhere
// is tried again, and is a dead letter at last.
func TestADelayedPublishToAnExchange(t *testing.T) {
	t.Parallel()
	const wait = 500 * time.Millisecond
	a := newApp(t, backoff.Constant{Interval: 100 * time.Millisecond, Retries: 2})
	events := rig.TopicExchange(t)
	bound := rig.BesideOn(t, a.url, events, "order.#")
	config := rig.QueueConfig(a.url)
	rig.OnTopic(events, "")(&config)
	key := "order.reminded.eu"
	config.Publish.GenerateRoutingKey = func(string) string { return key }
	toExchange, err := a.client.NewPublisher(config)
	require.NoError(t, err)
	toQueue, err := a.client.NewPublisher(rig.QueueConfig(a.url), topology.WithDelays(wait))
	require.NoError(t, err)
	sub, err := a.subscriber()
	require.NoError(t, err)
	require.NoError(t, sub.(message.SubscribeInitializer).SubscribeInitialize(a.queue))
	f, err := forwarder.NewForwarder(sub, toExchange, a.logs, forwarder.Config{
		ForwarderTopic: a.queue, Middlewares: []message.HandlerMiddleware{a.retry(a.policy)},
	})
	require.NoError(t, err)
	stop := a.run(f)
	later := forwarder.NewPublisher(toQueue, forwarder.PublisherConfig{ForwarderTopic: a.queue})
	delayed := func(body string) *message.Message {
		msg := message.NewMessage(body, []byte(body))
		msg.SetContext(delay.WithContext(msg.Context(), delay.For(wait)))
		return msg
	}
	require.ErrorContains(t, toExchange.Publish(events, delayed("refused")), "forwarder")

	begun := time.Now()
	require.NoError(t, later.Publish(events, delayed("routed")))
	arrived := rig.Take(t, a.url, bound)
	require.GreaterOrEqual(t, time.Since(begun), wait)
	require.Equal(t, "routed", string(arrived.Body))
	require.Equal(t, events+" "+key, arrived.Exchange+" "+arrived.RoutingKey)
	require.NotContains(t, arrived.Headers, "x-death", "watermill-amqp's Subscriber can read it")

	ch := testbroker.Channel(t, a.url)
	require.NoError(t, ch.QueueUnbind(bound, "order.#", events, nil))
	require.NoError(t, later.Publish(events, delayed("unroutable")))
	dead := rig.Take(t, a.url, a.queue+".dlq")
	rig.RequireDead(t, dead, "exhausted", "3")
	require.Contains(t, dead.Headers[header.DeadError], "returned")
	stop()
	a.requireNothingLeft(a.queue)
}
