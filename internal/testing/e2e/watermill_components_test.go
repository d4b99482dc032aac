package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

type (
	placeOrder   struct{ ID string }
	orderPlaced  struct{ ID string }
	orderShipped struct{ ID string }
)

// Short names for parameters that the app ignores.
type (
	commandTopic = cqrs.CommandProcessorGenerateSubscribeTopicParams
	commandSub   = cqrs.CommandProcessorSubscriberConstructorParams
	eventTopic   = cqrs.EventProcessorGenerateSubscribeTopicParams
	eventSub     = cqrs.EventProcessorSubscriberConstructorParams
	groupTopic   = cqrs.EventGroupProcessorGenerateSubscribeTopicParams
	groupSub     = cqrs.EventGroupProcessorSubscriberConstructorParams
	replySub     = requestreply.PubSubBackendSubscribeParams
	replyPub     = requestreply.PubSubBackendPublishParams
)

var jsonNames = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// app is a router with a client and a queue, to which a test adds its handlers.
type app struct {
	t          *testing.T
	url, queue string
	policy     backoff.Policy
	client     *topology.Client
	router     *message.Router
	logs       *rig.Logs
}

func newApp(t *testing.T, policy backoff.Policy) *app {
	t.Helper()
	a := &app{
		t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), policy: policy, logs: &rig.Logs{},
	}
	a.client = rig.OpenClient(t, a.url, topology.PerQueue{}, topology.WithLogger(a.logs))
	var err error
	a.router, err = message.NewRouter(message.RouterConfig{}, a.logs)
	require.NoError(t, err)
	return a
}

func (a *app) subscriber() (message.Subscriber, error) {
	return a.client.NewSubscriberWithoutRetry(rig.QueueConfig(a.url), topology.ForPolicy(a.policy))
}

func (a *app) publisher() *topology.Publisher { return rig.NewPublisher(a.t, a.client, a.url) }

func (a *app) retry(policy backoff.Policy, options ...middleware.Option) message.HandlerMiddleware {
	a.t.Helper()
	options = append(options, middleware.WithLogger(a.logs))
	retry, err := middleware.NewDelayedRetry(a.client, policy, options...)
	require.NoError(a.t, err)
	return retry.Middleware
}

// retryAll retries the failures of all handlers by the app's policy.
func (a *app) retryAll(options ...middleware.Option) {
	a.t.Helper()
	a.router.AddMiddleware(a.retry(a.policy, options...))
}

// run runs a router, or a component with a router inside, until stop is called or the test ends.
func (a *app) run(service interface {
	rig.Runner
	Close() error
},
) (stop func()) {
	a.t.Helper()
	ended := rig.Run(a.t, service)
	stop = sync.OnceFunc(func() {
		require.NoError(a.t, service.Close())
		require.NoError(a.t, a.client.Close())
		require.NoError(a.t, <-ended)
		if a.t.Failed() {
			a.logs.Dump(a.t)
		}
	})
	a.t.Cleanup(stop)
	return stop
}

// requireNothingLeft requires that queues and their dead-letter queues are empty.
func (a *app) requireNothingLeft(queues ...string) {
	a.t.Helper()
	for _, queue := range queues {
		require.Zero(a.t, testbroker.Depth(a.t, a.url, queue))
		require.Zero(a.t, testbroker.Depth(a.t, a.url, queue+".dlq"), "dead letters")
	}
}

// commands adds the handler of a command that a queue brings.
func (a *app) commands(queue string, ackErrors bool, handler cqrs.CommandHandler) *message.Handler {
	a.t.Helper()
	p, err := cqrs.NewCommandProcessorWithConfig(a.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(commandTopic) (string, error) { return queue, nil },
		SubscriberConstructor:  func(commandSub) (message.Subscriber, error) { return a.subscriber() },
		Marshaler:              jsonNames, Logger: a.logs, AckCommandHandlingErrors: ackErrors,
	})
	require.NoError(a.t, err)
	h, err := p.AddHandler(handler)
	require.NoError(a.t, err)
	return h
}

func (a *app) commandBus(queue string) *cqrs.CommandBus {
	a.t.Helper()
	bus, err := cqrs.NewCommandBusWithConfig(a.publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return queue, nil
		},
		Marshaler: jsonNames,
	})
	require.NoError(a.t, err)
	return bus
}

