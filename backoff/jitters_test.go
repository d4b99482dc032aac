package backoff_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func full(p backoff.Policy, waitSteps ...int) backoff.FullJitter {
	return backoff.FullJitter{Policy: p, WaitSteps: append(waitSteps, 0)[0]}
}

func equalJitter(p backoff.Policy, waitSteps ...int) backoff.EqualJitter {
	return backoff.EqualJitter(full(p, waitSteps...))
}

func boundedJitter(p backoff.Policy, extra float64, waitSteps ...int) backoff.BoundedJitter {
	return backoff.BoundedJitter{Policy: p, Extra: extra, WaitSteps: full(p, waitSteps...).WaitSteps}
}

func decorrelated(
	initial, longest time.Duration, retries int, waitSteps ...int,
) backoff.DecorrelatedJitter {
	return backoff.DecorrelatedJitter{
		Initial: initial, Max: longest, Retries: retries, WaitSteps: full(nil, waitSteps...).WaitSteps,
	}
}

// requireUnderSteps asserts that a drawn delay has a wait step to be rounded up to.
func requireUnderSteps(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	wait, retry := p.Delay(f)
	if waitSteps, known := backoff.Delays(p); known && retry {
		require.NotEmpty(t, waitSteps)
		require.LessOrEqual(t, wait, waitSteps[len(waitSteps)-1])
	}
}

// Ten thousand draws each: within their bounds, as likely in one tenth of them as
// in another, and on the wait steps listed before, each with its share.
func TestJitterDistribution(t *testing.T) {
	t.Parallel()
	const draws = 10_000
	ten := constantly(10*s, 1)
	seeded := func(i int) backoff.Policy {
		return backoff.FullJitter{Policy: ten, Seed: uint64(i) + 1}
	}
	same := func(p backoff.Policy) func(int) backoff.Policy {
		return func(int) backoff.Policy { return p }
	}
	for name, test := range map[string]struct {
		policy    func(draw int) backoff.Policy
		failure   backoff.Failure
		low, high time.Duration
		steps     string // equally likely
	}{
		"full":        {same(full(ten)), ofCount(1), 0, 10 * s, "2.5s 5s 7.5s 10s"},
		"full, seeds": {seeded, ofCount(1), 0, 10 * s, "2.5s 5s 7.5s 10s"},
		"full on ten steps": {
			same(full(ten, 10)), ofCount(1), 0, 10 * s, "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s",
		},
		"equal": {same(equalJitter(ten, 2)), ofCount(1), 5 * s, 10 * s, "7.5s 10s"},
		"bounded": {
			same(boundedJitter(ten, 0.2)), ofCount(1), 10 * s, 12 * s, "10.5s 11s 11.5s 12s",
		},
		"decorrelated, first": {same(decorrelated(2*s, 0, 1, 2)), ofCount(1), 2 * s, 6 * s, "4s 6s"},
		"decorrelated, after 4s": {
			same(decorrelated(2*s, 10*s, 0, 2)),
			backoff.Failure{Count: 9, Last: 4 * s},
			2 * s, 10 * s, "4s 6s 8s 10s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waitSteps := durations(t, test.steps)
			requireDelays(t, test.policy(0), test.steps)

			var tenths [10]int
			onStep := make([]int, len(waitSteps))
			var sum time.Duration
			for i := range draws {
				wait, retry := test.policy(i).Delay(test.failure)
				require.True(t, retry)
				require.Greater(t, wait, test.low)
				require.LessOrEqual(t, wait, test.high)
				require.Zero(t, wait%ms)
				sum += wait
				tenths[(wait-test.low-1)*10/(test.high-test.low)]++
				at, _ := slices.BinarySearch(waitSteps, wait)
				onStep[at]++
			}
			t.Logf("mean %v, by tenths of %v to %v: %v, by steps %v: %v",
				sum/draws, test.low, test.high, tenths, waitSteps, onStep)
			for i, n := range tenths {
				assert.InDelta(t, draws/10, n, draws/40, "tenth %d", i+1)
			}
			for i, n := range onStep {
				assert.InDelta(t, draws/len(onStep), n, draws/40, "step %v", waitSteps[i])
			}
			mean, spread := (test.low+test.high).Seconds()/2, (test.high - test.low).Seconds()
			assert.InDelta(t, mean, (sum / draws).Seconds(), spread/50)
			requireDelays(t, test.policy(0), test.steps)
		})
	}
}

