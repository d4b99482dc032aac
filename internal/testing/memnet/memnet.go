// Package memnet is a network within a process. Its connections act as TCP connections on loopback
// do, with buffers that are never full. So a test may run in virtual time (testing/synctest).
package memnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Suffix ends the host name of every address in memory.
const Suffix = ".memory"

var (
	hosts   sync.Map // *Listener by host name
	numbers atomic.Int64
)

// Listener accepts connections that [Dial] opens.
type Listener struct {
	host   string
	dialed chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var _ net.Listener = (*Listener)(nil)

// Listen returns a listener with a new host name.
func Listen() *Listener {
	l := &Listener{
		host:   fmt.Sprint("host-", numbers.Add(1), Suffix),
		dialed: make(chan net.Conn), closed: make(chan struct{}),
	}
	hosts.Store(l.host, l)
	return l
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.dialed:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses further connections. The accepted ones go on.
func (l *Listener) Close() error {
	l.once.Do(func() {
		hosts.Delete(l.host)
		close(l.closed)
	})
	return nil
}

// Addr returns the host name and a port.
func (l *Listener) Addr() net.Addr { return address(l.host + ":5672") }

// Dial connects to a Listener, or through TCP to an address that is not in memory.
func Dial(network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || !strings.HasSuffix(host, Suffix) {
		return net.DialTimeout(network, addr, 10*time.Second)
	}
	refused := &net.OpError{Op: "dial", Net: network, Addr: address(addr), Err: syscall.ECONNREFUSED}
	found, ok := hosts.Load(host)
	if !ok {
		return nil, refused
	}
	l := found.(*Listener)
	up, down := newPipe(), newPipe()
	select {
	case l.dialed <- &conn{in: up, out: down, addr: l.Addr()}:
		return &conn{in: down, out: up, addr: l.Addr()}, nil
	case <-l.closed:
		return nil, refused
	}
}

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }

// conn is one end of a connection.
type conn struct {
	in, out *pipe
	addr    net.Addr
	reset   atomic.Bool
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close lets the other end read the bytes that are under way. After SetLinger it resets the
// connection, and those bytes are lost.
func (c *conn) Close() error {
	if c.reset.Load() {
		c.in.end(net.ErrClosed, true)
		c.out.end(syscall.ECONNRESET, true)
		return nil
	}
	c.in.end(net.ErrClosed, true)
	c.out.end(io.EOF, false)
	return nil
}

// SetLinger makes Close reset the connection, as SetLinger(0) of a TCPConn does.
func (c *conn) SetLinger(int) error {
	c.reset.Store(true)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.addr }
func (c *conn) RemoteAddr() net.Addr { return c.addr }

func (c *conn) SetDeadline(t time.Time) error      { return c.SetReadDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.in.setDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return nil } // no write waits

// pipe carries bytes in one direction.
type pipe struct {
	mu       sync.Mutex
	data     []byte
	ended    error // for the reader, behind the data
	deaf     bool  // no one reads it any more
	deadline time.Time
	changed  chan struct{} // closed at the next change
}

func newPipe() *pipe { return &pipe{changed: make(chan struct{})} }

// change wakes the reader. p.mu is held.
func (p *pipe) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.deaf:
		return 0, syscall.EPIPE
	case p.ended != nil:
		return 0, net.ErrClosed
	}
	p.data = append(p.data, b...)
	p.change()
	return len(b), nil
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		p.mu.Lock()
		late := time.Until(p.deadline)
		limited := !p.deadline.IsZero()
		switch {
		case limited && late <= 0:
			p.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(p.data) > 0:
			n := copy(b, p.data)
			p.data = p.data[n:]
			p.mu.Unlock()
			return n, nil
		case p.ended != nil:
			defer p.mu.Unlock()
			return 0, p.ended
		}
		changed := p.changed
		p.mu.Unlock()
		if !limited {
			<-changed
			continue
		}
		timer := time.NewTimer(late)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// end ends the pipe with an error for its reader. With drop the bytes under way are lost, and
// writes fail.
func (p *pipe) end(err error, drop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = err
	}
	if drop {
		p.data, p.deaf = nil, true
	}
	p.change()
}

func (p *pipe) setDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	p.change()
	return nil
}