func (a *app) eventBus() *cqrs.EventBus {
	a.t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(a.publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) {
			return a.queue, nil
		},
		Marshaler: jsonNames,
	})
	require.NoError(a.t, err)
	return bus
}

func (a *app) event(ackUnknown bool, handler cqrs.EventHandler) *message.Handler {
	a.t.Helper()
	p, err := cqrs.NewEventProcessorWithConfig(a.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(eventTopic) (string, error) { return a.queue, nil },
		SubscriberConstructor:  func(eventSub) (message.Subscriber, error) { return a.subscriber() },
		Marshaler:              jsonNames, Logger: a.logs, AckOnUnknownEvent: ackUnknown,
	})
	require.NoError(a.t, err)
	h, err := p.AddHandler(handler)
	require.NoError(a.t, err)
	return h
}

func (a *app) eventGroup(ackUnknown bool, name string, handlers ...cqrs.GroupEventHandler) {
	a.t.Helper()
	p, err := cqrs.NewEventGroupProcessorWithConfig(a.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(groupTopic) (string, error) { return a.queue, nil },
		SubscriberConstructor:  func(groupSub) (message.Subscriber, error) { return a.subscriber() },
		Marshaler:              jsonNames, Logger: a.logs, AckOnUnknownEvent: ackUnknown,
	})
	require.NoError(a.t, err)
	require.NoError(a.t, p.AddHandlersGroup(name, handlers...))
}

// Given command handlers that fail, when commands come, then each is retried by the policy of its
// handler, and the context of the handler knows the attempt. AckCommandHandlingErrors takes an
// error away inside DelayedRetry: nothing is retried. A command that cannot be unmarshalled fails
// inside, too: a classifier for syntax errors lets it die at once.
func TestCommandsAreRetried(t *testing.T) {
	t.Parallel()
	a := newApp(t, rig.Quickly(2))
	var mu sync.Mutex
	calls, queues := map[string][]string{}, map[string]string{}
	for name, c := range map[string]struct {
		retries int
		acks    bool
	}{"ends well": {2, false}, "fails": {0, false}, "acked": {2, true}} {
		queues[name] = testbroker.Queue(t)
		place := func(ctx context.Context, cmd *placeOrder) error {
			mu.Lock()
			defer mu.Unlock()
			calls[name] = append(calls[name], fmt.Sprint(cmd.ID, " at ", middleware.Attempt(ctx)))
			if name == "ends well" && middleware.LastAttempt(ctx) {
				return nil
			}
			return rig.ErrFailed
		}
		syntax := middleware.PermanentIf(backoff.As[*json.SyntaxError]())
		h := a.commands(queues[name], c.acks, cqrs.NewCommandHandler(name, place))
		h.AddMiddleware(a.retry(backoff.Limit{Policy: rig.Quickly(100), Retries: c.retries},
			middleware.WithClassifier(syntax)))
	}
	stop := a.run(a.router)
	for _, queue := range queues {
		require.NoError(t, a.commandBus(queue).Send(t.Context(), &placeOrder{ID: "7"}))
	}
	unreadable := message.NewMessage("id-1", []byte("{"))
	unreadable.Metadata.Set("name", jsonNames.Name(placeOrder{}))
	require.NoError(t, a.publisher().Publish(queues["ends well"], unreadable))
	dead := rig.Take(t, a.url, queues["ends well"]+".dlq")
	rig.RequireDead(t, dead, "permanent", "1")
	require.Equal(t, "ends well", dead.Headers[header.DeadHandler])
	rig.RequireDead(t, rig.Take(t, a.url, queues["fails"]+".dlq"), "exhausted", "1")
	rig.WaitFor(t, "the calls", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(calls["ends well"]) == 3 && len(calls["acked"]) == 1
	})
	stop()
	require.Equal(t, map[string][]string{
		"ends well": {"7 at 1", "7 at 2", "7 at 3"}, "fails": {"7 at 1"}, "acked": {"7 at 1"},
	}, calls)
	for _, queue := range queues {
		a.requireNothingLeft(queue)
		require.LessOrEqual(t, testbroker.Depth(t, a.url, queue+".wait.100ms"), 0)
	}
}

