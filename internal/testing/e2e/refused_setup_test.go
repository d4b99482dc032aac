package e2e_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Likely mistakes that no other file shows, each with its message. docs/operations.md lists
// all of them.

// Given a message that another Subscriber has delivered, as watermill-amqp's, when it fails, then
// the log says why it cannot be retried.
func TestWatermillAMQPsSubscriberIsNamed(t *testing.T) {
	t.Parallel()
	client, logs := rig.OpenLogged(t, testbroker.URL(t), topology.PerQueue{})
	retry := rig.Retry(t, client, rig.Quickly(1), logs)
	handler := func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed }
	_, err := retry.Middleware(handler)(message.NewMessage("id", nil))
	require.ErrorIs(t, err, middleware.ErrNotDelivered)
	require.Equal(t, 1, logs.Said("make the subscriber with the client (Client.NewSubscriber), "+
		"and pass on the message itself, not a copy"))
}

// Given a user who may not declare a wait queue, or not read its queue, then Subscribe says so. A
// user who may not publish to the wait queues is told by the log, which says what to grant, and the
// message is held.
func TestMissingPermissionsAreNamed(t *testing.T) {
	t.Parallel()
	const wayOut = "the user may not: grant it the permissions that Plan.Permissions lists"
	node, policy := commonNode(t), backoff.List{time.Second}
	url, narrow := node.URL()+"narrow", node.URLOf("narrow")+"narrow"
	grant := func(configure, write, read string) {
		node.Grant(t, testbroker.Everything("narrow", "guest"), testbroker.Grant{
			VHost: "narrow", User: "narrow", Configure: configure, Write: write, Read: read,
		})
	}
	grant("^orders$", ".*", ".*")
	_, sub := rig.OpenSubscriber(t, narrow, topology.PerQueue{}, policy)
	_, err := sub.Subscribe(t.Context(), "orders")
	rig.RequireTexts(t, err, `declare queue "orders.wait.1s"`, "configure permission")

	grant("^orders.*$", "^$", "^$")
	_, sub = rig.OpenSubscriber(t, url, topology.PerQueue{}, policy)
	require.NoError(t, sub.SubscribeInitialize("orders"))
	_, sub = rig.OpenSubscriber(t, narrow, topology.PerQueue{}, policy, topology.WithPreProvisioned())
	_, err = sub.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, wayOut)

	grant("^orders.*$", "^$", "^orders$")
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		URL: narrow, AdminURL: url, Queue: "orders", Policy: policy, Handler: rig.FailUntil(2, attempts),
		ClientOptions: []topology.Option{topology.WithPreProvisioned()},
	})
	rig.Publish(t, url, "", "orders", amqp.Publishing{Body: []byte("order")})
	r.AwaitLine("Failed message cannot be handed over, holding it", wayOut)
	grant("^orders.*$", `^amq\.default$`, "^orders$")
	rig.AwaitAttempts(t, attempts, 1, 2)
}

// inVhost returns a configuration with another vhost than its URL.
func inVhost(url, vhost string) wamqp.Config {
	cfg := rig.QueueConfig(url)
	cfg.Connection.AmqpConfig = &amqp.Config{Vhost: vhost}
	return cfg
}

// amqp091-go opens the vhost of its configuration, and the vhost of the URL only if that is
// empty. The client compares the vhosts that are opened.
func TestVhostOfTheConfigurationIsCompared(t *testing.T) {
	t.Parallel()
	const refused = `names vhost "other", the client retries in vhost "/"`
	url := testbroker.URL(t)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	_, err := client.NewSubscriberWithoutRetry(inVhost(url, "other"))
	rig.RequireTexts(t, err, refused)
	_, err = client.NewPublisher(inVhost(url, "other"))
	require.ErrorContains(t, err, refused)

	// The same vhost, named in two ways.
	cfg := inVhost(url+"other", "/")
	same := rig.OpenWith(t, cfg.Connection, topology.PerQueue{}, topology.WithBrokers(url+"another"))
	_, err = same.NewSubscriberWithoutRetry(rig.QueueConfig(url))
	require.NoError(t, err)
	_, err = same.NewSubscriberWithoutRetry(rig.QueueConfig(url + "other"))
	require.ErrorContains(t, err, refused)
}

