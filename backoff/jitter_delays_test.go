package backoff_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// ms are durations in milliseconds.
func ms(list ...int) []time.Duration {
	durations := []time.Duration{}
	for _, n := range list {
		durations = append(durations, time.Duration(n)*time.Millisecond)
	}
	return durations
}

func TestJitterDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	doubling := backoff.Exponential{Initial: s, Factor: 2}
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		{"full", backoff.FullJitter{Policy: backoff.List{s, 2 * s}}, ms(250, 500, 750, 1000, 1500, 2000)},
		{"full, no whole milliseconds", backoff.FullJitter{Policy: backoff.List{s}, WaitSteps: 3}, ms(334, 667, 1000)},
		{"full, few milliseconds", backoff.FullJitter{Policy: backoff.List{2 * time.Millisecond}}, ms(1, 2)},
		{"full, invalid rungs", backoff.FullJitter{Policy: backoff.List{s}, WaitSteps: -7}, ms(250, 500, 750, 1000)},
		{"equal", backoff.EqualJitter{Policy: backoff.List{s, 2 * s}}, ms(625, 750, 875, 1000, 1250, 1500, 1750, 2000)},
		{"bounded", backoff.BoundedJitter{Policy: backoff.List{s, 2 * s}, Extra: 0.2, WaitSteps: 2}, ms(1100, 1200, 2200, 2400)},
		{"decorrelated", backoff.DecorrelatedJitter{Initial: s, Retries: 2}, ms(1500, 2000, 2500, 3000, 4500, 6000, 7500, 9000)},
		{"decorrelated, capped", backoff.DecorrelatedJitter{Initial: s, Max: 5 * s, WaitSteps: 2}, ms(2000, 3000, 4000, 5000)},
		{"decorrelated, capped at once", backoff.DecorrelatedJitter{Initial: s, Max: s}, ms(1000)},
		{"decorrelated without bounds", backoff.DecorrelatedJitter{Initial: s}, nil},
		{"of a series without bounds", backoff.FullJitter{Policy: doubling}, nil},
		{"of what cannot list", backoff.EqualJitter{Policy: foreign{retry: true}}, nil},
		{"of nil", backoff.BoundedJitter{Extra: 1}, nil},
		{"of what never retries", backoff.FullJitter{Policy: backoff.None{}}, ms()},
		{"too many", backoff.FullJitter{Policy: backoff.Linear{Initial: s, Step: s, Retries: 300}, WaitSteps: 100}, nil},
		{"of a jitter", backoff.FullJitter{Policy: backoff.BoundedJitter{Policy: backoff.List{s}, Extra: 1, WaitSteps: 2}, WaitSteps: 2}, ms(750, 1000, 1500, 2000)},
		{"in a limit", backoff.Limit{Policy: backoff.FullJitter{Policy: doubling, WaitSteps: 2}, Retries: 3}, ms(500, 1000, 2000, 4000)},
		{"in a limit of none", backoff.Limit{Policy: backoff.FullJitter{Policy: doubling}}, ms()},
		{"in a long limit", backoff.Limit{Policy: backoff.FullJitter{Policy: backoff.Cap{Policy: doubling, Max: s}, WaitSteps: 2}, Retries: math.MaxInt}, ms(500, 1000)},
		{"decorrelated in a limit", backoff.Limit{Policy: backoff.DecorrelatedJitter{Initial: s, WaitSteps: 2}, Retries: 1}, ms(2000, 3000)},
		{"decorrelated in a longer limit", backoff.Limit{Policy: backoff.DecorrelatedJitter{Initial: s, WaitSteps: 2, Retries: 1}, Retries: 9}, ms(2000, 3000)},
		{"decorrelated in a limit of none", backoff.Limit{Policy: backoff.DecorrelatedJitter{Initial: s}}, ms()},
		{"in a cap", backoff.Cap{Policy: backoff.FullJitter{Policy: doubling, WaitSteps: 2}, Max: 3 * s}, ms(500, 1000, 1500, 2000, 3000)},
		{"extended in a cap", backoff.Cap{Policy: backoff.BoundedJitter{Policy: backoff.List{s, 2 * s}, Extra: 1, WaitSteps: 2}, Max: 3 * s}, ms(1500, 2000, 3000)},
		{"decorrelated in a cap", backoff.Cap{Policy: backoff.DecorrelatedJitter{Initial: s, WaitSteps: 2}, Max: 5 * s}, ms(2000, 3000, 4000, 5000)},
		{"a cap and a limit", backoff.Limit{Policy: backoff.Cap{Policy: backoff.FullJitter{Policy: doubling, WaitSteps: 2}, Max: 2 * s}, Retries: 9}, ms(500, 1000, 2000)},
		{"in unbounded", backoff.Unbounded{Policy: backoff.FullJitter{Policy: backoff.Constant{Interval: s}, WaitSteps: 2}}, ms(500, 1000)},
		{"in a max age", backoff.MaxAge{Policy: backoff.FullJitter{Policy: backoff.List{s, 4 * s}, WaitSteps: 2}, Age: 3 * s}, ms(500, 1000, 2000, 3000)},
		{"in a max age, of longer ones only", backoff.MaxAge{Policy: backoff.Cap{Policy: backoff.FullJitter{Policy: backoff.List{time.Hour}}, Max: time.Minute}, Age: s}, ms(1000)},
		{"in a max age, not drawn", backoff.MaxAge{Policy: backoff.Limit{Policy: backoff.Unbounded{Policy: backoff.List{s, 4 * s}}, Retries: 2}, Age: 3 * s}, ms(1000)},
		{
			"in a choice", backoff.MaxAge{Policy: backoff.MaxAge{Policy: backoff.ByError{
				Cases:   []backoff.Case{{Match: backoff.Is(errBroken), Policy: backoff.List{s}}},
				Default: backoff.FullJitter{Policy: backoff.List{4 * s}, WaitSteps: 2},
			}, Age: 3 * s}, Age: time.Hour}, ms(1000, 2000, 3000),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
			for count := range 12 {
				if wait, retry := test.policy.Delay(ofCount(count)); retry {
					requireUnderRungs(t, test.policy, wait)
				}
			}
		})
	}
}

