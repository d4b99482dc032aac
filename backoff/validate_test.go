package backoff_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// requireListed asserts that the delay of p after count failures is among those
// it lists, if it lists any.
func requireListed(t *testing.T, p backoff.Policy, count int) {
	t.Helper()
	requireListedAfter(t, p, ofCount(count))
}

func requireListedAfter(t *testing.T, p backoff.Policy, f backoff.Failure) {
	t.Helper()
	delays, known := backoff.Delays(p)
	if !known {
		require.Nil(t, delays)
		return
	}
	require.NotNil(t, delays)
	require.LessOrEqual(t, len(delays), 1000)
	require.True(t, slices.IsSorted(delays))
	if wait, retry := backoff.Next(p, f); retry {
		require.Contains(t, delays, wait)
	}
}

func TestValidateNil(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   string
	}{
		{"interface", nil, "policy is nil: use backoff.None to never retry"},
		{"pointer", (*backoff.Constant)(nil), "policy is a nil *backoff.Constant: use backoff.None to never retry"},
		{"func", backoff.PolicyFunc(nil), "policy is a nil backoff.PolicyFunc: use backoff.None to never retry"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.EqualError(t, backoff.Validate(test.policy), test.want)
			assert.NoError(t, backoff.CheckEnd(test.policy), "never retries")
			assert.Nil(t, backoff.Remarks(test.policy))
			delays, known := backoff.Delays(test.policy)
			assert.Nil(t, delays)
			assert.False(t, known)
		})
	}
}

func TestValidateForeign(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(foreign{}))
	require.NoError(t, backoff.Validate(&backoff.Constant{Interval: time.Second}))
	require.NoError(t, backoff.Validate(backoff.PolicyFunc(backoff.None{}.Delay)))
	require.ErrorIs(t, backoff.Validate(backoff.Limit{Policy: talkative{}}), errTalkative)
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	err := backoff.Validate(backoff.Unbounded{Policy: backoff.Limit{
		Retries: -1,
		Policy:  backoff.Exponential{Initial: time.Hour, Factor: 0.5, Max: time.Second, Retries: -2},
	}})
	require.EqualError(t, err, `backoff.Limit: Retries -1 is negative: use 0 to never retry
backoff.Exponential: Factor 0.5 is not a finite number of at least 1: use 2 to double each delay, backoff.Constant for equal delays
backoff.Exponential: Max 1s is below Initial 1h0m0s: raise Max or lower Initial
backoff.Exponential: Retries -2 is negative: use backoff.None to never retry, 0 for no end`)
}

var errTalkative = errors.New("talkative")

// talkative has every optional method, and answers CheckEnd with an error of
// its own.
type talkative struct{ listed []time.Duration }

func (talkative) Delay(backoff.Failure) (time.Duration, bool) { return time.Second, true }
func (talkative) Validate() error                             { return errTalkative }
func (talkative) CheckEnd() error                             { return errTalkative }
func (talkative) Remarks() []string                           { return []string{"mind the gap"} }
func (p talkative) Delays() []time.Duration                   { return p.listed }

// never lists that it never retries, and has no CheckEnd.
type never struct{ foreign }

func (never) Delays() []time.Duration { return []time.Duration{} }

func TestCheckEnd(t *testing.T) {
	t.Parallel()
	const waysOut = "wrap it in backoff.Limit or backoff.MaxAge, use middleware.WithMaxAttempts or middleware.WithMaxAge, " +
		"or wrap it in backoff.Unbounded if it shall never end"
	const s = time.Second
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   string // empty: it ends
	}{
		{"constant", backoff.Constant{Interval: s, Retries: 1}, ""},
		{"linear", backoff.Linear{Initial: s, Step: s, Retries: 1}, ""},
		{"exponential", backoff.Exponential{Initial: s, Factor: 2, Retries: 1}, ""},
		{"foreign that never retries", never{}, ""},
		{"constant without end", backoff.Constant{Interval: s}, "backoff.Constant: policy is not known to stop retrying: set Retries, " + waysOut},
		{"linear without end", backoff.Linear{Initial: s, Step: s, Max: s}, "backoff.Linear: policy is not known to stop retrying: set Retries, " + waysOut},
		{"exponential without end", backoff.Exponential{Initial: s, Factor: 2}, "backoff.Exponential: policy is not known to stop retrying: set Retries, " + waysOut},
		{"func", backoff.PolicyFunc(backoff.None{}.Delay), "backoff.PolicyFunc: policy is not known to stop retrying: " + waysOut},
		{"foreign", foreign{}, "backoff_test.foreign: policy is not known to stop retrying: " + waysOut},
		{"foreign with an error of its own", talkative{}, "policy is not known to stop retrying: talkative"},
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

func TestDelaysForeign(t *testing.T) {
	t.Parallel()
	many := make([]time.Duration, 2000)
	for i := range many {
		many[i] = time.Duration(i/2+1) * time.Second
	}
	for _, test := range []struct {
		name string
		list []time.Duration
		want []time.Duration // nil: cannot list
	}{
		{"cannot list", nil, nil},
		{"never retries", []time.Duration{}, []time.Duration{}},
		{"sorted, distinct, bounded", []time.Duration{time.Hour, -1, 0, 1, time.Hour, 1 << 62}, []time.Duration{time.Millisecond, time.Hour, 87_600 * time.Hour}},
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
	_, known := backoff.Delays(backoff.PolicyFunc(backoff.None{}.Delay))
	assert.False(t, known)
}
