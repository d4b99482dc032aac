package topology

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// remainingDelay reads how long a message is to wait from now on.
//
// Watermill writes the time, cut to a second, and the duration it was made of. The
// time counts where the message has been on its way for a while, in an outbox for
// example, but the cut must not make it early: neither bound is.
func remainingDelay(msg *message.Message, now time.Time) (time.Duration, error) {
	asked, until := msg.Metadata.Get(delay.DelayedForKey), msg.Metadata.Get(delay.DelayedUntilKey)
	if asked == "" && until == "" {
		return 0, nil
	}
	wait := time.Duration(math.MaxInt64)
	if asked != "" {
		d, err := time.ParseDuration(asked)
		if err != nil {
			return 0, fmt.Errorf("metadata %q is no duration: %w", delay.DelayedForKey, err)
		}
		wait = d
	}
	if until != "" {
		t, err := time.Parse(time.RFC3339, until)
		if err != nil {
			return 0, fmt.Errorf("metadata %q is no time: %w", delay.DelayedUntilKey, err)
		}
		if asked != "" {
			t = t.Add(time.Second)
		}
		wait = min(wait, t.Sub(now))
	}
	if wait > backoff.MaxDelay {
		return 0, fmt.Errorf("a delay of %v is longer than %v", wait, backoff.MaxDelay)
	}
	return wait, nil
}

// delayed publishes to a wait queue of the topic's queue.
func (p *Publisher) delayed(ctx context.Context, topic string, raw amqp.Publishing, wait time.Duration) error {
	if exchange := p.cfg.exchange(topic); exchange != "" {
		return fmt.Errorf("a delayed message returns to one queue, whatever the strategy, and the topic is the exchange %q: publish it with a queue configuration "+
			"(amqp.NewDurableQueueConfig) to a queue", exchange)
	}
	if p.cfg.queue == nil {
		return errors.New("Queue.GenerateName is nil, so the topic names no queue to return to: use amqp.GenerateQueueNameTopicName or another")
	}
	queue := p.cfg.queue(topic)
	plan, err := p.waitsFor(ctx, queue)
	if err != nil {
		return err
	}
	now := time.Now()
	route, err := plan.Route(Retry{Delay: wait})
	if err != nil {
		return err
	}
	due, back := now.Add(wait), now.Add(plan.waits(wait))
	// First seen when it is due: what it may be set aside for counts from there.
	notes := header.RetryState{OriginRoutingKey: queue, FirstSeen: due}
	if route.Delay < wait {
		notes.NotBefore, notes.Snoozed = due, wait
	}
	arrived := amqp.Delivery{
		Headers: raw.Headers, ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding, Priority: raw.Priority,
		CorrelationId: raw.CorrelationId, ReplyTo: raw.ReplyTo, Expiration: raw.Expiration, MessageId: raw.MessageId,
		Timestamp: raw.Timestamp, Type: raw.Type, AppId: raw.AppId, Body: raw.Body,
	}
	// The broker would apply the expiration to the wait (F7).
	if valid, ok := consumer.Expiration(raw.Expiration); ok {
		notes.Deadline, notes.DeadlineFrom = now.Add(valid), header.FromPublish
		if notes.Deadline.Before(back) {
			return fmt.Errorf("the message expires at %v, before its wait queue gives it back at %v", notes.Deadline.UTC(), back.UTC())
		}
	}
	headers := notes.Headers(queue)
	if plan.sortsPriorities() && raw.Priority > consumer.NormalPriority {
		headers[header.Priority] = strconv.Itoa(int(raw.Priority))
		arrived.Priority = consumer.NormalPriority
	}
	composed := wire.Publishing(&arrived, header.IsState, headers)
	if err := consumer.FitWaiting(&composed, headers, p.frame, route.Hops); err != nil {
		return err
	}
	publish := func() error { return p.publisher.PublishOwn(ctx, route.Exchange, route.RoutingKey, &composed) }
	if err = publish(); err != nil {
		again := &redeclarer{plan: &plan, publisher: p.publisher, provisioned: p.client.opts.provisioned, logger: p.logger(queue)}
		if err = again.redeclare(ctx, route.toConsumer(), err); err == nil {
			err = publish()
		}
	}
	return ofPublisher(err)
}

// waitsFor returns the plan of a queue that is there, declared.
func (p *Publisher) waitsFor(ctx context.Context, queue string) (Plan, error) {
	p.mu.Lock()
	plan, known := p.ready[queue]
	p.mu.Unlock()
	if known {
		return plan, nil
	}
	plan, err := planFor(p.client.strategy, queue, p.delays)
	if err != nil {
		return Plan{}, err
	}
	err = p.publisher.Do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	switch {
	case isCode(err, amqp.NotFound):
		return Plan{}, fmt.Errorf("queue %q does not exist, so a delayed message would have nowhere to return to: subscribe to it first, "+
			"or call the Subscriber's SubscribeInitialize: %w", queue, err)
	case err != nil && !isCode(err, amqp.AccessRefused): // only declaring it would be (F24)
		return Plan{}, fmt.Errorf("look for queue %q: %w", queue, ofPublisher(err))
	}
	if p.client.opts.provisioned {
		err = checkExists(ctx, p.publisher.Do, plan)
	} else {
		err = declare(ctx, p.publisher.Do, plan, p.logger(queue))
	}
	if err != nil {
		return Plan{}, ofPublisher(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[queue] = plan
	return plan, nil
}
