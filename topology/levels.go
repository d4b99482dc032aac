package topology

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// Levels lets messages of any number of queues wait for any delay, in one fixed set of wait
// queues. Level n waits 2ⁿ times the resolution, and a message passes the levels that add up to
// its delay, the longest first. 500 ms are 400 and 100:
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
//	                                                       │ no queue bound
//	                   queue millpond.stranded ◄── exchange millpond.stranded
//
// The routing key has the bits of the delay, the lowest first and the highest, which is always
// 1, last. Then follows the name of the queue as one word. Characters that a topic exchange
// interprets are escaped, and a hash stands for the rest of a name that is too long. The key
// travels with the message: a new delay declares nothing, and a new queue costs a binding and a
// dead-letter queue.
//
// A message whose queue has vanished goes to the stranded queue, as with Shared, and so does a
// message that comes by a level that has vanished. Each level adds a few milliseconds (F9) and
// an entry of x-death. As with Shared, a policy of the broker with dead-letter-routing-key must
// not match the wait queues.
//
// A backoff.Policy that cannot list its delays needs no default wait steps here.
//
// The routing key has the delay, so no message returns through an exchange of yours with its own
// key: PerQueue, Shared and DelayedExchange have Via for that.
//
// The zero value is ready to use.
type Levels struct {
	// Resolution is the shortest delay, and the step between two delays: every delay is rounded
	// up to a multiple of it. Whole milliseconds, at most five seconds, because a message that
	// is snoozed waits for at most that long. Services with different resolutions use different
	// wait queues: the names carry the resolution unless it is the default. Default: 100 ms.
	Resolution time.Duration
	// Max is the longest delay that is waited for at once. Longer delays wait in rounds. It
	// decides how many levels there are: 10 up to a minute, 20 up to a day, 32 up to ten years.
	// It may differ between services that share the levels. At least a second is taken.
	// Default: ten years, backoff.MaxDelay.
	Max time.Duration
	// Tolerance is how much longer than asked a delay may become, as a fraction of the delay,
	// so that it passes fewer levels: 7m2.4s in place of 7m takes two levels in place of four.
	// A delay never becomes shorter. At most 1. A negative value means none: the delay grows
	// only up to the resolution. Default: 0.01, a hundredth.
	Tolerance float64
	// Type of the wait, stranded and dead-letter queues. Default: Quorum.
	Type QueueType
	// Prefix begins the name of everything shared: <prefix>.level.<n>, <prefix>.level.enter,
	// <prefix>.level.return, <prefix>.stranded. Services with the same prefix share the wait
	// queues. Default: millpond.
	Prefix string
	// WaitArguments are added to the arguments of every wait queue; see PerQueue.
	// Default: none.
	WaitArguments amqp.Table
	// Dead says where dead letters go. Default: <queue>.dlq.
	Dead DeadLetters
}

const (
	defaultResolution = 100 * time.Millisecond
	defaultTolerance  = 0.01
)

// Validate returns an error that lists every invalid field. Open calls it.
func (s Levels) Validate() error {
	var p planner
	s.routes(&p)
	return errors.Join(append(p.problems, checkFields(s.Type, nil, s.WaitArguments, s.Dead))...)
}

