package topology

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// Publisher publishes for Watermill, on its own connection. Every message is mandatory and
// confirmed. A message that no queue takes is an error.
//
// It honours Watermill's components/delay. A message with a delay in its context
// (delay.WithContext) or its metadata (delay.Message) waits in the wait queues of the queue that
// its topic names, as a retry would. When the delay is over it is delivered to a Subscriber of
// this package, as its first attempt: watermill-amqp's Subscriber cannot decode a message that
// has waited. A delay of WithDelays waits exactly as long. A delay between two of them comes at
// most a quarter or a second late, see Plan.Route. It may wait in rounds, as a delay longer than
// all of them does: the Subscriber of the queue keeps them going, on its own wait steps.
//
// A delayed message for an exchange waits in a queue of yours, from which Watermill's
// components/forwarder publishes it when it is due: see the Example with an exchange.
//
// Many goroutines may call its methods.
type Publisher struct {
	client    *Client
	cfg       publishConfig
	delays    []time.Duration
	frame     int
	publisher *publisher.Publisher
	rounding  consumer.Rounding // of delays without a wait queue
	front     message.Publisher // puts the delay of the context into the metadata

	mu    sync.Mutex
	ready map[string]Plan // queues and, as "exchange name", exchanges that are declared
}

var _ message.Publisher = (*Publisher)(nil)

// publishConfig is the part of watermill-amqp's Config that a Publisher needs.
type publishConfig struct {
	link       link.Config
	exchange   func(topic string) string
	routingKey func(topic string) string
	queue      func(topic string) string
	declare    func(ch *amqp.Channel, exchange string) error
	marshal    func(*message.Message) (amqp.Publishing, error)
}

// PublisherOption changes how a Publisher works.
type PublisherOption func(*publisherOptions) error

type publisherOptions struct {
	delays []time.Duration
}

// WithDelays names the delays that get their own wait queue. It counts for every queue that gets
// a delayed message. All must be positive. The Publisher logs once that a delay without a wait
// queue is rounded up by more than a tenth.
//
// Default: the strategy's default wait steps.
func WithDelays(delays ...time.Duration) PublisherOption {
	return func(o *publisherOptions) error {
		for _, d := range delays {
			if d <= 0 {
				return fmt.Errorf("WithDelays: %v is not positive", d)
			}
		}
		o.delays = append(o.delays, delays...)
		return nil
	}
}

func (c *Client) newPublisher(
	cfg publishConfig, problems error, options []PublisherOption,
) (*Publisher, error) {
	var opts publisherOptions
	problems = errors.Join(problems, apply(&opts, options), link.CheckURL(cfg.link.URL))
	if problems == nil {
		problems = checkVhosts(c.linkCfg, cfg.link, "Connection")
	}
	if problems == nil {
		_, problems = planSteps(opts.delays)
	}
	if problems != nil {
		return nil, fmt.Errorf("new publisher: %w", problems)
	}

	cfg.link.Name = c.opts.name + ": millpond publisher"
	ctx, cancel := context.WithTimeout(context.Background(), c.opts.connectTimeout)
	defer cancel()
	l, err := link.Open(ctx, cfg.link)
	if err != nil {
		return nil, fmt.Errorf("new publisher: %w", withWayOut(err))
	}
	frame, err := negotiatedFrame(ctx, l)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("new publisher: %w", err)
	}
	p := &Publisher{
		client: c, cfg: cfg, delays: opts.delays, frame: frame,
		publisher: publisher.New(l, publisher.Config{
			Timeout:     c.opts.confirmTimeout,
			NonceHeader: keys.Publish,
		}),
		ready: make(map[string]Plan),
	}
	p.front, err = delay.NewPublisher(publishFunc(p.publishAll),
		delay.PublisherConfig{AllowNoDelay: true})
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("new publisher: %w", err)
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.publishers[p] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		l.Close()
		return nil, fmt.Errorf("new publisher: client: %w", ErrClosed)
	}
	return p, nil
}