// The same Seed draws the same delays, in every process: these.
func TestJitterGoldenSeries(t *testing.T) {
	t.Parallel()
	four := exponential(s, 2, 0, 4)
	grows := backoff.DecorrelatedJitter{Initial: s, Max: 20 * s, Retries: 4, Seed: 7}
	for _, test := range []expected{
		{"full", backoff.FullJitter{Policy: four, Seed: 7}, "618ms 1.253s 3.213s 6.087s"},
		{"full, another seed", backoff.FullJitter{Policy: four, Seed: 8}, "272ms 1.623s 2.36s 2.061s"},
		{"equal", backoff.EqualJitter{Policy: four, Seed: 7}, "809ms 1.627s 3.607s 7.044s"},
		{"bounded", backoff.BoundedJitter{four, 0.2, 0, 7}, "1.124s 2.251s 4.643s 9.218s"},
		{"decorrelated", grows, "2.236s 4.574s 11.218s 15.457s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, backoff.Validate(test.policy))
			require.NoError(t, backoff.CheckEnd(test.policy))
			for range 2 {
				var got []time.Duration
				var last time.Duration
				for count := 1; ; count++ {
					failure := backoff.Failure{Count: count, Last: last}
					wait, retry := backoff.Next(test.policy, failure)
					if !retry {
						break
					}
					requireUnderSteps(t, test.policy, failure)
					got, last = append(got, wait), wait
				}
				assert.Equal(t, durations(t, test.want), got)
			}
		})
	}
}

func TestJitterDelays(t *testing.T) {
	t.Parallel()
	testDelays(t, requireUnderSteps, []expected{
		{"full", full(backoff.List{s, 2 * s}), "250ms 500ms 750ms 1s 1.5s 2s"},
		{"full, no whole milliseconds", full(backoff.List{s}, 3), "334ms 667ms 1s"},
		{"full, few milliseconds", full(backoff.List{2 * ms}), "1ms 2ms"},
		{"full, invalid steps", full(backoff.List{s}, -7), "250ms 500ms 750ms 1s"},
		{"equal", equalJitter(backoff.List{s, 2 * s}), "625ms 750ms 875ms 1s 1.25s 1.5s 1.75s 2s"},
		{"bounded", boundedJitter(backoff.List{s, 2 * s}, 0.2, 2), "1.1s 1.2s 2.2s 2.4s"},
		{"decorrelated", decorrelated(s, 0, 2), "1.5s 2s 2.5s 3s 4.5s 6s 7.5s 9s"},
		{"decorrelated, capped", decorrelated(s, 5*s, 0, 2), "2s 3s 4s 5s"},
		{"decorrelated, capped at once", decorrelated(s, s, 0), "1s"},
		{"decorrelated without bounds", decorrelated(s, 0, 0), "?"},
		{"of a series without bounds", full(doubling), "?"},
		{"of a policy that cannot list", equalJitter(foreign{retry: true}), "?"},
		{"of nil", boundedJitter(nil, 1), "?"},
		{"of a policy that never retries", full(backoff.None{}), ""},
		{"too many", full(linear(s, s, 0, 300), 100), "?"},
		{"of a jitter", full(boundedJitter(backoff.List{s}, 1, 2), 2), "750ms 1s 1.5s 2s"},
		{"in a limit", limit(full(doubling, 2), 3), "500ms 1s 2s 4s"},
		{"in a limit of none", limit(full(doubling), 0), ""},
		{"in a long limit", limit(full(capped(doubling, s), 2), math.MaxInt), "500ms 1s"},
		{"decorrelated in a limit", limit(decorrelated(s, 0, 0, 2), 1), "2s 3s"},
		{"decorrelated in a longer limit", limit(decorrelated(s, 0, 1, 2), 9), "2s 3s"},
		{"decorrelated in a limit of none", limit(decorrelated(s, 0, 0), 0), ""},
		{"in a cap", capped(full(doubling, 2), 3*s), "500ms 1s 1.5s 2s 3s"},
		{"extended in a cap", capped(boundedJitter(backoff.List{s, 2 * s}, 1, 2), 3*s), "1.5s 2s 3s"},
		{"decorrelated in a cap", capped(decorrelated(s, 0, 0, 2), 5*s), "2s 3s 4s 5s"},
		{"a cap and a limit", limit(capped(full(doubling, 2), 2*s), 9), "500ms 1s 2s"},
		{"in unbounded", unbounded(full(constantly(s, 0), 2)), "500ms 1s"},
		{"in a max age", aged(full(backoff.List{s, 4 * s}, 2), 3*s), "500ms 1s 2s 3s"},
		{
			"in a max age, of longer ones only",
			aged(capped(full(backoff.List{time.Hour}), time.Minute), s), "1s",
		},
		{"in a max age, not drawn", aged(limit(unbounded(backoff.List{s, 4 * s}), 2), 3*s), "1s"},
		{
			"in a choice", aged(aged(choice(backoff.List{s}, full(backoff.List{4 * s}, 2)), 3*s), time.Hour),
			"1s 2s 3s",
		},
	}...)
}

