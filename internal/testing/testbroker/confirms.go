package testbroker

import "github.com/millpond-go/millpond/internal/testing/frame"

// Party is the side that ended a connection through a [Proxy].
type Party int

// The parties. The network is the proxy itself, with Cut, Blackhole, Close or a Fault.
const (
	Client Party = iota + 1
	Broker
	Network
)

func (p Party) String() string { return [...]string{"none", "client", "broker", "network"}[p] }

// OnEnd tells told the number of every connection that has ended, as in [Seen.Connection], and
// which party ended it first. It replaces the function of an earlier call; told is called from
// several goroutines.
func (p *Proxy) OnEnd(told func(connection int, by Party)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = told
}

// HoldConfirms keeps the broker's confirms back while on: basic.ack, basic.nack and basic.return,
// and whatever follows them on their channel, so that the order of a channel stays. All other
// frames pass, heartbeats too, and the connection lives. The frames that were held go on when it is
// turned off; those of a connection that has ended are lost. It works on connections accepted after
// [Proxy.Tap], because a proxy without a tap does not know frames.
func (p *Proxy) HoldConfirms(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.hold == nil:
		p.hold = make(chan struct{})
	case !on && p.hold != nil:
		close(p.hold)
		p.hold = nil
	}
}

// holding returns a channel that is closed at the end of the current hold of confirms, or nil if
// there is none.
func (p *Proxy) holding() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hold
}

// sift passes the broker's frames on, without those that are held. It returns at the end of its
// input, or of the link.
func (l *link) sift(from <-chan chunk, to chan<- chunk) {
	var held []chunk
	var hold <-chan struct{} // of what is held
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
			now := l.proxy.holding()
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
