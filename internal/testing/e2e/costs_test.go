package e2e_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// traffic counts the frames and writes of clients, over all their connections.
type traffic struct {
	mu     sync.Mutex
	writes int
	frames map[string]int
	last   uint64 // the highest delivery tag that was acked
}

func (c *traffic) take() (writes int, frames map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes, frames = c.writes, c.frames
	c.writes, c.frames = 0, map[string]int{}
	return writes, frames
}

// acked returns the highest delivery tag that was acked.
func (c *traffic) acked() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// dial opens a connection and counts its traffic.
func (c *traffic) dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &countedConn{Conn: conn, traffic: c}, err
}

type countedConn struct {
	net.Conn
	traffic *traffic
	rest    []byte // the part of a frame so far
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.traffic.mu.Lock()
	heartbeat := len(b) > 0 && b[0] == frame.KindHeartbeat
	if !heartbeat {
		c.traffic.writes++
	}
	c.rest = append(c.rest, b...)
	for {
		next, rest, isFrame := frame.Next(c.rest)
		if next == nil {
			break
		}
		if isFrame && !heartbeat {
			f := frame.Frame(next)
			c.traffic.frames[f.String()]++
			if f.Method() == frame.BasicAck {
				c.traffic.last = max(c.traffic.last, binary.BigEndian.Uint64(f.Args()))
			}
		}
		c.rest = rest
	}
	c.rest = append([]byte(nil), c.rest...)
	c.traffic.mu.Unlock()
	return c.Conn.Write(b)
}

// mostAllocations is a little more than the count (62). A third of them are made by the router and
// the marshaler.
const mostAllocations = 75

// Given a service with one message in flight, when its messages fail, then each costs a publish in
// one write, an ack in one write, and at most mostAllocations. The costs are counted, not timed.
func TestCostOfARetry(t *testing.T) { // not parallel: it counts the allocations of the process
	const n = 400
	sent := &traffic{frames: map[string]int{}}
	l := newLane(t, 1, func(cfg *wamqp.Config) {
		guest := &amqp.PlainAuth{Username: "guest", Password: "guest"}
		cfg.Connection.AmqpConfig = &amqp.Config{Dial: sent.dial, SASL: []amqp.Authentication{guest}}
	})
	l.batch(t, n) // opens the channel and grows the buffers
	l.load(t, n)
	sent.take()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.fail(t)
	runtime.ReadMemStats(&after)
	rig.WaitFor(t, "the last ack", func() bool { return sent.acked() == 2*n })

	writes, frames := sent.take()
	assert.LessOrEqual(t, frames["basic.ack"], n)
	delete(frames, "basic.ack")
	assert.Equal(t, map[string]int{"basic.publish": n, "header": n, "body": n}, frames)
	assert.LessOrEqual(t, writes, 2*n, "one for a publish, one for an ack")
	perMessage := float64(after.Mallocs-before.Mallocs) / n
	t.Logf("%.1f allocations for each message that fails", perMessage)
	assert.Less(t, perMessage, float64(mostAllocations))
}

// mostHeaderBytes bounds the headers of a retry.
const mostHeaderBytes = 400

// Given a message whose handler has failed with an error of 30 bytes, when it waits, then its
// headers of the retry take at most mostHeaderBytes.
func TestBytesOfTheHeadersOfARetry(t *testing.T) {
	t.Parallel()
	s := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Hour},
		Handle: func(*message.Message) error { return errors.New("no stock is left for the order") },
	})
	s.Send("order 7")
	waiting := rig.Take(t, s.URL, s.Queue+".wait.1h")
	own := amqp.Table{}
	for key, value := range waiting.Headers {
		if keys.IsLive(key) {
			own[key] = value
			t.Logf("%s: %v", key, value)
		}
	}
	var none amqp.Publishing
	size := wire.PropertiesSize(&amqp.Publishing{Headers: own}) - wire.PropertiesSize(&none)
	t.Logf("%d headers, %d bytes", len(own), size)
	assert.LessOrEqual(t, size, mostHeaderBytes)
	assert.Len(t, own, 5)
}

// lane is a service. All its messages fail.
type lane struct {
	rig    *rig.Service
	gate   sync.RWMutex // held while the queue is filled
	left   atomic.Int64
	ended  chan struct{} // the last message of a batch is confirmed in the wait queue
	failed int
	took   time.Duration
}

func newLane(b testing.TB, inFlight int, configs ...func(*wamqp.Config)) *lane {
	b.Helper()
	l := &lane{ended: make(chan struct{}, 1)}
	count := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			l.gate.RLock()
			defer l.gate.RUnlock()
			produced, err := h(msg)
			if err != nil {
				b.Error(err)
			}
			if l.left.Add(-1) == 0 {
				l.ended <- struct{}{}
			}
			return produced, err
		}
	}
	l.rig = rig.Start(b, rig.Config{
		Policy: backoff.List{time.Hour},
		Configure: func(cfg *wamqp.Config) {
			rig.Prefetch(64)(cfg)
			for _, change := range configs {
				change(cfg)
			}
		},
		SubscriberOptions: rig.InFlight(inFlight),
		Outer:             []message.HandlerMiddleware{count},
		Handle:            rig.Fail,
	})
	return l
}

// load publishes n messages while the handler is held back.
func (l *lane) load(b testing.TB, n int) {
	b.Helper()
	l.gate.Lock()
	l.left.Store(int64(n))
	rig.Fill(b, l.rig.URL, l.rig.Queue, n)
}

