// Package overload simulates a downstream service that is overloaded for a while, and the retries
// of a service that calls it. Time passes at once, and a seed decides all that is random, so that
// two policies can be compared.
package overload

import (
	"math/rand/v2"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// Tick is the time that passes in one step.
const Tick = 100 * time.Millisecond

// Config describes a simulation.
type Config struct {
	// Rate is the number of new messages a second.
	Rate int
	// Capacity is the number of calls a second that the service can take, and Low the number while it
	// is overloaded. A refused call takes Refusal of the work of another call.
	Capacity, Low, Refusal float64
	// Noise is the share of calls that fail for another reason.
	Noise float64
	// From and Until are the times of the overload, and End is the end of new messages.
	From, Until, End time.Duration
	// Longest is the time after which Run gives up, because the service may never recover.
	Longest time.Duration
	Seed    uint64
}

// Policy is a policy for the messages, and the function that is told the result of each call.
type Policy struct {
	backoff.Policy
	Observe func(Call)
}

// Call is a call of the service.
type Call struct {
	At     time.Time
	Failed bool
	// Failures counts the failures before this call, and First is the time of the first.
	Failures int
	First    time.Time
}

// Second is one second of a simulation.
type Second struct {
	Calls, Failed int
	// Waiting is the number of messages that wait at the end.
	Waiting int
	// Delay is the mean of the delays that were given to messages which failed once, in seconds; 0
	// if there were none.
	Delay float64
}

// waiting is a message that is not handled yet.
type waiting struct {
	failures int
	first    time.Time
	last     time.Duration
}

// Run returns the seconds of a simulation, until no message is left or Longest has passed.
func Run(c Config, p Policy) []Second {
	var (
		random  = rand.New(rand.NewPCG(c.Seed, 1))
		start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		due     = map[int64][]waiting{} // by tick
		left    = 0
		seconds []Second
		second  Second
		given   time.Duration
		once    int
	)
	for tick := int64(0); ; tick++ {
		passed := time.Duration(tick) * Tick
		now := start.Add(passed)
		calls := due[tick]
		delete(due, tick)
		left -= len(calls)
		if passed < c.End {
			for range c.Rate / int(time.Second/Tick) {
				calls = append(calls, waiting{})
			}
		}
		random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		taken := c.taken(passed, len(calls))
		for i, m := range calls {
			fails := i >= taken || random.Float64() < c.Noise
			call := Call{At: now, Failed: fails, Failures: m.failures, First: m.first}
			if second.Calls++; call.Failed {
				second.Failed++
				if m.failures++; m.failures == 1 {
					m.first = now
				}
				delay, _ := p.Delay(backoff.Failure{
					Count: m.failures, First: m.first, Now: now, Last: m.last,
				})
				if m.last = delay; m.failures == 1 {
					given, once = given+delay, once+1
				}
				at := tick + max(1, int64((delay+Tick-1)/Tick))
				due[at] = append(due[at], m)
				left++
			}
			if p.Observe != nil {
				p.Observe(call)
			}
		}
		if (tick+1)%int64(time.Second/Tick) != 0 {
			continue
		}
		if second.Waiting = left; once > 0 {
			second.Delay = given.Seconds() / float64(once)
		}
		seconds = append(seconds, second)
		if second, given, once = (Second{}), 0, 0; left == 0 && passed >= c.End || passed >= c.Longest {
			return seconds
		}
	}
}

// taken returns how many of the calls of a tick succeed.
func (c Config) taken(passed time.Duration, calls int) int {
	capacity := c.Capacity
	if passed >= c.From && passed < c.Until {
		capacity = c.Low
	}
	work := capacity * Tick.Seconds()
	if float64(calls) <= work {
		return calls
	}
	return max(0, int((work-float64(calls)*c.Refusal)/(1-c.Refusal)))
}
