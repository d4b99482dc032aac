package e2e_test

import (
	"encoding/binary"
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
	return &countedConn{frame.Watch(conn, c.sent, nil), c}, err
}

func (c *traffic) sent(f frame.Frame) {
	if f.Kind() == frame.KindHeartbeat {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames[f.String()]++
	if f.Method() == frame.BasicAck {
		c.last = max(c.last, binary.BigEndian.Uint64(f.Args()))
	}
}

type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c *countedConn) Write(b []byte) (int, error) {
	if len(b) > 0 && b[0] != frame.KindHeartbeat {
		c.traffic.mu.Lock()
		c.traffic.writes++
		c.traffic.mu.Unlock()
	}
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
