package backoff_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

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
		"none":                  {backoff.None{}, 0, 0},
		"list":                  {two, 2, 0},
		"nil list":              {backoff.List(nil), 0, 0},
		"constant":              {constantly(1, 3), 3, 0},
		"constant, no end":      {endless, unknown, 0},
		"constant, negative":    {constantly(1, -3), unknown, 0},
		"linear":                {linear(1, 0, 0, 3), 3, 0},
		"linear, no end":        {linear(1, 0, 0, 0), unknown, 0},
		"exponential":           {exponential(1, 2, 0, 3), 3, 0},
		"exponential, no end":   {doubling, unknown, 0},
		"fibonacci":             {fibonacci(1, 0, 3), 3, 0},
		"fibonacci, no end":     {fibonacci(1, 0, 0), unknown, 0},
		"full jitter":           {backoff.FullJitter{Policy: two}, 2, 0},
		"equal jitter, no end":  {equalJitter(endless), unknown, 0},
		"bounded jitter":        {boundedJitter(two, 1), 2, 0},
		"decorrelated":          {decorrelated(1, 0, 3), 3, 0},
		"decorrelated, no end":  {decorrelated(1, 0, 0), unknown, 0},
		"limit below":           {limit(two, 1), 1, 0},
		"limit above":           {limit(two, 9), 2, 0},
		"limit of none":         {limit(two, 0), 0, 0},
		"limit, negative":       {limit(two, -1), 0, 0},
		"limit of no end":       {limit(endless, 9), 9, 0},
		"limit of a func":       {limit(fn, 9), 9, 0},
		"cap":                   {capped(two, 1), 2, 0},
		"cap, no end":           {capped(endless, 1), unknown, 0},
		"age":                   {aged(two, time.Hour), 2, 0},
		"age, no end":           {aged(endless, time.Hour), unknown, 0},
		"unbounded, but it is":  {unbounded(two), 2, 0},
		"unbounded":             {unbounded(endless), unknown, 0},
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

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	err := backoff.Validate(unbounded(limit(exponential(time.Hour, 0.5, s, -2), -1)))
	require.EqualError(t, err, `backoff.Limit: Retries -1 is negative: use 0 to never retry
backoff.Exponential: Factor 0.5 is not a finite number of at least 1: `+
		`use 2 to double each delay, backoff.Constant for equal delays
backoff.Exponential: Max 1s is below Initial 1h0m0s: raise Max or lower Initial
backoff.Exponential: Retries -2 is negative: use backoff.None to never retry, 0 for no end`)
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
