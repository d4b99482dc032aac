package testbroker

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
)

// Proxy is a proxy between a client and a broker: on loopback, or in memory if the broker is (see
// [memnet]). It makes the network between them fail. All its methods may be called from many
// goroutines.
type Proxy struct {
	listener net.Listener
	url      url.URL
	wait     sync.WaitGroup

	mu     sync.Mutex
	target string // host:port
	links  map[*link]struct{}
	refuse bool
	delay  time.Duration
	tap    func(Seen) Fault
	ended  func(connection int, by Party)
	closed bool

	black, frozen, hold pause // Blackhole, Freeze and HoldConfirms

	connections, publishes atomic.Int64
}

// NewProxy starts a proxy to the broker at targetURL. It ends with the test.
func NewProxy(tb testing.TB, targetURL string) *Proxy {
	tb.Helper()
	p, err := OpenProxy(targetURL)
	must(tb, "start a proxy", err)
	tb.Cleanup(p.Close)
	return p
}

// OpenProxy starts a proxy for a program. Call Close at the end.
func OpenProxy(targetURL string) (*Proxy, error) {
	target, err := parseTarget(targetURL)
	if err != nil {
		return nil, err
	}
	var l net.Listener
	if strings.HasSuffix(target.Hostname(), memnet.Suffix) {
		l = memnet.Listen()
	} else if l, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, url: *target, target: target.Host, links: make(map[*link]struct{})}
	p.url.Host = l.Addr().String()
	p.wait.Go(p.accept)
	return p, nil
}

// parseTarget parses the URL of a broker. The result has a port.
func parseTarget(targetURL string) (*url.URL, error) {
	target, err := url.Parse(targetURL)
	if err != nil {
		return nil, errors.New("the target's URL cannot be parsed") // err would print its password
	}
	if target.Port() == "" {
		port := "5672"
		if target.Scheme == "amqps" {
			port = "5671"
		}
		target.Host = net.JoinHostPort(target.Hostname(), port)
	}
	return target, nil
}

// URL returns the target's URL with the proxy's address: same credentials, same vhost.
func (p *Proxy) URL() string { return p.url.String() }

func (p *Proxy) change(set func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set()
}

// Cut closes all live connections on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.change(func() {
		for l := range p.links {
			l.cut(Network)
		}
	})
}

// Blackhole makes the network swallow everything while on. Live and new connections stay open, and
// no byte passes in either direction; even the end of one side is hidden. When it is turned off,
// connections that have lost bytes or began meanwhile are closed. The others go on.
func (p *Proxy) Blackhole(on bool) {
	p.change(func() {
		for l := range p.links {
			if l.lossy && !on {
				l.cut(Network)
			}
		}
		p.black.turn(on)
	})
}

// Freeze holds every byte back while on, in both directions, also on new connections. The held
// bytes go on when it is turned off.
func (p *Proxy) Freeze(on bool) { p.change(func() { p.frozen.turn(on) }) }

// HoldConfirms keeps the broker's confirms back while on: basic.ack, basic.nack and basic.return,
// and the frames behind them on their channel, so that the channel's order stays. All other frames
// pass, heartbeats too, and the connection lives. The held frames go on when it is turned off,
// unless their connection has ended. It works on connections accepted after [Proxy.Tap], because a
// proxy without a tap does not know frames.
func (p *Proxy) HoldConfirms(on bool) { p.change(func() { p.hold.turn(on) }) }

// Delay holds back every byte for d, in each direction. 0 ends it.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Refuse closes new connections at once while on. Live ones go on.
func (p *Proxy) Refuse(on bool) { p.change(func() { p.refuse = on }) }

// pause is closed at its end, and nil while there is none. The proxy's mu guards it.
type pause chan struct{}

func (s *pause) turn(on bool) {
	switch {
	case on && *s == nil:
		*s = make(pause)
	case !on && *s != nil:
		close(*s)
		*s = nil
	}
}

// during returns a channel that is closed at the end of a pause, or nil if there is none now.
func (p *Proxy) during(s *pause) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *s
}

