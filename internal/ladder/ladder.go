// Package ladder divides a delay into waits on the wait steps of a plan. It is pure: no clock, no
// broker, no plan.
package ladder

import (
	"slices"
	"time"
)

const (
	// MaxRounds is how often a message may wait on one step in place of the next longer one.
	// Each round costs a publish, a delivery and an ack.
	MaxRounds = 10
	// MostRounds is the most rounds of a delay, beside the rounds on the longest step for a delay
	// that is longer than all steps. Three on one step and ten on another are the worst case.
	MostRounds = 13
	// shortestRound is the shortest step for more than one round. Faster rounds are a load.
	shortestRound = time.Second
	// least is the lateness that is always allowed.
	least = time.Second
)

// Allowed returns how late a message may be that asks for a delay: a quarter of the delay or a
// second, whichever is more.
func Allowed(asked time.Duration) time.Duration { return max(least, asked/4) }

// Next returns the step on which a message waits next. rest is the part of the delay that is left,
// asked the whole delay. steps are ascending, each once; without steps Next returns 0. A step that
// is shorter than rest is followed by another round.
func Next(steps []time.Duration, rest, asked time.Duration) time.Duration {
	if len(steps) == 0 {
		return 0
	}
	if longest := steps[len(steps)-1]; rest > longest {
		return longest
	}
	first, _ := divide(steps, rest, Allowed(max(asked, rest)))
	return first
}

// Total returns how long all rounds of a delay take together. It is at least the delay.
func Total(steps []time.Duration, asked time.Duration) time.Duration {
	if len(steps) == 0 {
		return asked
	}
	rest := max(asked, 0)
	var rounds time.Duration
	if longest := steps[len(steps)-1]; rest > longest {
		rounds = (rest - 1).Truncate(longest)
	}
	_, last := divide(steps, rest-rounds, Allowed(rest))
	return rounds + last
}

// divide returns the first round of a rest that is not longer than the longest step, and the sum
// of all its rounds.
func divide(steps []time.Duration, rest, late time.Duration) (first, total time.Duration) {
	at, _ := slices.BinarySearch(steps, rest)
	longer := steps[at]
	if at == 0 || longer-rest <= late {
		return longer, longer
	}
	shorter := steps[at-1]
	if shorter < shortestRound || rest > MaxRounds*shorter {
		return longer, longer
	}
	if _, last := divide(steps, rest-shorter, late); shorter+last < longer {
		return shorter, shorter + last
	}
	return longer, longer
}

// Gap is a range of delays that come later than Allowed: delays above From and below To wait on
// the step Wait.
type Gap struct{ From, To, Wait time.Duration }

// Gaps returns the ranges between two steps that are too far apart: more than 12.5 times. Delays
// below the first step that is long enough for rounds are no gap, but wait for that step.
func Gaps(steps []time.Duration) []Gap {
	var gaps []Gap
	for i := 1; i < len(steps); i++ {
		if steps[i-1] < shortestRound {
			continue
		}
		from, wait := MaxRounds*steps[i-1], steps[i]
		if to := min(wait-least, wait*4/5); to > from { // wait is Allowed from there on
			gaps = append(gaps, Gap{from, to, wait})
		}
	}
	return gaps
}
