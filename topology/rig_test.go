package topology_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// grace is how early a message may come by the client's clock (F20).
const grace = 5 * time.Millisecond

// ceiling is how late it may come on a busy machine before a test fails.
const ceiling = 10 * time.Second

// patience bounds every wait on a condition.
const patience = 3 * time.Minute

// strategies are the ways to wait that every scenario is run with.
var strategies = map[string]func(t testing.TB) topology.Strategy{
	"quorum":           func(testing.TB) topology.Strategy { return topology.PerQueue{} },
	"classic":          func(testing.TB) topology.Strategy { return topology.PerQueue{Type: topology.Classic} },
	"attempt quorum":   func(testing.TB) topology.Strategy { return topology.PerAttempt{} },
	"shared quorum":    func(t testing.TB) topology.Strategy { return shared(t, topology.Quorum) },
	"shared classic":   func(t testing.TB) topology.Strategy { return shared(t, topology.Classic) },
	"levels quorum":    func(t testing.TB) topology.Strategy { return levels(t, topology.Quorum) },
	"levels classic":   func(t testing.TB) topology.Strategy { return levels(t, topology.Classic) },
	"returning quorum": func(t testing.TB) topology.Strategy { return returning(t, "amq.topic") },
}

// sharing are those of them whose wait queues several queues share.
var sharing = map[string]bool{"shared quorum": true, "shared classic": true, "levels quorum": true, "levels classic": true, "returning quorum": true}

// shared returns a Shared strategy of the test's own, removed at its end.
func shared(t testing.TB, kind topology.QueueType) topology.Shared {
	t.Helper()
	return topology.Shared{Type: kind, Prefix: testbroker.Queue(t)}
}

// returning returns a Shared strategy that returns messages through an exchange.
func returning(t testing.TB, exchange string) topology.Shared {
	t.Helper()
	s := shared(t, topology.Quorum)
	s.Via = exchange
	return s
}

// levels returns a Levels strategy of the test's own, with few wait queues.
func levels(t testing.TB, kind topology.QueueType) topology.Levels {
	t.Helper()
	return topology.Levels{Type: kind, Prefix: testbroker.Queue(t), Max: time.Hour}
}

// withDead returns a strategy with another place for dead letters.
func withDead(strategy topology.Strategy, dead topology.DeadLetters) topology.Strategy {
	switch s := strategy.(type) {
	case topology.PerQueue:
		s.Dead = dead
		return s
	case topology.PerAttempt:
		s.Dead = dead
		return s
	case topology.Shared:
		s.Dead = dead
		return s
	case topology.Levels:
		s.Dead = dead
		return s
	}
	panic("a strategy that is not known here")
}

// waiting counts the messages in all wait queues of a plan. One that the broker
// is just passing on from one to another is in none.
func waiting(t testing.TB, url string, plan topology.Plan) int {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	n := 0
	for _, q := range plan.Queues {
		if q.Delay > 0 {
			found, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			require.NoError(t, err)
			n += found.Messages
		}
	}
	return n
}

// removePlan deletes what a plan declares at the end of the test.
func removePlan(t testing.TB, url string, strategy topology.Strategy, queue string, delays []time.Duration) topology.Plan {
	t.Helper()
	plan, err := strategy.Plan(queue, delays)
	require.NoError(t, err)
	t.Cleanup(func() {
		conn, err := amqp.Dial(url)
		if err != nil {
			return // a broker of the test's own, already gone
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		for _, q := range plan.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			require.NoError(t, err)
		}
		for _, e := range plan.Exchanges {
			require.NoError(t, ch.ExchangeDelete(e.Name, false, false))
		}
	})
	return plan
}

// quickDeadLettering shortens the 180 s after which an at-least-once queue tries
// again; a busy broker may hold messages that long after a restart (F23).
var quickDeadLettering = testbroker.WithAdvancedConfig("[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].")

// rig is one service: client, subscriber, middleware and router on one queue.
type rig struct {
	t      testing.TB
	url    string
	queue  string
	client *topology.Client
	sub    *topology.Subscriber
	router *message.Router
	stop   func()
	logs   *capture
	plan   topology.Plan
}

type rigConfig struct {
	url, publisherURL string
	adminURL          string // may delete what was declared; default url
	queue             string
	keep              bool // what is declared stays after the test
	strategy          topology.Strategy
	policy            backoff.Policy
	unknownPolicy     bool // the subscriber is made without ForPolicy
	config            func(*wamqp.Config)
	clientOptions     []topology.Option
	subOptions        []topology.SubscriberOption
	options           []middleware.Option
	routerConfig      message.RouterConfig
	handler           message.HandlerFunc
	publishTopic      string
	publisher         message.Publisher
	outer             []message.HandlerMiddleware
	verbose           bool
}

