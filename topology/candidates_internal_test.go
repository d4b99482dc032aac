package topology

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/ladder"
)

// candidate is a way to wait for any delay: how often the message is published, through how many
// wait queues it passes, and how long it waits.
type candidate struct {
	name   string
	queues int // for each queue; Levels has them once for all
	wait   func(asked time.Duration) (writes, hops int, waits time.Duration)
}

// nextLonger waits on the next longer step, and in rounds beyond the longest.
func nextLonger(steps []time.Duration) func(time.Duration) (int, int, time.Duration) {
	return func(asked time.Duration) (writes, _ int, waits time.Duration) {
		for writes == 0 || waits < asked {
			at, _ := slices.BinarySearch(steps, asked-waits)
			waits += steps[min(at, len(steps)-1)]
			writes++
		}
		return writes, writes, waits
	}
}

// inRounds waits as package ladder says. ofRest judges each round by the rest alone.
func inRounds(steps []time.Duration, ofRest bool) func(time.Duration) (int, int, time.Duration) {
	return func(asked time.Duration) (writes, _ int, waits time.Duration) {
		for writes == 0 || waits < asked {
			whole := asked
			if ofRest {
				whole = asked - waits
			}
			waits += ladder.Next(steps, asked-waits, whole)
			writes++
		}
		return writes, writes, waits
	}
}

func stepsBy(ratio float64, first, last time.Duration) (steps []time.Duration) {
	for d := first; ; d = max(d+time.Second, time.Duration(float64(d)*ratio)).Truncate(time.Second) {
		if steps = append(steps, min(d, last)); d >= last {
			return steps
		}
	}
}

// The figures of the decision page about delays between two wait steps.
func TestCandidatesForDelaysBetweenSteps(t *testing.T) {
	t.Parallel()
	plan, err := Levels{}.Plan("orders", nil)
	require.NoError(t, err)
	levels := func(asked time.Duration) (writes, hops int, waits time.Duration) {
		route, err := plan.Route(Retry{Delay: asked})
		require.NoError(t, err)
		return 1, route.Hops, route.Delay
	}
	today := defaultWaitSteps()
	finer, longer := stepsBy(1.25, time.Second, time.Hour), stepsBy(1.25, time.Second, 24*time.Hour)
	twice, thrice := stepsBy(2, time.Second, time.Hour), stepsBy(3, time.Second, time.Hour)
	var got []string
	for _, c := range []candidate{
		{"next longer, default steps", len(today), nextLonger(today)},
		{"next longer, a step every quarter to 1h", len(finer), nextLonger(finer)},
		{"next longer, a step every quarter to 24h", len(longer), nextLonger(longer)},
		{"rounds, default steps", len(today), inRounds(today, false)},
		{"rounds, default steps, each by its rest", len(today), inRounds(today, true)},
		{"rounds, steps that treble", len(thrice), inRounds(thrice, false)},
		{"rounds, steps that double", len(twice), inRounds(twice, false)},
		{"levels", 32, levels},
	} {
		got = append(got, c.figures(time.Hour), c.figures(24*time.Hour))
	}
	require.Equal(t, strings.TrimSpace(candidateFigures), strings.Join(got, "\n"))
}

// figures are queues, longest delay, writes, hops and lateness: the means and the worst of delays
// from a second to longest. Each part between two powers has as many of them.
func (c candidate) figures(longest time.Duration) string {
	const n = 50_000
	var sumWrites, sumHops, mostWrites, mostHops int
	var late, worst float64
	for i := range n {
		factor := math.Pow(longest.Seconds(), float64(i)/(n-1))
		asked := time.Duration(factor * float64(time.Second)).Round(time.Millisecond)
		writes, hops, waits := c.wait(asked)
		sumWrites, mostWrites = sumWrites+writes, max(mostWrites, writes)
		sumHops, mostHops = sumHops+hops, max(mostHops, hops)
		late += float64(waits-asked) / float64(asked) / n
		worst = max(worst, float64(waits-asked)/float64(ladder.Allowed(asked)))
	}
	return fmt.Sprintf("%s | %d | %s | %.2f %d | %.2f %d | %.0f %% %.2f",
		c.name, c.queues, delayName(longest), float64(sumWrites)/n, mostWrites,
		float64(sumHops)/n, mostHops, 100*late, worst)
}

