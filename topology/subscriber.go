package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/seam"
)

// Subscriber consumes queues for Watermill. The Client that made it can republish each of its
// messages as it arrived.
//
// One message at a time is in progress for each Subscribe, in the order of the queue; with
// WithConcurrency several, in no order. An ack acks the delivery. A nack never requeues at once:
// the message is snoozed for at least a second with its counts unchanged, so that it does not
// spin. On RabbitMQ 4.0 twenty requeues drop a message (F2). Only at shutdown, or if the broker
// does not confirm the snooze, the message goes back to its queue. A message that cannot be
// decoded is dead-lettered unchanged.
//
// The context of a message has the values of the context given to Subscribe. It is done when the
// message is settled, when its connection is lost, and when Close has waited for the drain timeout.
// A call of Close alone does not end it.
type Subscriber struct {
	client *Client
	cfg    consumeConfig
	opts   subscriberOptions
	link   *link.Link
	frame  int // the largest frame that both connections take

	stop     context.Context // done once closing began
	stopping context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // subscriptions
	done   chan struct{}
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// consumeConfig is the part of watermill-amqp's Config that a Subscriber needs.
type consumeConfig struct {
	link      link.Config
	queueName func(topic string) string
	queueArgs amqp.Table
	// build declares the user's queue, its exchange and binding.
	build     func(ch *amqp.Channel, topic, queue string) error
	unmarshal func(amqp.Delivery) (*message.Message, error)
	prefetch  int
	consumer  string
	exclusive bool
	noLocal   bool
	arguments amqp.Table
}

func (c *Client) newSubscriber(
	cfg consumeConfig, problems error, options []SubscriberOption,
) (*Subscriber, error) {
	opts := subscriberOptions{
		drainTimeout: defaultDrainTimeout, concurrency: 1, handlerWarning: defaultHandlerWarning,
		timestamps: defaultTimestamps,
	}
	managed := c.opts.management.Ask != nil
	problems = errors.Join(problems, audit.RefuseArguments(cfg.queueArgs, managed),
		apply(&opts, options), link.CheckURL(cfg.link.URL))
	if problems == nil {
		problems = checkVhosts(c.linkCfg, cfg.link, "Connection")
	}
	if problems != nil {
		return nil, fmt.Errorf("new subscriber: %w", problems)
	}

	cfg.link.Name = c.opts.name + ": millpond subscriber"
	cfg.link.Logger = c.opts.logger
	cfg.link.ConnectTimeout, cfg.link.WriteTimeout = c.opts.connectTimeout, c.opts.confirmTimeout
	ctx, cancel := context.WithTimeout(context.Background(), cfg.link.ConnectTimeout)
	defer cancel()
	l, err := link.Open(ctx, cfg.link)
	if err != nil {
		return nil, fmt.Errorf("new subscriber: %w", withWayOut(err))
	}
	frame, err := negotiatedFrame(ctx, l)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("new subscriber: %w", err)
	}
	stop, stopping := context.WithCancel(context.Background())
	s := &Subscriber{
		client: c, cfg: cfg, opts: opts, link: l, frame: min(frame, c.frame),
		stop: stop, stopping: stopping, done: make(chan struct{}),
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.subscribers[s] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		l.Close()
		return nil, fmt.Errorf("new subscriber: client: %w", ErrClosed)
	}
	return s, nil
}

// checkVhosts compares the vhosts of two connections: a message that waits in another vhost would
// never come back.
func checkVhosts(client, other link.Config, what string) error {
	a, err := client.Vhost()
	if err != nil {
		return err
	}
	b, err := other.Vhost()
	if err != nil {
		return err
	}
	if a != b {
		return fmt.Errorf("%s names vhost %q, the client retries in vhost %q: use the same vhost; "+
			"AmqpConfig.Vhost overrides the one in AmqpURI", what, b, a)
	}
	return nil
}

