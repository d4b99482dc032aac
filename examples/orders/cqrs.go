package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

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
	commandsCfg := amqp.NewDurableQueueConfig(url)
	eventsCfg := func(handler string) amqp.Config {
		suffixed := amqp.GenerateQueueNameTopicNameWithSuffix(handler)
		return amqp.NewDurablePubSubConfig(url, suffixed)
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
			return client.NewSubscriber(commandsCfg, topology.ForPolicy(policy))
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
			return client.NewSubscriber(eventsCfg(p.HandlerName), topology.ForPolicy(policy))
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return nil, nil, err
	}
	return router, commands, errors.Join(
		processor.AddHandlers(d.place(events)), listeners.AddHandlers(d.bill(), d.ship()))
}