// Retarget makes another broker the target of connections that are accepted from now on. The URL
// stays.
func (p *Proxy) Retarget(tb testing.TB, targetURL string) {
	tb.Helper()
	target, err := parseTarget(targetURL)
	must(tb, "retarget a proxy", err)
	p.change(func() { p.target = target.Host })
}

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

// Live returns the number of connections at the moment.
func (p *Proxy) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Connections returns the number of connections so far, refused and swallowed ones included.
func (p *Proxy) Connections() int { return int(p.connections.Load()) }

// Publishes returns the number of basic.publish methods that clients have sent so far, swallowed
// ones included, on connections accepted after [Proxy.Tap].
func (p *Proxy) Publishes() int { return int(p.publishes.Load()) }

// Close closes the listener and all connections, and returns when no goroutine of the proxy is
// left.
func (p *Proxy) Close() {
	p.change(func() { p.closed = true })
	_ = p.listener.Close()
	p.Cut()
	p.wait.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{
			proxy: p, client: conn, over: make(chan struct{}), number: int(p.connections.Add(1)),
		}
		if !p.keep(l) {
			_ = conn.Close()
			continue
		}
		p.wait.Go(func() {
			l.serve()
			p.forget(l)
		})
	}
}

func (p *Proxy) keep(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuse {
		return false
	}
	p.links[l] = struct{}{}
	l.tap = p.tap
	return true
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	delete(p.links, l)
	ended := p.ended
	p.mu.Unlock()
	if ended != nil {
		ended(l.number, l.by)
	}
}

// link is one connection through a Proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	number int
	tap    func(Seen) Fault // nil: bytes pass as they come
	lossy  bool             // bytes were swallowed; under the proxy's mu
	over   chan struct{}    // closed when the link is over

	mu     sync.Mutex
	target net.Conn // nil until dialled
	by     Party    // has ended the connection; 0 while it lives
	isOver bool
}

// chunk holds bytes that were read at once, or one frame of them, to be written when it is due.
type chunk struct {
	data  []byte
	due   time.Time
	frame bool
}

const (
	chunkSize = 32 << 10
	inFlight  = 256 // chunks under way in one direction, before reading stops
)

func (l *link) serve() {
	up, down := make(chan chunk, inFlight), make(chan chunk, inFlight)
	var pumps sync.WaitGroup
	defer pumps.Wait()
	defer l.cut(Network)
	pumps.Go(func() { l.read(l.client, up) })
	if !l.dial() {
		return
	}
	pumps.Go(func() { l.read(l.target, down) })
	pumps.Go(func() { l.write(l.client, down) })
	l.write(l.target, up)
}

// dial connects to the target, after the end of a freeze. It returns false at the end of a
// blackhole, or if the link is over.
func (l *link) dial() bool {
	if !l.untilThawed() {
		return false
	}
	if lifted := l.proxy.during(&l.proxy.black); lifted != nil {
		until(l, lifted)
		return false
	}
	l.proxy.mu.Lock()
	address := l.proxy.target
	l.proxy.mu.Unlock()
	conn, err := memnet.Dial("tcp", address)
	if err != nil {
		l.blame(Broker)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		_ = conn.Close()
		return false
	}
	l.target = conn
	return true
}

// read hands on what from sends, until its end.
func (l *link) read(from net.Conn, to chan<- chunk) {
	defer close(to)
	buf := make([]byte, chunkSize)
	var rest []byte // the beginning of a frame
	for {
		n, err := from.Read(buf)
		l.proxy.mu.Lock()
		due := time.Now().Add(l.proxy.delay)
		l.proxy.mu.Unlock()
		data := slices.Concat(rest, buf[:n])
		for len(data) > 0 {
			c := chunk{data: data, due: due}
			if rest = nil; l.tap != nil {
				if c.data, rest, c.frame = frame.Next(data); c.data == nil {
					break
				}
			}
			data = rest
			if c.frame && frame.Frame(c.data).Method() == frame.BasicPublish {
				l.proxy.publishes.Add(1)
			}
			select {
			case to <- c:
			case <-l.over:
				return
			}
		}
		if err != nil {
			l.blame(l.party(from))
			return
		}
	}
}

