package e2e_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
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
	var gate sync.RWMutex // held while the queue is filled
	var left atomic.Int64
	ended := make(chan struct{}, 1) // the last message is confirmed in the wait queue
	count := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			gate.RLock()
			defer gate.RUnlock()
			produced, err := h(msg)
			if err != nil {
				t.Error(err)
			}
			if left.Add(-1) == 0 {
				ended <- struct{}{}
			}
			return produced, err
		}
	}
	guest := &amqp.PlainAuth{Username: "guest", Password: "guest"}
	s := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Hour}, Handle: rig.Fail, Outer: []message.HandlerMiddleware{count},
		Configure: func(cfg *wamqp.Config) {
			rig.Prefetch(64)(cfg)
			cfg.Connection.AmqpConfig = &amqp.Config{Dial: sent.dial, SASL: []amqp.Authentication{guest}}
		},
	})
	load := func() {
		gate.Lock()
		left.Store(n)
		rig.Fill(t, s.URL, s.Queue, n)
	}
	fail := func() {
		gate.Unlock()
		rig.Await(t, ended)
	}
	load()
	fail() // opens the channel and grows the buffers
	load()
	sent.take()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fail()
	runtime.ReadMemStats(&after)
	rig.WaitFor(t, "the last ack", func() bool {
		sent.mu.Lock()
		defer sent.mu.Unlock()
		return sent.last == 2*n
	})

	writes, frames := sent.take()
	assert.LessOrEqual(t, frames["basic.ack"], n)
	delete(frames, "basic.ack")
	assert.Equal(t, map[string]int{"basic.publish": n, "header": n, "body": n}, frames)
	assert.LessOrEqual(t, writes, 2*n, "one for a publish, one for an ack")
	perMessage := float64(after.Mallocs-before.Mallocs) / n
	t.Logf("%.1f allocations for each message that fails", perMessage)
	assert.Less(t, perMessage, float64(mostAllocations))
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