// fail lets the loaded messages fail, and returns when all wait.
func (l *lane) fail(b testing.TB) {
	b.Helper()
	l.gate.Unlock()
	rig.Await(b, l.ended)
}

// batch lets n messages fail. The clock runs from the moment when all are in the queue until all
// wait.
func (l *lane) batch(b testing.TB, n int) {
	b.Helper()
	l.load(b, n)
	begun := time.Now()
	l.fail(b)
	l.took += time.Since(begun)
	l.failed += n
}

func (l *lane) rate() float64 { return float64(l.failed) / l.took.Seconds() }

// BenchmarkFailingPath measures how many messages one handler fails in a second with 1, 8 and 64 in
// flight. Each is confirmed in a quorum wait queue and acked. The batches alternate, so that other
// work of the machine slows all of them: the ratios say more than the rates.
func BenchmarkFailingPath(b *testing.B) {
	const batch = 500
	concurrency := []int{1, 8, 64}
	lanes := make([]*lane, len(concurrency))
	for i, n := range concurrency {
		lanes[i] = newLane(b, n)
		lanes[i].batch(b, batch)
		lanes[i].failed, lanes[i].took = 0, 0
	}
	for b.Loop() {
		for _, l := range lanes {
			l.batch(b, batch)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, l := range lanes {
		b.ReportMetric(l.rate(), fmt.Sprintf("msg/s-%d", concurrency[i]))
	}
	b.ReportMetric(lanes[1].rate()/lanes[0].rate(), "ratio-8/1")
	b.ReportMetric(lanes[2].rate()/lanes[1].rate(), "ratio-64/8")
}

// thirdTime is the retry state of a message that has failed twice.
func thirdTime() header.RetryState {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	n := header.RetryState{
		Failures: 2, FirstSeen: at, FirstFailure: at, WaitingSince: at, Delay: 10 * time.Second,
		OriginExchange: "shop", OriginRoutingKey: "orders.eu", Error: "the shop is closed",
		Class: header.ClassRetryable,
	}
	for attempt := range 2 {
		n.History = append(n.History, header.AttemptError{
			Attempt: attempt + 1, At: at, Handler: "billing", Class: header.ClassRetryable,
			Error: n.Error, Delay: "10s",
		})
	}
	return n
}

// tenHeaders is a delivery with ten headers of its producer.
var tenHeaders = func() *amqp.Delivery {
	headers := amqp.Table{}
	for i := range 10 {
		headers[fmt.Sprint("key-", i)] = "value"
	}
	return &amqp.Delivery{Headers: headers, MessageId: "id", Body: make([]byte, 1024)}
}()

var codec = map[string]struct {
	run  func()
	most float64 // allocations
}{
	"state out": {func() { thirdState.Headers("orders") }, 5},
	"state in": {func() {
		header.Parse("orders", func(key string) (string, bool) {
			value, ok := thirdHeaders[key]
			return value, ok
		})
	}, 2},
	"message out": {func() {
		wire.Publishing(tenHeaders, func(string) bool { return false }, thirdHeaders)
	}, 11},
	"message in": {func() { wire.TextHeaders(tenHeaders.Headers) }, 4},
}

var (
	thirdState   = thirdTime()
	thirdHeaders = thirdState.Headers("orders")
)

// Given a message with ten headers that has failed twice, when its headers are written or parsed,
// then that takes at most these allocations.
func TestAllocationsOfTheCodec(t *testing.T) {
	for name, c := range codec {
		allocs := testing.AllocsPerRun(100, c.run)
		t.Logf("%s: %v allocations", name, allocs)
		if allocs > c.most {
			t.Errorf("%s: %v allocations, at most %v expected", name, allocs, c.most)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	for name, c := range codec {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
		})
	}
}

// delivered returns a message with ten metadata keys from a real Subscriber, and the middleware on
// its client.
func delivered(tb testing.TB) (*middleware.DelayedRetry, *message.Message) {
	tb.Helper()
	url, queue := testbroker.URL(tb), testbroker.Queue(tb)
	policy := backoff.List{time.Second}
	client, sub := rig.OpenSubscriber(tb, url, topology.PerQueue{}, policy)
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(tb, err)
	messages, err := sub.Subscribe(tb.Context(), queue)
	require.NoError(tb, err)
	headers := amqp.Table{}
	for i := range 10 {
		headers[fmt.Sprintf("key-%d", i)] = "value"
	}
	rig.Publish(tb, url, "", queue, amqp.Publishing{Headers: headers, Body: []byte("body")})
	msg := <-messages
	require.GreaterOrEqual(tb, len(msg.Metadata), 10)
	tb.Cleanup(func() { msg.Ack() })
	return retry, msg
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

// A success costs no allocation.
func TestSuccessPathAllocatesNothing(t *testing.T) {
	retry, msg := delivered(t)
	handler := retry.Middleware(succeed)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := handler(msg); err != nil {
			t.Fatal(err)
		}
	}))
}

func BenchmarkSuccessPath(b *testing.B) {
	retry, msg := delivered(b)
	for _, c := range []struct {
		name    string
		handler message.HandlerFunc
	}{
		{"bare", succeed},
		{"Recoverer", wmiddleware.Recoverer(succeed)},
		{"DelayedRetry", retry.Middleware(succeed)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.handler(msg)
			}
		})
	}
}
