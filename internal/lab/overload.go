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
	name: "overload",
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

// simulation describes an overload. Times are in seconds.
type simulation struct {
	// rate is the number of new messages a second.
	rate int
	// capacity is the number of calls a second that the service can take, and low the number while it
	// is overloaded. A refused call takes refusal of the work of another call.
	capacity, low, refusal float64
	noise                  float64 // the share of calls that fail for another reason
	// from and until are the times of the overload, and end is the end of new messages. The
	// simulation gives up at longest, because the service may never recover.
	from, until, end, longest int
}

// standard is the simulation of docs/notes/performance.md: a service of twice the capacity that is
// needed takes nothing for five minutes. One of a hundred calls fails at any time.
var standard = simulation{
	rate: 50, capacity: 100, refusal: 0.05, noise: 0.01, from: 60, until: 360, end: 1200,
	longest: 1800,
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

// The figures of a simulation.
const (
	callsDown   = "calls during the overload"
	callsPeak   = "calls in the worst second after it"
	callsAll    = "calls in all"
	drainedIn   = "seconds until the backlog was gone" // 0: never
	delayBefore = "seconds after a first failure, before the overload"
	delayDuring = "the same, at most during it"
	delayAtLast = "the same, at the end"
)

var overloadMetrics = []string{
	callsDown, callsPeak, callsAll, drainedIn, delayBefore, delayDuring, delayAtLast,
}

// figures runs the simulation until no message is left, in steps of a tick.
func (c simulation) figures(name string) map[string]float64 {
	const ticks = 10 // a second
	const tick = time.Second / ticks
	policy, observe := contender(name)
	random := rand.New(rand.NewPCG(1, 1))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	due := map[int][]backoff.Failure{} // by tick
	of := map[string]float64{}
	left, drained, ofSecond, second := 0, c.until, 0, 0
	for n := 0; second < c.longest && (left > 0 || second < c.end); n++ {
		second = n / ticks
		at := start.Add(time.Duration(n) * tick)
		calls := due[n]
		delete(due, n)
		left -= len(calls)
		if second < c.end {
			calls = append(calls, make([]backoff.Failure, c.rate/ticks)...)
		}
		random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		taken := c.taken(second, len(calls)*ticks) / ticks
		for i, m := range calls {
			e := middleware.Event{
				Kind: middleware.EventHandled, At: at, Called: true, Failures: m.Count,
			}
			if m.Count > 0 {
				e.Age = at.Sub(m.First)
			}
			if i >= taken || random.Float64() < c.noise {
				if m.Count++; m.Count == 1 {
					m.First = at
				}
				e.Kind, e.Class, e.Failures = middleware.EventRetried, header.ClassRetryable, m.Count
				m.Now = at
				m.Last, _ = policy.Delay(m)
				if m.Count == 1 {
					c.noteDelay(of, second, m.Last.Seconds())
				}
				back := n + max(1, int((m.Last+tick-1)/tick))
				due[back] = append(due[back], m)
				left++
			}
			observe(e)
		}
		of[callsAll] += float64(len(calls))
		if ofSecond += len(calls); second >= c.from && second < c.until {
			of[callsDown] += float64(len(calls))
		}
		if n%ticks == ticks-1 {
			if second >= c.until {
				of[callsPeak] = max(of[callsPeak], float64(ofSecond))
				if left > c.rate {
					drained = second + 1
				}
			}
			ofSecond = 0
		}
	}
	if drained < second {
		of[drainedIn] = float64(drained - c.until)
	}
	return of
}

// noteDelay notes the delay after a first failure.
func (c simulation) noteDelay(of map[string]float64, second int, delay float64) {
	switch {
	case second < c.from:
		of[delayBefore] = delay
	case second < c.until:
		of[delayDuring] = max(of[delayDuring], delay)
	default:
		of[delayAtLast] = delay
	}
}

// taken returns how many of the calls of a second succeed.
func (c simulation) taken(second, calls int) int {
	capacity := c.capacity
	if second >= c.from && second < c.until {
		capacity = c.low
	}
	if float64(calls) <= capacity {
		return calls
	}
	return max(0, int((capacity-float64(calls)*c.refusal)/(1-c.refusal)))
}