// Plan implements Strategy. The plan is the same for all delays.
func (s Levels) Plan(queue string, delays []time.Duration) (Plan, error) {
	if delays == nil {
		delays = []time.Duration{} // no default wait steps
	}
	p, _ := newPlanner(queue, delays, nil, s.Type)
	routes := s.routes(p)
	prefix := cmp.Or(s.Prefix, defaultPrefix)
	suffix := s.Type.suffix(s.WaitArguments)
	if routes.Resolution != defaultResolution {
		suffix = "." + delayName(routes.Resolution) + suffix
	}
	back, stranded := prefix+".level.return", prefix+".stranded"
	name := func(level int) string { return prefix + ".level." + strconv.Itoa(level) + suffix }
	routes.Exchange = prefix + ".level.enter" + suffix
	routes.Destination = destinationWord(queue)

	// A message that finds no way must not stop the wait queue that it came from (F5).
	caught := amqp.Table{"alternate-exchange": stranded}
	p.exchange(Exchange{Name: stranded, Kind: "fanout"}, "stranded exchange")
	p.exchange(Exchange{Name: back, Kind: "topic", Arguments: caught}, "return exchange")
	next := back
	for level := range routes.Levels {
		delay := routes.Resolution << level
		q := s.Type.waitQueue(name(level), delay, Route{Exchange: next})
		p.step(q, routes.route(delay), s.WaitArguments)
		bits := strings.Repeat("*.", level)
		p.bind(routes.Exchange, bits+"1.*", name(level))
		if level == routes.Levels-1 {
			break // no level is above the highest
		}
		p.exchange(Exchange{Name: name(level), Kind: "topic", Arguments: caught},
			"exchange of level "+strconv.Itoa(level))
		p.bind(name(level), bits+"1.#", name(level))
		p.bindExchange(name(level), bits+"0.#", next)
		next = name(level)
	}
	// It is its own alternate exchange: a wait queue that has vanished is noticed because the
	// broker returns the message.
	p.exchange(Exchange{Name: routes.Exchange, Kind: "topic"}, "entry exchange")
	p.strandedQueue(stranded, s.Type)
	p.bind(back, "#."+routes.Destination, queue)
	p.deadLetters(s.Dead, s.Type)
	p.plan.Levels = &routes
	return p.finish()
}

// routes returns the numbers of the strategy, with the defaults.
func (s Levels) routes(p *planner) LevelRoutes {
	r := LevelRoutes{Resolution: cmp.Or(s.Resolution, defaultResolution), Tolerance: s.Tolerance}
	longest := cmp.Or(s.Max, backoff.MaxDelay)
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
		p.problem(fmt.Errorf("resolution %v is over %v, the longest wait of a message that is "+
			"snoozed: use a smaller one",
			r.Resolution, maxSnooze))
	case longest > backoff.MaxDelay:
		p.problem(fmt.Errorf("longest delay %v is over ten years: at most %d ms", longest,
			backoff.MaxDelay.Milliseconds()))
	default:
		// The shortest snooze must be among the delays.
		r.Levels = levelsFor(r.Resolution, max(longest, minSnooze))
	}
	return r
}

// levelsFor returns how many levels add up to the longest delay, as far as a queue's TTL goes
// (F11).
func levelsFor(resolution, longest time.Duration) int {
	n := 1
	for resolution<<n-resolution < longest && resolution<<n <= backoff.MaxDelay {
		n++
	}
	return n
}

// LevelRoutes makes the route of any delay in a plan of Levels.
type LevelRoutes struct {
	// Exchange is where every message enters.
	Exchange string
	// Destination is the last word of every routing key: the escaped name of the queue.
	Destination string
	// Resolution is how long level 0 waits. Each further level waits twice as long.
	Resolution time.Duration
	// Levels is how many levels there are.
	Levels int
	// Tolerance is the fraction by which a delay may grow to pass fewer levels.
	Tolerance float64
}

// check returns an error about the numbers.
func (l LevelRoutes) check() error {
	switch {
	case l.Resolution <= 0 || l.Resolution > maxSnooze:
		return fmt.Errorf("resolution %v is not over zero and up to %v: set it", l.Resolution, maxSnooze)
	case l.Levels < 1 || l.Levels > 62 || l.Resolution > backoff.MaxDelay>>(l.Levels-1):
		return fmt.Errorf("%d levels of %v and more are none, or wait over ten years: correct their "+
			"number", l.Levels, l.Resolution)
	case !(l.Tolerance >= 0 && l.Tolerance <= 1): // NaN as well
		return fmt.Errorf("tolerance %v is not between 0 and 1: correct it", l.Tolerance)
	}
	return nil
}

// route returns the route of a delay.
func (l LevelRoutes) route(asked time.Duration) Route {
	return l.passing(l.steps(asked))
}

// passing returns the route by the levels of the bits of steps.
func (l LevelRoutes) passing(steps uint64) Route {
	return Route{
		Exchange:   l.Exchange,
		RoutingKey: levelKey(steps, l.Destination),
		Delay:      time.Duration(steps) * l.Resolution,
		Hops:       bits.OnesCount64(steps),
	}
}

