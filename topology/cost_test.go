package topology_test

import (
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// traffic is what clients have sent, over all their connections.
type traffic struct {
	mu     sync.Mutex
	writes int
	frames map[string]int
}

func (c *traffic) take() (writes int, frames map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes, frames = c.writes, c.frames
	c.writes, c.frames = 0, map[string]int{}
	return writes, frames
}

func (c *traffic) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frames[name]
}

// dial opens connections whose traffic is counted.
func (c *traffic) dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &countedConn{Conn: conn, traffic: c}, err
}

type countedConn struct {
	net.Conn
	traffic *traffic
	rest    []byte // of a frame that is not whole yet
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
			c.traffic.frames[frame.Frame(next).String()]++
		}
		c.rest = rest
	}
	c.rest = append([]byte(nil), c.rest...)
	c.traffic.mu.Unlock()
	return c.Conn.Write(b)
}

// mostAllocations is a little more than was counted with -race (255), most of it
// by amqp091-go, the router and the logger of the test.
const mostAllocations = 275

// What a retry costs on the wire and in memory, counted and not timed: a publish in
// one write, an ack in one write, and what stands here of allocations. Whoever
// makes it more should know.
func TestCostOfARetry(t *testing.T) { // not parallel: it counts the allocations of the process
	const n = 400
	sent := &traffic{frames: map[string]int{}}
	l := newLane(t, 1, func(cfg *wamqp.Config) {
		cfg.Connection.AmqpConfig = &amqp.Config{Dial: sent.dial, SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}}}
	})
	l.batch(t, n) // opens the channel, grows what grows
	l.load(t, n)
	sent.take()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.fail(t)
	runtime.ReadMemStats(&after)
	rig.WaitFor(t, "the last ack", func() bool { return sent.count("basic.ack") == n })

	writes, frames := sent.take()
	assert.Equal(t, map[string]int{"basic.publish": n, "header": n, "body": n, "basic.ack": n}, frames)
	assert.LessOrEqual(t, writes, 2*n, "one for a publish, one for an ack")
	perMessage := float64(after.Mallocs-before.Mallocs) / n
	t.Logf("%.1f allocations for each message that fails", perMessage)
	assert.Less(t, perMessage, float64(mostAllocations))
}
