package rig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/topology"
)

// ErrDead is the error of a handler whose process is dead.
var ErrDead = errors.New("the process is dead")

// Mortal is a service that can die as by kill -9, though it lives in the test's process. At its
// death its sockets are closed at one moment, it never connects again, and its handlers have no
// effect any more.
type Mortal struct {
	Deliveries *Deliveries
	Dead       chan struct{} // closed at the death

	mu      sync.Mutex
	over    bool
	sockets []net.Conn
	bury    func()
}

// StartMortal starts a service that can die. Its handlers must return when Dead is closed.
func StartMortal(
	t *testing.T, c Config, concurrency int, handle func(*Mortal, *message.Message) error,
) *Mortal {
	t.Helper()
	m := &Mortal{Deliveries: NewDeliveries(), Dead: make(chan struct{})}
	configure := c.Configure
	c.Configure = func(cfg *wamqp.Config) {
		if configure != nil {
			configure(cfg)
		}
		cfg.Connection.AmqpConfig = &amqp.Config{Dial: m.dial}
	}
	c.Keep, c.Policy, c.RouterConfig.CloseTimeout = true, backoff.List{time.Second}, time.Second
	c.SubscriberOptions = append(InFlight(concurrency), topology.WithDrainTimeout(0))
	c.Handle = func(msg *message.Message) error { return handle(m, msg) }
	// A handler may let the process die before Start has returned.
	var s *Service
	running := make(chan struct{})
	m.bury = func() { <-running; s.Stop() }
	s = Start(t, c)
	close(running)
	t.Cleanup(func() {
		m.Die()
		m.bury()
	})
	return m
}

func (m *Mortal) dial(network, address string) (net.Conn, error) {
	conn, err := memnet.Dial(network, address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		_ = conn.Close()
		return nil, ErrDead
	}
	m.sockets = append(m.sockets, conn)
	return m.Deliveries.Watch(conn), nil
}

// Alive calls effect unless the process is dead, and reports whether it was called.
func (m *Mortal) Alive(effect func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		effect()
	}
	return !m.over
}

// Die closes the sockets. The rest of the service ends while the test goes on.
func (m *Mortal) Die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.over = true
	for _, conn := range m.sockets {
		_ = conn.Close()
	}
	close(m.Dead)
	go m.bury()
}

// Deliveries are the deliveries that the broker sent over the consuming connections of one process.
type Deliveries struct {
	mu          sync.Mutex
	connections int
	arriving    map[place]*arrived // the body is still to come
	unacked     map[tagged]arrived
	seen        map[string]bool
	highest     int64         // x-delivery-count
	First       chan struct{} // closed when the first one has arrived
	objections  []string      // the channels and consumers that the broker ended
}

// place is a channel of a connection.
type place struct {
	connection int
	channel    uint16
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

// NewDeliveries returns Deliveries that have seen nothing.
func NewDeliveries() *Deliveries {
	return &Deliveries{
		arriving: map[place]*arrived{}, unacked: map[tagged]arrived{}, seen: map[string]bool{},
		First: make(chan struct{}),
	}
}

// Watch returns conn, which shows its frames to d.
func (d *Deliveries) Watch(conn net.Conn) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connections++
	number := d.connections
	return frame.Watch(conn,
		func(f frame.Frame) { d.sent(place{number, f.Channel()}, f) },
		func(f frame.Frame) { d.received(place{number, f.Channel()}, f) })
}

// InHand returns the number of unacked deliveries. It also returns the bodies of the deliveries
// among them that were delivered count times before, or more often.
func (d *Deliveries) InHand(count int64) (unacked int, often []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.unacked {
		if one.count >= count {
			often = append(often, one.body)
		}
	}
	return len(d.unacked), often
}

// HaveSeen reports whether all of the bodies have arrived.
func (d *Deliveries) HaveSeen(bodies []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, body := range bodies {
		if !d.seen[body] {
			return false
		}
	}
	return true
}

// HighestCount returns the largest x-delivery-count that has arrived.
func (d *Deliveries) HighestCount() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.highest
}

// Objected returns the channels and consumers that the broker ended.
func (d *Deliveries) Objected() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.objections...)
}

func (d *Deliveries) received(at place, f frame.Frame) {
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
			close(d.First)
		}
		d.seen[next.body] = true
	case f.Method() == frame.ChannelClose:
		text, _ := frame.TakeShort(f.Args()[2:])
		d.objections = append(d.objections, "channel closed: "+text)
		d.settle(at, 0, true)
	case f.Method() == frame.BasicCancel:
		d.objections = append(d.objections, "consumer cancelled")
	}
}

func (d *Deliveries) sent(at place, f frame.Frame) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch f.Method() {
	case frame.BasicAck, frame.BasicNack:
		d.settle(at, binary.BigEndian.Uint64(f.Args()), f.Args()[8]&1 == 1)
	case frame.ChannelClose:
		d.settle(at, 0, true)
	}
}

// settle forgets a delivery, or all deliveries up to a tag; tag 0 means all. d.mu is held.
func (d *Deliveries) settle(at place, tag uint64, multiple bool) {
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
