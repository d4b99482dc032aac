// Package peer is a scripted AMQP server for tests. It answers publishes as no real broker does on
// demand, and it runs in virtual time (testing/synctest), because its connections are in memory.
//
// It plays what RabbitMQ does with a queue and its consumers, and no more: it has no TTL, no
// dead-lettering, no bindings and no limits. A script plays those. TestThePeerActsLikeTheBroker
// compares the rest with a real broker.
package peer

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
)

// Server is the peer. It takes any user and any vhost.
type Server struct {
	listener *memnet.Listener
	script   func(*Publish)

	mu        sync.Mutex
	conns     map[*connection]struct{}
	queues    map[string]*queue
	arrived   int // messages in queues so far
	published int
	frameMax  uint32
	wait      sync.WaitGroup
}

// Start starts a peer that calls script with every publish, once the publish has arrived whole.
// Only script answers it; nil stands for [Publish.Accept]. The peer ends with the test.
func Start(tb testing.TB, script func(*Publish)) *Server {
	tb.Helper()
	if script == nil {
		script = (*Publish).Accept
	}
	s := &Server{
		listener: memnet.Listen(), script: script,
		conns: make(map[*connection]struct{}), queues: make(map[string]*queue), frameMax: 131072,
	}
	s.wait.Go(s.accept)
	tb.Cleanup(s.close)
	return s
}

// URL returns the address of the peer. [memnet.Dial] connects to it.
func (s *Server) URL() string { return "amqp://guest:guest@" + s.listener.Addr().String() + "/" }

// OfferFrames changes the largest size of frames that the peer offers. Default: RabbitMQ's 131072.
func (s *Server) OfferFrames(size uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frameMax = size
}

// Published returns the number of publishes that have arrived whole so far.
func (s *Server) Published() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		c := &connection{server: s, conn: conn, channels: make(map[uint16]*channel)}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wait.Go(func() {
			_ = c.serve() // the client is gone, or does not speak AMQP
			_ = conn.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			for id := range c.channels {
				c.end(id)
			}
			delete(s.conns, c)
		})
	}
}

func (s *Server) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.conn.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// connection is one client. The server's mu guards all but the serving goroutine's reads.
type connection struct {
	server   *Server
	conn     net.Conn
	channels map[uint16]*channel
}

// channel is an open channel.
type channel struct {
	conn      *connection
	id        uint16
	prefetch  int
	delivered uint64 // the last delivery tag
	unacked   []unacked
	tags      uint64   // the last publish
	incoming  *Publish // has not arrived whole
	closing   bool     // by the peer: everything is ignored until close-ok (AMQP 0-9-1, 1.5.2.5)
}

// heartbeat is half the time between the heartbeats that amqp091-go asks for by default.
const heartbeat = 5 * time.Second

func (c *connection) serve() error {
	if _, err := io.ReadFull(c.conn, make([]byte, len("AMQP0091"))); err != nil {
		return err
	}
	c.send(0, frame.ConnectionStart, []byte{0, 9}, make([]byte, 4), frame.LongString("PLAIN"),
		frame.LongString("en_US"))
	for {
		f, err := frame.Read(c.conn)
		if err != nil {
			return err
		}
		switch f.Method() {
		case frame.ConnectionCloseOk:
			return nil
		case frame.ConnectionOpen:
			done := make(chan struct{})
			defer close(done)
			c.server.wait.Go(func() { c.beat(done) })
		}
		var whole *Publish
		c.server.mu.Lock()
		if f.Kind() == frame.KindMethod {
			c.method(f)
		} else if f.Kind() != frame.KindHeartbeat {
			whole, err = c.content(f)
		}
		c.server.mu.Unlock()
		if err != nil {
			return err
		}
		if whole != nil {
			c.server.script(whole)
		}
	}
}

// beat sends heartbeats, so that the client does not take the peer for dead.
func (c *connection) beat(done <-chan struct{}) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_, _ = c.conn.Write(frame.New(frame.KindHeartbeat, 0, nil))
		case <-done:
			return
		}
	}
}

