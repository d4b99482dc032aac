package topology_test

import (
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

// inVhost is a configuration whose vhost is not that of its URL.
func inVhost(url, vhost string) wamqp.Config {
	cfg := rig.QueueConfig(url)
	cfg.Connection.AmqpConfig = &amqp.Config{Vhost: vhost}
	return cfg
}

// amqp091-go opens the vhost of its own configuration, and the URL's only where
// that one is empty: that is what is compared.
func TestVhostOfTheConfigurationIsCompared(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = client.NewSubscriber(inVhost(url, "other"))
	require.ErrorContains(t, err, `names vhost "other", the client retries in vhost "/"`)
	require.ErrorContains(t, err, "the client retries in vhost")
	t.Log(err)
	_, err = client.NewPublisher(inVhost(url, "other"))
	require.ErrorContains(t, err, `names vhost "other", the client retries in vhost "/"`)

	// The same vhost, named in two ways.
	cfg := inVhost(url+"other", "/")
	same, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{}, topology.WithBrokers(url+"another"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, same.Close()) })
	_, err = same.NewSubscriber(rig.QueueConfig(url))
	require.NoError(t, err)
	_, err = same.NewSubscriber(rig.QueueConfig(url + "other"))
	require.ErrorContains(t, err, `names vhost "other", the client retries in vhost "/"`)
}

// Two brokers have a vhost of the same name: a retry would wait on the other one.
func TestSubscriberOnAnotherBrokerIsRefused(t *testing.T) {
	t.Parallel()
	url, other := testbroker.URL(t), testbroker.Private(t).URL()
	t.Run("at the start", func(t *testing.T) {
		client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		_, err = client.NewSubscriber(rig.QueueConfig(other))
		require.ErrorContains(t, err, "cluster_name")
		require.ErrorContains(t, err, "WithoutClusterCheck")
		require.ErrorContains(t, err, "another RabbitMQ cluster")
		t.Log(err)
		_, err = client.NewPublisher(rig.QueueConfig(other))
		require.ErrorContains(t, err, "cluster_name")
		_, err = client.NewSubscriber(rig.QueueConfig(url))
		require.NoError(t, err)
	})
	t.Run("after a reconnect", func(t *testing.T) {
		proxy := testbroker.NewProxy(t, url)
		attempts := make(chan int, 10)
		r := rig.Start(t, rig.Config{
			URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: backoff.List{time.Second}, Handler: rig.FailUntil(2, attempts),
		})
		proxy.Retarget(t, other)
		proxy.Cut()
		rig.WaitFor(t, "the other broker to be refused", func() bool {
			return r.Logs.Said("Cannot reconnect to RabbitMQ, trying again") > 0 && r.Logs.Said("cluster_name") > 0
		})
		proxy.Retarget(t, url)
		rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("order")})
		rig.AwaitAttempts(t, attempts, 1, 2)
		require.Equal(t, -1, testbroker.Depth(t, other, r.Queue), "nothing was declared on the other broker")
	})
	t.Run("without the check", func(t *testing.T) {
		client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{}, topology.WithoutClusterCheck())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		_, err = client.NewSubscriber(rig.QueueConfig(other))
		require.NoError(t, err)
	})
}
