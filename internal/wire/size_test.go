package wire_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// measure returns a function that publishes a message to a new queue. It returns the number of
// bytes in the payload of the message's content header on the wire.
func measure(t *testing.T) func(amqp.Publishing) int {
	t.Helper()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	proxy := testbroker.NewProxy(t, url)
	var size, headers atomic.Int64
	proxy.Tap(func(s testbroker.Seen) testbroker.Fault {
		if s.Up && s.Kind() == frame.KindHeader {
			size.Store(int64(len(s.Payload())))
			headers.Add(1)
		}
		return testbroker.Fault{}
	})
	ch := testbroker.Channel(t, proxy.URL())
	_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return func(msg amqp.Publishing) int {
		t.Helper()
		before := headers.Load()
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
		require.NoError(t, err)
		ok, err := confirm.WaitContext(t.Context())
		require.NoError(t, err)
		require.True(t, ok, "the broker has not taken the message")
		require.Equal(t, before+1, headers.Load(), "content headers on the wire")
		return int(size.Load())
	}
}

func TestPropertiesSizeIsTheSizeOnTheWire(t *testing.T) {
	t.Parallel()
	publish := measure(t)
	for _, c := range []struct {
		name string
		msg  amqp.Publishing
		want int
	}{
		{"nothing", amqp.Publishing{}, 14},
		{"persistent", amqp.Publishing{DeliveryMode: amqp.Persistent}, 15},
		{"priority", amqp.Publishing{Priority: 1}, 15},
		{"timestamp", amqp.Publishing{Timestamp: time.Unix(1, 0)}, 22},
		{"empty table", amqp.Publishing{Headers: amqp.Table{}}, 14},
		{"one header", amqp.Publishing{Headers: amqp.Table{"k": "v"}}, 14 + 4 + 2 + 6},
		{"one nil header", amqp.Publishing{Headers: amqp.Table{"k": nil}}, 14 + 4 + 2 + 1},
		{"short strings", amqp.Publishing{
			ContentType: "a", ContentEncoding: "ab", CorrelationId: "abc", ReplyTo: "abcd",
			Expiration: "60000", MessageId: "abcdef", Type: "abcdefg", UserId: "guest",
			AppId: strings.Repeat("x", 255),
		}, 14 + 9 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 5 + 255},
	} {
		require.Equal(t, c.want, publish(c.msg), c.name)
		assert.Equal(t, c.want, wire.PropertiesSize(&c.msg), c.name)
	}
}

func TestPropertiesSizeOfRandomTables(t *testing.T) {
	t.Parallel()
	publish := measure(t)
	largest := 0
	for seed := range uint64(600) {
		g := wiretest.Random(seed, 4000)
		msg := amqp.Publishing{
			Headers: g.Table(4), ContentType: g.Text(255), ContentEncoding: g.Text(255),
			DeliveryMode: g.Byte() % 3, Priority: g.Byte() % 10,
			CorrelationId: g.Text(255), ReplyTo: g.Text(255), MessageId: g.Text(255),
			Type: g.Text(255), AppId: g.Text(255),
		}
		if g.Byte()%2 == 0 {
			msg.Timestamp = time.Unix(int64(g.Byte()), 0)
		}
		size := publish(msg)
		largest = max(largest, size)
		got := wire.PropertiesSize(&msg)
		require.Equal(t, size, got, "seed %d: %s", seed, wiretest.Dump(msg.Headers))
	}
	assert.Greater(t, largest, 1500, "the tables are too small to show anything")
}

// A header frame of exactly the limit passes. This proves that the size counts the same bytes as
// the broker does.
func TestPropertiesSizeAtTheLimitOfAFrame(t *testing.T) {
	t.Parallel()
	const limit = 131072 - 8
	msg := amqp.Publishing{Headers: amqp.Table{"k": ""}}
	msg.Headers["k"] = strings.Repeat("x", limit-wire.PropertiesSize(&msg))
	assert.Equal(t, limit, wire.PropertiesSize(&msg))
	assert.Equal(t, limit, measure(t)(msg))
}
