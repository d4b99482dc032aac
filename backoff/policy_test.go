package backoff_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

const (
	s  = time.Second
	ms = time.Millisecond
	us = time.Microsecond
)

var (
	errBroken = errors.New("broken")
	start     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	doubling  = exponential(s, 2, 0, 0) // 1s 2s 4s … without end
)

func constantly(interval time.Duration, retries int) backoff.Constant {
	return backoff.Constant{Interval: interval, Retries: retries}
}

func linear(initial, step, longest time.Duration, retries int) backoff.Linear {
	return backoff.Linear{Initial: initial, Step: step, Max: longest, Retries: retries}
}

func exponential(initial time.Duration, factor float64, longest time.Duration, retries int,
) backoff.Exponential {
	return backoff.Exponential{Initial: initial, Factor: factor, Max: longest, Retries: retries}
}

func fibonacci(initial, longest time.Duration, retries int) backoff.Fibonacci {
	return backoff.Fibonacci{Initial: initial, Max: longest, Retries: retries}
}

func limit(p backoff.Policy, retries int) backoff.Limit {
	return backoff.Limit{Policy: p, Retries: retries}
}

func capped(p backoff.Policy, longest time.Duration) backoff.Cap {
	return backoff.Cap{Policy: p, Max: longest}
}

func aged(p backoff.Policy, age time.Duration) backoff.MaxAge {
	return backoff.MaxAge{Policy: p, Age: age}
}

func unbounded(p backoff.Policy) backoff.Unbounded { return backoff.Unbounded{Policy: p} }

// choice is a ByError that takes the last policy unless the error is errBroken.
func choice(policies ...backoff.Policy) backoff.ByError {
	last := len(policies) - 1
	p := backoff.ByError{Default: policies[last]}
	for _, policy := range policies[:last] {
		p.Cases = append(p.Cases, backoff.Case{Match: backoff.Is(errBroken), Policy: policy})
	}
	return p
}

// ofCount is a failure of which only the count is known.
func ofCount(count int) backoff.Failure { return backoff.Failure{Count: count} }

// durations reads delays: "1s 2m" are two, "" is none.
func durations(t *testing.T, text string) []time.Duration {
	t.Helper()
	list := []time.Duration{}
	for _, field := range strings.Fields(text) {
		d, err := time.ParseDuration(field)
		require.NoError(t, err)
		list = append(list, d)
	}
	return list
}

// expected is a policy and the delays that it must give or list.
type expected struct {
	name   string
	policy backoff.Policy
	want   string // for durations; "?" where the policy cannot list them
}

// testSeries asserts that each policy gives exactly these delays and then stops.
func testSeries(t *testing.T, tests ...expected) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want)
		})
	}
}

// testDelays asserts that each policy lists exactly these delays, and that check
// holds after some failures.
func testDelays(
	t *testing.T, check func(t *testing.T, p backoff.Policy, f backoff.Failure), tests ...expected,
) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireDelays(t, test.policy, test.want)
			for count := range 12 {
				check(t, test.policy, ofCount(count))
			}
		})
	}
}

// testValidate asserts the errors of Validate: all of the text, or where it begins
// with an ellipsis a part of it. No text means valid.
func testValidate(t *testing.T, tests ...expected) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := backoff.Validate(test.policy)
			if part, isPart := strings.CutPrefix(test.want, "…"); isPart {
				require.ErrorContains(t, err, part)
			} else if test.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, test.want)
			}
		})
	}
}

// remarked is a policy and its remarks.
type remarked struct {
	name   string
	policy backoff.Policy
	want   []string
}

func testRemarks(t *testing.T, tests ...remarked) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, backoff.Remarks(test.policy))
		})
	}
}

// lines are the problems of a policy, each on its own line with the policy's name.
func lines(name string, problems ...string) string {
	return name + ": " + strings.Join(problems, "\n"+name+": ")
}

// requireSeries asserts that p gives exactly these delays, and then stops for good.
func requireSeries(t *testing.T, p backoff.Policy, want string) {
	t.Helper()
	series := durations(t, want)
	for i, delay := range series {
		requireAt(t, p, map[int]time.Duration{i + 1: delay})
	}
	for _, count := range []int{len(series) + 1, len(series) + 2, 1_000_000, math.MaxInt} {
		wait, retry := p.Delay(ofCount(count))
		require.False(t, retry, "failure %d", count)
		require.Zero(t, wait, "failure %d", count)
	}
}

// requireAt asserts that p gives a delay for each of some counts.
func requireAt(t *testing.T, p backoff.Policy, want map[int]time.Duration) {
	t.Helper()
	for count, delay := range want {
		wait, retry := p.Delay(ofCount(count))
		require.True(t, retry, "failure %d", count)
		require.Equal(t, delay, wait, "failure %d", count)
	}
}

// requireDelays asserts that p lists exactly these delays.
func requireDelays(t *testing.T, p backoff.Policy, want string) {
	t.Helper()
	delays, known := backoff.Delays(p)
	require.Equal(t, want != "?", known)
	if !known {
		require.Nil(t, delays)
		return
	}
	require.Equal(t, durations(t, want), delays)
}

