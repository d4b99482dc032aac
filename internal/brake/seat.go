package brake

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// takeLimit is how long a seat may take to take a ticket.
const takeLimit = 200 * time.Millisecond

// Verdict is the result of a ticket.
type Verdict int

// The results of a ticket.
const (
	// Undecided says that the message did not show whether the downstream works.
	Undecided Verdict = iota
	// Empty says that the queue has no message.
	Empty
	// Failed says that the handler failed.
	Failed
	// Succeeded says that the handler succeeded.
	Succeeded
)

// ticket allows a seat to handle one message while a brake is stopped.
type ticket struct {
	of      *Brake
	turn    <-chan struct{} // closed when another process may probe
	judged  Verdict         // by Judge; guarded by of.mu
	late    bool            // Probe does not wait for the end; guarded by of.mu
	verdict Verdict         // at the end
	ended   chan struct{}
}

// end gives the ticket back after the message is settled. empty says that there was none.
func (t *ticket) end(empty bool) {
	t.of.mu.Lock()
	t.verdict = t.judged
	if empty && t.judged == Undecided {
		t.verdict = Empty
	}
	if t.late {
		t.of.count(t.verdict)
	}
	t.of.mu.Unlock()
	t.close()
	close(t.ended)
}

// abandon notes that Probe does not wait for the end: the verdict counts later.
func (t *ticket) abandon() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.late = true
}

// close ends a ticket that no seat has taken: Judge does not decide on it any more.
func (t *ticket) close() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.open = slices.DeleteFunc(t.of.open, func(other *ticket) bool { return other == t })
}

// Seat is the place of one Subscription at its brakes: its seam.Gate.
type Seat struct {
	brakes  []*Brake
	tickets chan *ticket
	// oneActive says that the queue has one active consumer: the process that is it after a stop
	// handles everything, also if it has handled nothing before.
	oneActive atomic.Bool

	mu      sync.Mutex
	stops   int           // brakes that are stopped
	stopped chan struct{} // closed while stops > 0
	started chan struct{} // closed while stops is 0
}

// Sit returns the seat of a Subscription at brakes.
func Sit(brakes ...*Brake) *Seat {
	s := &Seat{
		brakes: brakes, tickets: make(chan *ticket),
		stopped: make(chan struct{}), started: make(chan struct{}),
	}
	close(s.started)
	for _, b := range brakes {
		b.mu.Lock()
		b.seats = append(b.seats, s)
		if b.state.Stopped {
			s.change(true)
		}
		b.mu.Unlock()
	}
	return s
}

// SetOneActive says whether the queue has one active consumer.
func (s *Seat) SetOneActive(one bool) { s.oneActive.Store(one) }

// pace returns where a brake has the pace of this seat.
func (s *Seat) pace(b *Brake) *atomic.Pointer[pace] {
	if s.oneActive.Load() {
		return &b.whole
	}
	return &b.pace
}

// rests reports whether an operator has stopped another brake of the seat: a probe of this one
// would call the downstream of that one, too.
func (s *Seat) rests(probing *Brake) bool {
	return slices.ContainsFunc(s.brakes, func(b *Brake) bool { return b != probing && b.rests() })
}

// Leave gives the seat up.
func (s *Seat) Leave() {
	for _, b := range s.brakes {
		b.mu.Lock()
		b.seats = slices.DeleteFunc(b.seats, func(other *Seat) bool { return other == s })
		b.mu.Unlock()
	}
}

// change notes that one brake has stopped or started.
func (s *Seat) change(stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stopped {
		if s.stops++; s.stops == 1 {
			close(s.stopped)
			s.started = make(chan struct{})
		}
		return
	}
	if s.stops--; s.stops == 0 {
		close(s.started)
		s.stopped = make(chan struct{})
	}
}

// Shut returns a channel that is closed while a brake is stopped.
func (s *Seat) Shut() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// keepFor is how long a process keeps a consumer for another probe of its turn. Each end of a
// consumer counts against the delivery limit of all messages that it had.
const keepFor = time.Minute

// Await waits while a brake is stopped, and lets take handle one message for each ticket. It calls
// rest when another process may probe: that one needs the lead of a queue in order.
func (s *Seat) Await(stop <-chan struct{}, take func() (none bool), rest func()) (waited bool) {
	defer rest()
	var over <-chan struct{}
	var unused <-chan time.Time
	for {
		s.mu.Lock()
		stops, started := s.stops, s.started
		s.mu.Unlock()
		if stops == 0 {
			return waited
		}
		waited = true
		select {
		case <-started:
		case t := <-s.tickets:
			none := take()
			over, unused = t.turn, time.After(keepFor)
			t.end(none)
		case <-unused:
			rest()
		case <-over:
			rest()
			over = nil
		case <-stop:
			return true
		}
	}
}

// Later returns how long the next handler must wait; 0 if it may start now. A handler that starts
// calls Start.
func (s *Seat) Later() time.Duration {
	var later time.Duration
	for _, b := range s.brakes {
		now := time.Now()
		if p := paceOf(s.pace(b), now); p != nil {
			later = max(later, p.later(now))
		}
	}
	return later
}

// Start counts a handler that starts with a message that arrived at a time. It returns nil, or a
// function that must be told how many messages the queue has.
func (s *Seat) Start(arrived time.Time) (look func(ready int)) {
	now := time.Now()
	for _, b := range s.brakes {
		of := s.pace(b)
		p := of.Load()
		if p == nil {
			continue
		}
		idle, before := p.start(now, arrived), look
		due := p.mustLook(now)
		if !idle && !due {
			continue
		}
		look = func(ready int) {
			if idle && ready == 0 {
				of.CompareAndSwap(p, nil)
			}
			if due {
				p.look(s, ready)
			}
			if before != nil {
				before(ready)
			}
		}
	}
	return look
}
