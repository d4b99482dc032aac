package backoff_test

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// requireUnderRungs asserts that a wait has a wait step to be rounded up to.
func requireUnderRungs(t *testing.T, p backoff.Policy, wait time.Duration) {
	t.Helper()
	if rungs, known := backoff.Delays(p); known {
		require.NotEmpty(t, rungs)
		require.LessOrEqual(t, wait, rungs[len(rungs)-1])
	}
}

// Ten thousand draws each: within their bounds, as likely in one tenth of them as
// in another, and on the wait steps listed before, each with its share.
func TestJitterDistribution(t *testing.T) {
	t.Parallel()
	const draws, s = 10_000, time.Second
	ten := backoff.Constant{Interval: 10 * s, Retries: 1}
	for name, test := range map[string]struct {
		policy    backoff.Policy
		failure   backoff.Failure
		low, high time.Duration
		rungs     []time.Duration
		shares    []float64 // of the wait steps
	}{
		"full": {
			backoff.Seeded(backoff.FullJitter{Policy: ten}, 1), ofCount(1), 0, 10 * s,
			[]time.Duration{2500 * time.Millisecond, 5 * s, 7500 * time.Millisecond, 10 * s},
			[]float64{0.25, 0.25, 0.25, 0.25},
		},
		"full on ten rungs": {
			backoff.Seeded(backoff.FullJitter{Policy: ten, WaitSteps: 10}, 2), ofCount(1), 0, 10 * s,
			[]time.Duration{s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s, 8 * s, 9 * s, 10 * s},
			[]float64{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1},
		},
		"equal": {
			backoff.Seeded(backoff.EqualJitter{Policy: ten, WaitSteps: 2}, 3), ofCount(1), 5 * s, 10 * s,
			[]time.Duration{7500 * time.Millisecond, 10 * s},
			[]float64{0.5, 0.5},
		},
		"bounded": {
			backoff.Seeded(backoff.BoundedJitter{Policy: ten, Extra: 0.2}, 4), ofCount(1), 10 * s, 12 * s,
			[]time.Duration{10_500 * time.Millisecond, 11 * s, 11_500 * time.Millisecond, 12 * s},
			[]float64{0.25, 0.25, 0.25, 0.25},
		},
		"decorrelated, first": {
			backoff.Seeded(backoff.DecorrelatedJitter{Initial: 2 * s, Retries: 1, WaitSteps: 2}, 5), ofCount(1), 2 * s, 6 * s,
			[]time.Duration{4 * s, 6 * s},
			[]float64{0.5, 0.5},
		},
		"decorrelated, after 4s": {
			backoff.Seeded(backoff.DecorrelatedJitter{Initial: 2 * s, Max: 10 * s, WaitSteps: 2}, 6),
			backoff.Failure{Count: 9, Last: 4 * s}, 2 * s, 10 * s,
			[]time.Duration{4 * s, 6 * s, 8 * s, 10 * s},
			[]float64{0.25, 0.25, 0.25, 0.25},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rungs, known := backoff.Delays(test.policy)
			require.True(t, known)
			require.Equal(t, test.rungs, rungs)

			var tenths [10]int
			onRung := make([]int, len(rungs))
			var sum time.Duration
			for range draws {
				wait, retry := test.policy.Delay(test.failure)
				require.True(t, retry)
				require.Greater(t, wait, test.low)
				require.LessOrEqual(t, wait, test.high)
				require.Zero(t, wait%time.Millisecond)
				sum += wait
				tenths[(wait-test.low-1)*10/(test.high-test.low)]++
				rung, _ := slices.BinarySearch(rungs, wait)
				onRung[rung]++
			}
			t.Logf("mean %v, by tenths of %v to %v: %v, by rungs %v: %v", sum/draws, test.low, test.high, tenths, rungs, onRung)
			for i, n := range tenths {
				assert.InDelta(t, draws/10, n, draws/40, "tenth %d", i+1)
			}
			for i, n := range onRung {
				assert.InDelta(t, test.shares[i]*draws, n, draws/40, "rung %v", rungs[i])
			}
			assert.InDelta(t, (test.low+test.high).Seconds()/2, (sum / draws).Seconds(), (test.high-test.low).Seconds()/50)
			again, _ := backoff.Delays(test.policy)
			assert.Equal(t, rungs, again, "the rungs are the same after all draws")
		})
	}
}

