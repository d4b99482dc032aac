package testbroker

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/memnet"
)

// Proxy is a proxy between a client and a broker: on loopback, or in memory if the broker is (see
// [memnet]). It makes the network between them fail. All its methods may be called from many
// goroutines.
type Proxy struct {
	listener net.Listener
	url      url.URL
	ending   chan struct{}
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

	connections, publishes, up, down atomic.Int64
}

// NewProxy starts a proxy to the broker at targetURL. It ends with the test.
func NewProxy(tb testing.TB, targetURL string) *Proxy {
	tb.Helper()
	p, err := OpenProxy(targetURL)
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	tb.Cleanup(p.Close)
	return p
}

// OpenProxy starts a proxy for a program. Call Close at the end.
func OpenProxy(targetURL string) (*Proxy, error) {
	target, err := url.Parse(targetURL)
	if err != nil {
		return nil, errors.New("the target's URL cannot be parsed") // err would print its password
	}
	var l net.Listener
	if strings.HasSuffix(target.Hostname(), memnet.Suffix) {
		l = memnet.Listen()
	} else if l, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	p := &Proxy{
		listener: l,
		url:      *target,
		target:   hostPort(target),
		ending:   make(chan struct{}),
		links:    make(map[*link]struct{}),
	}
	p.url.Host = l.Addr().String()
	p.wait.Go(p.accept)
	return p, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "amqps":
		port = "5671"
	default:
		port = "5672"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// URL returns the target's URL with the proxy's address: same credentials, same vhost.
func (p *Proxy) URL() string { return p.url.String() }

// Cut closes all live connections on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cutBy(Network)
	}
}

// Blackhole makes the network swallow everything while on. Live and new connections stay open, and
// no byte passes in either direction; even the end of one side is hidden. When it is turned off,
// connections that have lost bytes are closed, because their streams are broken. The others go on.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lossy && !on {
			l.cutBy(Network)
		}
	}
	p.black.turn(on)
}

func (p *Proxy) change(set func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set()
}

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

// Delay holds back every byte for d, in each direction. 0 ends it.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Refuse closes new connections at once while on. Live ones go on.
func (p *Proxy) Refuse(on bool) { p.change(func() { p.refuse = on }) }

// Freeze holds every byte back while on, in both directions, also on new connections. The held
// bytes go on when it is turned off.
func (p *Proxy) Freeze(on bool) { p.change(func() { p.frozen.turn(on) }) }

// Retarget makes another broker the target of connections that are accepted from now on. The URL
// stays.
func (p *Proxy) Retarget(tb testing.TB, targetURL string) {
	tb.Helper()
	target, err := url.Parse(targetURL)
	if err != nil {
		tb.Fatal("proxy: the target's URL cannot be parsed") // the error would print its password
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = hostPort(target)
}

// Live returns the number of connections at the moment.
func (p *Proxy) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Connections returns the number of connections so far, refused and swallowed ones included.
func (p *Proxy) Connections() int { return int(p.connections.Load()) }

// Publishes returns the number of basic.publish methods that clients have sent so far, swallowed
// ones included.
func (p *Proxy) Publishes() int { return int(p.publishes.Load()) }

// Tries returns Connections plus Publishes: the attempts of clients so far.
func (p *Proxy) Tries() int { return p.Connections() + p.Publishes() }

// BytesUp returns the number of bytes that clients have sent so far, swallowed ones included.
func (p *Proxy) BytesUp() int64 { return p.up.Load() }

// BytesDown returns the number of bytes that the target has sent so far, swallowed ones included.
func (p *Proxy) BytesDown() int64 { return p.down.Load() }

// Close closes the listener and all connections, and returns when no goroutine of the proxy is
// left.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.ending)
		_ = p.listener.Close()
		for l := range p.links {
			l.cutBy(Network)
		}
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := newLink(p, conn, int(p.connections.Add(1)))
		if !p.keep(l) {
			l.cut()
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
		ended(l.number, l.endedBy())
	}
}

func (p *Proxy) targetAddress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// handle decides about bytes of l, or the end of one side. A channel means that they are lost: it
// is closed at the end of the blackhole that swallowed them.
func (p *Proxy) handle(l *link) (lost <-chan struct{}, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.black == nil {
		return nil, p.delay
	}
	l.lossy = true
	return p.black, 0
}