// requireBounds asserts that a wait has its bounds, however wrong the fields of p are.
func requireBounds(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	wait, retry := p.Delay(f)
	if !retry {
		require.Zero(t, wait)
		return
	}
	if f.Count > 1 || wait != 0 { // the first retry may come without a delay
		require.GreaterOrEqual(t, wait, ms)
	}
	require.LessOrEqual(t, wait, 315_360_000_000*ms)
	require.LessOrEqual(t, wait, backoff.MaxDelay)
}

// requireListed asserts that the delay after f is among the delays that p lists, if it lists any.
func requireListed(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	delays, known := backoff.Delays(p)
	if !known {
		require.Nil(t, delays)
		return
	}
	require.NotNil(t, delays)
	require.LessOrEqual(t, len(delays), 1000)
	require.True(t, slices.IsSorted(delays))
	if wait, retry := backoff.Next(p, f); retry && (f.Count > 1 || wait != 0) {
		require.Contains(t, delays, wait)
	}
}

func requireSound(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	requireBounds(t, p, f)
	requireListed(t, p, f)
}

// foreign is a user's policy with none of the optional methods.
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

func TestMaxDelayIsTenYears(t *testing.T) {
	t.Parallel()
	assert.Equal(t, int64(315_360_000_000), backoff.MaxDelay.Milliseconds())
	assert.Equal(t, 10*365*24*time.Hour, backoff.MaxDelay)
}

func TestPolicyFunc(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.PolicyFunc(nil), "")
	errBusy := errors.New("busy")
	p := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		if !errors.Is(f.Err, errBusy) {
			return time.Hour, false
		}
		return 2 * f.Last, f.Count >= 1
	})
	after := func(count int, last time.Duration) backoff.Failure {
		return backoff.Failure{Count: count, Err: errBusy, Last: last}
	}
	for _, test := range []struct {
		name    string
		failure backoff.Failure
		wait    time.Duration // 0: no retry
	}{
		{"sees err and last", after(1, s), 2 * s},
		{"no retry has no wait", backoff.Failure{Count: 1}, 0},
		{"count below 1 is 1", after(-7, s), 2 * s},
		{"a later zero is a millisecond", after(2, 0), ms},
		{"negative is a millisecond", after(1, -time.Hour), ms},
		{"above ten years is ten years", after(1, 87_599*time.Hour), 87_600 * time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := p.Delay(test.failure)
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.wait != 0, retry)

			wait, retry = backoff.Next(p, test.failure)
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.wait != 0, retry)
		})
	}
}

func TestNextBoundsForeignPolicies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		wait   time.Duration // 0: no retry
	}{
		{"within", foreign{wait: 3 * s, retry: true}, 3 * s},
		{"negative", foreign{wait: math.MinInt64, retry: true}, ms},
		{"zero", foreign{retry: true}, ms},
		{"too long", foreign{wait: math.MaxInt64, retry: true}, 87_600 * time.Hour},
		{"no retry", foreign{wait: s}, 0},
		{"nil", nil, 0},
		{"nil pointer", (*backoff.Exponential)(nil), 0},
		{"nil func", backoff.PolicyFunc(nil), 0},
		{"nil list", backoff.List(nil), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := backoff.Next(test.policy, ofCount(2))
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.wait != 0, retry)
		})
	}
}

func TestNextCountsFromOne(t *testing.T) {
	t.Parallel()
	for given, seen := range map[int]int{math.MinInt: 1, -1: 1, 0: 1, 1: 1, 2: 2, 1 << 62: 1 << 62} {
		var count int
		backoff.Next(foreign{seen: &count}, ofCount(given))
		assert.Equal(t, seen, count, "given %d", given)
	}
}

func TestOnePolicyManyGoroutines(t *testing.T) {
	t.Parallel()
	three := backoff.List{s, s, s}
	constant := constantly(s, 3)
	for name, p := range map[string]backoff.Policy{
		"list":        three,
		"constant":    constant,
		"linear":      linear(s, time.Hour, s, 3),
		"exponential": exponential(s, 2, s, 3),
		"fibonacci":   fibonacci(s, s, 3),
		"cap":         capped(fibonacci(s, 0, 3), s),
		"max age":     aged(three, s),
		"by error": backoff.ByError{
			Cases: []backoff.Case{
				{Match: backoff.As[*databaseError](), Policy: backoff.None{}},
				{Match: backoff.Is(errBroken), Policy: constant},
			},
			Default: backoff.None{},
		},
		"limit": limit(unbounded(constantly(s, 0)), 3),
		"cenkalti": backoff.FromCenkalti(func() cenkalti.BackOff {
			return cenkalti.WithMaxRetries(cenkalti.NewConstantBackOff(s), 3)
		}, backoff.WithMaxAge(time.Hour)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for count := 1; count <= 5; count++ {
						wait, retry := p.Delay(
							backoff.Failure{Count: count, Err: errBroken, First: start, Now: start})
						assert.Equal(t, count <= 3, retry)
						assert.Equal(t, retry, wait == s)
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