// quorumQueue makes the main queue a quorum queue.
func quorumQueue(cfg *wamqp.Config) { cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"} }

func newRig(t testing.TB, rc rigConfig) *rig {
	t.Helper()
	if rc.url == "" {
		rc.url = testbroker.URL(t)
	}
	if rc.publisherURL == "" {
		rc.publisherURL = rc.url
	}
	if rc.adminURL == "" {
		rc.adminURL = rc.url
	}
	if rc.queue == "" {
		rc.queue = testbroker.Queue(t)
	}
	if rc.strategy == nil {
		rc.strategy = topology.PerQueue{}
	}
	delays, _ := backoff.Delays(rc.policy)
	subOptions := append([]topology.SubscriberOption{topology.ForPolicy(rc.policy)}, rc.subOptions...)
	if rc.unknownPolicy {
		delays, subOptions = nil, rc.subOptions
	}
	r := &rig{t: t, url: rc.url, queue: rc.queue, logs: &capture{verbose: rc.verbose}}
	if !rc.keep {
		r.plan = removePlan(t, rc.adminURL, rc.strategy, rc.queue, delays)
	}
	cfg := wamqp.NewDurableQueueConfig(rc.url)
	cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 500 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 2 * time.Second,
	}
	if rc.config != nil {
		rc.config(&cfg)
	}
	conn := cfg.Connection
	conn.AmqpURI = rc.publisherURL

	var err error
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.client = greeted(t, func() (*topology.Client, error) {
		return topology.Open(ctx, conn, rc.strategy, append(rc.clientOptions, topology.WithLogger(r.logs))...)
	})
	r.sub = greeted(t, func() (*topology.Subscriber, error) {
		return r.client.NewSubscriber(cfg, subOptions...)
	})
	retry, err := middleware.NewDelayedRetry(r.client, rc.policy, append(rc.options, middleware.WithLogger(r.logs))...)
	require.NoError(t, err)
	r.router, err = message.NewRouter(rc.routerConfig, r.logs)
	require.NoError(t, err)
	r.router.AddMiddleware(rc.outer...)
	r.router.AddMiddleware(retry.Middleware)
	if rc.publisher != nil {
		r.router.AddHandler("handler", rc.queue, r.sub, rc.publishTopic, rc.publisher, rc.handler)
	} else {
		r.router.AddConsumerHandler("handler", rc.queue, r.sub, func(msg *message.Message) error {
			_, err := rc.handler(msg)
			return err
		})
	}

	running := make(chan error, 1)
	go func() { running <- r.router.Run(context.Background()) }()
	select {
	case <-r.router.Running():
	case err := <-running:
		t.Fatalf("router did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("router did not start")
	}
	r.stop = sync.OnceFunc(func() {
		require.NoError(t, r.router.Close())
		require.NoError(t, r.client.Close())
		require.NoError(t, <-running)
	})
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			r.logs.dump(t)
		}
	})
	return r
}

// greeted connects, and once more where a busy broker was too slow to answer: a
// short confirm timeout makes the one of connecting short, too.
func greeted[T any](t testing.TB, connect func() (T, error)) T {
	t.Helper()
	var made T
	var err error
	testbroker.WaitFor(t, "the broker to answer a connect", patience, func() bool {
		made, err = connect()
		return !errors.Is(err, context.DeadlineExceeded)
	})
	require.NoError(t, err)
	return made
}

// publish publishes as a plain AMQP client does, confirmed.
func (r *rig) publish(msg amqp.Publishing) {
	r.t.Helper()
	publish(r.t, r.url, "", r.queue, msg)
}

func publish(t testing.TB, url, exchange, key string, msg amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, msg)
	require.NoError(t, err)
	ok, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	require.True(t, ok, "the broker has confirmed it")
}

// take waits for a message in a queue and acks it.
func take(t testing.TB, url, queue string) amqp.Delivery {
	t.Helper()
	var got amqp.Delivery
	testbroker.WaitFor(t, "a message in "+queue, patience, func() bool {
		// A connection for each look: a missing queue closes the channel, and one
		// that is just being deleted may close the connection on 3.10.
		conn, err := amqp.Dial(url)
		require.NoError(t, err)
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
		ch, err := conn.Channel()
		require.NoError(t, err)
		d, ok, err := ch.Get(queue, true)
		got = d
		return ok && err == nil
	})
	return got
}

// timeline records when a handler was called.
type timeline struct {
	mu    sync.Mutex
	calls []time.Time
}

// add counts a call and returns its number, 1-based.
func (l *timeline) add() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, time.Now())
	return len(l.calls)
}

// all returns when the calls came, counted from the first.
func (l *timeline) all() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	offsets := make([]time.Duration, len(l.calls))
	for i, at := range l.calls {
		offsets[i] = at.Sub(l.calls[0])
	}
	return offsets
}

func (l *timeline) count() int { return len(l.all()) }

// requireGaps asserts the delays between the calls: never shorter than asked,
// later only by what a busy machine takes.
func (l *timeline) requireGaps(t testing.TB, want ...time.Duration) {
	t.Helper()
	calls := l.all()
	require.Len(t, calls, len(want)+1, "calls at %v", calls)
	for i, d := range want {
		gap := calls[i+1] - calls[i]
		require.GreaterOrEqual(t, gap, d-grace, "delay %d, calls at %v", i+1, calls)
		require.LessOrEqual(t, gap, d+ceiling, "delay %d, calls at %v", i+1, calls)
	}
	t.Logf("calls at %v", calls)
}

// capture is a logger that keeps what it is told.
type capture struct {
	verbose bool // debug and trace too
	mu      sync.Mutex
	lines   []string
	entries []entry
}

// prefetch sets how many messages a consumer is sent ahead.
func prefetch(n int) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) { cfg.Consume.Qos.PrefetchCount = n }
}

func queueConfig(url string) wamqp.Config { return wamqp.NewDurableQueueConfig(url) }

func connection(url string) wamqp.ConnectionConfig { return queueConfig(url).Connection }
