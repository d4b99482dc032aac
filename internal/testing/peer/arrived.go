package peer

import (
	"strings"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// Publish is a message that has arrived. Its methods send the frame of their name to the client, on
// the channel of the publish, even if it makes no sense. They may be called from any goroutine.
type Publish struct {
	// Number counts the publishes of all clients, 1 for the first.
	Number int
	// Channel and Tag are named by a confirm of this publish.
	Channel              uint16
	Tag                  uint64
	Exchange, RoutingKey string
	Body                 []byte

	ch     *channel
	header []byte
	left   uint64 // of the body
}

// Accept stores the message in the queue that its routing key names, and acks it. If the queue is
// missing, it returns the message first (F4). It does the same after the client has gone.
func (p *Publish) Accept() {
	s := p.ch.conn.server
	s.mu.Lock()
	q := s.queues[p.RoutingKey]
	if q != nil {
		s.add(q, &message{exchange: p.Exchange, key: p.RoutingKey, header: p.header, body: p.Body})
	}
	s.mu.Unlock()
	if q == nil {
		p.Return()
	}
	p.Ack(p.Tag, false)
}

// FanOut stores the message in each queue whose name begins with prefix, as a fanout exchange that
// they are bound to, and acks it.
func (p *Publish) FanOut(prefix string) {
	s := p.ch.conn.server
	s.mu.Lock()
	for name, q := range s.queues {
		if strings.HasPrefix(name, prefix) {
			s.add(q, &message{exchange: p.Exchange, key: p.RoutingKey, header: p.header, body: p.Body})
		}
	}
	s.mu.Unlock()
	p.Ack(p.Tag, false)
}

// Ack and Nack confirm a tag, or with multiple all up to it.
func (p *Publish) Ack(tag uint64, multiple bool) {
	p.confirm(frame.BasicAck, p.Channel, tag, multiple)
}

func (p *Publish) Nack(tag uint64, multiple bool) {
	p.confirm(frame.BasicNack, p.Channel, tag, multiple)
}

// AckOn confirms on another channel.
func (p *Publish) AckOn(channel uint16, tag uint64) {
	p.confirm(frame.BasicAck, channel, tag, false)
}

// confirm sends nothing once the client has closed the channel: a broker knows it no more.
func (p *Publish) confirm(m frame.Method, channel uint16, tag uint64, multiple bool) {
	s := p.ch.conn.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.ch.conn.channels[p.ch.id] != p.ch {
		return
	}
	p.ch.conn.send(channel, m, frame.Long(tag), flag(multiple))
}

// Return sends the message back as unroutable.
func (p *Publish) Return() {
	m := message{header: p.header, body: p.Body}
	p.ch.conn.write(m.frames(p.Channel, frame.BasicReturn, code(312), frame.Short("NO_ROUTE"),
		frame.Short(p.Exchange), frame.Short(p.RoutingKey))...)
}

// CloseChannel and CloseConnection send an error of the broker.
func (p *Publish) CloseChannel(reply uint16, text string) {
	s := p.ch.conn.server
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ch.refuse(reply, text)
}

func (p *Publish) CloseConnection(reply uint16, text string) {
	p.ch.conn.send(0, frame.ConnectionClose, code(reply), frame.Short(text), make([]byte, 4))
}

// Blocked tells the client to stop publishing, or to go on.
func (p *Publish) Blocked(blocked bool) {
	if blocked {
		p.ch.conn.send(0, frame.ConnectionBlocked, frame.Short("low on memory"))
	} else {
		p.ch.conn.send(0, frame.ConnectionUnblocked)
	}
}

// Garbage sends a frame without its end mark.
func (p *Publish) Garbage() {
	f := frame.NewMethod(p.Channel, frame.BasicAck, frame.Long(p.Tag), []byte{0})
	f[len(f)-1] = 0
	p.ch.conn.write(f)
}

// Half sends the first half of a confirm and ends the connection.
func (p *Publish) Half() {
	f := frame.NewMethod(p.Channel, frame.BasicAck, frame.Long(p.Tag), []byte{0})
	p.ch.conn.write(f[:len(f)/2])
	p.Cut(false)
}

// Cut ends the connection, with a reset or without.
func (p *Publish) Cut(reset bool) {
	if c, ok := p.ch.conn.conn.(interface{ SetLinger(int) error }); ok && reset {
		_ = c.SetLinger(0)
	}
	_ = p.ch.conn.conn.Close()
}

// Move is [Server.Move] from the queue of this publish.
func (p *Publish) Move(to string) { p.ch.conn.server.Move(p.RoutingKey, to) }
