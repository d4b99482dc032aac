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
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// policy allows two retries, so three attempts in all.
var policy = backoff.List{300 * time.Millisecond, time.Second}

type service struct {
	commands *cqrs.CommandBus

	client  *topology.Client
	router  *message.Router
	stopped chan error // what the router's Run returned
}

// start returns once all queues are consumed.
func start(ctx context.Context, url, prefix string, d *desk) (*service, error) {
	client, err := topology.Open(ctx, amqp.NewDurableQueueConfig(url).Connection, topology.PerQueue{})
	if err != nil {
		return nil, err
	}
	s := &service{client: client, stopped: make(chan error, 1)}
	if err := s.route(url, prefix, d); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	go func() { s.stopped <- s.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-s.router.Running():
		return s, nil
	case err := <-s.stopped:
		return nil, errors.Join(err, client.Close())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.close())
	}
}

func (s *service) route(url, prefix string, d *desk) error {
	retry, err := middleware.NewDelayedRetry(s.client, policy)
	if err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}); err != nil {
		return err
	}
	s.router.AddMiddleware(retry.Middleware) // for the handlers of all processors

	// One queue a command; one exchange an event, with a queue for each handler.
	commandsCfg := amqp.NewDurableQueueConfig(url)
	eventsCfg := func(handler string) amqp.Config {
		return amqp.NewDurablePubSubConfig(url, amqp.GenerateQueueNameTopicNameWithSuffix(handler))
	}
	toCommands, err := s.client.NewPublisher(commandsCfg)
	if err != nil {
		return err
	}
	toEvents, err := s.client.NewPublisher(eventsCfg(""))
	if err != nil {
		return err
	}

	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	s.commands, err = cqrs.NewCommandBusWithConfig(toCommands, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return prefix + "." + p.CommandName, nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventBusWithConfig(toEvents, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return prefix + "." + p.EventName, nil },
		Marshaler:            marshaler,
	})
	if err != nil {
		return err
	}

	// AckCommandHandlingErrors would ack what failed before the middleware sees it.
	commands, err := cqrs.NewCommandProcessorWithConfig(s.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return prefix + "." + p.CommandName, nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.client.NewSubscriber(commandsCfg, topology.ForPolicy(policy))
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	processor, err := cqrs.NewEventProcessorWithConfig(s.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return prefix + "." + p.EventName, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.client.NewSubscriber(eventsCfg(p.HandlerName), topology.ForPolicy(policy))
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return errors.Join(commands.AddHandlers(d.place(events)), processor.AddHandlers(d.bill(), d.ship()))
}

func (s *service) close() error {
	return errors.Join(s.router.Close(), <-s.stopped, s.client.Close())
}