const candidateFigures = `
next longer, default steps | 6 | 1h | 1.00 1 | 1.00 1 | 156 % 20.00
next longer, default steps | 6 | 24h | 2.89 24 | 2.89 24 | 116 % 20.00
next longer, a step every quarter to 1h | 37 | 1h | 1.00 1 | 1.00 1 | 15 % 1.00
next longer, a step every quarter to 1h | 37 | 24h | 2.89 24 | 2.89 24 | 11 % 1.00
next longer, a step every quarter to 24h | 51 | 1h | 1.00 1 | 1.00 1 | 15 % 1.00
next longer, a step every quarter to 24h | 51 | 24h | 1.00 1 | 1.00 1 | 14 % 1.00
rounds, default steps | 6 | 1h | 2.80 5 | 2.80 5 | 13 % 1.00
rounds, default steps | 6 | 24h | 4.25 24 | 4.25 24 | 11 % 1.00
rounds, default steps, each by its rest | 6 | 1h | 4.30 17 | 4.30 17 | 9 % 1.00
rounds, default steps, each by its rest | 6 | 24h | 6.51 38 | 6.51 38 | 6 % 1.00
rounds, steps that treble | 9 | 1h | 2.05 4 | 2.05 4 | 13 % 1.00
rounds, steps that treble | 9 | 24h | 3.65 24 | 3.65 24 | 11 % 1.00
rounds, steps that double | 13 | 1h | 1.68 3 | 1.68 3 | 12 % 1.00
rounds, steps that double | 13 | 24h | 3.38 24 | 3.38 24 | 10 % 1.00
levels | 32 | 1h | 1.00 1 | 3.71 7 | 1 % 0.10
levels | 32 | 24h | 1.00 1 | 3.77 7 | 1 % 0.10
`

// The delays of RetryAfter in typical policies, before and now.
func TestCandidatesWithTypicalPolicies(t *testing.T) {
	t.Parallel()
	const s, m, h = time.Second, time.Minute, time.Hour
	var got []string
	for _, policy := range []backoff.List{
		{s, 5 * s, 30 * s},
		{2 * s, 5 * s, 15 * s},
		{5 * s, 30 * s, 2 * m, 10 * m, h},
		{m},
		{s, h},
	} {
		plan, err := PlanFor(PerQueue{}, "orders", policy)
		require.NoError(t, err)
		for _, asked := range []time.Duration{7 * s, 45 * s, 20 * m, 30 * m} {
			writes, _, waits := nextLonger(plan.steps())(asked)
			writesNow, _, waitsNow := inRounds(plan.steps(), false)(asked)
			got = append(got, fmt.Sprintf("%v | %s | %s by %d | %s by %d", policy, delayName(asked),
				delayName(waits), writes, delayName(waitsNow), writesNow))
		}
	}
	require.Equal(t, strings.TrimSpace(policyFigures), strings.Join(got, "\n"))
}

const policyFigures = `
[1s 5s 30s] | 7s | 30s by 1 | 7s by 3
[1s 5s 30s] | 45s | 1m by 2 | 45s by 4
[1s 5s 30s] | 20m | 20m by 40 | 20m by 40
[1s 5s 30s] | 30m | 30m by 60 | 30m by 60
[2s 5s 15s] | 7s | 15s by 1 | 7s by 2
[2s 5s 15s] | 45s | 45s by 3 | 45s by 3
[2s 5s 15s] | 20m | 20m by 80 | 20m by 80
[2s 5s 15s] | 30m | 30m by 120 | 30m by 120
[5s 30s 2m0s 10m0s 1h0m0s] | 7s | 30s by 1 | 10s by 2
[5s 30s 2m0s 10m0s 1h0m0s] | 45s | 2m by 1 | 45s by 4
[5s 30s 2m0s 10m0s 1h0m0s] | 20m | 1h by 1 | 20m by 2
[5s 30s 2m0s 10m0s 1h0m0s] | 30m | 1h by 1 | 30m by 3
[1m0s] | 7s | 1m by 1 | 7s by 7
[1m0s] | 45s | 1m by 1 | 1m by 1
[1m0s] | 20m | 20m by 20 | 20m by 20
[1m0s] | 30m | 30m by 30 | 30m by 30
[1s 1h0m0s] | 7s | 1h by 1 | 7s by 7
[1s 1h0m0s] | 45s | 1h by 1 | 1h by 1
[1s 1h0m0s] | 20m | 1h by 1 | 1h by 1
[1s 1h0m0s] | 30m | 1h by 1 | 1h by 1
`
