package topology_test

import (
	"context"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func (a *app) eventBus(queue string) *cqrs.EventBus {
	a.t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(a.publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return queue, nil }, Marshaler: jsonNames,
	})
	require.NoError(a.t, err)
	return bus
}

func (a *app) events(queue string, ackUnknown bool) *cqrs.EventProcessor {
	a.t.Helper()
	p, err := cqrs.NewEventProcessorWithConfig(a.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return queue, nil },
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.subscriber()
		},
		Marshaler: jsonNames, Logger: a.logs, AckOnUnknownEvent: ackUnknown,
	})
	require.NoError(a.t, err)
	return p
}

func (a *app) eventGroups(queue string, ackUnknown bool) *cqrs.EventGroupProcessor {
	a.t.Helper()
	p, err := cqrs.NewEventGroupProcessorWithConfig(a.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return queue, nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.subscriber()
		},
		Marshaler: jsonNames, Logger: a.logs, AckOnUnknownEvent: ackUnknown,
	})
	require.NoError(a.t, err)
	return p
}

// An event that nobody knows is a failure, unless AckOnUnknownEvent says that it is
// none.
func TestUnknownEvents(t *testing.T) {
	t.Parallel()
	for name, ackUnknown := range map[string]bool{"failure": false, "acked": true} {
		for kind, add := range map[string]func(*app, string, func(context.Context, *orderPlaced) error) error{
			"processor": func(a *app, queue string, h func(context.Context, *orderPlaced) error) error {
				handler, err := a.events(queue, ackUnknown).AddHandler(cqrs.NewEventHandler("placed", h))
				if err == nil {
					handler.AddMiddleware(a.retry(rig.Quickly(1)))
				}
				return err
			},
			// A group gives no handler to add a middleware to.
			"group": func(a *app, queue string, h func(context.Context, *orderPlaced) error) error {
				a.router.AddMiddleware(a.retry(backoff.None{}, middleware.WithPolicyFor(middleware.Selector{Handler: "placed"}, rig.Quickly(1))))
				return a.eventGroups(queue, ackUnknown).AddHandlersGroup("placed", cqrs.NewGroupEventHandler(h))
			},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				url, queue := testbroker.URL(t), testbroker.Queue(t)
				attempts := make(chan int, 10)
				a := newApp(t, url, rig.Quickly(1))
				require.NoError(t, add(a, queue, func(ctx context.Context, _ *orderPlaced) error {
					attempts <- middleware.Attempt(ctx)
					if middleware.Attempt(ctx) == 1 {
						return rig.ErrFailed
					}
					return nil
				}))
				stop := a.run(a.router)
				bus := a.eventBus(queue)
				require.NoError(t, bus.Publish(t.Context(), &orderShipped{}))
				require.NoError(t, bus.Publish(t.Context(), &orderPlaced{}))
				rig.AwaitAttempts(t, attempts, 1, 2)
				if !ackUnknown {
					dead := rig.Take(t, url, queue+".dlq")
					require.Equal(t, "2", dead.Headers[header.DeadFailures])
					require.Equal(t, "placed", dead.Headers[header.DeadHandler])
				}
				stop()
				require.Zero(t, testbroker.Depth(t, url, queue))
				require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
			})
		}
	}
}

// The handlers of a group share one message: where one fails, those before it are
// called again, and all see the attempt of the message.
func TestEventGroupIsRetriedAsAWhole(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	calls := make(chan string, 10)
	handler := func(name string, fails bool) cqrs.GroupEventHandler {
		return cqrs.NewGroupEventHandler(func(ctx context.Context, _ *orderPlaced) error {
			attempt := middleware.Attempt(ctx)
			calls <- map[int]string{1: "attempt 1: ", 2: "attempt 2: "}[attempt] + name
			if fails && attempt == 1 {
				return rig.ErrFailed
			}
			return nil
		})
	}
	a := newApp(t, url, rig.Quickly(1))
	a.router.AddMiddleware(a.retry(rig.Quickly(1)))
	require.NoError(t, a.eventGroups(queue, false).AddHandlersGroup("group", handler("bill", false), handler("ship", true), handler("thank", false)))
	stop := a.run(a.router)
	require.NoError(t, a.eventBus(queue).Publish(t.Context(), &orderPlaced{}))
	for _, want := range []string{
		"attempt 1: bill", "attempt 1: ship", "attempt 2: bill", "attempt 2: ship", "attempt 2: thank",
	} {
		require.Equal(t, want, <-calls)
	}
	stop()
	require.Empty(t, calls)
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}