// method answers a request of a client. A request that it does not know gets the plain answer of
// its class, whose number is one higher.
func (c *connection) method(f frame.Frame) {
	args := frame.Args(f.Args())
	ch := c.channels[f.Channel()]
	if ch == nil {
		ch = &channel{conn: c, id: f.Channel()}
		c.channels[f.Channel()] = ch
	}
	answer := func(values ...[]byte) { ch.send(f.Method()+1, values...) }
	switch f.Method() {
	case frame.ChannelCloseOk:
		delete(c.channels, f.Channel())
		return
	case frame.ChannelClose:
		c.end(f.Channel())
		answer()
		return
	}
	if ch.closing {
		return
	}
	switch m := f.Method(); m {
	case frame.ConnectionStartOk:
		c.send(0, frame.ConnectionTune, []byte{7, 255}, frame.Number(c.server.frameMax),
			[]byte{0, 60})
	case frame.ConnectionTuneOk: // nothing to answer
	case frame.ConnectionOpen:
		answer(frame.Short(""))
	case frame.ChannelOpen:
		answer(frame.LongString(""))
	case frame.QueueDeclare:
		args.Skip(2)
		name, flags := args.Short(), args.Byte()
		c.declare(ch, name, flags&1 != 0, flags&16 != 0, args)
	case frame.QueueDelete:
		args.Skip(2)
		answer(frame.Number(uint32(c.server.remove(args.Short()))))
	case frame.ExchangeDeclare, frame.ExchangeBind, frame.QueueBind:
		if !noWait(m, args) {
			answer()
		}
	default:
		ch.basic(m, args, answer)
	}
}

// basic answers a request about messages.
func (ch *channel) basic(m frame.Method, args frame.Args, answer func(...[]byte)) {
	c := ch.conn
	switch m {
	case frame.BasicQos:
		args.Skip(4)
		ch.prefetch = int(args.Uint16())
		answer()
	case frame.BasicConsume:
		args.Skip(2)
		queue, tag := args.Short(), args.Short()
		args.Skip(1)
		c.consume(ch, queue, tag, args)
	case frame.BasicCancel:
		tag := args.Short()
		c.server.cancel(func(k *consumer) bool { return k.ch == ch && k.tag == tag })
		answer(frame.Short(tag))
		c.server.deliver()
	case frame.BasicGet:
		args.Skip(2)
		c.get(ch, args.Short(), args.Byte() != 0)
	case frame.BasicPublish:
		args.Skip(2)
		ch.tags++
		ch.incoming = &Publish{
			ch: ch, Channel: ch.id, Tag: ch.tags, Exchange: args.Short(), RoutingKey: args.Short(),
		}
	case frame.BasicAck:
		ch.settle(args.Uint64(), args.Byte()&1 != 0, false)
	case frame.BasicNack:
		tag, flags := args.Uint64(), args.Byte()
		ch.settle(tag, flags&1 != 0, flags&2 != 0)
	case frame.BasicReject:
		ch.settle(args.Uint64(), false, args.Byte() != 0)
	default:
		answer()
	}
}

// noWait reports whether a client wants no answer.
func noWait(m frame.Method, args frame.Args) bool {
	args.Skip(2)
	args.Short()
	args.Short()
	if m == frame.ExchangeDeclare {
		return args.Byte()&16 != 0
	}
	args.Short()
	return args.Byte()&1 != 0
}

// end gives the unsettled deliveries of a channel back, and ends its consumers. The deliveries that
// were not seen last come first, as they were.
func (c *connection) end(id uint16) {
	ch := c.channels[id]
	if ch == nil {
		return
	}
	delete(c.channels, id)
	c.server.cancel(func(k *consumer) bool { return k.ch == ch })
	ch.settle(ch.delivered, true, true)
	c.server.deliver()
}

// content takes the header and the bodies of a publish, and returns it once it is whole.
func (c *connection) content(f frame.Frame) (*Publish, error) {
	ch := c.channels[f.Channel()]
	if ch == nil || ch.incoming == nil {
		if ch != nil && ch.closing {
			return nil, nil
		}
		return nil, fmt.Errorf("%s without a publish", f)
	}
	p := ch.incoming
	if f.Kind() == frame.KindHeader {
		p.header, p.left = f.Payload(), binary.BigEndian.Uint64(f.Payload()[4:])
	} else {
		p.Body = append(p.Body, f.Payload()...)
		p.left -= uint64(len(f.Payload()))
	}
	if p.left > 0 {
		return nil, nil
	}
	ch.incoming = nil
	c.server.published++
	p.Number = c.server.published
	return p, nil
}

func (c *connection) send(channel uint16, m frame.Method, args ...[]byte) {
	c.write(frame.NewMethod(channel, m, args...))
}

// write sends frames that no other goroutine's frames may part. The client may be gone.
func (c *connection) write(frames ...frame.Frame) {
	_, _ = c.conn.Write(slices.Concat(frames...))
}

func (ch *channel) send(m frame.Method, args ...[]byte) { ch.conn.send(ch.id, m, args...) }

// refuse closes a channel with an error.
func (ch *channel) refuse(reply uint16, text string) {
	ch.conn.end(ch.id)
	ch.conn.channels[ch.id] = &channel{conn: ch.conn, id: ch.id, closing: true}
	ch.send(frame.ChannelClose, code(reply), frame.Short(text), make([]byte, 4))
}

func code(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
