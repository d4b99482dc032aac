package backoff_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

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