func TestJitterValidate(t *testing.T) {
	t.Parallel()
	s := time.Second
	for _, p := range []backoff.Policy{
		backoff.FullJitter{Policy: backoff.List{s}},
		backoff.EqualJitter{Policy: backoff.None{}, WaitSteps: 2},
		backoff.BoundedJitter{Policy: backoff.List{s}, Extra: 1e-9, WaitSteps: 100},
		backoff.DecorrelatedJitter{Initial: s},
		backoff.DecorrelatedJitter{Initial: s, Max: s, Retries: 3, WaitSteps: 2},
	} {
		require.NoError(t, backoff.Validate(p))
	}
	require.EqualError(t, backoff.Validate(backoff.FullJitter{WaitSteps: -1}), `backoff.FullJitter: WaitSteps -1 is negative: use 0 for 4
backoff.FullJitter: Policy is nil: give it the policy to wrap`)
	require.EqualError(t, backoff.Validate(backoff.EqualJitter{WaitSteps: 1, Policy: backoff.List{0}}), `backoff.EqualJitter: WaitSteps 1 spreads nothing: use at least 2, or 0 for 4
backoff.List: entry [0] 0s is not positive: a delay is at least 1ms`)
	require.EqualError(t, backoff.Validate(backoff.BoundedJitter{WaitSteps: 101, Policy: backoff.None{}}),
		`backoff.BoundedJitter: Extra 0 is not positive and finite: use 0.2 for up to a fifth more, Policy without backoff.BoundedJitter for no jitter
backoff.BoundedJitter: WaitSteps 101 would be as many queues for each delay: use at most 100, or 0 for 4`)
	for _, extra := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		require.ErrorContains(t, backoff.Validate(backoff.BoundedJitter{Policy: backoff.None{}, Extra: extra}), "is not positive and finite")
	}
	require.EqualError(t, backoff.Validate(backoff.DecorrelatedJitter{Max: -1, Retries: -1, WaitSteps: 1}), `backoff.DecorrelatedJitter: Initial 0s is not positive: a delay is at least 1ms
backoff.DecorrelatedJitter: Max -1ns is negative: use 0 for no cap
backoff.DecorrelatedJitter: Retries -1 is negative: use backoff.None to never retry, 0 for no end
backoff.DecorrelatedJitter: WaitSteps 1 spreads nothing: use at least 2, or 0 for 4`)
}

func TestJitterCheckEnd(t *testing.T) {
	t.Parallel()
	endless := backoff.Constant{Interval: time.Second}
	for _, p := range []backoff.Policy{
		backoff.FullJitter{Policy: endless}, backoff.EqualJitter{Policy: endless}, backoff.BoundedJitter{Policy: endless, Extra: 1},
	} {
		require.Equal(t, backoff.CheckEnd(endless), backoff.CheckEnd(p))
	}
	require.NoError(t, backoff.CheckEnd(backoff.FullJitter{Policy: backoff.Unbounded{Policy: endless}}))
	require.NoError(t, backoff.CheckEnd(backoff.EqualJitter{Policy: backoff.List{time.Second}}))
	require.NoError(t, backoff.CheckEnd(backoff.BoundedJitter{}), "never retries")
	require.NoError(t, backoff.CheckEnd(backoff.DecorrelatedJitter{Initial: time.Second, Retries: 1}))
	require.ErrorContains(t, backoff.CheckEnd(backoff.DecorrelatedJitter{Initial: time.Second}),
		"backoff.DecorrelatedJitter: policy is not known to stop retrying: set Retries, wrap it in")
}