// write writes the chunks that are due. At the end of its input, or when to takes no more, the link
// is over. It keeps confirms back while they are held.
func (l *link) write(to net.Conn, from <-chan chunk) {
	defer l.cut(Network)
	var held []chunk
	var hold <-chan struct{} // closed when the held frames go on
	waiting := map[uint16]bool{}
	for {
		select {
		case <-hold:
			for _, c := range held {
				if !l.forward(to, c) {
					return
				}
			}
			clear(waiting)
			held, hold = nil, nil
		case <-l.over:
			return
		case c, open := <-from:
			if !open {
				if lifted := l.proxy.during(&l.proxy.black); lifted != nil {
					until(l, lifted)
				}
				return
			}
			now := l.proxy.during(&l.proxy.hold)
			channel, confirm := confirms(c)
			confirm = confirm && to == l.client && (now != nil || hold != nil)
			if !confirm && !waiting[channel] {
				if !l.forward(to, c) {
					return
				}
				continue
			}
			if hold == nil {
				hold = now
			}
			waiting[channel], held = true, append(held, c)
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

// forward writes a chunk when it is due, and makes the tap's fault. It returns false if the link is
// over.
func (l *link) forward(to net.Conn, c chunk) bool {
	if wait := time.Until(c.due); wait > 0 && !until(l, time.After(wait)) {
		return false
	}
	var fault Fault
	if l.tap != nil && c.frame {
		fault = l.tap(Seen{Frame: c.data, Connection: l.number, Up: to != l.client})
	}
	frozen := fault == Fault{Kind: Frozen, After: true}
	if frozen {
		l.proxy.Freeze(true) // now already, so that no answer slips through
	} else if !fault.After && !l.suffer(fault.Kind) || !l.untilThawed() {
		return false
	}
	if l.swallows() {
		return true
	}
	if _, err := to.Write(c.data); err != nil {
		l.blame(l.party(to))
		return false
	}
	return frozen || !fault.After || l.suffer(fault.Kind)
}

// swallows reports whether a blackhole swallows bytes of the link now.
func (l *link) swallows() bool {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.lossy = l.lossy || l.proxy.black != nil
	return l.proxy.black != nil
}

// suffer makes a fault. It returns false if the link is over.
func (l *link) suffer(kind FaultKind) bool {
	switch kind {
	case FIN, RST:
		l.blame(Network)
		for _, conn := range []net.Conn{l.client, l.target} {
			if tcp, ok := conn.(interface{ SetLinger(int) error }); ok && kind == RST {
				_ = tcp.SetLinger(0)
			}
		}
		return false
	case Frozen:
		l.proxy.Freeze(true)
	}
	return true
}

// untilThawed waits for the end of a freeze. It returns false if the link is over.
func (l *link) untilThawed() bool {
	for {
		thawed := l.proxy.during(&l.proxy.frozen)
		if thawed == nil {
			return true
		}
		if !until(l, thawed) {
			return false
		}
	}
}

// until waits for ch. It returns false if the link is over.
func until[T any](l *link, ch <-chan T) bool {
	select {
	case <-ch:
		return true
	case <-l.over:
		return false
	}
}

// party returns the side that a connection of the link leads to.
func (l *link) party(conn net.Conn) Party {
	if conn == l.client {
		return Client
	}
	return Broker
}

// blame notes the party that has ended the link. Only the first call counts.
func (l *link) blame(by Party) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == 0 {
		l.by = by
	}
}

// cut ends the link and closes both sides. It may be called more than once.
func (l *link) cut(by Party) {
	l.blame(by)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOver {
		l.isOver = true
		close(l.over)
	}
	_ = l.client.Close()
	if l.target != nil {
		_ = l.target.Close()
	}
}