// Subscribe declares the queue of topic and its plan, consumes the queue and returns its messages.
// The channel is closed after Close, or when ctx is done and the messages in progress are settled.
// A lost connection is made again, and everything is declared again before consuming goes on.
//
// Errors before anything is declared: ErrClosed; a name that is empty or too long; frames that are
// too small for the plan. Later errors: *ConflictError; a queue that is a stream or has arguments
// under which messages vanish (x-expires, a TTL or a length without a dead-letter exchange, a
// delivery limit of 0), also if the queue existed before; any other refusal of the broker.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, plan, err := s.newSubscription(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		sub.Cancel()
		return nil, fmt.Errorf("subscribe to topic %q: subscriber: %w", topic, ErrClosed)
	}
	s.wg.Add(1)
	s.mu.Unlock()

	leave, err := s.client.joinBrakes(ctx, s.opts.brakes, plan.Queue)
	var run func()
	if err == nil {
		if run, err = sub.Begin(); err != nil {
			leave()
		}
	}
	if err != nil {
		sub.Cancel()
		s.wg.Done()
		return nil, fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	s.client.watchStranded(plan)
	go func() {
		defer s.wg.Done()
		defer leave()
		run()
	}()
	return sub.Messages(), nil
}

// SubscribeInitialize declares everything that Subscribe would declare.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	sub, _, err := s.newSubscription(context.Background(), topic)
	if err == nil {
		defer sub.Cancel()
		err = sub.Prepare()
	}
	if err != nil {
		return fmt.Errorf("initialize topic %q: %w", topic, err)
	}
	return nil
}

// newSubscription returns a subscription that has not begun.
func (s *Subscriber) newSubscription(
	ctx context.Context, topic string,
) (*consumer.Subscription, Plan, error) {
	queue, c := s.cfg.queueName(topic), s.client
	o, err := s.opts.at(queue, topic)
	var plan Plan
	if err == nil {
		plan, err = planWith(c.strategy, queue, o)
	}
	if err == nil {
		err = checkFrame(s.frame, plan)
	}
	if err != nil {
		return nil, Plan{}, err
	}
	logger := c.opts.logger.With(watermill.LogFields{"topic": topic, "queue": queue})
	s.warnings(topic, plan, o.delays, logger)
	c.countQueues(plan)
	source := &source{subscriber: s, topic: topic, plan: plan, logger: logger}
	waits := plan.toConsumer()
	again := &redeclarer{
		plan: &plan, publisher: c.publisher, provisioned: c.opts.provisioned,
		logger: logger,
	}
	waits.Redeclare = again.redeclare
	prefetch, by := o.prefetchOr(s.cfg.prefetch)
	cfg := consumer.Config{
		Group: &c.group, Topic: topic, Queue: queue, Link: s.link, Frame: s.frame, Logger: logger,
		Decode: s.cfg.unmarshal,
		Consume: consumer.Consume{
			Concurrency: o.concurrency, Prefetch: prefetch, PrefetchBy: by, Tag: s.cfg.consumer,
			Exclusive: s.cfg.exclusive, NoLocal: s.cfg.noLocal, Arguments: s.cfg.arguments,
		},
		Waits: waits, Gate: o.gate(), Retries: o.retries, Observers: c.observersWith(o.retries),
		Prepare: source.prepare, CanStore: source.canStore,
		DrainTimeout: o.drainTimeout, HandlerWarning: o.handlerWarning,
		Timestamps: o.timestamps, OldInstances: o.oldInstances,
	}
	if m, ok := c.strategy.(machinery); ok {
		err = m.Seam(plan, c.host(), &cfg)
	}
	if err == nil && (plan.Line != "" && cfg.Lanes == nil || plan.rejects() && cfg.Keeper == nil) {
		err = errors.New("the plan has a Line or a RejectMin, and the strategy is neither " +
			"inorder.Strategy nor native.Strategy: leave them empty, or use one of these")
	}
	if err != nil {
		return nil, Plan{}, err
	}
	return consumer.New(ctx, s.stop, cfg), plan, nil
}

// machinery is a Strategy that needs more than a plan; see packages inorder and native. It
// changes how a queue is consumed whose plan asks for it.
type machinery interface {
	Seam(plan Plan, host seam.Host, cfg *consumer.Config) error
}

