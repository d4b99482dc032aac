package peer

import (
	"encoding/binary"
	"net"

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

	conn   *connection
	header []byte
	left   uint64 // of the body
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

func (p *Publish) confirm(m frame.Method, channel uint16, tag uint64, multiple bool) {
	flag := byte(0)
	if multiple {
		flag = 1
	}
	p.conn.send(frame.NewMethod(channel, m, frame.Long(tag), []byte{flag}))
}

// Return sends the message back as unroutable.
func (p *Publish) Return() {
	frames := []frame.Frame{
		frame.NewMethod(p.Channel, frame.BasicReturn, code(312), frame.Short("NO_ROUTE"),
			frame.Short(p.Exchange), frame.Short(p.RoutingKey)),
		frame.New(frame.KindHeader, p.Channel, p.header),
	}
	if len(p.Body) > 0 {
		frames = append(frames, frame.New(frame.KindBody, p.Channel, p.Body))
	}
	p.conn.send(frames...)
}

// CloseChannel and CloseConnection send an error of the broker.
func (p *Publish) CloseChannel(reply uint16, text string) {
	p.conn.send(frame.NewMethod(p.Channel, frame.ChannelClose, code(reply), frame.Short(text),
		make([]byte, 4)))
}

func (p *Publish) CloseConnection(reply uint16, text string) {
	p.conn.send(frame.NewMethod(0, frame.ConnectionClose, code(reply), frame.Short(text),
		make([]byte, 4)))
}

// Blocked tells the client to stop publishing, or to go on.
func (p *Publish) Blocked(blocked bool) {
	if blocked {
		p.conn.send(frame.NewMethod(0, frame.ConnectionBlocked, frame.Short("low on memory")))
	} else {
		p.conn.send(frame.NewMethod(0, frame.ConnectionUnblocked))
	}
}

// Garbage sends a frame without its end mark.
func (p *Publish) Garbage() {
	f := frame.NewMethod(p.Channel, frame.BasicAck, frame.Long(p.Tag), []byte{0})
	f[len(f)-1] = 0
	p.conn.send(f)
}

// Half sends the first half of a confirm and ends the connection.
func (p *Publish) Half() {
	f := frame.NewMethod(p.Channel, frame.BasicAck, frame.Long(p.Tag), []byte{0})
	p.conn.send(f[:len(f)/2])
	p.Cut(false)
}

// Cut ends the connection, with a reset or without.
func (p *Publish) Cut(reset bool) {
	if tcp, ok := p.conn.conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = p.conn.conn.Close()
}

func code(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
