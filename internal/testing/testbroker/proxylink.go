package testbroker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/millpond-go/millpond/internal/testing/memnet"
)

// link is one connection through a Proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	number int
	tap    func(Seen) Fault // nil: bytes pass as they come
	lossy  bool             // bytes were swallowed; under the proxy's mu
	over   context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	target net.Conn // nil until dialled
	by     Party    // has ended the connection; 0 while it lives
}

func newLink(p *Proxy, client net.Conn, number int) *link {
	l := &link{proxy: p, client: client, number: number}
	l.over, l.end = context.WithCancel(context.Background())
	return l
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
	defer l.cut()
	chunks := make(chan chunk, inFlight)
	var pumps sync.WaitGroup
	defer pumps.Wait()
	defer l.cut()
	frames := new(publishCounter)
	pumps.Go(func() {
		defer close(chunks)
		l.read(l.client, chunks, func(p []byte) {
			l.proxy.up.Add(int64(len(p)))
			l.proxy.publishes.Add(int64(frames.count(p)))
		})
	})
	if !l.dial() {
		return
	}
	back := make(chan chunk, inFlight)
	pumps.Go(func() {
		defer close(back)
		l.read(l.target, back, func(p []byte) { l.proxy.down.Add(int64(len(p))) })
	})
	answers := back
	if l.tap != nil {
		answers = make(chan chunk, inFlight)
		pumps.Go(func() {
			defer close(answers)
			l.sift(back, answers)
		})
	}
	pumps.Go(func() { l.write(l.client, answers, false) })
	l.write(l.target, chunks, true)
}

// dial connects to the target, after the end of a blackhole or a freeze.
func (l *link) dial() bool {
	if !l.untilThawed() {
		return false
	}
	black := func() <-chan struct{} { return l.proxy.during(&l.proxy.black) }
	for lifted := black(); lifted != nil; lifted = black() {
		if !l.until(lifted) {
			return false
		}
	}
	conn, err := memnet.Dial("tcp", l.proxy.targetAddress())
	if err != nil {
		l.blame(Broker)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = conn
	if l.over.Err() != nil {
		_ = conn.Close()
		return false
	}
	return true
}

// read passes on the bytes that from sends, or swallows them. It returns when from has ended and
// the other side may know it.
func (l *link) read(from net.Conn, to chan<- chunk, seen func([]byte)) {
	buf := make([]byte, chunkSize)
	var cut splitter
	for {
		n, err := from.Read(buf)
		if n > 0 {
			seen(buf[:n])
		}
		lifted, delay := l.proxy.handle(l)
		if n > 0 && lifted == nil {
			for _, c := range cut.split(buf[:n], l.tap != nil) {
				c.due = time.Now().Add(delay)
				if !l.pass(c, to) {
					return
				}
			}
		}
		if err != nil {
			l.blame(l.party(from))
			if lifted != nil {
				l.until(lifted)
			}
			return
		}
	}
}

func (l *link) pass(c chunk, to chan<- chunk) bool {
	select {
	case to <- c:
		return true
	case <-l.over.Done():
		return false
	}
}

// write writes the chunks that are due. At the end of its input, or when to takes no more, the link
// is over.
func (l *link) write(to net.Conn, from <-chan chunk, up bool) {
	defer l.cut()
	for c := range from {
		if wait := time.Until(c.due); wait > 0 && !l.pause(wait) {
			return
		}
		fault := l.look(c, up)
		frozen := fault == Fault{Kind: Frozen, After: true}
		if frozen {
			l.proxy.Freeze(true) // now already, so that no answer slips through
		} else if !fault.After && !l.suffer(fault.Kind) || !l.untilThawed() {
			return
		}
		if lifted, _ := l.proxy.handle(l); lifted != nil {
			continue
		}
		if _, err := to.Write(c.data); err != nil {
			l.blame(l.party(to))
			return
		}
		if fault.After && !frozen && !l.suffer(fault.Kind) {
			return
		}
	}
}

// untilThawed waits for the end of a freeze. It returns false if the link is over.
func (l *link) untilThawed() bool {
	frozen := func() <-chan struct{} { return l.proxy.during(&l.proxy.frozen) }
	for thawed := frozen(); thawed != nil; thawed = frozen() {
		if !l.until(thawed) {
			return false
		}
	}
	return true
}

// until waits for ch. It returns false if the link is over.
func (l *link) until(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-l.over.Done():
		return false
	}
}

func (l *link) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.over.Done():
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

// endedBy returns the party that has ended the link: the network if neither side has.
func (l *link) endedBy() Party {
	l.blame(Network)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by
}

// cutBy cuts the link and blames by.
func (l *link) cutBy(by Party) {
	l.blame(by)
	l.cut()
}

// cut ends the link and closes both sides. It may be called more than once.
func (l *link) cut() {
	l.end()
	_ = l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.target != nil {
		_ = l.target.Close()
	}
}
