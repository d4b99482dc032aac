package random

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// service is one process of the program. All its connections pass its own proxy, so that it can die
// at one moment, as by kill -9.
type service struct {
	proxy  *testbroker.Proxy
	client *topology.Client
	router *message.Router
	ended  chan error
	dead   atomic.Bool
	stop   func() error // ends the service in good order, once

	mu sync.Mutex
	// unsettled counts the deliveries of each message whose handling has begun and has no outcome.
	unsettled map[string]int
	// failing has the messages that could not be handed over at the last try. At a shutdown they go
	// back to their queue, and their attempt runs again.
	failing map[string]bool
}

// generations is the largest number of deliveries of a message that no outcome has settled.
// While confirms are late, a copy comes back before the delivery that it was made of is acked. A
// lost connection doubles each of these.
func (s *service) generations() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.unsettled {
		most = max(most, n)
	}
	return most
}

// isFailing reports whether a message could not be handed over at the last try.
func (s *service) isFailing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failing) > 0
}

// observe counts the outcomes.
func (s *service) observe(_ context.Context, e middleware.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case middleware.EventFailing:
		s.failing[e.MessageID] = true
	case middleware.EventHandled, middleware.EventRetried, middleware.EventSnoozed,
		middleware.EventDeadLettered, middleware.EventRequeued:
		s.unsettled[e.MessageID]--
		delete(s.failing, e.MessageID)
	}
}

// config returns the configuration of the source queue.
func (r *run) config(url string) wamqp.Config {
	c := wamqp.NewDurableQueueConfig(url)
	if !r.program.Classic {
		c.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1 << 30)}
	}
	if r.via != "" {
		c.Exchange = wamqp.ExchangeConfig{
			GenerateName: func(string) string { return r.via }, Type: "topic", Durable: true,
		}
		c.QueueBind.GenerateRoutingKey = func(string) string { return routingKey }
	}
	c.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 20 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 200 * time.Millisecond,
	}
	return c
}

// routingKey is the key of messages that come by an exchange.
const routingKey = "order.created"

const (
	confirmTimeout = time.Second
	drain          = 2 * time.Second
	startLimit     = 30 * time.Second
)

// starts is how often a service is started until it consumes. On a busy machine declaring a queue
// may take longer than the confirm timeout, and an orchestrator would start the process again, too.
const starts = 5

// start starts a service, and returns when it consumes.
func (r *run) start(ctx context.Context) (s *service, err error) {
	for range starts {
		if s, err = r.startOnce(ctx); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func (r *run) startOnce(ctx context.Context) (*service, error) {
	proxy, err := testbroker.OpenProxy(r.broker.URL())
	if err != nil {
		return nil, err
	}
	// Without a tap the proxy knows no frames, and cannot hold confirms back.
	proxy.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
	s := &service{
		proxy: proxy, ended: make(chan error, 1), unsettled: map[string]int{},
		failing: map[string]bool{},
	}
	s.stop = sync.OnceValue(s.close)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := r.connect(ctx, s); err != nil {
		proxy.Close()
		return nil, fmt.Errorf("start a service: %w", err)
	}
	go func() { s.ended <- s.router.Run(context.Background()) }()
	select {
	case <-s.router.Running():
		return s, nil
	case err := <-s.ended:
		s.ended <- err
		return nil, errors.Join(errors.New("the router has ended"), err, s.stop())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.stop())
	}
}

// connect makes the service's client and router.
func (r *run) connect(ctx context.Context, s *service) error {
	config := r.config(s.proxy.URL())
	var err error
	s.client, err = topology.Open(ctx, config.Connection, r.strategy,
		topology.WithConfirmTimeout(confirmTimeout))
	if err != nil {
		return err
	}
	policy := r.program.policy()
	sub, err := s.client.NewSubscriber(config, topology.ForPolicy(policy),
		topology.WithConcurrency(r.program.Workers), topology.WithDrainTimeout(drain))
	if err == nil {
		err = sub.SubscribeInitialize(r.queue) // before the router, which cannot try again
	}
	if err == nil {
		err = r.route(s, sub)
	}
	if err != nil {
		return errors.Join(err, s.client.Close())
	}
	return nil
}

// route makes the router with the middleware and the handler.
func (r *run) route(s *service, sub *topology.Subscriber) error {
	republisher := mistaken{s.client, r.program.Mistake}
	retry, err := middleware.NewDelayedRetry(republisher, r.program.policy(),
		middleware.WithObserver(middleware.ObserverFunc(s.observe)))
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 2 * drain},
		watermill.NopLogger{})
	if err != nil {
		return err
	}
	s.router.AddMiddleware(retry.Middleware)
	s.router.AddConsumerHandler("handler", r.queue, sub, func(msg *message.Message) error {
		if s.dead.Load() {
			return errDead
		}
		raw, _ := topology.Received(msg.Context())
		s.mu.Lock()
		s.unsettled[raw.MessageId]++
		s.mu.Unlock()
		err := r.record.call(msg)
		if s.dead.Load() {
			return errDead
		}
		return err
	})
	return nil
}

var errDead = errors.New("the process is dead")

func (s *service) close() error {
	err := errors.Join(s.router.Close(), s.client.Close(), <-s.ended)
	s.proxy.Close()
	return err
}

// kill ends the service at once. The rest of it goes away beside the program, without an effect on
// the broker.
func (s *service) kill(burials *sync.WaitGroup) {
	s.dead.Store(true)
	s.proxy.Refuse(true)
	s.proxy.Cut()
	burials.Go(func() { _ = s.stop() })
}
