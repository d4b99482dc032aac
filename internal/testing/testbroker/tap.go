package testbroker

import (
	"net"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// Seen is a frame on its way through a [Proxy].
type Seen struct {
	frame.Frame
	// Connection is the number of its connection, 1 for the first that was accepted.
	Connection int
	// Up is the way from the client to the broker.
	Up bool
}

// String returns an arrow and the frame's name.
func (s Seen) String() string {
	if s.Up {
		return "↑" + s.Frame.String()
	}
	return "↓" + s.Frame.String()
}

// FaultKind is the fate of the connection at a frame.
type FaultKind int

const (
	// NoFault: the frame passes.
	NoFault FaultKind = iota
	// FIN closes the connection on both sides.
	FIN
	// RST resets it on both sides.
	RST
	// Frozen is [Proxy.Freeze] at this frame.
	Frozen
)

func (k FaultKind) String() string { return [...]string{"none", "FIN", "RST", "frozen"}[k] }

// Fault happens before its frame passes, or after.
type Fault struct {
	Kind  FaultKind
	After bool
}

// Tap calls look with every frame of the connections that are accepted from now on. It calls look
// right before the frame passes, when all earlier frames in its direction have passed. The proxy
// makes the returned fault. look is called from several goroutines.
func (p *Proxy) Tap(look func(Seen) Fault) { p.change(func() { p.tap = look }) }

func (l *link) look(c chunk, up bool) Fault {
	if l.tap == nil || !c.frame {
		return Fault{}
	}
	return l.tap(Seen{Frame: c.data, Connection: l.number, Up: up})
}

// suffer makes a fault. It returns false if the link is over.
func (l *link) suffer(kind FaultKind) bool {
	switch kind {
	case FIN:
		l.blame(Network)
		return false
	case RST:
		l.blame(Network)
		l.mu.Lock()
		for _, conn := range []net.Conn{l.client, l.target} {
			if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
				_ = tcp.SetLinger(0)
			}
		}
		l.mu.Unlock()
		return false
	case Frozen:
		l.proxy.Freeze(true)
	}
	return true
}

// splitter cuts a stream that arrives in pieces into frames.
type splitter struct{ rest []byte }

// split returns the frames that are whole by now, or without frames the piece itself.
func (s *splitter) split(piece []byte, frames bool) []chunk {
	if !frames {
		return []chunk{{data: append([]byte(nil), piece...)}}
	}
	data := append(s.rest, piece...)
	var whole []chunk
	for {
		next, rest, isFrame := frame.Next(data)
		if next == nil {
			s.rest = append([]byte(nil), rest...)
			return whole
		}
		whole = append(whole, chunk{data: next, frame: isFrame})
		data = rest
	}
}

// publishCounter counts the basic.publish methods of a client. It gives up on a stream that does
// not begin like AMQP.
type publishCounter struct {
	cut        splitter
	begun, off bool
}

// count returns the number of publishes that are whole after this piece of the stream.
func (c *publishCounter) count(piece []byte) (n int) {
	if !c.begun && len(piece) > 0 {
		c.begun, c.off = true, piece[0] != 'A'
	}
	if c.off {
		return 0
	}
	for _, whole := range c.cut.split(piece, true) {
		if whole.frame && frame.Frame(whole.data).Method() == frame.BasicPublish {
			n++
		}
	}
	return n
}

// Party is the side that ended a connection through a [Proxy].
type Party int

// The parties. The network is the proxy itself, with Cut, Blackhole, Close or a Fault.
const (
	Client Party = iota + 1
	Broker
	Network
)

func (p Party) String() string { return [...]string{"none", "client", "broker", "network"}[p] }

// OnEnd calls told with the number of every connection that has ended, as in [Seen.Connection], and
// with the party that ended it first. It replaces the function of an earlier call. told is called
// from several goroutines.
func (p *Proxy) OnEnd(told func(connection int, by Party)) { p.change(func() { p.ended = told }) }

// HoldConfirms keeps the broker's confirms back while on: basic.ack, basic.nack and basic.return,
// and the frames behind them on their channel, so that the channel's order stays. All other frames
// pass, heartbeats too, and the connection lives. The held frames go on when it is turned off,
// unless their connection has ended. It works on connections accepted after [Proxy.Tap], because a
// proxy without a tap does not know frames.
func (p *Proxy) HoldConfirms(on bool) { p.change(func() { p.hold.turn(on) }) }

// sift passes the broker's frames on, except held ones. It returns at the end of its input, or of
// the link.
func (l *link) sift(from <-chan chunk, to chan<- chunk) {
	var held []chunk
	var hold <-chan struct{} // closed when the held frames go on
	waiting := map[uint16]bool{}
	for {
		select {
		case <-hold:
			for _, c := range held {
				if !l.pass(c, to) {
					return
				}
			}
			clear(waiting)
			held, hold = nil, nil
		case c, open := <-from:
			if !open {
				return
			}
			now := l.proxy.during(&l.proxy.hold)
			channel, confirm := confirms(c)
			switch {
			case waiting[channel]:
				held = append(held, c)
			case confirm && (now != nil || hold != nil):
				if hold == nil {
					hold = now
				}
				waiting[channel], held = true, append(held, c)
			case !l.pass(c, to):
				return
			}
		case <-l.over.Done():
			return
		}
	}
}

// confirms returns the channel of a frame, and whether the frame answers a publish.
func confirms(c chunk) (channel uint16, confirm bool) {
	if !c.frame {
		return 0, false
	}
	f := frame.Frame(c.data)
	switch f.Method() {
	case frame.BasicAck, frame.BasicNack, frame.BasicReturn:
		return f.Channel(), true
	}
	return f.Channel(), false
}
