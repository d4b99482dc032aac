package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// Levels waits for any delay, of any number of queues, in one fixed set of wait
// queues. Level n waits 2ⁿ times the resolution, and a message passes the levels
// that add up to its delay, the longest first. 500 ms are 400 and 100:
//
//	orders ── fails ──► exchange millpond.level.enter, routing key 1.0.1.orders
//	                         │ by the last bit
//	                         ▼
//	               queue millpond.level.2 ── TTL 400ms ──► exchange millpond.level.1
//	                                                             │ bit 1 is 0
//	                                                             ▼
//	               queue millpond.level.0 ◄── bit 0 is 1 ── exchange millpond.level.0
//	                         │ TTL 100ms
//	                         ▼
//	orders ◄── bound by #.orders ── exchange millpond.level.return
//	                                                       │ nobody bound
//	                   queue millpond.stranded ◄── exchange millpond.stranded
//
// The routing key has the delay's bits, the lowest first and the highest, which
// is always 1, last; then the name of the queue as one word, in which whatever
// means something to a topic exchange is escaped, and of which a hash stands for
// what is too long. It travels with the message, so nothing is declared for a
// delay, and a new queue costs a binding and a dead-letter queue.
//
// A message whose queue has vanished lands in the stranded queue, as with Shared,
// and so does one that comes by a level that has vanished. Each level passed adds
// a few milliseconds (broker fact F9) and an entry of x-death. As with Shared, a policy
// of the broker with dead-letter-routing-key must not match the wait queues.
//
// A backoff.Policy that cannot list its delays needs no default wait steps here. There is no
// Via: a message returns to its queue, because the routing key is taken.
//
// The zero value is ready to use.
type Levels struct {
	// Resolution is the shortest delay, and the step between two: every delay is
	// rounded up to a multiple of it. Whole milliseconds, at most five seconds,
	// because a message that is set aside waits at least that long. Services with another
	// resolution use wait queues of their own, for the names carry it, unless it is
	// the default. Default: 100 ms.
	Resolution time.Duration
	// Max is the longest delay that is waited for at once; longer ones wait in
	// rounds. It says how many levels there are, 10 up to a minute, 20 up to a day,
	// 32 up to ten years, and may differ between services that share them. At
	// least a second is taken. Default: ten years, backoff.MaxDelay.
	Max time.Duration
	// Tolerance is how much longer than asked a delay may be made, as a fraction of
	// it, so that it passes fewer levels: 7m2.4s in place of 7m takes two levels in
	// place of four. Never shorter. At most 1; negative means none: only up to the
	// resolution. Default: 0.01, a hundredth.
	Tolerance float64
	// Type of the wait, stranded and dead-letter queues. Default: Quorum.
	Type QueueType
	// Prefix begins the name of everything shared: <prefix>.level.<n>,
	// <prefix>.level.enter, <prefix>.level.return, <prefix>.stranded. Services that
	// use the same one share the wait queues. Default: millpond.
	Prefix string
	// WaitArguments are declared beside ours on every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
}

const (
	defaultResolution = 100 * time.Millisecond
	defaultTolerance  = 0.01
)

// Validate returns an error that lists every field that no plan can be made with. Open calls it.
func (s Levels) Validate() error {
	var p planner
	s.routes(&p)
	return errors.Join(append(p.problems, checkFields(s.Type, nil, s.WaitArguments, s.Dead))...)
}

// Plan implements Strategy. It is the same for all delays.
func (s Levels) Plan(queue string, delays []time.Duration) (Plan, error) {
	if delays == nil {
		delays = []time.Duration{} // no default wait steps
	}
	p, _ := newPlanner(queue, delays, nil, s.Type)
	routes := s.routes(p)
	prefix := prefixOr(s.Prefix)
	suffix := s.Type.suffix(s.WaitArguments)
	if routes.Resolution != defaultResolution {
		suffix = "." + delayName(routes.Resolution) + suffix
	}
	back, stranded := prefix+".level.return", prefix+".stranded"
	name := func(level int) string { return prefix + ".level." + strconv.Itoa(level) + suffix }
	routes.Exchange = prefix + ".level.enter" + suffix
	routes.Destination = destinationWord(queue)

	// What finds no way must not stop the wait queue it came from (F5).
	visibly := amqp.Table{"alternate-exchange": stranded}
	p.exchange(Exchange{Name: stranded, Kind: "fanout"}, "stranded exchange")
	p.exchange(Exchange{Name: back, Kind: "topic", Arguments: visibly}, "return exchange")
	next := back
	for level := range routes.Levels {
		delay := routes.Resolution << level
		q := s.Type.waitQueue(name(level), delay, Route{Exchange: next})
		p.rung(q, routes.route(delay), s.WaitArguments)
		bits := strings.Repeat("*.", level)
		p.bind(routes.Exchange, bits+"1.*", name(level))
		if level == routes.Levels-1 {
			break // nothing comes down to the highest
		}
		p.exchange(Exchange{Name: name(level), Kind: "topic", Arguments: visibly}, "exchange of level "+strconv.Itoa(level))
		p.bind(name(level), bits+"1.#", name(level))
		p.bindExchange(name(level), bits+"0.#", next)
		next = name(level)
	}
	// Its alternate exchange is itself: a wait queue that has vanished is noticed
	// because the broker returns the message.
	p.exchange(Exchange{Name: routes.Exchange, Kind: "topic"}, "entry exchange")
	p.strandedQueue(stranded, s.Type)
	p.bind(back, "#."+routes.Destination, queue)
	p.deadLetters(s.Dead, s.Type)
	p.plan.Levels = &routes
	return p.finish()
}

// routes returns the numbers of the strategy, with the defaults.
func (s Levels) routes(p *planner) LevelRoutes {
	r := LevelRoutes{Resolution: s.Resolution, Tolerance: s.Tolerance}
	longest := s.Max
	if r.Resolution == 0 {
		r.Resolution = defaultResolution
	}
	if longest == 0 {
		longest = backoff.MaxDelay
	}
	switch {
	case s.Tolerance == 0:
		r.Tolerance = defaultTolerance
	case s.Tolerance < 0:
		r.Tolerance = 0
	case !(s.Tolerance <= 1): // NaN as well
		p.problem(fmt.Errorf("tolerance %v is not between 0 and 1; negative means none", s.Tolerance))
	}
	switch {
	case r.Resolution < 0:
		p.problem(fmt.Errorf("resolution %v is negative", r.Resolution))
	case r.Resolution%time.Millisecond != 0:
		p.problem(fmt.Errorf("resolution %v is not in whole milliseconds", r.Resolution))
	case longest < r.Resolution:
		p.problem(fmt.Errorf("longest delay %v is shorter than the resolution %v", longest, r.Resolution))
	case r.Resolution > maxSnooze:
		p.problem(fmt.Errorf("resolution %v is over %v, which a message that is set aside may wait at most: use a smaller one", r.Resolution, maxSnooze))
	case longest > backoff.MaxDelay:
		p.problem(fmt.Errorf("longest delay %v is over ten years: at most %d ms", longest, backoff.MaxDelay.Milliseconds()))
	default:
		// The shortest wait of what is set aside must be among the delays.
		r.Levels = levelsFor(r.Resolution, max(longest, minSnooze))
	}
	return r
}

// levelsFor returns how many levels add up to the longest delay, as far as a
// queue's TTL goes (F11).
func levelsFor(resolution, longest time.Duration) int {
	n := 1
	for resolution<<n-resolution < longest && resolution<<n <= backoff.MaxDelay {
		n++
	}
	return n
}
