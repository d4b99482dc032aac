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

func TestFibonacciSeries(t *testing.T) {
	t.Parallel()
	const s, ms, us = time.Second, time.Millisecond, time.Microsecond
	for _, test := range []struct {
		name   string
		policy backoff.Fibonacci
		want   []time.Duration
	}{
		{"1s 2s 3s 5s 8s", backoff.Fibonacci{Initial: s, Retries: 5}, []time.Duration{s, 2 * s, 3 * s, 5 * s, 8 * s}},
		{"ten of them", backoff.Fibonacci{Initial: s, Retries: 10}, []time.Duration{s, 2 * s, 3 * s, 5 * s, 8 * s, 13 * s, 21 * s, 34 * s, 55 * s, 89 * s}},
		{"other initial", backoff.Fibonacci{Initial: 1500 * ms, Retries: 4}, []time.Duration{1500 * ms, 3 * s, 4500 * ms, 7500 * ms}},
		{"capped between steps", backoff.Fibonacci{Initial: s, Max: 4 * s, Retries: 5}, []time.Duration{s, 2 * s, 3 * s, 4 * s, 4 * s}},
		{"capped on a step", backoff.Fibonacci{Initial: s, Max: 3 * s, Retries: 4}, []time.Duration{s, 2 * s, 3 * s, 3 * s}},
		{"capped at once", backoff.Fibonacci{Initial: s, Max: s, Retries: 2}, []time.Duration{s, s}},
		{"one retry", backoff.Fibonacci{Initial: s, Retries: 1}, []time.Duration{s}},
		{"under a millisecond", backoff.Fibonacci{Initial: 400 * us, Retries: 4}, []time.Duration{ms, ms, 1200 * us, 2 * ms}},
		{"saturates", backoff.Fibonacci{Initial: 40_000 * time.Hour, Retries: 4}, []time.Duration{40_000 * time.Hour, 80_000 * time.Hour, 87_600 * time.Hour, 87_600 * time.Hour}},
		{"initial of ten years", backoff.Fibonacci{Initial: 87_600 * time.Hour, Retries: 2}, []time.Duration{87_600 * time.Hour, 87_600 * time.Hour}},
		{"invalid initial", backoff.Fibonacci{Initial: -s, Retries: 3}, []time.Duration{ms, ms, ms}},
		{"invalid least initial", backoff.Fibonacci{Initial: math.MinInt64, Retries: 3}, []time.Duration{ms, ms, ms}},
		{"invalid initial, too long", backoff.Fibonacci{Initial: math.MaxInt64, Retries: 2}, []time.Duration{87_600 * time.Hour, 87_600 * time.Hour}},
		{"invalid max below initial", backoff.Fibonacci{Initial: time.Hour, Max: s, Retries: 2}, []time.Duration{s, s}},
		{"invalid max", backoff.Fibonacci{Initial: s, Max: -s, Retries: 2}, []time.Duration{s, 2 * s}},
		{"invalid retries", backoff.Fibonacci{Initial: s, Retries: -1}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
		})
	}
}

func TestFibonacciSaturates(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.Fibonacci{Initial: time.Second}, map[int]time.Duration{
		math.MinInt: time.Second,
		-1:          time.Second,
		0:           time.Second,
		40:          165_580_141 * time.Second,
		41:          267_914_296 * time.Second,
		42:          315_360_000 * time.Second,
		1_000_000:   315_360_000 * time.Second,
		math.MaxInt: 315_360_000 * time.Second,
	})
	requireDelays(t, backoff.Fibonacci{}, map[int]time.Duration{1: time.Millisecond, math.MaxInt: time.Millisecond})
}

func TestFibonacciIsExact(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.Fibonacci{Initial: time.Hour + 1}, map[int]time.Duration{
		20: 10_946*time.Hour + 10_946,
		24: 75_025*time.Hour + 75_025,
		25: 87_600 * time.Hour,
	})
	requireDelays(t, backoff.Fibonacci{Initial: 1}, map[int]time.Duration{
		1: time.Millisecond, 40: 165_580_141, 82: 99_194_853_094_755_497, 84: 259_695_496_911_122_585, 85: 87_600 * time.Hour,
	})
}

func TestFibonacciValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Fibonacci{Initial: time.Second}))
	require.NoError(t, backoff.Validate(backoff.Fibonacci{Initial: backoff.MaxDelay, Max: backoff.MaxDelay, Retries: math.MaxInt}))

	require.EqualError(t, backoff.Validate(backoff.Fibonacci{Max: -1, Retries: -1}), `backoff.Fibonacci: Initial 0s is not positive: a delay is at least 1ms
backoff.Fibonacci: Max -1ns is negative: use 0 for no cap
backoff.Fibonacci: Retries -1 is negative: use backoff.None to never retry, 0 for no end`)
	require.EqualError(t, backoff.Validate(backoff.Fibonacci{Initial: time.Minute, Max: time.Second}),
		"backoff.Fibonacci: Max 1s is below Initial 1m0s: raise Max or lower Initial")
	require.ErrorContains(t, backoff.Validate(backoff.Fibonacci{Initial: 87_601 * time.Hour}), "Initial 87601h0m0s is above 87600h0m0s")
	require.ErrorContains(t, backoff.Validate(backoff.Fibonacci{Initial: time.Second, Max: math.MaxInt64}), "is above 87600h0m0s")
}

func TestFibonacciDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name   string
		policy backoff.Fibonacci
		want   []time.Duration // nil: cannot list
	}{
		{"by retries", backoff.Fibonacci{Initial: s, Retries: 4}, []time.Duration{s, 2 * s, 3 * s, 5 * s}},
		{"by max", backoff.Fibonacci{Initial: s, Max: 4 * s}, []time.Duration{s, 2 * s, 3 * s, 4 * s}},
		{"retries before max", backoff.Fibonacci{Initial: s, Max: time.Hour, Retries: 2}, []time.Duration{s, 2 * s}},
		{"max before retries", backoff.Fibonacci{Initial: s, Max: 2 * s, Retries: math.MaxInt}, []time.Duration{s, 2 * s}},
		{"to ten years", backoff.Fibonacci{Initial: 30_000 * time.Hour, Retries: math.MaxInt}, []time.Duration{30_000 * time.Hour, 60_000 * time.Hour, 87_600 * time.Hour}},
		{"without bounds", backoff.Fibonacci{Initial: s}, nil},
		{"never retries", backoff.Fibonacci{Initial: s, Retries: -1}, []time.Duration{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func FuzzFibonacci(f *testing.F) {
	f.Add(int64(1e9), int64(0), 5, 5)
	f.Add(int64(1), int64(math.MaxInt64), 0, math.MaxInt)
	f.Add(int64(math.MaxInt64), int64(0), 0, 2)
	f.Add(int64(-1), int64(-1), -1, math.MinInt)
	f.Fuzz(func(t *testing.T, initial, limit int64, retries, count int) {
		p := backoff.Fibonacci{Initial: time.Duration(initial), Max: time.Duration(limit), Retries: retries}
		requireBounds(t, p, count)
		requireListed(t, p, count)
	})
}

func ExampleFibonacci() {
	policy := backoff.Fibonacci{Initial: time.Second, Retries: 5}
	for count := 1; count <= 6; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 2s true
	// 3s true
	// 5s true
	// 8s true
	// 0s false
}
