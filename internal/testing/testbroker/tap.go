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

// String is an arrow and the frame's name.
func (s Seen) String() string {
	if s.Up {
		return "↑" + s.Frame.String()
	}
	return "↓" + s.Frame.String()
}

// FaultKind is what becomes of the connection at a frame.
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

// Tap shows look every frame of the connections that are accepted from now on, right before it
// passes, when all before it in its direction have passed; the proxy does what look returns. look
// is called from several goroutines.
func (p *Proxy) Tap(look func(Seen) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tap = look
}

func (l *link) look(c chunk, up bool) Fault {
	if l.tap == nil || !c.frame {
		return Fault{}
	}
	return l.tap(Seen{Frame: c.data, Connection: l.number, Up: up})
}

// suffer does what a fault does; false means that the link is over.
func (l *link) suffer(kind FaultKind) bool {
	switch kind {
	case FIN:
		l.blame(Network)
		return false
	case RST:
		l.blame(Network)
		l.mu.Lock()
		for _, conn := range []net.Conn{l.client, l.target} {
			if tcp, ok := conn.(*net.TCPConn); ok {
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

// splitter makes frames of a stream that arrives in pieces.
type splitter struct{ rest []byte }

// split returns what is whole by now: frames, or the piece as it is.
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
