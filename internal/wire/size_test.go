package wire_test

import (
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

// recorder keeps the payload sizes of the content header frames that a client
// sends.
type recorder struct {
	net.Conn

	mu      sync.Mutex
	pending []byte
	begun   bool
	headers []int
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.pending = append(r.pending, p...)
	r.parse()
	r.mu.Unlock()
	return r.Conn.Write(p)
}

func (r *recorder) parse() {
	if !r.begun {
		if len(r.pending) < 8 {
			return
		}
		r.pending, r.begun = r.pending[8:], true // "AMQP" 0 0 9 1
	}
	for len(r.pending) >= 7 {
		size := int(binary.BigEndian.Uint32(r.pending[3:7]))
		if len(r.pending) < 7+size+1 {
			return
		}
		if r.pending[0] == 2 {
			r.headers = append(r.headers, size)
		}
		r.pending = r.pending[7+size+1:]
	}
}

// last returns the size of the last content header and how many there were.
func (r *recorder) last() (size, count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.headers) == 0 {
		return 0, 0
	}
	return r.headers[len(r.headers)-1], len(r.headers)
}

// measured publishes over a recorded connection to a queue of its own.
type measured struct {
	t        *testing.T
	recorder *recorder
	ch       *amqp.Channel
	queue    string
	sent     int
}

func measure(t *testing.T) *measured {
	t.Helper()
	m := &measured{t: t, recorder: &recorder{}}
	url := testbroker.URL(t)
	m.queue = testbroker.Queue(t)
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		inner, err := amqp.DefaultDial(10*time.Second)(network, addr)
		m.recorder.Conn = inner
		return m.recorder, err
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	m.ch, err = conn.Channel()
	require.NoError(t, err)
	_, err = m.ch.QueueDeclare(m.queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, m.ch.Confirm(false))
	return m
}

// publish returns how large the content header of msg was on the wire.
func (m *measured) publish(msg amqp.Publishing) int {
	m.t.Helper()
	confirm, err := m.ch.PublishWithDeferredConfirm("", m.queue, true, false, msg)
	require.NoError(m.t, err)
	size, count := m.recorder.last()
	m.sent++
	require.Equal(m.t, m.sent, count, "content headers on the wire")
	ok, err := confirm.WaitContext(m.t.Context())
	require.NoError(m.t, err)
	require.True(m.t, ok, "the broker has not taken the message")
	return size
}

func TestPropertiesSizeIsThatOnTheWire(t *testing.T) {
	t.Parallel()
	m := measure(t)
	long := strings.Repeat("x", 255)
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
			ContentType: "a", ContentEncoding: "ab", CorrelationId: "abc", ReplyTo: "abcd", Expiration: "60000",
			MessageId: "abcdef", Type: "abcdefg", UserId: "guest", AppId: long,
		}, 14 + 9 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 5 + 255},
	} {
		require.Equal(t, c.want, m.publish(c.msg), c.name)
		assert.Equal(t, c.want, wire.PropertiesSize(&c.msg), c.name)
	}
}

func TestPropertiesSizeOfRandomTables(t *testing.T) {
	t.Parallel()
	m := measure(t)
	largest := 0
	for seed := range uint64(600) {
		g := wiretest.Random(seed, 4000)
		msg := amqp.Publishing{
			Headers:         g.Table(4),
			ContentType:     g.Text(255),
			ContentEncoding: g.Text(255),
			DeliveryMode:    g.Byte() % 3,
			Priority:        g.Byte() % 10,
			CorrelationId:   g.Text(255),
			ReplyTo:         g.Text(255),
			MessageId:       g.Text(255),
			Type:            g.Text(255),
			AppId:           g.Text(255),
		}
		if g.Byte()%2 == 0 {
			msg.Timestamp = time.Unix(int64(g.Byte()), 0)
		}
		size := m.publish(msg)
		largest = max(largest, size)
		require.Equal(t, size, wire.PropertiesSize(&msg), "seed %d: %s", seed, wiretest.Dump(msg.Headers))
	}
	assert.Greater(t, largest, 1500, "the tables are too small to show anything")
}

// A header frame of exactly the limit passes, which proves that the size counts
// what the broker counts.
func TestPropertiesSizeAtTheLimitOfAFrame(t *testing.T) {
	t.Parallel()
	const limit = 131072 - 8
	m := measure(t)
	msg := amqp.Publishing{Headers: amqp.Table{"k": ""}}
	msg.Headers["k"] = strings.Repeat("x", limit-wire.PropertiesSize(&msg))
	assert.Equal(t, limit, wire.PropertiesSize(&msg))
	assert.Equal(t, limit, m.publish(msg))
}