// Given an event without a handler, when it comes, then that is a failure, unless AckOnUnknownEvent
// acks it. When one handler of a group fails, then the handlers before it are called again, because
// all of them share one message. All see its attempt.
func TestEventsAreRetried(t *testing.T) {
	t.Parallel()
	type handle = func(context.Context, *orderPlaced) error
	for name, ackUnknown := range map[string]bool{"failure": false, "acked": true} {
		for kind, add := range map[string]func(*app, func(name string) handle){
			"processor": func(a *app, h func(string) handle) {
				handler := a.event(ackUnknown, cqrs.NewEventHandler("placed", h("ship")))
				handler.AddMiddleware(a.retry(rig.Quickly(1)))
			},
			// A group gives no handler to add a middleware to.
			"group": func(a *app, h func(string) handle) {
				placed := middleware.WithPolicyFor(middleware.Selector{Handler: "placed"}, rig.Quickly(1))
				a.router.AddMiddleware(a.retry(backoff.None{}, placed))
				a.eventGroup(ackUnknown, "placed", cqrs.NewGroupEventHandler(h("bill")),
					cqrs.NewGroupEventHandler(h("ship")), cqrs.NewGroupEventHandler(h("thank")))
			},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				calls := make(chan string, 10)
				a := newApp(t, rig.Quickly(1))
				add(a, func(name string) handle {
					return func(ctx context.Context, _ *orderPlaced) error {
						calls <- fmt.Sprint(name, " at ", middleware.Attempt(ctx))
						if name == "ship" && middleware.Attempt(ctx) == 1 {
							return rig.ErrFailed
						}
						return nil
					}
				})
				stop := a.run(a.router)
				bus := a.eventBus()
				require.NoError(t, bus.Publish(t.Context(), &orderShipped{}))
				require.NoError(t, bus.Publish(t.Context(), &orderPlaced{}))
				want := []string{"ship at 1", "ship at 2"}
				if kind == "group" {
					want = []string{"bill at 1", "ship at 1", "bill at 2", "ship at 2", "thank at 2"}
				}
				for _, call := range want {
					require.Equal(t, call, rig.Await(t, calls))
				}
				if !ackUnknown {
					dead := rig.Take(t, a.url, a.queue+".dlq")
					require.Equal(t, "2", dead.Headers[header.DeadFailures])
					require.Equal(t, "placed", dead.Headers[header.DeadHandler])
				}
				stop()
				require.Empty(t, calls)
				a.requireNothingLeft(a.queue)
			})
		}
	}
}

// Given a caller that waits for replies, when the first attempt fails, then its reply is a failure
// that is retried, because each attempt sends a reply. AckCommandErrors takes the error away.
func TestRequestReply(t *testing.T) {
	t.Parallel()
	cases := map[string]bool{"retried": false, "AckCommandErrors": true}
	rig.Each(t, cases, func(t *testing.T, ackErrors bool) {
		replies := testbroker.Queue(t)
		a := newApp(t, rig.Quickly(1))
		a.retryAll()
		noRetry := topology.ForPolicy(backoff.None{})
		listening, err := a.client.NewSubscriberWithoutRetry(rig.QueueConfig(a.url), noRetry)
		require.NoError(t, err)
		backend, err := requestreply.NewPubSubBackend(requestreply.PubSubBackendConfig{
			Publisher:              a.publisher(),
			SubscriberConstructor:  func(replySub) (message.Subscriber, error) { return listening, nil },
			GeneratePublishTopic:   func(replyPub) (string, error) { return replies, nil },
			GenerateSubscribeTopic: func(replySub) (string, error) { return replies, nil },
			AckCommandErrors:       ackErrors,
		}, requestreply.BackendPubsubJSONMarshaler[string]{})
		require.NoError(t, err)
		attempts := make(chan int, 10)
		place := func(ctx context.Context, cmd *placeOrder) (string, error) {
			attempts <- middleware.Attempt(ctx)
			if middleware.Attempt(ctx) == 1 {
				return "", rig.ErrFailed
			}
			return "placed " + cmd.ID, nil
		}
		a.commands(a.queue, false, requestreply.NewCommandHandlerWithResult("place", backend, place))
		stop := a.run(a.router)
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		bus := a.commandBus(a.queue)
		got, done, err := requestreply.SendWithReplies(ctx, bus, backend, &placeOrder{ID: "7"})
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
		a.requireNothingLeft(a.queue)
	})
}
