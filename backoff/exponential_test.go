package backoff_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func TestExponentialSeries(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct {
		name   string
		policy backoff.Exponential
		want   []time.Duration
	}{
		{"1s 2s 4s 8s", backoff.Exponential{Initial: s, Factor: 2, Retries: 4}, []time.Duration{s, 2 * s, 4 * s, 8 * s}},
		{"1s 10s 100s 500s 500s", backoff.Exponential{Initial: s, Factor: 10, Max: 500 * s, Retries: 5}, []time.Duration{s, 10 * s, 100 * s, 500 * s, 500 * s}},
		{"factor 1.5", backoff.Exponential{Initial: s, Factor: 1.5, Retries: 4}, []time.Duration{s, 1500 * ms, 2250 * ms, 3375 * ms}},
		{"factor 1.1 rounds", backoff.Exponential{Initial: s, Factor: 1.1, Retries: 4}, []time.Duration{s, 1100 * ms, 1210 * ms, 1331 * ms}},
		{"factor 1.3 rounds", backoff.Exponential{Initial: s, Factor: 1.3, Retries: 4}, []time.Duration{s, 1300 * ms, 1690 * ms, 2197 * ms}},
		{"factor 1", backoff.Exponential{Initial: s, Factor: 1, Retries: 3}, []time.Duration{s, s, s}},
		{"capped on a step", backoff.Exponential{Initial: s, Factor: 2, Max: 2 * s, Retries: 3}, []time.Duration{s, 2 * s, 2 * s}},
		{"one retry", backoff.Exponential{Initial: s, Factor: 2, Retries: 1}, []time.Duration{s}},
		{"under a millisecond", backoff.Exponential{Initial: 400 * time.Microsecond, Factor: 3, Retries: 3}, []time.Duration{ms, 1200 * time.Microsecond, 3600 * time.Microsecond}},
		{"saturates", backoff.Exponential{Initial: 43_800 * time.Hour, Factor: 2, Retries: 4}, []time.Duration{43_800 * time.Hour, 87_600 * time.Hour, 87_600 * time.Hour, 87_600 * time.Hour}},
		{"exact above 2^53 ns", backoff.Exponential{Initial: 5000*time.Hour + 1, Factor: 2, Retries: 1}, []time.Duration{5000*time.Hour + 1}},
		{"invalid factor 0", backoff.Exponential{Initial: s, Retries: 2}, []time.Duration{s, s}},
		{"invalid factor NaN", backoff.Exponential{Initial: s, Factor: math.NaN(), Retries: 2}, []time.Duration{s, s}},
		{"invalid factor Inf", backoff.Exponential{Initial: s, Factor: math.Inf(1), Retries: 2}, []time.Duration{s, 87_600 * time.Hour}},
		{"invalid initial", backoff.Exponential{Initial: -s, Factor: 2, Retries: 2}, []time.Duration{ms, ms}},
		{"invalid retries", backoff.Exponential{Initial: s, Factor: 2, Retries: math.MinInt}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
		})
	}
}

func TestExponentialSaturates(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.Exponential{Initial: time.Second, Factor: 2}, map[int]time.Duration{
		math.MinInt: time.Second,
		-1:          time.Second,
		0:           time.Second,
		29:          268_435_456 * time.Second,
		30:          315_360_000 * time.Second,
		64:          315_360_000 * time.Second,
		1_000_000:   315_360_000 * time.Second,
		math.MaxInt: 315_360_000 * time.Second,
	})
	requireDelays(t, backoff.Exponential{Initial: time.Second, Factor: math.MaxFloat64, Max: time.Hour}, map[int]time.Duration{
		1: time.Second, 2: time.Hour, math.MaxInt: time.Hour,
	})
}

func TestExponentialValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Exponential{Initial: time.Second, Factor: 1}))
	require.NoError(t, backoff.Validate(backoff.Exponential{Initial: time.Second, Factor: 2, Max: time.Second, Retries: math.MaxInt}))

	require.EqualError(t, backoff.Validate(backoff.Exponential{Max: -1, Retries: -1}), `backoff.Exponential: Initial 0s is not positive: a delay is at least 1ms
backoff.Exponential: Factor 0 is not a finite number of at least 1: use 2 to double each delay, backoff.Constant for equal delays
backoff.Exponential: Max -1ns is negative: use 0 for no cap
backoff.Exponential: Retries -1 is negative: use backoff.None to never retry, 0 for no end`)
	for _, test := range []struct {
		name   string
		policy backoff.Exponential
		want   string
	}{
		{"factor below 1", backoff.Exponential{Initial: time.Second, Factor: 0.5}, "Factor 0.5 is not a finite number"},
		{"factor NaN", backoff.Exponential{Initial: time.Second, Factor: math.NaN()}, "Factor NaN is not a finite number"},
		{"factor Inf", backoff.Exponential{Initial: time.Second, Factor: math.Inf(1)}, "Factor +Inf is not a finite number"},
		{"factor -Inf", backoff.Exponential{Initial: time.Second, Factor: math.Inf(-1)}, "Factor -Inf is not a finite number"},
		{"max below initial", backoff.Exponential{Initial: time.Minute, Factor: 2, Max: time.Second}, "Max 1s is below Initial 1m0s"},
		{"max too long", backoff.Exponential{Initial: time.Minute, Factor: 2, Max: math.MaxInt64}, "is above 87600h0m0s"},
		{"initial too long", backoff.Exponential{Initial: 87_601 * time.Hour, Factor: 2}, "Initial 87601h0m0s is above 87600h0m0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, backoff.Validate(test.policy), test.want)
		})
	}
}

func TestExponentialDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name   string
		policy backoff.Exponential
		want   []time.Duration // nil: cannot list
	}{
		{"by retries", backoff.Exponential{Initial: s, Factor: 2, Retries: 4}, []time.Duration{s, 2 * s, 4 * s, 8 * s}},
		{"by both", backoff.Exponential{Initial: s, Factor: 10, Max: 500 * s, Retries: 5}, []time.Duration{s, 10 * s, 100 * s, 500 * s}},
		{"by max", backoff.Exponential{Initial: s, Factor: 10, Max: 500 * s}, []time.Duration{s, 10 * s, 100 * s, 500 * s}},
		{"without bounds", backoff.Exponential{Initial: s, Factor: 2}, nil},
		{"factor 1", backoff.Exponential{Initial: s, Factor: 1}, []time.Duration{s}},
		{"too many", backoff.Exponential{Initial: s, Factor: 1.0001, Retries: 1_000_000_000}, nil},
		{"never retries", backoff.Exponential{Initial: s, Factor: 2, Retries: -1}, []time.Duration{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func TestSeriesOfTenYearsIsRemarked(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"backoff.Exponential: with Retries 30 its delay grows to ten years (backoff.MaxDelay); set Max to cap it"},
		backoff.Remarks(backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 30}))
	assert.Equal(t, []string{"backoff.Linear: with Retries 11 its delay grows to ten years (backoff.MaxDelay); set Max to cap it"},
		backoff.Remarks(backoff.Linear{Initial: 8760 * time.Hour, Step: 8760 * time.Hour, Retries: 11}))
	assert.Equal(t, []string{"backoff.Fibonacci: with Retries 42 its delay grows to ten years (backoff.MaxDelay); set Max to cap it"},
		backoff.Remarks(backoff.Fibonacci{Initial: time.Second, Retries: 42}))
	assert.Empty(t, backoff.Remarks(backoff.Fibonacci{Initial: time.Second, Retries: 41}))
	assert.Empty(t, backoff.Remarks(backoff.Fibonacci{Initial: time.Second, Max: time.Hour, Retries: 42}))
	assert.Empty(t, backoff.Remarks(backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 29}))
	assert.Empty(t, backoff.Remarks(backoff.Exponential{Initial: time.Second, Factor: 2, Max: time.Hour, Retries: 30}))
	assert.Empty(t, backoff.Remarks(backoff.Exponential{Initial: time.Second, Factor: 2}))
	assert.Empty(t, backoff.Remarks(backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3}))
}

func FuzzExponential(f *testing.F) {
	f.Add(int64(1e9), 10.0, int64(500e9), 5, 4)
	f.Add(int64(1), math.Inf(1), int64(math.MaxInt64), 0, math.MaxInt)
	f.Add(int64(0), math.MaxFloat64, int64(0), 0, 3)
	f.Add(int64(-1), math.NaN(), int64(-1), -1, math.MinInt)
	f.Fuzz(func(t *testing.T, initial int64, factor float64, limit int64, retries, count int) {
		p := backoff.Exponential{Initial: time.Duration(initial), Factor: factor, Max: time.Duration(limit), Retries: retries}
		requireBounds(t, p, count)
		requireListed(t, p, count)
	})
}

func ExampleExponential() {
	policy := backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5}
	for count := 1; count <= 6; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 10s true
	// 1m40s true
	// 8m20s true
	// 8m20s true
	// 0s false
}
