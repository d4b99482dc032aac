package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// knows returns a Health that always returns r.
func knows(r backoff.Recent) func(time.Time) backoff.Recent {
	return func(time.Time) backoff.Recent { return r }
}

func TestAdaptiveFollowsTheShareOfFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		recent      backoff.Recent
		least, most float64
		want        time.Duration // in place of 10s
	}{
		"nothing known":                 {backoff.Recent{}, 0, 0, 10 * s},
		"all succeed":                   {backoff.Recent{Attempts: 1000}, 0, 0, 5 * s},
		"a tenth fails":                 {backoff.Recent{Attempts: 1000, Failed: 100}, 0, 0, 5 * s},
		"half of them fail":             {backoff.Recent{Attempts: 1000, Failed: 500}, 0, 0, 10 * s},
		"three quarters fail":           {backoff.Recent{Attempts: 1000, Failed: 750}, 0, 0, 20 * s},
		"nine of ten fail":              {backoff.Recent{Attempts: 1000, Failed: 900}, 0, 0, 40 * s},
		"all fail":                      {backoff.Recent{Attempts: 1000, Failed: 1000}, 0, 0, 80 * s},
		"one of one fails":              {backoff.Recent{Attempts: 1, Failed: 1}, 0, 0, 10 * s},
		"ten of ten fail":               {backoff.Recent{Attempts: 10, Failed: 10}, 0, 0, 20 * s},
		"a hundred of a hundred fail":   {backoff.Recent{Attempts: 100, Failed: 100}, 0, 0, 80 * s},
		"all succeed, never shorter":    {backoff.Recent{Attempts: 1000}, 1, 0, 10 * s},
		"half fail, never shorter":      {backoff.Recent{Attempts: 1000, Failed: 500}, 1, 0, 20 * s},
		"all succeed, a fifth":          {backoff.Recent{Attempts: 1000}, 0.2, 0, 2 * s},
		"all fail, at most three times": {backoff.Recent{Attempts: 1000, Failed: 1000}, 0, 3, 30 * s},
		"all fail, a hundred times":     {backoff.Recent{Attempts: 9999, Failed: 9999}, 1, 100, 1000 * s},
		"never longer":                  {backoff.Recent{Attempts: 1000, Failed: 1000}, 0, 1, 10 * s},
		"more failed than there were":   {backoff.Recent{Attempts: 100, Failed: 900}, 0, 0, 80 * s},
		"negative counts":               {backoff.Recent{Attempts: -5, Failed: -9}, 0, 0, 10 * s},
		"the most there is":             {backoff.Recent{Attempts: math.MaxInt}, 0, 0, 5 * s},
	} {
		policy := backoff.Adaptive{
			Policy: backoff.List{10 * s}, Health: knows(test.recent), Least: test.least, Most: test.most,
		}
		require.NoError(t, backoff.Validate(policy), name)
		wait, retry := policy.Delay(backoff.Failure{Count: 1})
		assert.True(t, retry, name)
		assert.Equal(t, test.want, wait, name)
		delays, known := backoff.Delays(policy)
		require.True(t, known, name)
		assert.Contains(t, delays, wait, "%s: it has its own wait step", name)
	}
}

// While most attempts fail, a message waits about as long as recent messages waited in all.
func TestAdaptiveFollowsTheTimeUntilSuccess(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		failed int // of 990
		until  time.Duration
		age    time.Duration
		want   time.Duration // in place of 10s
	}{
		"half fail, 20s each":             {495, 20 * s, 0, 10 * s},
		"half fail, 80s each":             {495, 80 * s, 0, 40 * s},
		"half fail, 80s each, 60s passed": {495, 80 * s, 60 * s, 10 * s},
		"half fail, 80s each, all passed": {495, 80 * s, 500 * s, 10 * s},
		"half fail, an hour each":         {495, time.Hour, 0, 80 * s},
		"a few fail, 80s each":            {10, 80 * s, 0, 5 * s},
		"none fails, an hour each":        {0, time.Hour, 0, 5 * s},
		"negative":                        {495, -time.Hour, 0, 10 * s},
		"the longest there is":            {495, math.MaxInt64, 0, 80 * s},
	} {
		policy := backoff.Adaptive{
			Policy: backoff.List{10 * s},
			Health: knows(backoff.Recent{Attempts: 990, Failed: test.failed, UntilSuccess: test.until}),
		}
		wait, _ := policy.Delay(backoff.Failure{Count: 1, First: first, Now: first.Add(test.age)})
		assert.Equal(t, test.want, wait, name)
	}
}

