package backoff_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

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
		assert.Equal(t, test.want, backoff.Remarks(test.policy), test.name)
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

func TestNextCountsFromOne(t *testing.T) {
	t.Parallel()
	for given, seen := range map[int]int{math.MinInt: 1, -1: 1, 0: 1, 1: 1, 2: 2, 1 << 62: 1 << 62} {
		var count int
		backoff.Next(foreign{seen: &count}, ofCount(given))
		assert.Equal(t, seen, count, "given %d", given)
	}
}

func TestDelaysForeign(t *testing.T) {
	t.Parallel()
	many := make([]time.Duration, 2000)
	for i := range many {
		many[i] = time.Duration(i/2+1) * s
	}
	for _, test := range []struct {
		name       string
		list, want []time.Duration // nil: cannot list
	}{
		{"cannot list", nil, nil},
		{"never retries", []time.Duration{}, []time.Duration{}},
		{
			"sorted, distinct, bounded",
			[]time.Duration{time.Hour, -1, 0, 1, time.Hour, 1 << 62},
			[]time.Duration{ms, time.Hour, 87_600 * time.Hour},
		},
		{"a thousand, each twice", many, slices.Compact(slices.Clone(many))},
		{"more than a thousand", append(slices.Clone(many), time.Hour), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := slices.Clone(test.list)
			delays, known := backoff.Delays(talkative{listed: test.list})
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
			assert.Equal(t, before, test.list, "the policy's slice is left alone")
		})
	}
	requireDelays(t, backoff.PolicyFunc(backoff.None{}.Delay), "?")
}

// embedding changes the Delay of the List in it and inherits everything else.
type embedding struct{ backoff.List }

func (embedding) Delay(backoff.Failure) (time.Duration, bool) { return s, true }

// wrapping changes the Delay of the Limit in it and inherits everything else.
type wrapping struct{ backoff.Limit }

func (wrapping) Delay(backoff.Failure) (time.Duration, bool) { return s, true }

func TestMaxRetries(t *testing.T) {
	t.Parallel()
	const unknown, always = -1, math.MaxInt
	endless := constantly(s, 0)
	two := backoff.List{1, 2}
	fn, long := backoff.PolicyFunc(two.Delay), limit(endless, 200)
	for name, test := range map[string]struct {
		policy           backoff.Policy
		retries, matches int // matches: the highest count for which a Match is called
	}{
		"nil":                   {nil, unknown, 0},
		"nil list":              {backoff.List(nil), 0, 0},
		"constant, negative":    {constantly(1, -3), unknown, 0},
		"decorrelated":          {decorrelated(1, 0, 3), 3, 0},
		"decorrelated, no end":  {decorrelated(1, 0, 0), unknown, 0},
		"limit of a func":       {limit(fn, 9), 9, 0},
		"age, no end":           {aged(endless, time.Hour), unknown, 0},
		"by error, short":       {choice(two, backoff.None{}), 2, always},
		"by error, a long case": {choice(long, two), 200, always},
		"by error, long":        {choice(long), 200, always},

		"by error, a case without end": {choice(endless, two), unknown, always},
		"by error without end":         {choice(two, endless), unknown, always},
		"by error in a limit":          {limit(choice(two, endless), 4), 4, 4},
		"by error in a high limit":     {limit(choice(two, two), 4), 2, 4},
		"by error in two limits":       {limit(limit(choice(two, two), 1), 4), 1, 1},
		"by error in a negative limit": {limit(choice(two, two), -1), 0, 0},
		"by error in a jitter":         {backoff.FullJitter{Policy: choice(two, two)}, 2, always},
		"limit in a case":              {choice(limit(choice(two, two), 1), two), 2, always},

		"func":                         {fn, unknown, 0},
		"cenkalti":                     {backoff.FromCenkalti(constant(s)), unknown, 0},
		"pointer":                      {&backoff.Limit{Policy: two, Retries: 1}, unknown, 0},
		"a foreign one":                {foreign{}, unknown, 0},
		"a type that embeds one":       {embedding{two}, unknown, 0},
		"a type that embeds a limit":   {wrapping{long}, unknown, 0},
		"a nameless type":              {struct{ backoff.List }{two}, unknown, 0},
		"a limit of such":              {limit(embedding{two}, 5), 5, 0},
		"a jitter of such":             {backoff.FullJitter{Policy: embedding{two}}, unknown, 0},
		"a case of such":               {choice(embedding{two}, two), unknown, always},
		"a limit of a jitter of such":  {limit(backoff.FullJitter{Policy: embedding{two}}, 5), 5, 0},
		"a limit of a nil policy":      {limit(nil, 5), 5, 0},
		"a limit of a pointer to none": {limit(&backoff.None{}, 5), 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retries, known := backoff.MaxRetries(test.policy)
			assert.Equal(t, test.retries != unknown, known)
			assert.Equal(t, max(test.retries, 0), retries)
			assert.Equal(t, test.matches, backoff.MaxMatchCount(test.policy))
		})
	}
}