// publishFunc makes a function a Watermill publisher.
type publishFunc func(topic string, messages ...*message.Message) error

func (f publishFunc) Publish(topic string, messages ...*message.Message) error {
	return f(topic, messages...)
}

func (publishFunc) Close() error { return nil }

// Publish publishes the messages in their order, each confirmed before the next, and returns nil
// when each of them is in a queue. After an error the messages before the named message are
// published. The named message may be published if the broker has not answered. Each wait is
// bounded by WithConfirmTimeout and by the message's context.
//
// Errors: ErrClosed; a message that is returned, refused or not confirmed; a delay that cannot be
// read; a delayed message whose queue does not exist, because it could never come back;
// ErrTooLarge.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.front.Publish(topic, messages...)
}

func (p *Publisher) publishAll(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.publishOne(topic, msg); err != nil {
			return fmt.Errorf("publish message %q to topic %q: %w", msg.UUID, topic, err)
		}
	}
	return nil
}

func (p *Publisher) publishOne(topic string, msg *message.Message) error {
	wait, err := remainingDelay(msg, time.Now())
	if err != nil {
		return err
	}
	raw, err := p.cfg.marshal(msg)
	if err != nil {
		return fmt.Errorf("marshal: %w", err)
	}
	if len(raw.Body) > link.Copied { // after an error bytes may still leave, and msg is the caller's
		raw.Body = bytes.Clone(raw.Body)
	}
	if wait > 0 {
		return p.delayed(msg, topic, raw, wait)
	}
	return p.now(msg.Context(), topic, raw)
}

// now publishes as watermill-amqp does, but mandatory and confirmed.
func (p *Publisher) now(ctx context.Context, topic string, raw amqp.Publishing) error {
	exchange, key := p.cfg.exchange(topic), p.cfg.routingKey(topic)
	if exchange != "" {
		if err := p.declareExchange(ctx, exchange, false); err != nil {
			return err
		}
	}
	err := p.publisher.Publish(ctx, exchange, key, raw)
	if exchange == "" || !isCode(err, amqp.NotFound) || p.client.opts.provisioned {
		return ofPublisher(err)
	}
	if err := p.declareExchange(ctx, exchange, true); err != nil {
		return err
	}
	return ofPublisher(p.publisher.Publish(ctx, exchange, key, raw))
}