// The delay depends on nothing but the failure and the result of Health, which gets Failure.Now.
func TestAdaptiveIsPure(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var asked []time.Time
	policy := backoff.Adaptive{
		Policy: backoff.List{s, s}, Health: func(at time.Time) backoff.Recent {
			asked = append(asked, at)
			return backoff.Recent{Attempts: 1000, Failed: 900}
		},
	}
	for range 2 {
		wait, _ := policy.Delay(backoff.Failure{Count: 1, Now: now})
		require.Equal(t, 4*s, wait)
	}
	require.Equal(t, []time.Time{now, now}, asked)
	_, retry := policy.Delay(backoff.Failure{Count: 3, Now: now})
	require.False(t, retry)
	require.Len(t, asked, 2, "not asked about a message without a retry")
}

func TestAdaptiveDelays(t *testing.T) {
	t.Parallel()
	doubling := backoff.Exponential{Initial: s, Factor: 2, Retries: 4}
	growing := backoff.Exponential{Initial: s, Factor: 2}
	adaptive := func(p backoff.Policy) backoff.Adaptive {
		return backoff.Adaptive{Policy: p, Health: knows(backoff.Recent{})}
	}
	ladder := []time.Duration{s / 2, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s}
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   []time.Duration
	}{
		"one delay":         {adaptive(backoff.List{s}), ladder[:5]},
		"a doubling series": {adaptive(doubling), ladder},
		"under a Limit":     {backoff.Limit{Policy: adaptive(growing), Retries: 4}, ladder},
		"under a Cap": {
			backoff.Cap{Policy: adaptive(growing), Max: 20 * s},
			[]time.Duration{s / 2, s, 2 * s, 4 * s, 8 * s, 16 * s, 20 * s},
		},
		"under a MaxAge": {backoff.MaxAge{Policy: adaptive(growing), Age: 20 * s}, ladder[:6]},
		"other bounds": {
			backoff.Adaptive{
				Policy: backoff.List{s}, Health: knows(backoff.Recent{}), Least: 0.25, Most: 1.5,
			},
			[]time.Duration{s / 4, s / 2, s, 3 * s / 2},
		},
		"whole milliseconds": {
			adaptive(backoff.List{time.Millisecond, 5 * time.Millisecond}),
			[]time.Duration{
				time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 4 * time.Millisecond,
				5 * time.Millisecond, 8 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
				40 * time.Millisecond,
			},
		},
		"the longest delay": {
			adaptive(backoff.List{backoff.MaxDelay}),
			[]time.Duration{backoff.MaxDelay / 2, backoff.MaxDelay},
		},
		"no retry": {adaptive(backoff.None{}), []time.Duration{}},
		"unknown":  {adaptive(backoff.PolicyFunc(nil)), nil},
		"no end":   {adaptive(growing), nil},
	} {
		delays, known := backoff.Delays(test.policy)
		assert.Equal(t, test.want, delays, name)
		assert.Equal(t, test.want != nil, known, name)
	}
}