// Given two brokers with a vhost of the same name, then a Subscriber on the other broker is
// refused, because a retry would wait on the wrong one.
func TestSubscriberOnAnotherBrokerIsRefused(t *testing.T) {
	t.Parallel()
	url, other := testbroker.URL(t), commonNode(t).URL()
	t.Run("at the start", func(t *testing.T) {
		client := rig.OpenClient(t, url, topology.PerQueue{})
		_, err := client.NewSubscriberWithoutRetry(rig.QueueConfig(other))
		rig.RequireTexts(t, err, "cluster_name", "WithoutClusterCheck", "another RabbitMQ cluster")
		_, err = client.NewPublisher(rig.QueueConfig(other))
		require.ErrorContains(t, err, "cluster_name")
		_, err = client.NewSubscriberWithoutRetry(rig.QueueConfig(url))
		require.NoError(t, err)
	})
	t.Run("after a reconnect", func(t *testing.T) {
		proxy := testbroker.NewProxy(t, url)
		attempts := make(chan int, 10)
		r := rig.Start(t, rig.Config{
			URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: backoff.List{time.Second},
			Handler: rig.FailUntil(2, attempts),
		})
		proxy.Retarget(t, other)
		proxy.Cut()
		r.AwaitLine("Cannot reconnect to RabbitMQ, trying again", "cluster_name")
		proxy.Retarget(t, url)
		rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("order")})
		rig.AwaitAttempts(t, attempts, 1, 2)
		require.Equal(t, -1, testbroker.Depth(t, other, r.Queue), "nothing is on the other broker")
	})
	t.Run("without the check", func(t *testing.T) {
		client := rig.OpenClient(t, url, topology.PerQueue{}, topology.WithoutClusterCheck())
		_, err := client.NewSubscriberWithoutRetry(rig.QueueConfig(other))
		require.NoError(t, err)
	})
}

// strategyFunc is a strategy of a user.
type strategyFunc func(queue string, delays []time.Duration) (topology.Plan, error)

func (f strategyFunc) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	return f(queue, delays)
}

// withoutAWayBack plans wait queues without a dead-letter exchange.
func withoutAWayBack(queue string, _ []time.Duration) (topology.Plan, error) {
	wait := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(1000)}
	return topology.Plan{
		Queue: queue,
		Queues: []topology.Queue{
			{Name: queue + ".later", Delay: time.Second, Arguments: wait},
			{Name: queue + ".dlq", Arguments: amqp.Table{"x-queue-type": "quorum"}},
		},
		WaitSteps: []topology.Route{{RoutingKey: queue + ".later", Delay: time.Second, Hops: 1}},
		Dead:      topology.Route{RoutingKey: queue + ".dlq"},
	}, nil
}

// Given a strategy that loses messages, then every call that takes its plan refuses it, and
// declares nothing. Retries were confirmed, and gone when their wait was over.
func TestStrategyWithoutAWayBackIsRefused(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue, queue+".later", queue+".dlq")
	another := func(_ string, delays []time.Duration) (topology.Plan, error) {
		return topology.PerQueue{}.Plan(queue+"-other", delays)
	}
	for name, c := range map[string]struct {
		strategy strategyFunc
		valid    bool // for another queue
		want     []string
	}{
		"without a way back": {withoutAWayBack, false, []string{
			`wait queue "` + queue + `.later" has no x-dead-letter-exchange, ` +
				"so that the broker drops a message whose wait is over",
			"x-dead-letter-strategy is <nil>", "topology.WaitQueue sets the safe arguments",
			"names no x-delivery-limit",
		}},
		"the plan of another queue": {another, true, []string{
			`the plan is for queue "` + queue + `-other", but queue "` + queue + `" was asked for`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client, sub := rig.OpenSubscriber(t, url, c.strategy, sourcePolicy)
			pub := rig.NewPublisher(t, client, url)
			_, subscribeErr := sub.Subscribe(t.Context(), queue)
			_, planErr := topology.PlanFor(c.strategy, queue, sourcePolicy)
			refused := map[string]error{
				"Subscribe": subscribeErr, "SubscribeInitialize": sub.SubscribeInitialize(queue),
				"PlanFor": planErr, "Publish": pub.Publish(queue, rig.DelayedBy(time.Second)),
			}
			if !c.valid {
				plan, err := c.strategy(queue, nil)
				require.NoError(t, err)
				o := rig.OpenOperator(t, url)
				_, refused["Verify"] = o.Verify(t.Context(), plan)
				refused["Declare"] = o.Declare(t.Context(), plan)
			}
			for call, err := range refused {
				for _, text := range c.want {
					require.ErrorContains(t, err, text, call)
				}
			}
			for _, q := range []string{queue, queue + ".later", queue + ".dlq"} {
				require.Equal(t, -1, testbroker.Depth(t, url, q), "queue %s was declared", q)
			}
			t.Log(subscribeErr)
		})
	}
}

