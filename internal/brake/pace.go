package brake

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// leastShare is the part of the rate with which a ramp begins.
	leastShare = 0.1
	// above is how much of the rate before the stop is allowed after the ramp, until the messages
	// are handled that have gathered. With 1 a queue that fills at the same rate would never drain.
	above = 1.25
	// Every raiseEvery after the ramp the limit rises by the factor raise, if the queue has not
	// become shorter. Traffic that has grown, or a process that stands in for others, would
	// otherwise be held back for ever.
	raiseEvery = 30 * time.Second
	raise      = 1.1
	// leastRate is the slowest pace in messages a second.
	leastRate = 0.2
	// catchUp is how much of a delay the next starts may make up for. A timer fires up to some
	// milliseconds late: without this, a process with many messages a second would stay slower
	// than before the stop, and its queue would never drain. With more, a busy machine would let
	// many processes make up for a long delay in the same second.
	catchUp = 20 * time.Millisecond
	// The pace may end when it has waited for messages during a tenth of its pauses. A process that
	// stalls does not look like that. A busy broker does: so the pace ends only if the queue is
	// empty, too.
	lookEvery  = 5 * time.Second
	leastLooks = 10 // starts
	leastIdle  = 0.1
	// unusedLimit is how long a pace lives without a start. A process that stands by for a queue with
	// one active consumer starts nothing. Days later it may be the active one.
	unusedLimit = 5 * time.Minute
)

// pace spreads the starts of handlers after a stop: the rate rises evenly to the rate before, and
// stays a little above it until the queue is drained.
type pace struct {
	ramp time.Duration
	rate float64 // before the stop, of this process

	mu    sync.Mutex
	began time.Time
	next  time.Time     // the next handler may start
	since time.Time     // a start after the ramp
	n     int           // starts since then
	used  time.Duration // their pauses
	idle  time.Duration // their waits for messages

	raised float64     // by this factor
	looked time.Time   // the last look at the queue has begun; zero: none has
	ready  map[any]int // messages that each queue had when it was looked at
}

func newPace(now time.Time, ramp time.Duration, rate float64) *pace {
	p := &pace{ramp: ramp, rate: rate, began: now, raised: 1, ready: map[any]int{}}
	// Processes that start together must not call together.
	p.next = now.Add(time.Duration(rand.Float64() * float64(p.pause(now))))
	return p
}

// pause is the pause between two starts.
func (p *pace) pause(now time.Time) time.Duration {
	since := now.Sub(p.began)
	part := above * p.raised
	if since < p.ramp {
		part = max(leastShare, float64(since)/float64(p.ramp))
	}
	return time.Duration(float64(time.Second) / max(p.rate*part, leastRate))
}

// later returns how long the next start must wait.
func (p *pace) later(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.next.Sub(now))
}

// unused reports whether nothing has started for so long that the stop does not matter any more.
func (p *pace) unused(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.began.Add(p.ramp)
	if p.next.After(last) {
		last = p.next
	}
	return now.Sub(last) >= unusedLimit
}

// start counts a start with a message that arrived at a time, and reports whether the
// pace has waited for messages lately.
func (p *pace) start(now, arrived time.Time) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := p.pause(now)
	switch {
	case now.Sub(p.began) < p.ramp:
	case p.since.IsZero():
		p.since = now
	default:
		p.n++
		p.used += pause
		p.idle += min(pause, max(0, arrived.Sub(p.next)))
		if p.n >= leastLooks && now.Sub(p.since) >= lookEvery {
			over = float64(p.idle) >= leastIdle*float64(p.used)
			p.since, p.n, p.used, p.idle = now, 0, 0, 0
		}
	}
	if late := now.Add(-catchUp); p.next.Before(late) {
		p.next = late
	}
	p.next = p.next.Add(pause)
	return over
}

// mustLook reports whether the caller must find out how many messages the queue has. It asks one
// caller each time: the answer of the broker takes longer than the starts until then.
func (p *pace) mustLook(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.began) < p.ramp || now.Sub(p.looked) < raiseEvery {
		return false
	}
	p.looked = now
	return true
}

// look takes the number of messages in a queue. It compares queues with themselves alone.
func (p *pace) look(queue any, ready int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, known := p.ready[queue]; known && ready > 0 && ready >= before {
		p.raised *= raise
	}
	p.ready[queue] = ready
}

// seconds is how many seconds a meter remembers.
const seconds = 60

// meter counts events by the second.
type meter struct {
	counts      [seconds]int
	first, last int64     // seconds with an event; first is at most seconds before last
	begun       time.Time // the first event, as long as its second counts
	latest      time.Time
}

func (m *meter) count(now time.Time) {
	at := now.Unix()
	switch {
	case m.first == 0 || at >= m.last+seconds:
		*m = meter{first: at, last: at, begun: now}
	case at < m.last: // the clock was set back
		at = m.last
	}
	for m.last < at {
		m.last++
		m.counts[m.last%seconds] = 0
	}
	m.first = max(m.first, m.last-seconds+1)
	m.counts[at%seconds]++
	m.latest = now
}

// rate returns the events of a second between the first and the last. Parts of seconds count as
// such: a rate that is too low would be the limit after a stop.
func (m *meter) rate() float64 {
	if m.first == 0 {
		return 0
	}
	sum := 0
	for at := m.first; at <= m.last; at++ {
		sum += m.counts[at%seconds]
	}
	from := time.Unix(m.first, 0)
	if from.Before(m.begun) {
		from = m.begun
	}
	return float64(sum) / max(m.latest.Sub(from).Seconds(), 1)
}
