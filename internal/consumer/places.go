package consumer

import (
	"sync"
	"sync/atomic"
	"time"
)

// lateConfirm is how long a hand-over may wait for its confirm behind the handlers.
const lateConfirm = time.Second

// places bounds the handlers of a subscription: as many run at once as there are places.
//
// A failed message leaves its place when its copy is written, so that the next handler
// starts while the broker confirms the copy. The delivery stays unacked until the confirm,
// so the prefetch bounds the hand-overs behind the handlers. A hand-over is held when the
// broker refuses or returns the copy, when the connection is lost, or when the confirm is
// late. It takes its place back then. While a hand-over of the Client is held, no other
// message leaves its place before its confirm. So an outage of the broker stops the handlers.
type places struct {
	all  int
	held *atomic.Int64 // hand-overs of the Client that are held

	mu     sync.Mutex
	taken  int           // by handlers, and by hand-overs that are held
	stuck  int           // hand-overs of this subscription that are held
	calm   time.Time     // since then none is held, if stuck is 0
	behind handovers     // in the order in which they have left their places
	freed  chan struct{} // has a value when a place may be free
}

func newPlaces(all int, held *atomic.Int64) *places {
	return &places{all: all, held: held, freed: make(chan struct{}, 1)}
}

// standing says where a delivery stands. It is guarded by places.mu.
type standing struct {
	at         int
	since      time.Time // since then it is behind the handlers
	prev, next *standing // behind the handlers
}

// The values of standing.at.
const (
	noPlace  = iota // it never had a place, or has ended
	inPlace         // its handler may run
	isBehind        // its copy is written, and its place is free for another delivery
	isHeld          // its copy cannot be stored now: it keeps a place
)

// take takes a place for a delivery whose standing is inPlace. The caller has seen a free one.
func (p *places) take() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken++
}

// areFree reports whether a place is free. Only one goroutine asks, and takes places.
func (p *places) areFree() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdLate()
	return p.taken < p.all
}

// areEmpty reports whether no delivery has a place.
func (p *places) areEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken == 0 && p.behind.first == nil
}

// calmSince returns since when no hand-over of this subscription is held. It is false if one is.
func (p *places) calmSince() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdLate()
	return p.calm, p.stuck == 0
}

// written lets the delivery leave its place, because its copy is written, and reports whether
// it did.
func (p *places) written(s *standing) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdLate()
	if s.at != inPlace || p.held.Load() > 0 {
		return false
	}
	s.at, s.since = isBehind, time.Now()
	p.behind.push(s)
	p.free()
	return true
}

// hold gives the delivery its place back, because its copy could not be stored.
func (p *places) hold(s *standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s.at {
	case isBehind:
		p.behind.remove(s)
		p.taken++
	case inPlace:
	default:
		return
	}
	p.heldNow(s)
}

// heldNow notes a hand-over that is held from now on. p.mu is held.
func (p *places) heldNow(s *standing) {
	s.at = isHeld
	p.stuck++
	p.held.Add(1)
}

// holdLate holds the deliveries whose confirm is late. p.mu is held.
func (p *places) holdLate() {
	for s := p.behind.first; s != nil && time.Since(s.since) >= lateConfirm; s = p.behind.first {
		p.behind.remove(s)
		p.taken++
		p.heldNow(s)
	}
}

// leave ends the stay of the delivery, which is settled.
func (p *places) leave(s *standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s.at {
	case isBehind:
		p.behind.remove(s)
		p.signal() // who waits until all are empty
	case isHeld:
		p.held.Add(-1)
		p.stuck--
		p.calm = time.Now()
		p.free()
	case inPlace:
		p.free()
	}
	s.at = noPlace
}

// free frees a place. p.mu is held.
func (p *places) free() {
	p.taken--
	p.signal()
}

// signal says that something is free, or has ended. p.mu is held.
func (p *places) signal() {
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// handovers are deliveries in the order in which they have left their places.
type handovers struct{ first, last *standing }

func (h *handovers) push(s *standing) {
	if s.prev = h.last; s.prev != nil {
		s.prev.next = s
	} else {
		h.first = s
	}
	h.last = s
}

func (h *handovers) remove(s *standing) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		h.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		h.last = s.prev
	}
	s.prev, s.next = nil, nil
}
