package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/header"
)

// overload simulates a downstream service that is overloaded for a while, and the retries of a
// service that calls it. Time passes at once, and a seed decides all that is random, so policies
// can be compared to the digit. It is the one scenario without a broker.
var overload = &scenario{
	name:  "overload",
	about: "a simulation of the retries of an overloaded service, with and without backoff.Adaptive",
	simulate: func() *report {
		r := &report{}
		for _, name := range contenders {
			figures := standard.figures(name)
			for _, metric := range overloadMetrics {
				r.row(name, "%-52s %8.4g", metric, figures[metric])
			}
		}
		return r
	},
}

// tick is the time that passes in one step of a simulation.
const tick = 100 * time.Millisecond

// simulation describes an overload.
type simulation struct {
	// rate is the number of new messages a second.
	rate int
	// capacity is the number of calls a second that the service can take, and low the number while it
	// is overloaded. A refused call takes refusal of the work of another call.
	capacity, low, refusal float64
	// noise is the share of calls that fail for another reason.
	noise float64
	// from and until are the times of the overload, and end is the end of new messages.
	from, until, end time.Duration
	// longest is the time after which it gives up, because the service may never recover.
	longest time.Duration
	seed    uint64
}

// standard is the simulation of docs/performance.md: a service of twice the capacity that is needed
// takes nothing for five minutes. One of a hundred calls fails at any time.
var standard = simulation{
	rate: 50, capacity: 100, refusal: 0.05, noise: 0.01,
	from: time.Minute, until: 6 * time.Minute, end: 20 * time.Minute, longest: 30 * time.Minute,
	seed: 1,
}

// series is the policy that the contenders have in common, without an end: no message is given up.
var series = backoff.Exponential{Initial: time.Second, Factor: 2, Max: 32 * time.Second}

// The names of the contenders.
const (
	plain    = "the policy alone"
	adapts   = "Adaptive around it"
	eightAll = "always eight times as long"
)

var contenders = []string{plain, adapts, eightAll}

// contender returns a policy by its name, and an observer that is told of each call.
func contender(name string) (backoff.Policy, func(middleware.Event)) {
	switch name {
	case eightAll:
		longer := series
		longer.Initial, longer.Max = 8*series.Initial, 8*series.Max
		return longer, func(middleware.Event) {}
	case adapts:
		health, err := adaptive.New(time.Minute)
		if err != nil {
			panic(err) // a constant
		}
		return backoff.Adaptive{Policy: series, Health: health.Recent}, func(e middleware.Event) {
			health.Observe(context.Background(), e)
		}
	}
	return series, func(middleware.Event) {}
}

// waiting is a message that is not handled yet.
type waiting struct {
	failures int
	first    time.Time
	last     time.Duration
}

// event is the event of DelayedRetry after a call.
func (m waiting) event(at time.Time, failed bool) middleware.Event {
	e := middleware.Event{
		Kind: middleware.EventHandled, At: at, Called: true, Failures: m.failures,
	}
	if m.failures > 0 {
		e.Age = at.Sub(m.first)
	}
	if failed {
		e.Kind, e.Class, e.Failures = middleware.EventRetried, header.ClassRetryable, m.failures+1
	}
	return e
}

// second is one second of a simulation.
type second struct {
	calls   int
	waiting int // messages that wait at the end
	// delay is the mean of the delays that were given to messages which failed once, in seconds; 0
	// if there were none.
	delay float64
}

// run returns the seconds of a simulation, until no message is left or the longest time has passed.
func (c simulation) run(name string) []second {
	var (
		policy, observe = contender(name)
		random          = rand.New(rand.NewPCG(c.seed, 1))
		start           = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		due             = map[int64][]waiting{} // by tick
		left            = 0
		seconds         []second
		now             second
		given           time.Duration
		once            int
	)
	for n := int64(0); ; n++ {
		passed := time.Duration(n) * tick
		at := start.Add(passed)
		calls := due[n]
		delete(due, n)
		left -= len(calls)
		if passed < c.end {
			for range c.rate / int(time.Second/tick) {
				calls = append(calls, waiting{})
			}
		}
		random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		taken := c.taken(passed, len(calls))
		for i, m := range calls {
			fails := i >= taken || random.Float64() < c.noise
			e := m.event(at, fails)
			if now.calls++; fails {
				if m.failures++; m.failures == 1 {
					m.first = at
				}
				delay, _ := policy.Delay(backoff.Failure{
					Count: m.failures, First: m.first, Now: at, Last: m.last,
				})
				if m.last = delay; m.failures == 1 {
					given, once = given+delay, once+1
				}
				back := n + max(1, int64((delay+tick-1)/tick))
				due[back] = append(due[back], m)
				left++
			}
			observe(e)
		}
		if (n+1)%int64(time.Second/tick) != 0 {
			continue
		}
		if now.waiting = left; once > 0 {
			now.delay = given.Seconds() / float64(once)
		}
		seconds = append(seconds, now)
		if now, given, once = (second{}), 0, 0; left == 0 && passed >= c.end || passed >= c.longest {
			return seconds
		}
	}
}

// taken returns how many of the calls of a tick succeed.
func (c simulation) taken(passed time.Duration, calls int) int {
	capacity := c.capacity
	if passed >= c.from && passed < c.until {
		capacity = c.low
	}
	work := capacity * tick.Seconds()
	if float64(calls) <= work {
		return calls
	}
	return max(0, int((work-float64(calls)*c.refusal)/(1-c.refusal)))
}

// The figures of a simulation.
const (
	callsDown    = "calls during the overload"
	callsPeak    = "calls in the worst second after it"
	callsAll     = "calls in all"
	drainedIn    = "seconds until the backlog was gone" // 0: never
	delayBefore  = "seconds after a first failure, before the overload"
	delayDuring  = "the same, at most during it"
	delayAtLast  = "the same, at the end"
	beforeWindow = 60 // seconds
)

var overloadMetrics = []string{
	callsDown, callsPeak, callsAll, drainedIn, delayBefore, delayDuring, delayAtLast,
}

// figures sum a simulation up.
func (c simulation) figures(name string) map[string]float64 {
	seconds, of := c.run(name), map[string]float64{}
	from, until, end := int(c.from.Seconds()), int(c.until.Seconds()), int(c.end.Seconds())
	drained := until
	for i, s := range seconds {
		of[callsAll] += float64(s.calls)
		if i >= from && i < until {
			of[callsDown] += float64(s.calls)
			of[delayDuring] = max(of[delayDuring], s.delay)
		}
		if i < until {
			continue
		}
		of[callsPeak] = max(of[callsPeak], float64(s.calls))
		if s.waiting > c.rate {
			drained = i + 1
		}
	}
	if drained < len(seconds) {
		of[drainedIn] = float64(drained - until)
	}
	of[delayBefore] = meanDelay(seconds[:from])
	of[delayAtLast] = meanDelay(seconds[min(end-beforeWindow, len(seconds)):min(end, len(seconds))])
	return of
}

// meanDelay is the mean of the delays after a first failure.
func meanDelay(seconds []second) float64 {
	sum, n := 0.0, 0.0
	for _, s := range seconds {
		if s.delay > 0 {
			sum, n = sum+s.delay, n+1
		}
	}
	return sum / max(n, 1)
}