// A strategy is asked about existing queues only. Open and the constructors asked it about a
// queue called "check".
func TestNoStrategyIsAskedAboutAnInventedQueue(t *testing.T) {
	t.Parallel()
	url := peer.Start(t, nil).URL()
	var asked []string
	strategy := strategyFunc(func(q string, delays []time.Duration) (topology.Plan, error) {
		asked = append(asked, q)
		return topology.PerQueue{}.Plan(q, delays)
	})
	client, sub := rig.OpenSubscriber(t, url, strategy, sourcePolicy)
	rig.NewPublisher(t, client, url, topology.WithDelays(time.Second))
	require.Empty(t, asked)
	require.NoError(t, sub.SubscribeInitialize("orders"))
	require.Equal(t, []string{"orders"}, slices.Compact(asked))
}

// Given a wrong URL, strategy or option, when a client is opened, then the error names each
// problem, and no password.
func TestOpenNamesEveryProblem(t *testing.T) {
	t.Parallel()
	const secret, local = "s3cr3t", "amqp://127.0.0.1:1/"
	var missing *topology.PerQueue
	for name, c := range map[string]struct {
		url      string
		strategy topology.Strategy
		options  []topology.Option
		want     []string
	}{
		"unescaped password": {
			"amqp://u:" + secret + "/x@host:5672/", missing, nil,
			[]string{"percent-encoded", "strategy is nil"},
		},
		"no broker": {"amqp://user:" + secret + "@127.0.0.1:1/", topology.PerQueue{}, nil, []string{
			"127.0.0.1:1", "refused", "the broker cannot be reached: start it or correct the address",
		}},
		"another password": {
			strings.Replace(testbroker.URL(t), "guest:guest", "guest:"+secret, 1),
			topology.PerQueue{},
			nil,
			[]string{"does not know this user with this password"},
		},
		"everything": {
			"", nil,
			[]topology.Option{nil, topology.WithLogger(nil), topology.WithConfirmTimeout(0)},
			[]string{"URL is empty", "strategy is nil", "option 1 is nil", "logger is nil", "under 1ms"},
		},
		"two vhosts": {
			local + "a",
			topology.PerQueue{},
			[]topology.Option{topology.WithBrokers(local + "b")},
			[]string{`WithBrokers names vhost "b"`},
		},
	} {
		_, err := topology.Open(
			t.Context(), wamqp.ConnectionConfig{AmqpURI: c.url}, c.strategy, c.options...)
		rig.RequireTexts(t, err, c.want...)
		require.NotContains(t, err.Error(), secret, name)
	}
}

// Given a configuration that loses messages, when a subscriber is made, then the error lists every
// problem.
func TestNewSubscriberRefusesLossyConfiguration(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	cfg := wamqp.NewNonDurableQueueConfig(url)
	cfg.Marshaler, cfg.TopologyBuilder = nil, nil
	cfg.Queue.GenerateName, cfg.Exchange.GenerateName = nil, nil
	cfg.Consume.NoRequeueOnNack, cfg.Queue.AutoDelete, cfg.Queue.Exclusive = true, true, true
	cfg.Consume.Qos.PrefetchCount, cfg.Consume.Qos.PrefetchSize = 0, 1
	cfg.Queue.Arguments = amqp.Table{"x-overflow": "reject-publish"}
	_, err := client.NewSubscriberWithoutRetry(cfg, nil, topology.WithDrainTimeout(-1),
		topology.ForPolicy(nil, backoff.List{-1, backoff.MaxDelay + 1}),
		topology.For((*middleware.DelayedRetry)(nil)), topology.For(nil))
	rig.RequireTexts(t, err, "Marshaler is nil", "TopologyBuilder is nil", "Queue.GenerateName is nil",
		"Exchange.GenerateName is nil", "NoRequeueOnNack", "Durable", "AutoDelete", "Exclusive",
		"PrefetchCount", "PrefetchSize", "x-overflow", "option 1 is nil", "negative", "policy is nil",
		"MaxDelay", "the DelayedRetry is nil")

	// In 16 bits this prefetch would be 0, which means no limit.
	cfg = rig.QueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 65536
	_, err = client.NewSubscriberWithoutRetry(cfg, topology.WithConcurrency(0),
		topology.WithConcurrency(65536))
	rig.RequireTexts(t, err, "PrefetchCount is above 65535", "WithConcurrency: 0 is not within",
		"WithConcurrency: 65536 is not within 1 and 65535")

	_, err = client.NewSubscriberWithoutRetry(rig.QueueConfig(url + "other"))
	require.ErrorContains(t, err, `names vhost "other"`)

	require.NoError(t, client.Close())
	_, err = client.NewSubscriberWithoutRetry(rig.QueueConfig(url))
	require.ErrorIs(t, err, topology.ErrClosed)
	require.ErrorIs(t, client.Healthy(), topology.ErrClosed)
}

