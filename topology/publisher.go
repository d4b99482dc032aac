package topology

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware/header"
)

// Publisher publishes for Watermill: every message mandatory and confirmed, on a
// connection of its own. What no queue takes is an error.
//
// It honours Watermill's components/delay: a message with a delay in its context
// (delay.WithContext) or its metadata (delay.Message) waits in the wait queues of
// the queue that its topic names, as a retry would, and is delivered when the
// delay is over, to a Subscriber of this package: watermill-amqp's own cannot
// decode what has waited. It takes the shortest wait queue that is no shorter, so
// choose WithDelays or a strategy that knows any delay; one longer than all of
// them waits in rounds, which the Subscriber of the queue keeps going. The
// attempt that follows is the first.
//
// Its methods may be called from many goroutines.
type Publisher struct {
	client    *Client
	cfg       publishConfig
	delays    []time.Duration
	frame     int
	publisher *publisher.Publisher
	front     message.Publisher // puts the delay of the context into the metadata

	mu    sync.Mutex
	ready map[string]Plan // queues and, as "exchange name", exchanges that are declared
}

var _ message.Publisher = (*Publisher)(nil)

// publishConfig is what a Publisher needs of watermill-amqp's Config.
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

// WithDelays names the delays that get a wait queue of their own, of every queue
// that is published to with a delay. All must be positive.
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

func (c *Client) newPublisher(cfg publishConfig, problems error, options []PublisherOption) (*Publisher, error) {
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
		publisher: publisher.New(l, publisher.Config{Timeout: c.opts.confirmTimeout, NonceHeader: header.Publish}),
		ready:     make(map[string]Plan),
	}
	p.front, err = delay.NewPublisher(publishFunc(p.publishAll), delay.PublisherConfig{AllowNoDelay: true})
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

// Publish publishes the messages in their order, each confirmed before the next,
// and returns nil when a queue has every one of them. At an error those before the
// one that is named are published; that one may be, if the broker has not
// answered. Each wait is bounded by WithConfirmTimeout and by the message's context.
//
// Errors: ErrClosed; a message that is returned, refused or not confirmed; a delay
// that cannot be read; a delayed message whose queue does not exist, for it would
// have nowhere to return to; ErrTooLarge.
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
	if wait > 0 {
		return p.delayed(msg.Context(), topic, raw, wait)
	}
	return p.now(msg.Context(), topic, raw)
}

// now publishes as watermill-amqp would, but mandatory and confirmed.
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

// declareExchange declares an exchange of the user's, once or again.
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

// Close ends the connection; a publish under way ends with an error. The Client
// closes what is still open.
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

// ofPublisher is an error of the publisher as one of ours.
func ofPublisher(err error) error {
	if errors.Is(err, publisher.ErrClosed) {
		return fmt.Errorf("publisher: %w", ErrClosed)
	}
	return err
}
