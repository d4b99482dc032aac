package backoff_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// ofCount is a failure of which only the count is known.
func ofCount(count int) backoff.Failure { return backoff.Failure{Count: count} }

// requireSeries asserts that p gives exactly the delays of want, and then stops
// for good.
func requireSeries(t *testing.T, p backoff.Policy, want ...time.Duration) {
	t.Helper()
	for i, delay := range want {
		wait, retry := p.Delay(ofCount(i + 1))
		require.True(t, retry, "failure %d", i+1)
		require.Equal(t, delay, wait, "failure %d", i+1)
	}
	for _, count := range []int{len(want) + 1, len(want) + 2, 1_000_000, math.MaxInt} {
		wait, retry := p.Delay(ofCount(count))
		require.False(t, retry, "failure %d", count)
		require.Zero(t, wait, "failure %d", count)
	}
}

// requireDelays asserts that p gives a delay for each of some counts.
func requireDelays(t *testing.T, p backoff.Policy, want map[int]time.Duration) {
	t.Helper()
	for count, delay := range want {
		wait, retry := p.Delay(ofCount(count))
		require.True(t, retry, "failure %d", count)
		require.Equal(t, delay, wait, "failure %d", count)
	}
}

// requireBounds asserts what holds for any policy of this package, however
// wrong its fields are.
func requireBounds(t *testing.T, p backoff.Policy, count int) {
	t.Helper()
	requireBoundsAfter(t, p, ofCount(count))
}

func requireBoundsAfter(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	wait, retry := p.Delay(f)
	if !retry {
		require.Zero(t, wait)
		return
	}
	require.GreaterOrEqual(t, wait, time.Millisecond)
	require.LessOrEqual(t, wait, 315_360_000_000*time.Millisecond)
	require.LessOrEqual(t, wait, backoff.MaxDelay)
}

func TestMaxDelayIsTenYears(t *testing.T) {
	t.Parallel()
	assert.Equal(t, int64(315_360_000_000), backoff.MaxDelay.Milliseconds())
	assert.Equal(t, 10*365*24*time.Hour, backoff.MaxDelay)
}

func TestPolicyFunc(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.PolicyFunc(nil))
	errBusy := errors.New("busy")
	p := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		if !errors.Is(f.Err, errBusy) {
			return time.Hour, false
		}
		return 2 * f.Last, f.Count >= 1
	})
	for _, test := range []struct {
		name    string
		failure backoff.Failure
		wait    time.Duration
		retry   bool
	}{
		{"sees err and last", backoff.Failure{Count: 1, Err: errBusy, Last: time.Second}, 2 * time.Second, true},
		{"no retry has no wait", backoff.Failure{Count: 1}, 0, false},
		{"count below 1 is 1", backoff.Failure{Count: -7, Err: errBusy, Last: time.Second}, 2 * time.Second, true},
		{"zero is a millisecond", backoff.Failure{Count: 1, Err: errBusy}, time.Millisecond, true},
		{"negative is a millisecond", backoff.Failure{Count: 1, Err: errBusy, Last: -time.Hour}, time.Millisecond, true},
		{"above ten years is ten years", backoff.Failure{Count: 1, Err: errBusy, Last: 87_599 * time.Hour}, 87_600 * time.Hour, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := p.Delay(test.failure)
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.retry, retry)

			wait, retry = backoff.Next(p, test.failure)
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.retry, retry)
		})
	}
}

// foreign is a policy of somebody else, with none of the optional methods.
type foreign struct {
	wait  time.Duration
	retry bool
	seen  *int
}

func (p foreign) Delay(f backoff.Failure) (time.Duration, bool) {
	if p.seen != nil {
		*p.seen = f.Count
	}
	return p.wait, p.retry
}

func TestNextBoundsForeignPolicies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		wait   time.Duration
		retry  bool
	}{
		{"within", foreign{wait: 3 * time.Second, retry: true}, 3 * time.Second, true},
		{"negative", foreign{wait: math.MinInt64, retry: true}, time.Millisecond, true},
		{"zero", foreign{retry: true}, time.Millisecond, true},
		{"too long", foreign{wait: math.MaxInt64, retry: true}, 87_600 * time.Hour, true},
		{"no retry", foreign{wait: time.Second}, 0, false},
		{"nil", nil, 0, false},
		{"nil pointer", (*backoff.Exponential)(nil), 0, false},
		{"nil func", backoff.PolicyFunc(nil), 0, false},
		{"nil list", backoff.List(nil), 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := backoff.Next(test.policy, ofCount(1))
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.retry, retry)
		})
	}
}

func TestNextCountsFromOne(t *testing.T) {
	t.Parallel()
	for given, seen := range map[int]int{math.MinInt: 1, -1: 1, 0: 1, 1: 1, 2: 2, math.MaxInt: math.MaxInt} {
		var count int
		backoff.Next(foreign{seen: &count}, ofCount(given))
		assert.Equal(t, seen, count, "given %d", given)
	}
}

func TestOnePolicyManyGoroutines(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, p := range map[string]backoff.Policy{
		"list":        backoff.List{time.Second, time.Second, time.Second},
		"constant":    backoff.Constant{Interval: time.Second, Retries: 3},
		"linear":      backoff.Linear{Initial: time.Second, Step: time.Hour, Max: time.Second, Retries: 3},
		"exponential": backoff.Exponential{Initial: time.Second, Factor: 2, Max: time.Second, Retries: 3},
		"fibonacci":   backoff.Fibonacci{Initial: time.Second, Max: time.Second, Retries: 3},
		"cap":         backoff.Cap{Policy: backoff.Fibonacci{Initial: time.Second, Retries: 3}, Max: time.Second},
		"max age":     backoff.MaxAge{Policy: backoff.List{time.Second, time.Second, time.Second}, Age: time.Second},
		"by error": backoff.ByError{
			Cases: []backoff.Case{
				{Match: backoff.As[*busyError](), Policy: backoff.None{}},
				{Match: backoff.Is(errBroken), Policy: backoff.Constant{Interval: time.Second, Retries: 3}},
			},
			Default: backoff.None{},
		},
		"limit": backoff.Limit{Policy: backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}, Retries: 3},
		"cenkalti": backoff.FromCenkalti(func() cenkalti.BackOff {
			return cenkalti.WithMaxRetries(cenkalti.NewConstantBackOff(time.Second), 3)
		}, backoff.WithMaxAge(time.Hour)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for count := 1; count <= 5; count++ {
						wait, retry := p.Delay(backoff.Failure{Count: count, Err: errBroken, First: first, Now: first})
						assert.Equal(t, count <= 3, retry)
						assert.Equal(t, retry, wait == time.Second)
					}
					assert.NoError(t, backoff.Validate(p))
					assert.NoError(t, backoff.CheckEnd(p))
					backoff.Delays(p)
					backoff.Remarks(p)
				})
			}
			wg.Wait()
		})
	}
}