func TestJitterRemarks(t *testing.T) {
	t.Parallel()
	tenYears := backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 30}
	for _, p := range []backoff.Policy{
		backoff.FullJitter{Policy: tenYears}, backoff.EqualJitter{Policy: tenYears}, backoff.BoundedJitter{Policy: tenYears, Extra: 1},
	} {
		assert.Equal(t, backoff.Remarks(tenYears), backoff.Remarks(p))
		assert.Empty(t, backoff.Remarks(backoff.Cap{Policy: p, Max: time.Hour}))
	}
	assert.Empty(t, backoff.Remarks(backoff.FullJitter{}))
	assert.Equal(t, []string{
		"backoff.DecorrelatedJitter: with Retries 30 its delay grows to ten years (backoff.MaxDelay); set Max to cap it",
	}, backoff.Remarks(backoff.DecorrelatedJitter{Initial: time.Second, Retries: 30}))
	assert.Empty(t, backoff.Remarks(backoff.MaxAge{Policy: backoff.FullJitter{Policy: backoff.List{time.Hour}}, Age: time.Second}),
		"some delays are short enough")
}

func FuzzJitter(f *testing.F) {
	f.Add(int64(1e9), int64(5e9), int64(0), 0.2, 0, 3, 3)
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt64), math.Inf(1), 100, math.MaxInt, 0)
	f.Add(int64(0), int64(-1), int64(-1), math.NaN(), -1, math.MinInt, -1)
	f.Fuzz(func(t *testing.T, first, second, last int64, extra float64, rungs, count, retries int) {
		failure := backoff.Failure{Count: count, Last: time.Duration(last)}
		for _, policy := range []backoff.Policy{
			backoff.List{time.Duration(first), time.Duration(second)},
			backoff.Cap{Policy: backoff.Exponential{Initial: time.Duration(first), Factor: 2, Retries: retries}, Max: time.Duration(second)},
			foreign{wait: time.Duration(first), retry: true},
		} {
			whole, retried := backoff.Next(policy, failure)
			longest := time.Duration(math.MaxInt64)
			if extra < 1 {
				longest = 2 * whole
			}
			for _, test := range []struct {
				policy    backoff.Policy
				low, high time.Duration
			}{
				{backoff.FullJitter{Policy: policy, WaitSteps: rungs}, 0, whole},
				{backoff.EqualJitter{Policy: policy, WaitSteps: rungs}, whole / 2, whole},
				{backoff.BoundedJitter{Policy: policy, Extra: extra, WaitSteps: rungs}, whole, longest},
			} {
				requireBoundsAfter(t, test.policy, failure)
				wait, retry := test.policy.Delay(failure)
				require.Equal(t, retried, retry)
				if retry {
					require.GreaterOrEqual(t, wait, test.low)
					require.LessOrEqual(t, wait, test.high)
					requireUnderRungs(t, test.policy, wait)
				}
			}
		}
		p := backoff.DecorrelatedJitter{Initial: time.Duration(first), Max: time.Duration(second), Retries: retries, WaitSteps: rungs}
		requireBoundsAfter(t, p, failure)
		wait, retry := p.Delay(failure)
		require.Equal(t, retries == 0 || max(count, 1) <= retries, retry)
		if retry {
			requireUnderRungs(t, p, wait)
			if backoff.Validate(p) == nil {
				require.GreaterOrEqual(t, wait, min(p.Initial, wait+time.Millisecond))
				require.LessOrEqual(t, wait, max(3*min(max(failure.Last, p.Initial), backoff.MaxDelay), time.Millisecond))
			}
		}
	})
}

func ExampleFullJitter() {
	policy := backoff.FullJitter{Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 2}}
	for count := 1; count <= 3; count++ {
		wait, retry := policy.Delay(backoff.Failure{Count: count})
		fmt.Println(retry, wait <= 2*time.Second)
	}
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true
	// true true
	// false true
	// [250ms 500ms 750ms 1s 1.5s 2s] true
}

func ExampleEqualJitter() {
	policy := backoff.EqualJitter{Policy: backoff.List{10 * time.Second}, WaitSteps: 5}
	wait, retry := policy.Delay(backoff.Failure{Count: 1})
	fmt.Println(retry, wait >= 5*time.Second, wait <= 10*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [6s 7s 8s 9s 10s] true
}

func ExampleBoundedJitter() {
	policy := backoff.BoundedJitter{Policy: backoff.List{10 * time.Second, time.Minute}, Extra: 0.2}
	wait, retry := policy.Delay(backoff.Failure{Count: 1})
	fmt.Println(retry, wait >= 10*time.Second, wait <= 12*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [10.5s 11s 11.5s 12s 1m3s 1m6s 1m9s 1m12s] true
}

func ExampleDecorrelatedJitter() {
	policy := backoff.DecorrelatedJitter{Initial: time.Second, Max: 20 * time.Second, Retries: 10, WaitSteps: 2}
	wait, retry := policy.Delay(backoff.Failure{Count: 4, Err: errors.New("busy"), Last: 5 * time.Second})
	fmt.Println(retry, wait >= time.Second, wait <= 15*time.Second)
	fmt.Println(backoff.Delays(policy)) // the wait queues
	// Output:
	// true true true
	// [2s 3s 6s 9s 14.5s 20s] true
}
