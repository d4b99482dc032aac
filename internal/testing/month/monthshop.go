package month

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var (
	// policy retries after ten minutes and after half an hour.
	policy = backoff.List{the(10 * time.Minute), the(30 * time.Minute)}
	// longStep is the work of some messages.
	longStep = the(8 * time.Minute)
	// inRounds is longer than all wait queues.
	inRounds = the(time.Hour)
)

// drain is the drain timeout.
const drain = 5 * time.Second

const user = "shop"

// shop is the service, with its replicas.
type shop struct {
	run      *run
	node     *testbroker.Node
	password atomic.Int64 // its number
	replicas [replicas]*replica
}

// openShop makes the user of the service, and starts all replicas.
func openShop(ctx context.Context, r *run) (*shop, error) {
	s := &shop{run: r, node: r.cluster.Node(0)}
	for _, args := range [][]string{
		{"add_user", user, s.secret()}, {"set_permissions", user, ".*", ".*", ".*"},
	} {
		if _, err := s.node.RunCtl(ctx, args...); err != nil {
			return nil, err
		}
	}
	for i := range s.replicas {
		var err error
		if s.replicas[i], err = s.start(ctx); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *shop) secret() string { return fmt.Sprint("secret", s.password.Load()) }

func (s *shop) changePassword(ctx context.Context) error {
	s.password.Add(1)
	_, err := s.node.RunCtl(ctx, "change_password", user, s.secret())
	return err
}

// deploy replaces one replica after the other.
func (s *shop) deploy(ctx context.Context) error {
	for i, old := range s.replicas {
		s.replicas[i] = nil
		if err := old.stop(); err != nil {
			return err
		}
		var err error
		if s.replicas[i], err = s.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *shop) close() error {
	var errs []error
	for _, r := range s.replicas {
		if r != nil {
			errs = append(errs, r.stop())
		}
	}
	return errors.Join(errs...)
}

// replica is one process of the service.
type replica struct {
	client  *topology.Client
	router  *message.Router
	running chan error
}

func (s *shop) start(ctx context.Context) (*replica, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cfg := wamqp.NewDurableQueueConfig(anonymous(s.run.consume.URL()))
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(8)}
	cfg.Consume.Qos.PrefetchCount = prefetch
	cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5,
		BackoffMaxInterval: 200 * time.Millisecond,
	}
	publishing := cfg.Connection
	publishing.AmqpURI = anonymous(s.run.publishing.URL())
	client, err := s.open(ctx, publishing)
	if err != nil {
		return nil, err
	}
	r := &replica{client: client, running: make(chan error, 1)}
	if r.router, err = s.router(cfg, client); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	go func() { r.running <- r.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-r.router.Running():
		return r, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), r.stop())
	case err := <-r.running:
		return nil, errors.Join(err, client.Close())
	}
}

// open opens the client. A replica that starts in an outage waits for its end.
func (s *shop) open(ctx context.Context, cfg wamqp.ConnectionConfig) (*topology.Client, error) {
	for {
		client, err := topology.Open(ctx, cfg, topology.PerQueue{},
			topology.WithConfirmTimeout(confirmTimeout), topology.WithLogger(lines{ledger: s.run.ledger}),
			topology.WithCredentials(func(context.Context) (string, string, error) {
				return user, s.secret(), nil
			}))
		if err == nil || sleep(ctx, 100*time.Millisecond) != nil {
			return client, err
		}
	}
}

func (s *shop) router(cfg wamqp.Config, client *topology.Client) (*message.Router, error) {
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy),
		topology.WithConcurrency(concurrency), topology.WithDrainTimeout(drain),
		topology.WithConsumerTimeout(consumerTimeout))
	if err != nil {
		return nil, err
	}
	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithMaxAge(maxAge))
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 2 * drain},
		watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("orders", queue, sub, s.handle)
	return router, nil
}

func (r *replica) stop() error {
	return errors.Join(r.router.Close(), r.client.Close(), <-r.running)
}

// anonymous leaves the credentials out of a URL.
func anonymous(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	u.User = nil
	return u.String()
}

var errShop = errors.New("the shop is closed")

// handle treats the message as its number says.
func (s *shop) handle(msg *message.Message) error {
	n, err := strconv.Atoi(string(msg.Payload))
	if err != nil {
		return middleware.Permanent(err)
	}
	attempt := middleware.Attempt(msg.Context())
	s.run.ledger.called(n, attempt)
	switch kind := n % 20; {
	case kind == 12 && attempt == 1, kind == 13 && attempt <= 2, kind == 14:
		return errShop
	case kind == 15:
		return middleware.Permanent(errShop)
	case kind == 16 && attempt == 1:
		return middleware.RetryAfter(errShop, inRounds)
	case n%100 == 18:
		select {
		case <-time.After(longStep):
		case <-msg.Context().Done(): // another delivery follows
			return msg.Context().Err()
		}
	}
	s.run.ledger.ended(n, handled)
	return nil
}
