package topology_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

func frames(url string, size int) wamqp.Config {
	cfg := rig.QueueConfig(url)
	cfg.Connection.AmqpConfig = &amqp.Config{FrameSize: size}
	return cfg
}

// In a small frame no failure has room for its notes, so that each would be
// dead-lettered as oversized: it is refused, whoever of the two sides has set it.
func TestSmallFrameIsRefused(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for _, size := range []int{1, 4096, 16383} {
		_, err := topology.Open(t.Context(), frames(url, size).Connection, topology.PerQueue{})
		require.ErrorContains(t, err, "FrameSize is")
		require.ErrorContains(t, err, "in which a message has no room for what a retry adds to its headers")
		require.ErrorContains(t, err, "set at least 16384")
		t.Log(err)
	}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = client.NewSubscriber(frames(url, 4096))
	require.ErrorContains(t, err, "set at least 16384")
	_, err = client.NewPublisher(frames(url, 4096))
	require.ErrorContains(t, err, "set at least 16384")

	node := testbroker.Private(t, testbroker.WithConfig("frame_max = 8192"))
	_, err = topology.Open(t.Context(), rig.ConnectionConfig(node.URL()), topology.PerQueue{})
	require.ErrorContains(t, err, "the broker takes frames of at most 8192 bytes")
	require.ErrorContains(t, err, "frame_max to at least 16384")
	t.Log(err)

	// Every wait queue that a message passes adds to its headers.
	levels, err := topology.Open(t.Context(), frames(url, 16384).Connection, topology.Levels{Prefix: testbroker.Queue(t), Max: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, levels.Close()) })
	queue := testbroker.Queue(t)
	err = rig.SubscribeError(t, levels, frames(url, 16384), queue, backoff.List{time.Second})
	require.ErrorContains(t, err, "frames of 16384 bytes are too small")
	require.Equal(t, -1, testbroker.Depth(t, url, queue), "nothing was declared")
	t.Log(err)
}

// The least frame has room for a message whose properties and names are as long as
// AMQP allows, for every note but the history, and for the error's text.
func TestLeastFrameTakesEveryNote(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := testbroker.Queue(t)
	queue += strings.Repeat("q", 255-len(queue)-len(".wait.1s"))
	exchange, key := queue+"-exchan", strings.Repeat("k", 255)
	testbroker.Delete(t, queue)
	rig.RemovePlan(t, url, topology.PerQueue{}, queue, backoff.List{time.Second})
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	r := rig.Start(t, rig.Config{
		Queue: queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { cfg.Connection = frames(url, 16384).Connection },
		Handler: func(*message.Message) ([]*message.Message, error) {
			return nil, errors.New(strings.Repeat("e", 5000))
		},
	})
	require.NoError(t, ch.QueueBind(queue, key, exchange, false, nil))
	long := strings.Repeat("p", 255)
	rig.Publish(t, url, exchange, key, amqp.Publishing{
		ContentType: long, ContentEncoding: long, CorrelationId: long, ReplyTo: long, MessageId: long, Type: long, AppId: long,
		Expiration: "315360000000", Priority: 1, DeliveryMode: 2, Timestamp: time.Now(), Body: []byte("order"),
	})
	dead := rig.Take(t, url, queue+".dlq")
	require.Equal(t, string(header.ReasonExhausted), dead.Headers[header.DeadReason])
	require.Equal(t, "2", dead.Headers[header.DeadFailures])
	require.Equal(t, exchange, dead.Headers[header.OriginExchange])
	require.Len(t, dead.Headers[header.DeadError], 2048)
	r.Stop()
}
