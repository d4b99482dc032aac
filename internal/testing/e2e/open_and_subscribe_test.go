package e2e_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// requireTexts requires an error that contains all texts.
func requireTexts(t *testing.T, err error, texts ...string) {
	t.Helper()
	require.Error(t, err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

// Given a wrong URL, strategy or option, when a client is opened, then the error names each
// problem, and no password.
func TestOpenNamesEveryProblem(t *testing.T) {
	t.Parallel()
	const secret, local = "s3cr3t", "amqp://127.0.0.1:1/"
	good := topology.PerQueue{}
	badSteps := topology.PerQueue{WaitSteps: []time.Duration{-1, backoff.MaxDelay + 1}}
	cases := map[string]struct {
		url      string
		strategy topology.Strategy
		want     []string
	}{
		"empty url":          {"", good, []string{"URL is empty"}},
		"not amqp":           {"http://user:" + secret + "@host/", good, []string{"URL is invalid"}},
		"unescaped password": {"amqp://u:" + secret + "/x@host:5672/", good, []string{"percent-encoded"}},
		"no broker": {"amqp://user:" + secret + "@127.0.0.1:1/", good, []string{
			"127.0.0.1:1", "refused", "the broker cannot be reached: start it or correct the address",
		}},
		"nil strategy":   {local, nil, []string{"strategy is nil"}},
		"nil pointer":    {local, (*topology.PerQueue)(nil), []string{"strategy is nil"}},
		"unknown type":   {local, topology.PerQueue{Type: "stream"}, []string{`"stream" is unknown`}},
		"bad wait steps": {local, badSteps, []string{"not positive", "at most 315360000000 ms"}},
		"everything": {"", nil, []string{
			"URL is empty", "strategy is nil", "option 1 is nil", "logger is nil", "under 1ms",
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options []topology.Option
			if name == "everything" {
				options = append(options, nil, topology.WithLogger(nil), topology.WithConfirmTimeout(0))
			}
			config := wamqp.ConnectionConfig{AmqpURI: c.url}
			_, err := topology.Open(t.Context(), config, c.strategy, options...)
			requireTexts(t, err, c.want...)
			require.NotContains(t, err.Error(), secret)
		})
	}
}

// Given a wrong password, when a client is opened, then the error says so without the password.
func TestOpenWithWrongCredentials(t *testing.T) {
	t.Parallel()
	url := strings.Replace(testbroker.URL(t), "guest:guest", "guest:s3cr3t", 1)
	_, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: url}, topology.PerQueue{})
	require.ErrorContains(t, err, "username or password")
	require.NotContains(t, err.Error(), "s3cr3t")
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
	_, err := client.NewSubscriber(cfg, nil, topology.WithDrainTimeout(-1),
		topology.ForPolicy(nil, backoff.List{-1, backoff.MaxDelay + 1}),
		topology.For((*middleware.DelayedRetry)(nil)), topology.For(nil))
	requireTexts(t, err, "Marshaler is nil", "TopologyBuilder is nil", "Queue.GenerateName is nil",
		"Exchange.GenerateName is nil", "NoRequeueOnNack", "Durable", "AutoDelete", "Exclusive",
		"PrefetchCount", "PrefetchSize", "x-overflow", "option 1 is nil", "negative", "policy is nil",
		"MaxDelay", "For: the DelayedRetry is nil")

	// In 16 bits this prefetch would be 0, which means no limit.
	cfg = rig.QueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 65536
	_, err = client.NewSubscriber(cfg, topology.WithConcurrency(0), topology.WithConcurrency(65536))
	requireTexts(t, err, "PrefetchCount is above 65535", "WithConcurrency: 0 is not within",
		"WithConcurrency: 65536 is not within 1 and 65535")

	_, err = client.NewSubscriber(rig.QueueConfig(url + "other"))
	require.ErrorContains(t, err, `names vhost "other"`)

	require.NoError(t, client.Close())
	_, err = client.NewSubscriber(rig.QueueConfig(url))
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

// Given a user who may not declare the wait queue, when a service subscribes, then the error names
// the queue and the missing permission.
func TestMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Grant{
		VHost: "/", User: "narrow", Configure: "^orders$", Write: ".*", Read: ".*",
	})
	url := node.URLOf("narrow")
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), "orders")
	requireTexts(t, err, `declare queue "orders.wait.1s"`, "configure permission")
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

// Given URLs of two vhosts, when a client is opened, then that is an error.
func TestBrokersMustShareAVhost(t *testing.T) {
	t.Parallel()
	brokers := topology.WithBrokers("amqp://127.0.0.1:1/b")
	config := rig.ConnectionConfig("amqp://127.0.0.1:1/a")
	_, err := topology.Open(t.Context(), config, topology.PerQueue{}, brokers)
	require.ErrorContains(t, err, `WithBrokers names vhost "b"`)
}

// Given a source of credentials, when the password changes and the connections end, then each new
// connection asks again. The connections have names for people.
func TestCredentialsAreAskedForAgain(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
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
		AdminURL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		ClientOptions: []topology.Option{
			topology.WithName("shop"), topology.WithCredentials(credentials),
		},
		Handle: calls.Succeed,
	})
	names := node.Ctl(t, "list_connections", "client_properties")
	require.Contains(t, names, "shop: millpond retries")
	require.Contains(t, names, "shop: millpond subscriber")

	password.Store("second")
	node.Ctl(t, "change_password", "shop", "second")
	before := asked.Load()
	node.Ctl(t, "close_all_connections", "rotated")
	rig.Publish(t, node.URL(), "", "orders", rig.Message("after the change"))
	rig.WaitFor(t, "the message to be handled", func() bool { return calls.Count() == 1 })
	require.Greater(t, asked.Load(), before)
	r.Stop()
	require.NotContains(t, r.Logs.Text(), "second")
}