func TestJitterValidate(t *testing.T) {
	t.Parallel()
	const (
		positive = " is not positive: a delay is at least 1ms"
		finite   = " is not positive and finite: use 0.2 for up to a fifth more, " +
			"Policy without backoff.BoundedJitter for no jitter"
		nothing = "WaitSteps 1 spreads nothing: use at least 2, or 0 for 4"
	)
	none := backoff.None{}
	bounded := func(extra float64) backoff.BoundedJitter {
		return boundedJitter(none, extra)
	}
	testValidate(t, []expected{
		{"full", full(backoff.List{s}), ""},
		{"equal", equalJitter(none, 2), ""},
		{"bounded", boundedJitter(none, 1e-9, 100), ""},
		{"decorrelated", decorrelated(s, 0, 0), ""},
		{"decorrelated, all fields", backoff.DecorrelatedJitter{s, s, 3, 2, 1}, ""},
		{"full, everything", full(nil, -1), lines("backoff.FullJitter",
			"WaitSteps -1 is negative: use 0 for 4", "Policy is nil: give it the policy to wrap")},
		{
			"equal, everything", equalJitter(backoff.List{-s}, 1),
			lines("backoff.EqualJitter", nothing) + "\nbackoff.List: entry [0] -1s" + positive,
		},
		{
			"bounded, everything",
			boundedJitter(none, 0, 101),
			lines("backoff.BoundedJitter", "Extra 0"+finite, "WaitSteps 101 would be as many queues "+
				"for each delay: use at most 100, or 0 for 4"),
		},
		{"bounded, negative", bounded(-1), "backoff.BoundedJitter: Extra -1" + finite},
		{"bounded, nan", bounded(math.NaN()), "backoff.BoundedJitter: Extra NaN" + finite},
		{"bounded, infinite", bounded(math.Inf(1)), "backoff.BoundedJitter: Extra +Inf" + finite},
		{"bounded, -infinite", bounded(math.Inf(-1)), "backoff.BoundedJitter: Extra -Inf" + finite},
		{
			"decorrelated, everything",
			decorrelated(0, -1, -1, 1),
			lines("backoff.DecorrelatedJitter", "Initial 0s"+positive,
				"Max -1ns is negative: use 0 for no cap",
				"Retries -1 is negative: use backoff.None to never retry, 0 for no end", nothing),
		},
	}...)
}

