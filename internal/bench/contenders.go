package main

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The entries of the contests.
const (
	millpond           = "millpond"
	millpondNoFailures = "millpond, nothing fails"
	raw                = "raw amqp091-go"
	wmDefault          = "watermill-amqp Publisher"
	wmRetry            = "watermill Retry"
)

// prefetch is the number of messages that the broker sends ahead to a service. A service that
// handles more than half of it at once gets twice as many as it handles.
const prefetch = 64

// work is a service on a queue.
type work struct {
	queue    string
	delay    time.Duration // between the attempts
	inFlight int
	prefetch int // 0: prefetch, or twice inFlight if that is more
	handle   func(body []byte) error
	settled  func(body []byte) // handled or handed over, and about to be acked
	// uncounted reports whether a lane does not count a message; nil: it counts all.
	uncounted func(body []byte) bool
}

// ahead returns the number of messages that the broker sends ahead.
func (w work) ahead() int { return cmp.Or(w.prefetch, max(prefetch, 2*w.inFlight)) }

// service handles a queue until it is stopped.
type service struct {
	stop func() error
	// waits are the queues that are deleted with the service.
	waits []string
}

var errFailed = errors.New("failed")

// serveMillpond starts a service as the README shows it.
func serveMillpond(ctx context.Context, b *broker, w work) (*service, error) {
	return serveMillpondOn(ctx, b.node.URL(), topology.PerQueue{}, quorum, backoff.List{w.delay}, w)
}

func serveMillpondOn(
	ctx context.Context, url string, strategy topology.Strategy, args amqp.Table,
	policy backoff.List, w work,
) (*service, error) {
	cfg := consumerConfig(url, w.ahead())
	cfg.Queue.Arguments = args
	client, err := topology.Open(ctx, cfg.Connection, strategy,
		topology.WithLogger(watermill.NopLogger{}))
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*service, error) { return nil, errors.Join(err, client.Close()) }
	sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy),
		topology.WithConcurrency(w.inFlight))
	if err != nil {
		return fail(err)
	}
	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		return fail(err)
	}
	plan, err := topology.PlanFor(strategy, w.queue, policy)
	if err != nil {
		return fail(err)
	}
	stop, err := route(ctx, func(router *message.Router) {
		router.AddMiddleware(watch(w), retry.Middleware)
		router.AddConsumerHandler("handler", w.queue, sub,
			func(msg *message.Message) error { return w.handle(msg.Payload) })
	})
	if err != nil {
		return fail(err)
	}
	s := &service{stop: func() error { return errors.Join(stop(), client.Close()) }}
	for _, q := range plan.Queues {
		s.waits = append(s.waits, q.Name)
	}
	return s, nil
}

// watch calls settled when a message was handled or handed over.
func watch(w work) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				w.settled(msg.Payload)
			}
			return produced, err
		}
	}
}

func consumerConfig(url string, prefetch int) wamqp.Config {
	cfg := wamqp.NewDurableQueueConfig(url)
	cfg.Queue.Arguments = quorum
	cfg.Consume.Qos.PrefetchCount = prefetch
	return cfg
}

// route runs a router until it is stopped.
func route(ctx context.Context, add func(*message.Router)) (stop func() error, err error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second},
		watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	add(router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return nil, errors.Join(errors.New("router has ended"), err)
	}
	return func() error { return errors.Join(router.Close(), <-ended) }, nil
}

// serveRaw uses amqp091-go by hand and loses messages only with a connection: one channel
// for all, mandatory, a confirm before the ack.
func serveRaw(_ context.Context, b *broker, w work) (*service, error) {
	r, err := consumeRaw(b, w, w.inFlight)
	if err != nil {
		return nil, err
	}
	problems := make(chan error, w.inFlight)
	for range w.inFlight {
		go func() {
			problems <- func() error {
				for d := range r.deliveries {
					if w.handle(d.Body) != nil {
						if err := r.publisher.publish("", r.wait, again(&d)); err != nil {
							return err
						}
					}
					w.settled(d.Body)
					if err := d.Ack(false); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	return &service{waits: []string{r.wait}, stop: func() error {
		err := r.cancel()
		for range w.inFlight {
			err = errors.Join(err, <-problems)
		}
		return errors.Join(err, r.close())
	}}, nil
}

// byHand are the connections of a contender that uses amqp091-go by hand: one channel to consume,
// one to publish.
type byHand struct {
	wait       string
	consuming  *amqp.Connection
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	publisher  *rawPublisher
}

// consumeRaw declares the queues and consumes. inFlight publishes may be unconfirmed at once.
func consumeRaw(b *broker, w work, inFlight int) (r *byHand, err error) {
	r = &byHand{wait: w.queue + ".raw.wait"}
	if err := errors.Join(b.declare(w.queue, quorum),
		b.declareWait(r.wait, w.queue, w.delay)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.consuming, err = amqp.Dial(b.node.URL()); err != nil {
		return r, err
	}
	if r.publisher, err = dialRaw(b.node.URL(), inFlight); err != nil {
		return r, err
	}
	if r.channel, err = r.consuming.Channel(); err != nil {
		return r, err
	}
	if err = r.channel.Qos(w.ahead(), 0, false); err != nil {
		return r, err
	}
	r.deliveries, err = r.channel.Consume(w.queue, "raw", false, false, false, false, nil)
	return r, err
}

func (r *byHand) cancel() error { return r.channel.Cancel("raw", false) }

func (r *byHand) close() (err error) {
	if r.consuming != nil {
		err = r.consuming.Close()
	}
	if r.publisher != nil {
		err = errors.Join(err, r.publisher.close())
	}
	return err
}

// again returns a copy of a delivery with its attempts counted.
func again(d *amqp.Delivery) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+1)
	for key, value := range d.Headers {
		headers[key] = value
	}
	attempt, _ := headers["attempt"].(string)
	n, _ := strconv.Atoi(attempt)
	headers["attempt"] = strconv.Itoa(n + 1)
	return amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode,
		MessageId: d.MessageId, Timestamp: d.Timestamp, Body: d.Body,
	}
}

// rawPublisher publishes on one channel that all callers share, mandatory and confirmed. Without a
// header it cannot tell whose message was returned: it only looks whether one was.
type rawPublisher struct {
	conn    *amqp.Connection
	ch      *amqp.Channel
	returns chan amqp.Return
}

func dialRaw(url string, callers int) (*rawPublisher, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &rawPublisher{conn, ch, ch.NotifyReturn(make(chan amqp.Return, callers))}, nil
}

func (p *rawPublisher) publish(exchange, key string, msg amqp.Publishing) error {
	confirm, err := p.ch.PublishWithDeferredConfirm(exchange, key, true, false, msg)
	if err != nil {
		return err
	}
	if !confirm.Wait() {
		return errors.New("not confirmed")
	}
	select {
	case <-p.returns:
		return errors.New("returned")
	default:
		return nil
	}
}

func (p *rawPublisher) close() error { return p.conn.Close() }

// serveOnly uses watermill-amqp's Subscriber without any middleware for failures.
func serveOnly(ctx context.Context, b *broker, w work) (*service, error) {
	sub, err := wamqp.NewSubscriber(consumerConfig(b.node.URL(), w.ahead()), watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	stop, err := route(ctx, func(router *message.Router) {
		router.AddMiddleware(watch(w))
		router.AddConsumerHandler("handler", w.queue, sub,
			func(msg *message.Message) error { return w.handle(msg.Payload) })
	})
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	return &service{stop: stop}, nil
}
