package topology_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

var errDead = errors.New("the process is dead")

// mortal is a service that dies as by kill -9, though it lives in the test's process: its sockets
// are closed at one moment, it can never connect again, and its handlers have no effect any more.
type mortal struct {
	deliveries *deliveries
	dead       chan struct{} // closed at the death

	mu      sync.Mutex
	over    bool
	sockets []net.Conn
	bury    func()
}

// start starts a service that may die. Its handlers must return when mortal.dead is closed.
func start(
	t *testing.T, cfg wamqp.Config, queue string, concurrency int,
	handle func(*mortal, *message.Message) error,
) *mortal {
	t.Helper()
	m := &mortal{deliveries: newDeliveries(), dead: make(chan struct{})}
	publishing := cfg.Connection
	publishing.AmqpConfig = &amqp.Config{Dial: m.dial}
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		conn, err := m.dial(network, address)
		if err != nil {
			return nil, err
		}
		return m.deliveries.watch(conn), nil
	}}
	policy := backoff.List{time.Second}
	client := greeted(t, func() (*topology.Client, error) {
		return topology.Open(context.Background(), publishing, topology.PerQueue{})
	})
	sub := greeted(t, func() (*topology.Subscriber, error) {
		return client.NewSubscriber(cfg, topology.ForPolicy(policy),
			topology.WithConcurrency(concurrency), topology.WithDrainTimeout(0))
	})
	retry, err := middleware.NewDelayedRetry(client, policy)
	require.NoError(t, err)
	config := message.RouterConfig{CloseTimeout: time.Second}
	router, err := message.NewRouter(config, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", queue, sub, func(msg *message.Message) error {
		return handle(m, msg)
	})
	ended := make(chan error, 1)
	m.bury = sync.OnceFunc(func() {
		_ = router.Close() // its handlers may take longer than it waits
		_ = client.Close()
		<-ended
	})
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatalf("the service did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("the service did not start")
	}
	t.Cleanup(func() {
		m.die()
		m.bury()
	})
	return m
}

func (m *mortal) dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 10*time.Second)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		_ = conn.Close()
		return nil, errDead
	}
	m.sockets = append(m.sockets, conn)
	return conn, nil
}

// die closes the sockets. The rest of the service ends beside the test.
func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.over = true
	for _, conn := range m.sockets {
		_ = conn.Close()
	}
	close(m.dead)
	go m.bury()
}

// alive calls effect unless the process is dead, and reports whether it was called.
func (m *mortal) alive(effect func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		effect()
	}
	return !m.over
}

// deliveries are those that the broker has sent over the consuming connections of one process.
type deliveries struct {
	mu          sync.Mutex
	connections int
	arriving    map[place]*arrived // its body is still to come
	unacked     map[tagged]arrived
	seen        map[string]bool
	highest     int64         // x-delivery-count
	first       chan struct{} // closed when the first one has arrived
	objections  []string      // what the broker has closed and cancelled
}

type tagged struct {
	place
	tag uint64
}

// arrived is a delivery: the body of its message and its x-delivery-count.
type arrived struct {
	tag         uint64
	redelivered bool
	count       int64
	body        string
}

func newDeliveries() *deliveries {
	return &deliveries{
		arriving: map[place]*arrived{}, unacked: map[tagged]arrived{}, seen: map[string]bool{},
		first: make(chan struct{}),
	}
}

// watch returns conn, which shows its frames to d.
func (d *deliveries) watch(conn net.Conn) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections++
	return &watchedConn{Conn: conn, number: d.connections, deliveries: d}
}

type watchedConn struct {
	net.Conn
	number     int
	deliveries *deliveries
	up, down   []byte // what is no whole frame yet
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.down = c.look(append(c.down, b[:n]...), c.deliveries.received)
	return n, err
}

func (c *watchedConn) Write(b []byte) (int, error) {
	c.up = c.look(append(c.up, b...), c.deliveries.sent)
	return c.Conn.Write(b)
}

func (c *watchedConn) look(data []byte, show func(place, frame.Frame)) (rest []byte) {
	for {
		whole, rest, isFrame := frame.Next(data)
		if whole == nil {
			return rest
		}
		if isFrame {
			f := frame.Frame(whole)
			show(place{c.number, f.Channel()}, f)
		}
		data = rest
	}
}

// basicCancel is sent by the broker when it ends a consumer.
const basicCancel = frame.Method(60<<16 | 30)

func (d *deliveries) received(at place, f frame.Frame) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch next := d.arriving[at]; {
	case f.Method() == frame.BasicDeliver:
		_, rest := frame.TakeShort(f.Args())
		d.arriving[at] = &arrived{tag: binary.BigEndian.Uint64(rest), redelivered: rest[8] == 1}
	case f.Kind() == frame.KindHeader && next != nil && next.redelivered:
		next.count = countIn(f.Payload())
	case f.Kind() == frame.KindBody && next != nil:
		delete(d.arriving, at)
		next.body = string(f.Payload())
		d.unacked[tagged{at, next.tag}] = *next
		d.highest = max(d.highest, next.count)
		if len(d.seen) == 0 {
			close(d.first)
		}
		d.seen[next.body] = true
	case f.Method() == frame.ChannelClose:
		text, _ := frame.TakeShort(f.Args()[2:])
		d.objections = append(d.objections, "channel closed: "+text)
		d.settle(at, 0, true)
	case f.Method() == basicCancel:
		d.objections = append(d.objections, "consumer cancelled")
	}
}

func (d *deliveries) sent(at place, f frame.Frame) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch f.Method() {
	case frame.BasicAck, frame.BasicNack:
		d.settle(at, binary.BigEndian.Uint64(f.Args()), f.Args()[8]&1 == 1)
	case frame.ChannelClose:
		d.settle(at, 0, true)
	}
}

// settle forgets a delivery, or all up to tag, where 0 stands for all of them. d.mu is held.
func (d *deliveries) settle(at place, tag uint64, multiple bool) {
	if !multiple {
		delete(d.unacked, tagged{at, tag})
		return
	}
	for key := range d.unacked {
		if key.place == at && (tag == 0 || key.tag <= tag) {
			delete(d.unacked, key)
		}
	}
}

// countIn finds the delivery count in the payload of a header frame.
func countIn(payload []byte) int64 {
	_, value, found := bytes.Cut(payload, []byte("\x10x-delivery-count"))
	if !found || len(value) < 9 || value[0] != 'l' {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value[1:]))
}

// inHand returns how many deliveries are unacked, and the bodies of those that were delivered count
// times before, or more often.
func (d *deliveries) inHand(count int64) (unacked int, often []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.unacked {
		if one.count >= count {
			often = append(often, one.body)
		}
	}
	return len(d.unacked), often
}

// haveSeen reports whether all of the bodies have arrived.
func (d *deliveries) haveSeen(bodies []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, body := range bodies {
		if !d.seen[body] {
			return false
		}
	}
	return true
}

// highestCount is the largest x-delivery-count that has arrived.
func (d *deliveries) highestCount() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.highest
}

// objected returns what the broker has ended.
func (d *deliveries) objected() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.objections...)
}
