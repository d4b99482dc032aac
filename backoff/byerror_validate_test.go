package backoff_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func TestByErrorValidate(t *testing.T) {
	t.Parallel()
	always := func(error) bool { return true }
	require.NoError(t, backoff.Validate(backoff.ByError{Default: backoff.None{}}))
	require.EqualError(t, backoff.Validate(backoff.ByError{}), "backoff.ByError: Default: policy is nil: use backoff.None to never retry")
	err := backoff.Validate(backoff.ByError{
		Cases: []backoff.Case{
			{},
			{Match: always, Policy: backoff.List{0, time.Second, -time.Second}},
			{Match: backoff.Is(nil), Policy: (*backoff.List)(nil)},
			{Match: always, Policy: backoff.ByError{Cases: []backoff.Case{{Policy: backoff.Constant{Retries: -1}}}}},
			{Match: always, Policy: talkative{}},
		},
		Default: backoff.Limit{Retries: -1},
	})
	require.EqualError(t, err, `backoff.ByError: case [0]: Match is nil: use backoff.Is with an error, backoff.As or a func of your own
backoff.ByError: case [0]: policy is nil: use backoff.None to never retry
backoff.ByError: case [1]: backoff.List: entry [0] 0s is not positive: a delay is at least 1ms
backoff.ByError: case [1]: backoff.List: entry [2] -1s is not positive: a delay is at least 1ms
backoff.ByError: case [2]: Match is nil: use backoff.Is with an error, backoff.As or a func of your own
backoff.ByError: case [2]: policy is a nil *backoff.List: use backoff.None to never retry
backoff.ByError: case [3]: backoff.ByError: case [0]: Match is nil: use backoff.Is with an error, backoff.As or a func of your own
backoff.ByError: case [3]: backoff.ByError: case [0]: backoff.Constant: Interval 0s is not positive: a delay is at least 1ms
backoff.ByError: case [3]: backoff.ByError: case [0]: backoff.Constant: Retries -1 is negative: use backoff.None to never retry, 0 for no end
backoff.ByError: case [3]: backoff.ByError: Default: policy is nil: use backoff.None to never retry
backoff.ByError: case [4]: talkative
backoff.ByError: Default: backoff.Limit: Retries -1 is negative: use 0 to never retry
backoff.ByError: Default: backoff.Limit: Policy is nil: give it the policy to wrap`)
	require.ErrorIs(t, err, errTalkative)
}

func TestByErrorCheckEnd(t *testing.T) {
	t.Parallel()
	const waysOut = "wrap it in backoff.Limit or backoff.MaxAge, use middleware.WithMaxAttempts or middleware.WithMaxAge, " +
		"or wrap it in backoff.Unbounded if it shall never end"
	endless := backoff.Constant{Interval: time.Second}
	err := backoff.CheckEnd(backoff.ByError{
		Cases: []backoff.Case{
			{Match: backoff.Is(errBroken), Policy: endless},
			{Match: backoff.Is(errBroken), Policy: backoff.List{time.Second}},
			{Match: backoff.Is(errBroken), Policy: backoff.Unbounded{Policy: endless}},
			{Match: backoff.Is(errBroken), Policy: talkative{}},
			{Match: backoff.Is(errBroken)},
		},
		Default: foreign{},
	})
	require.EqualError(t, err, "backoff.ByError: case [0]: backoff.Constant: policy is not known to stop retrying: set Retries, "+waysOut+
		"\nbackoff.ByError: case [3]: policy is not known to stop retrying: talkative"+
		"\nbackoff.ByError: Default: backoff_test.foreign: policy is not known to stop retrying: "+waysOut)
	require.ErrorIs(t, err, backoff.ErrNoEnd)
	require.ErrorIs(t, err, errTalkative)

	require.NoError(t, backoff.CheckEnd(backoff.ByError{}), "never retries")
	require.NoError(t, backoff.CheckEnd(backoff.Limit{Policy: backoff.ByError{Default: endless}, Retries: 3}))
	require.ErrorIs(t, backoff.CheckEnd(backoff.ByError{Default: endless}), backoff.ErrNoEnd)
}

func TestByErrorDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	of := func(policies ...backoff.Policy) backoff.ByError {
		last := len(policies) - 1
		p := backoff.ByError{Default: policies[last]}
		for _, policy := range policies[:last] {
			p.Cases = append(p.Cases, backoff.Case{Match: backoff.Is(errBroken), Policy: policy})
		}
		return p
	}
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		{"all", of(backoff.List{3 * s, s}, backoff.Constant{Interval: 2 * s}, backoff.List{4 * s}), []time.Duration{s, 2 * s, 3 * s, 4 * s}},
		{"each once", of(backoff.List{s, 2 * s}, backoff.List{2 * s, s}), []time.Duration{s, 2 * s}},
		{"nested", of(of(backoff.List{s}, backoff.List{2 * s}), backoff.List{3 * s}), []time.Duration{s, 2 * s, 3 * s}},
		{"default alone", of(backoff.List{s}), []time.Duration{s}},
		{"never retries", of(backoff.None{}, backoff.List{}), []time.Duration{}},
		{"a case cannot list", of(foreign{retry: true}, backoff.List{s}), nil},
		{"default cannot list", of(backoff.List{s}, foreign{retry: true}), nil},
		{"an endless series, capped around it", backoff.Cap{Policy: of(backoff.Exponential{Initial: s, Factor: 2}, backoff.None{}), Max: s}, nil},
		{"nil", backoff.ByError{}, nil},
		{
			"too many together",
			of(backoff.Linear{Initial: s, Step: s, Retries: 600}, backoff.Linear{Initial: time.Millisecond, Step: s, Retries: 600}, backoff.None{}),
			nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func TestByErrorLeavesTheSlicesAlone(t *testing.T) {
	t.Parallel()
	list := backoff.List{3 * time.Second, time.Second}
	cases := make([]backoff.Case, 1, 2)
	cases[0] = backoff.Case{Match: backoff.Is(errBroken), Policy: list}
	p := backoff.ByError{Cases: cases, Default: backoff.List{2 * time.Second}}
	delays, _ := backoff.Delays(p)
	delays[0] = time.Hour
	p.Delays()[0] = time.Hour
	assert.Equal(t, backoff.List{3 * time.Second, time.Second}, list)
	assert.Zero(t, cases[:2][1])
	assert.Equal(t, list, cases[0].Policy)
}

func TestByErrorRemarks(t *testing.T) {
	t.Parallel()
	p := backoff.ByError{
		Cases: []backoff.Case{
			{Match: backoff.Is(errBroken), Policy: backoff.List{time.Second}},
			{Match: backoff.Is(errBroken), Policy: talkative{}},
		},
		Default: backoff.Unbounded{Policy: talkative{}},
	}
	assert.Equal(t, []string{
		"backoff.ByError: case [1]: mind the gap",
		"backoff.ByError: Default: backoff.Unbounded: the policy has no end; a message that keeps failing is retried until something else stops it",
		"backoff.ByError: Default: mind the gap",
	}, backoff.Remarks(p))
	assert.Empty(t, backoff.Remarks(backoff.ByError{}))
}
