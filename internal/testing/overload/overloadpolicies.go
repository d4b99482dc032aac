package overload

import (
	"context"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/header"
)

// Standard is the simulation of docs/performance.md: a service of twice the capacity that is needed
// takes nothing for five minutes. One of a hundred calls fails at any time.
var Standard = Config{
	Rate: 50, Capacity: 100, Refusal: 0.05, Noise: 0.01,
	From: time.Minute, Until: 6 * time.Minute, End: 20 * time.Minute, Longest: 30 * time.Minute,
	Seed: 1,
}

// series is the policy that the contenders have in common, without an end: no message is given up.
var series = backoff.Exponential{Initial: time.Second, Factor: 2, Max: 32 * time.Second}

// The names of the contenders.
const (
	Plain    = "the policy alone"
	Adapts   = "Adaptive around it"
	EightAll = "always eight times as long"
)

// Contender returns a policy by its name.
func Contender(name string) (Policy, error) {
	switch name {
	case EightAll:
		longer := series
		longer.Initial, longer.Max = 8*series.Initial, 8*series.Max
		return Policy{Policy: longer}, nil
	case Adapts:
		health, err := adaptive.New(time.Minute)
		if err != nil {
			return Policy{}, err
		}
		return Policy{backoff.Adaptive{Policy: series, Health: health.Recent}, func(c Call) {
			health.Observe(context.Background(), c.event())
		}}, nil
	}
	return Policy{Policy: series}, nil
}

// event is the event of DelayedRetry after the call.
func (c Call) event() middleware.Event {
	e := middleware.Event{
		Kind: middleware.EventHandled, At: c.At, Called: true, Failures: c.Failures,
	}
	if c.Failures > 0 {
		e.Age = c.At.Sub(c.First)
	}
	if c.Failed {
		e.Kind, e.Class, e.Failures = middleware.EventRetried, header.ClassRetryable, c.Failures+1
	}
	return e
}

// Figures sum a simulation up.
type Figures struct {
	// Down counts the calls during the overload, and All counts all calls.
	Down, All int
	// Peak is the most calls in a second after the overload.
	Peak int
	// Drained is the time from the end of the overload until no more messages wait than arrive in a
	// second; 0 if that was never so.
	Drained time.Duration
	// Before, During and After are delays after a first failure, in seconds: the mean in the minute
	// before the overload, the longest during it, and the mean in the last minute.
	Before, During, After float64
}

// FiguresOf sums up the seconds of a simulation.
func FiguresOf(c Config, seconds []Second) Figures {
	var f Figures
	from, until := int(c.From.Seconds()), int(c.Until.Seconds())
	waited := until
	for i, s := range seconds {
		f.All += s.Calls
		if i >= from && i < until {
			f.Down += s.Calls
			f.During = max(f.During, s.Delay)
		}
		if i < until {
			continue
		}
		f.Peak = max(f.Peak, s.Calls)
		if s.Waiting > c.Rate {
			waited = i + 1
		}
	}
	f.Before = delayIn(seconds[:from])
	end := int(c.End.Seconds())
	f.After = delayIn(seconds[end-60 : end])
	if waited < len(seconds) {
		f.Drained = time.Duration(waited-until) * time.Second
	}
	return f
}

// delayIn is the mean of the delays after a first failure.
func delayIn(seconds []Second) float64 {
	sum, n := 0.0, 0.0
	for _, s := range seconds {
		if s.Delay > 0 {
			sum, n = sum+s.Delay, n+1
		}
	}
	return sum / max(n, 1)
}