// Close stops consuming, waits until the messages in progress are settled, for at most the drain
// timeout, gives back the rest and ends the connection. It returns a few seconds after the drain
// timeout at the latest, even if the broker does not answer. Further calls wait for the first.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		<-s.done
		return nil
	}
	s.stopping()
	s.wg.Wait()
	s.link.Close()
	s.client.forget(s)
	close(s.done)
	return nil
}

// warnings logs settings that are allowed but may surprise.
func (s *Subscriber) warnings(
	topic string, plan Plan, delays []time.Duration, logger watermill.LoggerAdapter,
) {
	if !s.client.warns(plan.Queue, "plan", fmt.Sprint(delays)) {
		return
	}
	if again := s.cfg.queueName(topic); again != plan.Queue {
		logger.Error("Warning: the name of the queue changes with every call; messages that wait for "+
			"it are held or lost when the process is gone", seam.ErrNotYet, nil)
	}
	if r := plan.Via; r != nil {
		logger.Error("Warning: retries come back through an exchange: every other queue that is bound "+
			"there for the routing key gets each retry, too, as a new message, which watermill-amqp's "+
			"own Subscriber cannot decode", seam.ErrNotYet,
			watermill.LogFields{"exchange": strings.Join(r.Exchanges, ", ")})
	}
	if plan.rejects() && !slices.ContainsFunc(delays, plan.holds) {
		logger.Error("Warning: no delay of the policy is known that the queue itself can hold a message "+
			"for, so that every failed message takes a wait queue: use backoff.Linear with the Min of "+
			"native.Strategy as Initial and Step, or another strategy", seam.ErrNotYet,
			watermill.LogFields{"min": plan.RejectMin, "max": plan.RejectMax, "delays": delays})
	}
	if gaps := plan.gaps(); len(gaps) > 0 {
		logger.Info("Two wait steps lie more than twelve times apart, so a delay between them, of a "+
			"RetryAfter for example, may come late: name one between them, as a backoff.List beside the "+
			"policy in topology.ForPolicy, or use topology.Levels",
			watermill.LogFields{"late": gaps})
	}
}

// Received returns the delivery behind the message that ctx belongs to, exactly as it arrived:
// properties, and headers with their AMQP types, including the headers of the broker. There are two
// exceptions: the retry state of another queue is missing, and a message that has waited has the
// priority that it arrived with first. Received returns a copy, which may be changed and cannot be
// acked; false if the message did not come from a Subscriber of this package.
func Received(ctx context.Context) (amqp.Delivery, bool) { return consumer.Received(ctx) }

// defaultFrame is the largest frame of RabbitMQ and amqp091-go by default (F16).
const defaultFrame = 131072

// negotiatedFrame returns the largest frame that the broker takes on the connection of l, which is
// connected. A frame that is too small for a retry is an error.
func negotiatedFrame(ctx context.Context, l *link.Link) (int, error) {
	conn, err := l.Conn(ctx)
	if err != nil {
		return 0, err
	}
	switch size := conn.Config.FrameSize; {
	case size <= 0:
		return defaultFrame, nil
	case size < leastFrame:
		return 0, fmt.Errorf("the broker takes frames of at most %d bytes, in which a message has no "+
			"room for the headers of a retry, so that every failure would be dead-lettered: set its "+
			"frame_max to at least %d",
			size, leastFrame)
	default:
		return size, nil
	}
}

// leastRoom is the room that properties and headers of a message need on their way to a wait queue:
// up to 7 KiB if every name is as long as AMQP allows and the history was left out.
const leastRoom = 8 << 10

// checkFrame refuses a plan whose routes leave less than leastRoom in a frame.
func checkFrame(frame int, plan Plan) error {
	hops := 1
	if plan.Levels != nil {
		hops = plan.Levels.Levels
	}
	for _, step := range plan.WaitSteps {
		hops = max(hops, step.Hops)
	}
	if room := consumer.WaitingRoom(frame, hops); room < leastRoom {
		return fmt.Errorf("a message of queue %q may pass %d wait queues, each of which adds to its "+
			"headers, and frames of %d bytes are too small for that: raise FrameSize and the broker's "+
			"frame_max to at least %d, or use fewer levels",
			plan.Queue, hops, frame, frame+leastRoom-room)
	}
	return nil
}