// The middleware asks MaxRetries for each message that comes back.
func TestMaxRetriesDoesNotAllocate(t *testing.T) {
	var p backoff.Policy = limit(backoff.FullJitter{Policy: byKind}, 9)
	assert.Zero(t, testing.AllocsPerRun(100, func() { backoff.MaxRetries(p) }))
}

// A type that embeds a policy inherits its answers. A wrapper around it does not change them.
func TestEmbeddedAnswers(t *testing.T) {
	t.Parallel()
	two := embedding{backoff.List{s, 2 * s}}
	requireDelays(t, two, "1s 2s")
	requireDelays(t, limit(two, 1), "1s 2s")
	require.NoError(t, backoff.CheckEnd(two))
	require.EqualError(t, backoff.Validate(embedding{backoff.List{-s}}),
		"backoff.List: entry [0] -1s is not positive: a delay is at least 1ms")
	endless := struct{ backoff.Exponential }{doubling}
	requireDelays(t, capped(endless, 4*s), "?")
	require.ErrorIs(t, backoff.CheckEnd(endless), backoff.ErrNoEnd)
}

const waysOut = "wrap it in backoff.Limit or backoff.MaxAge, " +
	"use middleware.WithMaxAttempts or middleware.WithMaxAge, " +
	"or wrap it in backoff.Unbounded if no end is wanted"

var errTalkative = errors.New("talkative")

// talkative has every optional method, and its CheckEnd returns its own error.
type talkative struct{ listed []time.Duration }

func (talkative) Delay(backoff.Failure) (time.Duration, bool) { return s, true }
func (talkative) Validate() error                             { return errTalkative }
func (talkative) CheckEnd() error                             { return errTalkative }
func (talkative) Remarks() []string                           { return []string{"mind the gap"} }
func (p talkative) Delays() []time.Duration                   { return p.listed }

// never lists that it never retries, and has no CheckEnd.
type never struct{ foreign }

func (never) Delays() []time.Duration { return []time.Duration{} }

func TestValidateNil(t *testing.T) {
	t.Parallel()
	for _, test := range []expected{
		{"interface", nil, "policy is nil"},
		{"pointer", (*backoff.Constant)(nil), "policy is a nil *backoff.Constant"},
		{"func", backoff.PolicyFunc(nil), "policy is a nil backoff.PolicyFunc"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.EqualError(t, backoff.Validate(test.policy),
				test.want+": use backoff.None to never retry")
			assert.NoError(t, backoff.CheckEnd(test.policy), "never retries")
			assert.Nil(t, backoff.Remarks(test.policy))
			requireDelays(t, test.policy, "?")
		})
	}
}

func TestValidateForeign(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(foreign{}))
	require.NoError(t, backoff.Validate(&backoff.Constant{Interval: s}))
	require.NoError(t, backoff.Validate(backoff.PolicyFunc(backoff.None{}.Delay)))
	require.ErrorIs(t, backoff.Validate(limit(talkative{}, 0)), errTalkative)
}

func TestCheckEnd(t *testing.T) {
	t.Parallel()
	const unknown = ": policy is not known to stop retrying: "
	for _, test := range []expected{ // empty: it ends
		{"list", backoff.List{s}, ""},
		{"constant", constantly(s, 1), ""},
		{"linear", linear(s, s, 0, 1), ""},
		{"exponential", exponential(s, 2, 0, 1), ""},
		{"fibonacci", fibonacci(s, 0, 1), ""},
		{"foreign that never retries", never{}, ""},
		{"cap of nil", capped(nil, s), ""},
		{"cap of unbounded", capped(unbounded(doubling), s), ""},
		{"jitter of unbounded", full(unbounded(doubling)), ""},
		{
			"jitter without end", full(doubling),
			"backoff.Exponential" + unknown + "set Retries, " + waysOut,
		},
		{"cap without end", capped(foreign{}, s), "backoff_test.foreign" + unknown + waysOut},
		{
			"decorrelated without end", decorrelated(s, 0, 0),
			"backoff.DecorrelatedJitter" + unknown + "set Retries, " + waysOut,
		},
		{
			"constant without end", constantly(s, 0),
			"backoff.Constant" + unknown + "set Retries, " + waysOut,
		},
		{
			"linear without end", linear(s, s, s, 0), "backoff.Linear" + unknown + "set Retries, " + waysOut,
		},
		{
			"exponential without end", doubling, "backoff.Exponential" + unknown + "set Retries, " + waysOut,
		},
		{
			"fibonacci without end", fibonacci(s, s, 0),
			"backoff.Fibonacci" + unknown + "set Retries, " + waysOut,
		},
		{"func", backoff.PolicyFunc(backoff.None{}.Delay), "backoff.PolicyFunc" + unknown + waysOut},
		{"foreign", foreign{}, "backoff_test.foreign" + unknown + waysOut},
		{"foreign with its own error", talkative{}, "policy is not known to stop retrying: talkative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := backoff.CheckEnd(test.policy)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, backoff.ErrNoEnd)
			require.EqualError(t, err, test.want)
		})
	}
	require.ErrorIs(t, backoff.CheckEnd(talkative{}), errTalkative)
}
