package topology_test

import (
	"context"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Each attempt of a command sends a reply: the caller that waits for the first sees
// a failure that is retried. AckCommandErrors would take the error away.
func TestRequestReply(t *testing.T) {
	t.Parallel()
	for name, ackErrors := range map[string]bool{"retried": false, "AckCommandErrors": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, replies := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)
			a := newApp(t, url, rig.Quickly(1))
			a.router.AddMiddleware(a.retry(rig.Quickly(1)))
			listening, err := a.client.NewSubscriber(rig.QueueConfig(url), topology.ForPolicy(backoff.None{}))
			require.NoError(t, err)
			backend, err := requestreply.NewPubSubBackend(requestreply.PubSubBackendConfig{
				Publisher: a.publisher(),
				SubscriberConstructor: func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) {
					return listening, nil
				},
				GeneratePublishTopic:   func(requestreply.PubSubBackendPublishParams) (string, error) { return replies, nil },
				GenerateSubscribeTopic: func(requestreply.PubSubBackendSubscribeParams) (string, error) { return replies, nil },
				AckCommandErrors:       ackErrors,
			}, requestreply.BackendPubsubJSONMarshaler[string]{})
			require.NoError(t, err)
			attempts := make(chan int, 10)
			require.NoError(t, a.commands(queue, false).AddHandlers(
				requestreply.NewCommandHandlerWithResult("place", backend, func(ctx context.Context, cmd *placeOrder) (string, error) {
					attempts <- middleware.Attempt(ctx)
					if middleware.Attempt(ctx) == 1 {
						return "", rig.ErrFailed
					}
					return "placed " + cmd.ID, nil
				})))
			stop := a.run(a.router)
			ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
			defer cancel()
			got, done, err := requestreply.SendWithReplies(ctx, a.commandBus(queue), backend, &placeOrder{ID: "7"})
			require.NoError(t, err)
			defer done()
			require.EqualError(t, (<-got).Error, rig.ErrFailed.Error())
			if ackErrors {
				rig.AwaitAttempts(t, attempts, 1)
			} else {
				reply := <-got
				require.NoError(t, reply.Error)
				require.Equal(t, "placed 7", reply.HandlerResult)
				rig.AwaitAttempts(t, attempts, 1, 2)
			}
			done()
			stop()
			require.Empty(t, attempts)
			require.Zero(t, testbroker.Depth(t, url, queue))
			require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
		})
	}
}

// The Forwarder's messages wait for a destination that is not there yet.
func TestForwarderRetries(t *testing.T) {
	t.Parallel()
	url, queue, destination := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)
	policy := backoff.Constant{Interval: 500 * time.Millisecond, Retries: 100}
	a := newApp(t, url, policy)
	sub, err := a.subscriber()
	require.NoError(t, err)
	f, err := forwarder.NewForwarder(sub, a.publisher(), a.logs, forwarder.Config{
		ForwarderTopic: queue, Middlewares: []message.HandlerMiddleware{a.retry(policy)},
	})
	require.NoError(t, err)
	stop := a.run(f)
	msg := message.NewMessage("id-1", []byte("order"))
	msg.Metadata.Set("kind", "order")
	require.NoError(t, forwarder.NewPublisher(a.publisher(), forwarder.PublisherConfig{ForwarderTopic: queue}).Publish(destination, msg))
	rig.WaitFor(t, "a retry", func() bool { return a.logs.Said("Message will be retried") > 0 })
	rig.DeclareQueue(t, url, destination, nil)
	arrived := rig.Take(t, url, destination)
	require.Equal(t, "order", string(arrived.Body))
	require.Equal(t, "order", arrived.Headers["kind"])
	stop()
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}

// FanIn takes no middleware, and publishes after all of them would have ended: what
// it cannot publish is set aside for a second, again and again, and never lost.
func TestFanInSetsAside(t *testing.T) {
	t.Parallel()
	url, target := testbroker.URL(t), testbroker.Queue(t)
	sources := []string{testbroker.Queue(t), testbroker.Queue(t)}
	a := newApp(t, url, backoff.None{})
	sub, err := a.subscriber()
	require.NoError(t, err)
	f, err := fanin.NewFanIn(sub, a.publisher(), fanin.Config{SourceTopics: sources, TargetTopic: target}, a.logs)
	require.NoError(t, err)
	stop := a.run(f)
	for _, source := range sources {
		require.NoError(t, a.publisher().Publish(source, message.NewMessage("of "+source, []byte(source))))
	}
	failing := "Publishing produced messages failed"
	rig.WaitFor(t, "three failures", func() bool { return a.logs.Said(failing) >= 3 })
	rig.DeclareQueue(t, url, target, nil)
	bodies := []string{string(rig.Take(t, url, target).Body), string(rig.Take(t, url, target).Body)}
	require.ElementsMatch(t, sources, bodies)
	stop()
	for _, source := range sources {
		require.Zero(t, testbroker.Depth(t, url, source))
		require.Zero(t, testbroker.Depth(t, url, source+".dlq"), "dead letters")
	}
	require.LessOrEqual(t, a.logs.Said(failing), 100, "it spins")
}

// What a handler produces is published once it has succeeded; what failed attempts
// have produced is dropped. Where publishing fails no attempt is counted, and the
// handler is called again.
func TestHandlerThatPublishes(t *testing.T) {
	t.Parallel()
	url, queue, out := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)
	attempts := make(chan int, 1000)
	a := newApp(t, url, rig.Quickly(1))
	a.router.AddMiddleware(a.retry(rig.Quickly(1)))
	sub, err := a.subscriber()
	require.NoError(t, err)
	a.router.AddHandler("handler", queue, sub, out, a.publisher(), func(msg *message.Message) ([]*message.Message, error) {
		attempt := middleware.Attempt(msg.Context())
		attempts <- attempt
		produced := []*message.Message{message.NewMessage(msg.UUID, []byte{byte('0' + attempt)})}
		if attempt == 1 {
			return produced, rig.ErrFailed
		}
		return produced, nil
	})
	stop := a.run(a.router)
	require.NoError(t, a.publisher().Publish(queue, message.NewMessage("id-1", nil)))
	rig.AwaitAttempts(t, attempts, 1, 2, 2, 2)
	rig.DeclareQueue(t, url, out, nil)
	require.Equal(t, "2", string(rig.Take(t, url, out).Body))
	stop()
	require.Zero(t, testbroker.Depth(t, url, out), "one message is produced")
	require.Zero(t, testbroker.Depth(t, url, queue))
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
	for len(attempts) > 0 {
		require.Equal(t, 2, <-attempts)
	}
}