// declareExchange declares an exchange of the user, once or again.
func (p *Publisher) declareExchange(ctx context.Context, name string, again bool) error {
	if p.client.opts.provisioned {
		return nil
	}
	key := "exchange " + name
	p.mu.Lock()
	_, known := p.ready[key]
	p.mu.Unlock()
	if known && !again {
		return nil
	}
	err := p.publisher.Do(ctx, func(ch *amqp.Channel) error { return p.cfg.declare(ch, name) })
	if err != nil {
		return configuredError("exchange", name, nil, ofPublisher(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[key] = Plan{}
	return nil
}

// Close ends the connection. A publish under way ends with an error. Client.Close closes the
// Publishers that are still open.
func (p *Publisher) Close() error {
	p.publisher.Close()
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	delete(p.client.publishers, p)
	return nil
}

func (p *Publisher) logger(queue string) watermill.LoggerAdapter {
	return p.client.opts.logger.With(watermill.LogFields{"queue": queue})
}

// ofPublisher wraps an error of the publisher in an error of this package.
func ofPublisher(err error) error {
	if errors.Is(err, publisher.ErrClosed) {
		return fmt.Errorf("publisher: %w", ErrClosed)
	}
	return err
}

// remainingDelay reads how long a message must wait from now on.
//
// Watermill writes the time, cut to a second, and the duration that it was made of. The time
// counts if the message has been on its way for a while, in an outbox for example. Because of the
// cut, a second is added to the time, so that the message is never early.
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
func (p *Publisher) delayed(
	msg *message.Message, topic string, raw amqp.Publishing, wait time.Duration,
) error {
	ctx := msg.Context()
	if exchange := p.cfg.exchange(topic); exchange != "" {
		return fmt.Errorf("a delayed message comes back to one queue, with every strategy, and the "+
			"topic is the exchange %q, which may route it nowhere when it is due (F27): publish it with a "+
			"queue configuration (amqp.NewDurableQueueConfig) to a queue, whose messages Watermill's "+
			"components/forwarder publishes to the exchange; docs/strategies.md has the code", exchange)
	}
	if p.cfg.queue == nil {
		return errors.New("Queue.GenerateName is nil, so the topic names no queue to come back to: " +
			"use amqp.GenerateQueueNameTopicName or another")
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
	p.noteRounding(msg, plan, wait)
	due, back := now.Add(wait), now.Add(plan.waits(wait))
	// First seen when it is due, so that limits on snoozing count from there.
	state := header.RetryState{OriginRoutingKey: queue, FirstSeen: due}
	if route.Delay < wait {
		state.NotBefore, state.Snoozed = due, wait
	}
	arrived := amqp.Delivery{
		Headers: raw.Headers, ContentType: raw.ContentType, ContentEncoding: raw.ContentEncoding,
		Priority:      raw.Priority,
		CorrelationId: raw.CorrelationId, ReplyTo: raw.ReplyTo, Expiration: raw.Expiration,
		MessageId: raw.MessageId,
		Timestamp: raw.Timestamp, Type: raw.Type, AppId: raw.AppId, Body: raw.Body,
	}
	// The broker would apply the expiration to the wait (F7).
	if valid, ok := consumer.Expiration(raw.Expiration); ok {
		state.Deadline, state.DeadlineFrom = now.Add(valid), keys.FromPublish
		if state.Deadline.Before(back) {
			return fmt.Errorf("the message expires at %v, before its wait queue gives it back at %v",
				state.Deadline.UTC(), back.UTC())
		}
	}
	headers := state.Headers(queue)
	// Versions before v0.1.0 take the last exchange for the origin if no header names it.
	headers[keys.OriginRoutingKey] = queue
	if plan.sortsPriorities() && raw.Priority > consumer.NormalPriority {
		headers[keys.Priority] = strconv.Itoa(int(raw.Priority))
		arrived.Priority = consumer.NormalPriority
	}
	composed := wire.Publishing(&arrived, keys.IsState, headers)
	maps.Copy(composed.Headers, route.Headers)
	if err := consumer.FitWaiting(&composed, p.frame, &route); err != nil {
		return err
	}
	publish := func() error {
		return p.publisher.PublishFor(ctx, nil, consumer.Target(&route), &composed)
	}
	if err = publish(); err != nil {
		again := &redeclarer{
			plan: &plan, publisher: p.publisher, provisioned: p.client.opts.provisioned,
			logger: p.logger(queue),
		}
		if err = again.redeclare(ctx, route, err); err == nil {
			err = publish()
		}
	}
	return ofPublisher(err)
}

// noteRounding notes the delay that the message began with. A part of that delay may be over, and
// WithDelays cannot name the rest.
func (p *Publisher) noteRounding(msg *message.Message, plan Plan, wait time.Duration) {
	if asked, err := time.ParseDuration(msg.Metadata.Get(delay.DelayedForKey)); err == nil {
		wait = asked
	}
	waits := plan.toConsumer()
	p.rounding.Note(p.logger(plan.Queue), &waits, wait,
		"give the Publisher the delay with topology.WithDelays")
}

// waitsFor declares the plan of a queue that exists, and returns it.
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
		return Plan{}, fmt.Errorf("queue %q does not exist, so a delayed message could never come "+
			"back: subscribe to the queue first, or call the Subscriber's SubscribeInitialize: %w",
			queue, err)
	// the user may not look, but may publish (F24)
	case err != nil && !isCode(err, amqp.AccessRefused):
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
