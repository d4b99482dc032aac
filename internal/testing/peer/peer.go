// Package peer is a scripted AMQP server for tests. It speaks just enough AMQP to receive
// publishes, and answers them as no real broker does on demand. It stores nothing.
package peer

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// Server is the peer. It takes any user and any vhost.
type Server struct {
	listener net.Listener
	script   func(*Publish)

	mu        sync.Mutex
	conns     map[net.Conn]struct{}
	published int
	wait      sync.WaitGroup
}

// Start starts a peer on loopback that calls script with every publish, once the publish has
// arrived whole. Only script answers it. The peer ends with the test.
func Start(tb testing.TB, script func(*Publish)) *Server {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("peer: %v", err)
	}
	s := &Server{listener: l, script: script, conns: make(map[net.Conn]struct{})}
	s.wait.Go(s.accept)
	tb.Cleanup(s.close)
	return s
}

// URL returns the address of the peer.
func (s *Server) URL() string { return "amqp://guest:guest@" + s.listener.Addr().String() + "/" }

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
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		s.wait.Go(func() {
			c := &connection{
				server: s, conn: conn, tags: make(map[uint16]uint64), open: make(map[uint16]*Publish),
			}
			_ = c.serve() // the client is gone, or does not speak AMQP
			_ = conn.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, conn)
		})
	}
}

func (s *Server) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// connection is one client.
type connection struct {
	server *Server
	conn   net.Conn
	write  sync.Mutex
	tags   map[uint16]uint64   // the last publish of each channel
	open   map[uint16]*Publish // publishes that have not arrived whole
}

// frameMax is the value that RabbitMQ offers.
const frameMax = 131072

func (c *connection) serve() error {
	if _, err := io.ReadFull(c.conn, make([]byte, len("AMQP0091"))); err != nil {
		return err
	}
	c.send(frame.NewMethod(0, frame.ConnectionStart, []byte{0, 9}, table(), long("PLAIN"),
		long("en_US")))
	for {
		f, err := frame.Read(c.conn)
		if err != nil {
			return err
		}
		switch f.Kind() {
		case frame.KindMethod:
			if f.Method() == frame.ConnectionCloseOk {
				return nil
			}
			c.method(f)
		case frame.KindHeader, frame.KindBody:
			if err := c.content(f); err != nil {
				return err
			}
		}
	}
}

// method answers the requests of a client before and after its publishes.
func (c *connection) method(f frame.Frame) {
	answer := func(m frame.Method, args ...[]byte) { c.send(frame.NewMethod(f.Channel(), m, args...)) }
	switch f.Method() {
	case frame.ConnectionStartOk:
		answer(frame.ConnectionTune, []byte{7, 255}, binary.BigEndian.AppendUint32(nil, frameMax),
			[]byte{0, 0})
	case frame.ConnectionOpen:
		answer(frame.ConnectionOpenOk, frame.Short(""))
	case frame.ConnectionClose:
		answer(frame.ConnectionCloseOk)
	case frame.ChannelOpen:
		c.tags[f.Channel()] = 0
		answer(frame.ChannelOpenOk, long(""))
	case frame.ChannelClose:
		answer(frame.ChannelCloseOk)
	case frame.ConfirmSelect:
		answer(frame.ConfirmSelectOk)
	case frame.QueueDeclare:
		name, _ := frame.TakeShort(f.Args()[2:])
		answer(frame.QueueDeclareOk, frame.Short(name), make([]byte, 8))
	case frame.BasicPublish:
		c.tags[f.Channel()]++
		p := &Publish{conn: c, Channel: f.Channel(), Tag: c.tags[f.Channel()]}
		var rest []byte
		p.Exchange, rest = frame.TakeShort(f.Args()[2:])
		p.RoutingKey, _ = frame.TakeShort(rest)
		c.open[f.Channel()] = p
	}
}

// content takes the header and the bodies of a publish.
func (c *connection) content(f frame.Frame) error {
	p := c.open[f.Channel()]
	if p == nil {
		return fmt.Errorf("%s without a publish", f)
	}
	if f.Kind() == frame.KindHeader {
		p.header, p.left = f.Payload(), binary.BigEndian.Uint64(f.Payload()[4:])
	} else {
		p.Body = append(p.Body, f.Payload()...)
		p.left -= uint64(len(f.Payload()))
	}
	if p.left == 0 {
		delete(c.open, f.Channel())
		c.server.mu.Lock()
		c.server.published++
		p.Number = c.server.published
		c.server.mu.Unlock()
		c.server.script(p)
	}
	return nil
}

func (c *connection) send(frames ...frame.Frame) {
	c.write.Lock()
	defer c.write.Unlock()
	for _, f := range frames {
		_, _ = c.conn.Write(f) // the client may be gone
	}
}

// table returns an empty table.
func table() []byte { return make([]byte, 4) }

// long returns a long string.
func long(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}