// Given a topic that is no possible queue name, when a service subscribes, then that is an error,
// and nothing is declared.
func TestSubscribeRefusesBadNamesBeforeDeclaring(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	long := strings.Repeat("q", 250) // fits, but not with ".wait.1s"
	for topic, text := range map[string]string{"": "is empty", long: "AMQP allows 255"} {
		_, err := sub.Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, sub.SubscribeInitialize(topic), text)
	}
	require.Equal(t, -1, testbroker.Depth(t, url, long), "nothing was declared")
	require.NoError(t, sub.Close())
	_, err := sub.Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, topology.ErrClosed)
}

// Given several URLs, when the client starts or its broker goes away, then the URLs are tried in
// turn.
func TestBrokersAreTriedInTurn(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	first, second := testbroker.NewProxy(t, url), testbroker.NewProxy(t, url)
	first.Refuse(true)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: first.URL(), AdminURL: url, Policy: backoff.List{time.Second},
		ClientOptions: []topology.Option{
			topology.WithBrokers("amqp://guest:guest@127.0.0.1:1/", second.URL()),
		},
		Handle: func(*message.Message) error {
			if calls.Add()%2 == 1 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	rig.Publish(t, url, "", r.Queue, rig.Message("over the second"))
	rig.WaitFor(t, "its retry", func() bool { return calls.Count() == 2 })
	require.Positive(t, second.Connections())

	first.Refuse(false)
	second.Refuse(true)
	second.Cut()
	rig.Publish(t, url, "", r.Queue, rig.Message("over the first"))
	rig.WaitFor(t, "its retry", func() bool { return calls.Count() == 4 })
	require.NoError(t, r.Client.Healthy())
}

// Given a source of credentials, when the password changes and the connections end, then each new
// connection asks again. The connections have names for people.
func TestCredentialsAreAskedForAgain(t *testing.T) {
	t.Parallel()
	node, queue := commonNode(t), testbroker.Queue(t)
	node.Grant(t, testbroker.Everything("/", "shop"))
	var password atomic.Value
	password.Store("shop")
	var asked atomic.Int64
	credentials := func(context.Context) (string, string, error) {
		if asked.Add(1) == 4 {
			return "", "", errors.New("the vault is sealed")
		}
		return "shop", password.Load().(string), nil
	}
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL:      strings.Replace(node.URL(), "guest:guest", "shop:outdated", 1),
		AdminURL: node.URL(), Queue: queue, Policy: backoff.List{time.Second},
		ClientOptions: []topology.Option{
			topology.WithName("shop"), topology.WithCredentials(credentials),
		},
		Handle: calls.Succeed,
	})
	names := node.Ctl(t, "eval", listConnections)
	require.Contains(t, names, "shop: millpond retries")
	require.Contains(t, names, "shop: millpond subscriber")

	password.Store("second")
	before := asked.Load()
	node.Ctl(t, "eval", changePassword("shop", "second"))
	rig.Publish(t, node.URL(), "", queue, rig.Message("after the change"))
	rig.WaitFor(t, "the message to be handled", func() bool { return calls.Count() == 1 })
	require.Greater(t, asked.Load(), before)
	r.Stop()
	require.NotContains(t, r.Logs.Text(), "second")
}