// levels checks the routes that a plan makes for delays between its wait steps.
func (v *validation) levels() {
	l := v.plan.Levels
	if l == nil {
		return
	}
	if err := l.check(); err != nil {
		v.find("Plan.Levels: %w", err)
		return
	}
	// The wait steps pass each level alone. These routes also pass all levels below it. Together
	// they take every binding of an exchange that has two bindings for each level.
	for n := range l.Levels {
		v.step(l.passing(uint64(1)<<(n+1) - 1))
	}
}

// waits returns how long a message waits if it asks for a delay, in all rounds together.
func (l LevelRoutes) waits(asked time.Duration) time.Duration {
	round := func(d time.Duration) time.Duration { return time.Duration(l.steps(d)) * l.Resolution }
	first := round(asked)
	if first >= asked {
		return first
	}
	rounds := (asked - 1).Truncate(first)
	return rounds + round(asked-rounds)
}

// steps returns a delay in steps of the resolution. If all levels together are too short, the
// message takes the longest level alone: rounds of few hops.
func (l LevelRoutes) steps(asked time.Duration) uint64 {
	longest := uint64(1)<<l.Levels - 1
	steps := uint64(1)
	if asked > 0 {
		steps = uint64((asked-1)/l.Resolution) + 1
	}
	if steps > longest {
		return 1 << (l.Levels - 1)
	}
	most := uint64(float64(max(asked, 0)) * (1 + l.Tolerance) / float64(l.Resolution))
	return fewestBits(steps, min(most, longest))
}

// fewestBits returns the number with the fewest bits from least to most, of several the
// smallest; least if most is smaller. Any such number shares the bits of least above some place,
// has a bit at that place, and needs no bits below it.
func fewestBits(least, most uint64) uint64 {
	best := least
	for place := 0; place < 63; place++ {
		next := (least>>place + 1) << place
		if next > most {
			break
		}
		if bits.OnesCount64(next) < bits.OnesCount64(best) {
			best = next
		}
	}
	return best
}

// levelKey writes the bits of a number of steps, the lowest first, and the destination. It does
// not depend on how many levels there are.
func levelKey(steps uint64, destination string) string {
	var key strings.Builder
	for ; steps > 0; steps >>= 1 {
		key.WriteByte('0' + byte(steps&1))
		key.WriteByte('.')
	}
	key.WriteString(destination)
	return key.String()
}

// String lists the delays in one line.
func (l LevelRoutes) String() string {
	longest := time.Duration(uint64(1)<<l.Levels-1) * l.Resolution
	return fmt.Sprintf("any delay in steps of %s up to %s, %g %% more for fewer levels",
		delayName(l.Resolution), delayName(longest), 100*l.Tolerance)
}

const (
	// maxWord is the longest name of a queue in a routing key: the 255 bytes of the key without
	// the bits of ten years in milliseconds.
	maxWord = 160
	// readable is how much of a longer name is kept before its hash.
	readable = 80
)

// destinationWord writes the name of a queue as one word of a topic exchange's routing key, so
// that no two names have the same word and no word matches the binding of another. Percent
// encoding hides the characters that a topic exchange interprets: the dot between words, the
// wildcards * and #, and the percent sign itself. It also hides bytes that are not UTF-8,
// because the management API and definitions need UTF-8.
//
// A name that is too long ends in %~ and its SHA-256. No other word holds %~, because a ~ never
// follows a percent sign.
func destinationWord(queue string) string {
	var word strings.Builder
	cut := 0 // the last place up to readable where the word may be cut
	for rest := queue; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if r == utf8.RuneError && size == 1 || strings.ContainsRune(".*#%", r) {
			fmt.Fprintf(&word, "%%%02X", rest[0])
		} else {
			word.WriteString(rest[:size])
		}
		rest = rest[size:]
		if word.Len() <= readable {
			cut = word.Len()
		}
	}
	if word.Len() <= maxWord {
		return word.String()
	}
	return fmt.Sprintf("%s%%~%x", word.String()[:cut], sha256.Sum256([]byte(queue)))
}
