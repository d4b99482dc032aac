// Command orders is a CQRS service with delayed retries.
//
// A command places an order, and its handler publishes an event. Billing and shipping each have
// a queue for that event. Billing fails twice: its message waits and comes back to billing's
// queue alone, and shipping handles the event once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// limit is the time after which the program gives up. It takes about two seconds.
const limit = time.Minute

func main() { program.Main("orders", run) }

// run places one order and returns when it is billed and shipped. It leaves the queues and the
// exchange behind. Their names begin with prefix.
func run(ctx context.Context, url, prefix string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d := &desk{out: out, done: make(chan struct{}, 10)}
	s, commands, err := start(ctx, url, prefix, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := commands.Send(ctx, &PlaceOrder{Order: 1, Item: "bread"}); err != nil {
		return err
	}
	return program.Await(ctx, d.done, 2, "the order to be billed and shipped")
}

// PlaceOrder is a command.
type PlaceOrder struct {
	Order int
	Item  string
}

// OrderPlaced is an event.
type OrderPlaced struct {
	Order int
	Item  string
}

var errBankAway = errors.New("the bank does not answer")

// desk does the work of the shop.
type desk struct {
	mu   sync.Mutex
	out  io.Writer
	done chan struct{}
}

func (d *desk) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format+"\n", args...)
}

// place handles the command. If the publish fails, the command fails and is retried, so events
// may repeat.
func (d *desk) place(events *cqrs.EventBus) cqrs.CommandHandler {
	return cqrs.NewCommandHandler("place", func(ctx context.Context, c *PlaceOrder) error {
		d.say("order %d of %s is placed", c.Order, c.Item)
		return events.Publish(ctx, &OrderPlaced{Order: c.Order, Item: c.Item})
	})
}

// bill fails twice. A handler of CQRS gets the message's context, which is all that the
// accessors of millpond need.
func (d *desk) bill() cqrs.EventHandler {
	return cqrs.NewEventHandler("billing", func(ctx context.Context, event *OrderPlaced) error {
		attempt := middleware.Attempt(ctx)
		if attempt < 3 {
			d.say("order %d is not billed at attempt %d: %v", event.Order, attempt, errBankAway)
			return errBankAway
		}
		d.say("order %d is billed at attempt %d", event.Order, attempt)
		d.done <- struct{}{}
		return nil
	})
}

func (d *desk) ship() cqrs.EventHandler {
	return cqrs.NewEventHandler("shipping", func(ctx context.Context, event *OrderPlaced) error {
		d.say("order %d is shipped at attempt %d", event.Order, middleware.Attempt(ctx))
		d.done <- struct{}{}
		return nil
	})
}

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, time.Second}

// start returns once all queues are consumed.
func start(
	ctx context.Context, url, prefix string, d *desk,
) (*program.Service, *cqrs.CommandBus, error) {
	connection := amqp.NewDurableQueueConfig(url).Connection
	client, err := topology.Open(ctx, connection, topology.PerQueue{})
	if err != nil {
		return nil, nil, err
	}
	router, commands, err := route(client, url, prefix, d)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	s, err := program.Start(ctx, router, client)
	return s, commands, err
}

func route(
	client *topology.Client, url, prefix string, d *desk,
) (*message.Router, *cqrs.CommandBus, error) {
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		return nil, nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, err
	}
	router.AddMiddleware(retry.Middleware) // for the handlers of all processors

	// One queue a command; one exchange an event, with a queue for each handler.
	commandsCfg := millpond.QuorumQueue(amqp.NewDurableQueueConfig(url))
	eventsCfg := func(handler string) amqp.Config {
		suffixed := amqp.GenerateQueueNameTopicNameWithSuffix(handler)
		return millpond.QuorumQueue(amqp.NewDurablePubSubConfig(url, suffixed))
	}
	toCommands, err := client.NewPublisher(commandsCfg)
	if err != nil {
		return nil, nil, err
	}
	toEvents, err := client.NewPublisher(eventsCfg(""))
	if err != nil {
		return nil, nil, err
	}

	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	commands, err := cqrs.NewCommandBusWithConfig(toCommands, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return prefix + "." + p.CommandName, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	events, err := cqrs.NewEventBusWithConfig(toEvents, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return prefix + "." + p.EventName, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}

	// AckCommandHandlingErrors would ack a failed command before the middleware sees the error.
	processor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(
			p cqrs.CommandProcessorGenerateSubscribeTopicParams,
		) (string, error) {
			return prefix + "." + p.CommandName, nil
		},
		SubscriberConstructor: func(
			cqrs.CommandProcessorSubscriberConstructorParams,
		) (message.Subscriber, error) {
			return client.NewSubscriber(commandsCfg, retry)
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	listeners, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return prefix + "." + p.EventName, nil
		},
		SubscriberConstructor: func(
			p cqrs.EventProcessorSubscriberConstructorParams,
		) (message.Subscriber, error) {
			return client.NewSubscriber(eventsCfg(p.HandlerName), retry)
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	return router, commands, errors.Join(
		processor.AddHandlers(d.place(events)), listeners.AddHandlers(d.bill(), d.ship()))
}