func TestAdaptiveValidate(t *testing.T) {
	t.Parallel()
	err := backoff.Validate(backoff.Adaptive{Least: 2, Most: 1000})
	for _, want := range []string{
		"backoff.Adaptive: Health is nil: use Recent of an adaptive.Health",
		"backoff.Adaptive: Least 2 is not from 0.1 to 1: use 0 for 0.5",
		"backoff.Adaptive: Most 1000 is not from 1 to 100: use 0 for 8",
		"backoff.Adaptive: Policy is nil: give it the policy to wrap",
	} {
		require.ErrorContains(t, err, want)
	}
	for name, policy := range map[string]backoff.Adaptive{
		"Least is NaN":   {Least: math.NaN()},
		"Least is small": {Least: 0.01},
		"Least below 0":  {Least: -1},
		"Most is NaN":    {Most: math.NaN()},
		"Most is small":  {Most: 0.5},
		"Most is Inf":    {Most: math.Inf(1)},
	} {
		policy.Policy, policy.Health = backoff.List{s}, knows(backoff.Recent{Attempts: 9, Failed: 9})
		assert.Error(t, backoff.Validate(policy), name)
		wait, retry := policy.Delay(backoff.Failure{Count: 1})
		assert.True(t, retry && wait >= s/10 && wait <= 100*s, "%s: invalid fields do no harm", name)
	}
	invalid := backoff.Adaptive{Policy: backoff.List{-1}, Health: knows(backoff.Recent{})}
	require.ErrorContains(t, backoff.Validate(invalid), "backoff.List: entry [0]")
	wait, retry := backoff.Adaptive{Policy: backoff.List{s}}.Delay(backoff.Failure{Count: 1})
	require.True(t, retry)
	require.Equal(t, s, wait, "without Health the policy inside decides")
	wait, retry = backoff.Adaptive{
		Policy: backoff.AtOnce{Policy: backoff.List{s}},
		Health: knows(backoff.Recent{Attempts: 9, Failed: 9, UntilSuccess: s}),
	}.Delay(backoff.Failure{Count: 1})
	require.True(t, retry)
	require.Zero(t, wait, "a first retry without a delay has nothing to multiply")
}

func TestAdaptiveEndsWithItsPolicy(t *testing.T) {
	t.Parallel()
	endless := backoff.Adaptive{
		Policy: backoff.Constant{Interval: s}, Health: knows(backoff.Recent{}),
	}
	require.ErrorIs(t, backoff.CheckEnd(endless), backoff.ErrNoEnd)
	_, known := backoff.MaxRetries(endless)
	require.False(t, known)
	ends := backoff.Adaptive{Policy: backoff.List{s, s}, Health: knows(backoff.Recent{})}
	require.NoError(t, backoff.CheckEnd(ends))
	n, known := backoff.MaxRetries(ends)
	require.True(t, known)
	require.Equal(t, 2, n)
	require.Equal(t, []string{"backoff.Adaptive: topology.PerQueue and topology.Shared need up to " +
		"5 wait queues instead of 1; a smaller Most needs fewer"}, backoff.Remarks(ends))
}

// A jitter inside has its wait steps multiplied, so that no drawn delay is above the last of them.
func TestAdaptiveAroundAJitter(t *testing.T) {
	t.Parallel()
	for _, failed := range []int{0, 500, 1000} {
		policy := backoff.Adaptive{
			Policy: backoff.FullJitter{Policy: backoff.List{10 * s}},
			Health: knows(backoff.Recent{Attempts: 1000, Failed: failed}),
		}
		for range 1000 {
			requireUnderSteps(t, policy, backoff.Failure{Count: 1})
		}
	}
}

// No message, and no state, makes a delay that is outside the bounds or has no wait step.
func FuzzAdaptive(f *testing.F) {
	f.Add(100, 50, int64(time.Minute), int64(time.Second), 0.5, 8.0, 1)
	f.Add(-1, math.MaxInt, int64(-1), int64(math.MaxInt64), math.NaN(), math.Inf(1), 9)
	f.Fuzz(func(t *testing.T, attempts, failed int, until, delay int64, least, most float64, n int) {
		policy := backoff.Adaptive{
			Policy: backoff.Exponential{Initial: time.Duration(delay), Factor: 3, Retries: 9},
			Health: knows(backoff.Recent{
				Attempts: attempts, Failed: failed, UntilSuccess: time.Duration(until),
			}),
			Least: least, Most: most,
		}
		failure := backoff.Failure{Count: n}
		inner, _ := backoff.Next(policy.Policy, failure)
		wait, retry := policy.Delay(failure)
		if !retry {
			return
		}
		require.LessOrEqual(t, wait/100, inner)
		require.GreaterOrEqual(t, wait, inner/10)
		delays, known := backoff.Delays(policy)
		require.True(t, known)
		require.Contains(t, delays, wait)
	})
}