// The same seed draws the same delays: the series as it was when it was written.
func TestJitterGoldenSeries(t *testing.T) {
	t.Parallel()
	doubling := backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4}
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   []time.Duration
	}{
		"full":         {backoff.Seeded(backoff.FullJitter{Policy: doubling}, 7), ms(270, 600, 463, 1341)},
		"equal":        {backoff.Seeded(backoff.EqualJitter{Policy: doubling}, 7), ms(635, 1300, 2232, 4671)},
		"bounded":      {backoff.Seeded(backoff.BoundedJitter{Policy: doubling, Extra: 0.2}, 7), ms(1054, 2120, 4093, 8269)},
		"decorrelated": {backoff.Seeded(backoff.DecorrelatedJitter{Initial: time.Second, Max: 20 * time.Second, Retries: 4}, 7), ms(1540, 2085, 1609, 1642)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, backoff.Validate(test.policy))
			require.NoError(t, backoff.CheckEnd(test.policy))
			assert.Empty(t, backoff.Remarks(test.policy))
			var got []time.Duration
			var last time.Duration
			for count := 1; ; count++ {
				wait, retry := backoff.Next(test.policy, backoff.Failure{Count: count, Last: last})
				if !retry {
					break
				}
				requireUnderRungs(t, test.policy, wait)
				got, last = append(got, wait), wait
			}
			assert.Equal(t, test.want, got)
		})
	}
}

func TestJitterAtTheEdges(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		policy    backoff.Policy
		failure   backoff.Failure
		low, high time.Duration
	}{
		"full of a millisecond":           {backoff.FullJitter{Policy: backoff.Constant{Interval: ms}}, ofCount(1), ms, ms},
		"full of less":                    {backoff.FullJitter{Policy: backoff.Constant{Interval: 1}}, ofCount(1), ms, ms},
		"full of two":                     {backoff.FullJitter{Policy: backoff.Constant{Interval: 2 * ms}}, ofCount(1), ms, 2 * ms},
		"full of no whole milliseconds":   {backoff.FullJitter{Policy: backoff.Constant{Interval: 5 * ms / 2}}, ofCount(1), ms, 5 * ms / 2},
		"full of ten years":               {backoff.FullJitter{Policy: foreign{wait: math.MaxInt64, retry: true}}, ofCount(1), ms, backoff.MaxDelay},
		"full of a negative":              {backoff.FullJitter{Policy: foreign{wait: math.MinInt64, retry: true}}, ofCount(1), ms, ms},
		"full, attempt 0":                 {backoff.FullJitter{Policy: backoff.List{4 * ms}}, ofCount(0), ms, 4 * ms},
		"full, attempt -1":                {backoff.FullJitter{Policy: backoff.List{4 * ms}}, ofCount(-1), ms, 4 * ms},
		"full, attempt 10^6":              {backoff.FullJitter{Policy: backoff.Exponential{Initial: 1, Factor: 2}}, ofCount(1_000_000), ms, backoff.MaxDelay},
		"full, invalid rungs":             {backoff.FullJitter{Policy: backoff.List{4 * ms}, WaitSteps: -1}, ofCount(1), ms, 4 * ms},
		"equal of a millisecond":          {backoff.EqualJitter{Policy: backoff.Constant{Interval: ms}}, ofCount(1), ms, ms},
		"equal of ten years":              {backoff.EqualJitter{Policy: foreign{wait: math.MaxInt64, retry: true}}, ofCount(1), backoff.MaxDelay / 2, backoff.MaxDelay},
		"equal, attempt -1":               {backoff.EqualJitter{Policy: backoff.List{4 * ms}}, ofCount(-1), 3 * ms, 4 * ms},
		"bounded of a millisecond":        {backoff.BoundedJitter{Policy: backoff.Constant{Interval: ms}, Extra: 1}, ofCount(1), 2 * ms, 2 * ms},
		"bounded of ten years":            {backoff.BoundedJitter{Policy: foreign{wait: math.MaxInt64, retry: true}, Extra: 1}, ofCount(1), backoff.MaxDelay, backoff.MaxDelay},
		"bounded overflows":               {backoff.BoundedJitter{Policy: backoff.List{time.Second}, Extra: math.MaxFloat64}, ofCount(1), time.Second, backoff.MaxDelay},
		"bounded, nearly nothing":         {backoff.BoundedJitter{Policy: backoff.List{time.Second}, Extra: 1e-12}, ofCount(1), time.Second, time.Second},
		"bounded, invalid extra 0":        {backoff.BoundedJitter{Policy: backoff.List{time.Second}}, ofCount(1), time.Second, time.Second},
		"bounded, invalid extra below":    {backoff.BoundedJitter{Policy: backoff.List{time.Second}, Extra: -1}, ofCount(1), time.Second, time.Second},
		"bounded, invalid extra nan":      {backoff.BoundedJitter{Policy: backoff.List{time.Second}, Extra: math.NaN()}, ofCount(1), time.Second, time.Second},
		"bounded, invalid extra infinite": {backoff.BoundedJitter{Policy: backoff.List{time.Second}, Extra: math.Inf(1)}, ofCount(1), time.Second, backoff.MaxDelay},
		"decorrelated, attempt 0":         {backoff.DecorrelatedJitter{Initial: 2 * ms}, ofCount(0), 3 * ms, 6 * ms},
		"decorrelated, attempt min":       {backoff.DecorrelatedJitter{Initial: 2 * ms}, ofCount(math.MinInt), 3 * ms, 6 * ms},
		"decorrelated, attempt max":       {backoff.DecorrelatedJitter{Initial: 2 * ms}, backoff.Failure{Count: math.MaxInt, Last: math.MaxInt64}, 3 * ms, backoff.MaxDelay},
		"decorrelated, no last": {
			backoff.DecorrelatedJitter{Initial: 2 * ms}, ofCount(100), 3 * ms, 6 * ms,
		},
		"decorrelated, a last below initial": {
			backoff.DecorrelatedJitter{Initial: 2 * ms}, backoff.Failure{Count: 7, Last: math.MinInt64}, 3 * ms, 6 * ms,
		},
		"decorrelated, a last that was asked for": {
			backoff.DecorrelatedJitter{Initial: 2 * ms}, backoff.Failure{Count: 2, Last: time.Hour}, 3 * ms, 18 * ms,
		},
		"decorrelated, at max": {
			backoff.DecorrelatedJitter{Initial: 2 * ms, Max: 4 * ms}, backoff.Failure{Count: 5, Last: 4 * ms}, 3 * ms, 4 * ms,
		},
		"decorrelated, max is initial": {
			backoff.DecorrelatedJitter{Initial: 2 * ms, Max: 2 * ms}, backoff.Failure{Count: 5, Last: 4 * ms}, 2 * ms, 2 * ms,
		},
		"decorrelated, invalid initial": {backoff.DecorrelatedJitter{Initial: -ms}, ofCount(1), ms, ms},
		"decorrelated, invalid max":     {backoff.DecorrelatedJitter{Initial: 2 * ms, Max: ms}, ofCount(1), ms, ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			least, most := backoff.MaxDelay, time.Duration(0)
			for range 1000 {
				wait, retry := test.policy.Delay(test.failure)
				require.True(t, retry)
				require.GreaterOrEqual(t, wait, test.low)
				require.LessOrEqual(t, wait, test.high)
				requireUnderRungs(t, test.policy, wait)
				least, most = min(least, wait), max(most, wait)
			}
			if test.high-test.low < 10*ms {
				assert.Equal(t, test.low, least)
				assert.Equal(t, test.high, most)
			}
		})
	}
}