func TestJitterRemarks(t *testing.T) {
	t.Parallel()
	queues := func(name string, counts string) string {
		return name + ": topology.PerQueue and topology.Shared need up to " + counts +
			"; WaitSteps sets the number for each delay"
	}
	const (
		years = ": with Retries 30 its delay grows to ten years (backoff.MaxDelay); set Max to cap it"
		seed  = ": Seed 7 draws the same delays for every message; use 0 outside of tests"

		fullJitter, equal, bounded = "backoff.FullJitter", "backoff.EqualJitter", "backoff.BoundedJitter"
		drawn                      = "backoff.DecorrelatedJitter"
	)
	four, tenYears := exponential(s, 2, 0, 4), exponential(s, 2, 0, 30)
	fiveFor4, ten, sixteen := "5 wait queues instead of 4", "10 wait queues instead of 4",
		"16 wait queues instead of 4"
	grows := decorrelated(s, 20*s, 0)
	twelve := queues(drawn, "12 wait queues instead of 3")
	testRemarks(t, []remarked{
		{"full", full(four), []string{queues(fullJitter, ten)}},
		{"full, fewer", full(four, 2), []string{queues(fullJitter, fiveFor4)}},
		{"equal", equalJitter(four), []string{queues(equal, sixteen)}},
		{"bounded", backoff.BoundedJitter{four, 0.2, 0, 0}, []string{queues(bounded, sixteen)}},
		{"decorrelated", grows, []string{twelve}},
		{"in a limit", limit(full(doubling), 4), []string{queues(fullJitter, ten)}},
		{"in a limit of none", limit(grows, 0), []string{twelve}},
		{"with a seed", backoff.FullJitter{backoff.List{ms}, 0, 7}, []string{fullJitter + seed}},
		{"of policy", full(tenYears), []string{
			queues(fullJitter, "64 wait queues instead of 30"), "backoff.Exponential" + years,
		}},
		{"of policy, capped", capped(equalJitter(tenYears), time.Hour), []string{
			queues(equal, "52 wait queues instead of 13"),
		}},
		{"decorrelated to ten years", decorrelated(s, 0, 30), []string{
			queues(drawn, "72 wait queues instead of 18"), drawn + years,
		}},
		{"some delays are short enough", aged(full(backoff.List{time.Hour}), s), []string{
			queues(fullJitter, "4 wait queues instead of 1"),
		}},
		{"without bounds", full(doubling), nil},
		{"never retries", full(backoff.None{}), nil},
		{"nil", full(nil), nil},
	}...)
}

// FuzzPolicies draws from the jitters around others.
func FuzzDecorrelatedJitter(f *testing.F) {
	f.Add(int64(1e9), int64(5e9), int64(0), 0, 3, 3, uint64(0))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), 100, math.MaxInt, 0,
		uint64(7))
	f.Add(int64(0), int64(-1), int64(-1), -1, math.MinInt, -1, uint64(math.MaxUint64))
	f.Add(int64(2e6), int64(0), int64(1)<<62, 0, 5, 0, uint64(0)) // three times the last overflows
	f.Fuzz(func(t *testing.T, a, b, last int64, waitSteps, count, retries int, seed uint64) {
		failure := backoff.Failure{Count: count, Last: time.Duration(last)}
		p := backoff.DecorrelatedJitter{
			time.Duration(a), time.Duration(b), retries, waitSteps, seed,
		}
		requireBounds(t, p, failure)
		requireUnderSteps(t, p, failure)
		wait, retry := p.Delay(failure)
		require.Equal(t, retries == 0 || max(count, 1) <= retries, retry)
		if retry && backoff.Validate(p) == nil {
			require.GreaterOrEqual(t, wait, min(p.Initial, wait+ms))
			tripled := 3 * min(max(failure.Last, p.Initial), backoff.MaxDelay)
			require.LessOrEqual(t, wait, max(tripled, ms))
		}
	})
}
