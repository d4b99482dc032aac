package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

func TestOpenNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	cases := map[string]struct {
		url      string
		strategy topology.Strategy
		options  []topology.Option
		want     []string
	}{
		"empty url":          {"", topology.PerQueue{}, nil, []string{"URL is empty"}},
		"not amqp":           {"http://user:" + secret + "@host/", topology.PerQueue{}, nil, []string{"URL is invalid"}},
		"unescaped password": {"amqp://user:" + secret + "/x@host:5672/", topology.PerQueue{}, nil, []string{"percent-encoded"}},
		"nobody listens":     {"amqp://user:" + secret + "@127.0.0.1:1/", topology.PerQueue{}, nil, []string{"127.0.0.1:1", "refused", "the broker cannot be reached: start it or correct the address"}},
		"nil strategy":       {"amqp://127.0.0.1:1/", nil, nil, []string{"strategy is nil"}},
		"nil pointer":        {"amqp://127.0.0.1:1/", (*topology.PerQueue)(nil), nil, []string{"strategy is nil"}},
		"unknown type":       {"amqp://127.0.0.1:1/", topology.PerQueue{Type: "stream"}, nil, []string{`"stream" is unknown`}},
		"bad ladder":         {"amqp://127.0.0.1:1/", topology.PerQueue{WaitSteps: []time.Duration{-1, backoff.MaxDelay + 1}}, nil, []string{"not positive", "at most 315360000000 ms"}},
		"everything": {
			"", nil,
			[]topology.Option{nil, topology.WithLogger(nil), topology.WithConfirmTimeout(0)},
			[]string{"URL is empty", "strategy is nil", "option 1 is nil", "logger is nil", "under 1ms"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: c.url}, c.strategy, c.options...)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
			require.NotContains(t, err.Error(), secret)
		})
	}
}

func TestOpenWithWrongCredentials(t *testing.T) {
	t.Parallel()
	url := strings.Replace(testbroker.URL(t), "guest:guest", "guest:s3cr3t", 1)
	_, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: url}, topology.PerQueue{})
	require.ErrorContains(t, err, "username or password")
	require.NotContains(t, err.Error(), "s3cr3t")
}

func TestNewSubscriberRefusesWhatLosesMessages(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client, err := topology.Open(t.Context(), wamqp.ConnectionConfig{AmqpURI: url}, topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })

	cfg := wamqp.NewNonDurableQueueConfig(url)
	cfg.Marshaler, cfg.TopologyBuilder, cfg.Queue.GenerateName, cfg.Exchange.GenerateName = nil, nil, nil, nil
	cfg.Consume.NoRequeueOnNack, cfg.Queue.AutoDelete, cfg.Queue.Exclusive = true, true, true
	cfg.Consume.Qos.PrefetchCount, cfg.Consume.Qos.PrefetchSize = 0, 1
	cfg.Queue.Arguments = amqp.Table{"x-overflow": "reject-publish"}
	_, err = client.NewSubscriber(cfg, nil, topology.WithDrainTimeout(-1),
		topology.ForPolicy(nil, backoff.List{-1, backoff.MaxDelay + 1}))
	for _, text := range []string{
		"Marshaler is nil", "TopologyBuilder is nil", "Queue.GenerateName is nil", "Exchange.GenerateName is nil",
		"NoRequeueOnNack", "Durable", "AutoDelete", "Exclusive", "PrefetchCount", "PrefetchSize", "x-overflow",
		"option 1 is nil", "negative", "policy is nil", "MaxDelay",
	} {
		require.ErrorContains(t, err, text)
	}

	// As 16 bits it would be 0, which is no limit.
	cfg = wamqp.NewDurableQueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 65536
	_, err = client.NewSubscriber(cfg, topology.WithConcurrency(0), topology.WithConcurrency(65536))
	for _, text := range []string{
		"PrefetchCount is above 65535", "WithConcurrency: 0 is not within", "WithConcurrency: 65536 is not within 1 and 65535",
	} {
		require.ErrorContains(t, err, text)
	}

	cfg = wamqp.NewDurableQueueConfig(url + "other")
	_, err = client.NewSubscriber(cfg)
	require.ErrorContains(t, err, `names vhost "other"`)

	require.NoError(t, client.Close())
	_, err = client.NewSubscriber(wamqp.NewDurableQueueConfig(url))
	require.ErrorIs(t, err, topology.ErrClosed)
	require.ErrorIs(t, client.Healthy(), topology.ErrClosed)
}

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

// A user who may not declare our queues is told which permission is missing.
func TestMissingPermissionIsNamed(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Grant{VHost: "/", User: "narrow", Configure: "^orders$", Write: ".*", Read: ".*"})
	_, sub := rig.OpenSubscriber(t, node.URLOf("narrow"), topology.PerQueue{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, `declare queue "orders.wait.1s"`)
	require.ErrorContains(t, err, "configure permission")
	t.Log(err)
}