func TestJitterAddsNoRetry(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]backoff.Policy{
		"full":         backoff.FullJitter{Policy: backoff.List{}},
		"full, nil":    backoff.FullJitter{},
		"equal":        backoff.EqualJitter{Policy: backoff.None{}},
		"bounded":      backoff.BoundedJitter{Policy: backoff.None{}, Extra: 1},
		"bounded, nil": backoff.BoundedJitter{Policy: (*backoff.List)(nil), Extra: 1},
		"decorrelated": backoff.Limit{Policy: backoff.DecorrelatedJitter{Initial: time.Second}},
		"invalid":      backoff.DecorrelatedJitter{Initial: time.Second, Retries: -1},
	} {
		requireSeries(t, p)
		if delays, known := backoff.Delays(p); known {
			assert.Empty(t, delays, name)
		}
	}
	for _, p := range []backoff.Policy{
		backoff.FullJitter{Policy: backoff.List{time.Hour}},
		backoff.DecorrelatedJitter{Initial: time.Second, Retries: 1},
	} {
		_, retry := p.Delay(ofCount(2))
		assert.False(t, retry)
	}
}

// Retries of messages that failed together are drawn by many handlers at once.
func TestJitterIsSharedByManyGoroutines(t *testing.T) {
	t.Parallel()
	minute := backoff.Constant{Interval: time.Minute, Retries: 1}
	for name, p := range map[string]backoff.Policy{
		"full":         backoff.FullJitter{Policy: minute},
		"equal":        backoff.EqualJitter{Policy: minute},
		"bounded":      backoff.BoundedJitter{Policy: minute, Extra: 0.5},
		"decorrelated": backoff.DecorrelatedJitter{Initial: time.Minute, Retries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const goroutines, draws = 16, 200
			var wg sync.WaitGroup
			waits := make([][]time.Duration, goroutines)
			for i := range goroutines {
				wg.Go(func() {
					for range draws {
						wait, _ := p.Delay(ofCount(1))
						waits[i] = append(waits[i], wait)
						backoff.Delays(p)
					}
				})
			}
			wg.Wait()
			all := slices.Concat(waits...)
			slices.Sort(all)
			assert.Greater(t, len(slices.Compact(all)), goroutines*draws/2, "different delays")
		})
	}
}
