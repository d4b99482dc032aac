package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a hold limit and a broker that confirms nothing, when the handler fails, or the router
// nacks, then the message goes back to its queue at the limit and is handled after the outage.
func TestHoldLimitEndsTheHoldOfFailedAndNackedMessages(t *testing.T) {
	t.Parallel()
	for name, outer := range map[string][]message.HandlerMiddleware{
		"failed": nil,
		"nacked": {func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := h(msg)
				if err == nil && middleware.Attempt(msg.Context()) == 1 && string(msg.Payload) == "nacked" {
					if middleware.StateOf(msg.Context()).FirstSeen.IsZero() {
						err = rig.ErrFailed
					}
				}
				return produced, err
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			proxy := testbroker.NewProxy(t, url)
			handled := make(chan string, 10)
			r := rig.Start(t, rig.Config{
				URL: url, PublisherURL: proxy.URL(), Policy: backoff.List{time.Second},
				Outer:             outer,
				ClientOptions:     []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
				SubscriberOptions: []topology.SubscriberOption{topology.WithHoldLimit(time.Second)},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					if middleware.StateOf(msg.Context()).FirstSeen.IsZero() && name == "failed" {
						return nil, rig.ErrFailed
					}
					handled <- string(msg.Payload)
					return nil, nil
				},
			})
			proxy.Blackhole(true)
			rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte(name)})
			testbroker.WaitFor(t, "the message to go back", rig.Patience, func() bool {
				return r.Logs.Said("Message goes back to its queue") > 0
			})
			proxy.Blackhole(false)
			testbroker.WaitFor(t, "the message to be handled", rig.Patience, func() bool {
				return r.Logs.Said("Stopped consuming") == 0 && len(handled) > 0
			})
			require.Equal(t, name, <-handled)
		})
	}
}

// Given a client with a logger and observers, then a DelayedRetry can take both from it.
func TestClientGivesItsLoggerAndObservers(t *testing.T) {
	t.Parallel()
	url, logger := testbroker.URL(t), watermill.NewCaptureLogger()
	var told []middleware.Observer
	for range 2 {
		told = append(told, middleware.ObserverFunc(func(context.Context, middleware.Event) {}))
	}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{},
		topology.WithLogger(logger), topology.WithObserver(told[0]), topology.WithObserver(told[1]))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Same(t, logger, client.Logger())
	require.Len(t, client.Observers(), 2)
	client.Observers()[0] = nil
	require.NotNil(t, client.Observers()[0], "the caller owns the slice")
}
