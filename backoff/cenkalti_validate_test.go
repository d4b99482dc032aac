package backoff_test

import (
	"context"
	"testing"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func TestCenkaltiValidate(t *testing.T) {
	t.Parallel()
	one := cenkalti.NewExponentialBackOff()
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   string
	}{
		{"nil factory", backoff.FromCenkalti(nil), "backoff.FromCenkalti: factory is nil: give a func that returns a new BackOff"},
		{"returns nil", backoff.FromCenkalti(func() cenkalti.BackOff { return nil }), "backoff.FromCenkalti: factory returns nil: return a new BackOff"},
		{"returns a nil pointer", backoff.FromCenkalti(func() cenkalti.BackOff { return (*cenkalti.ExponentialBackOff)(nil) }), "backoff.FromCenkalti: factory returns a nil *backoff.ExponentialBackOff: return a new BackOff"},
		{"panics", backoff.FromCenkalti(func() cenkalti.BackOff { panic("no config") }), "backoff.FromCenkalti: factory panics: no config"},
		{"all problems", backoff.FromCenkalti(nil, backoff.WithMaxAge(0)), "backoff.FromCenkalti: WithMaxAge 0s is not positive: leave it out for no limit\nbackoff.FromCenkalti: factory is nil: give a func that returns a new BackOff"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.EqualError(t, backoff.Validate(test.policy), test.want)
			requireSeries(t, test.policy)
			assert.NoError(t, backoff.CheckEnd(test.policy), "never retries")
			assert.Empty(t, backoff.Remarks(test.policy))
		})
	}
	broken := backoff.FromCenkalti(of(func() cenkalti.BackOff { return &cenkalti.ExponentialBackOff{} }, 3))
	require.EqualError(t, backoff.Validate(broken), "backoff.FromCenkalti: BackOff panics: runtime error: invalid memory address or nil pointer dereference")
	requireSeries(t, broken)
	require.EqualError(t, backoff.Validate(backoff.FromCenkalti(func() cenkalti.BackOff { return one })),
		"backoff.FromCenkalti: factory returns the same *backoff.ExponentialBackOff each time, a data race: build a new one in it")
	shared := cenkalti.NewConstantBackOff(time.Second)
	require.NoError(t, backoff.Validate(backoff.FromCenkalti(func() cenkalti.BackOff { return shared })), "has no state")
	stop := &cenkalti.StopBackOff{}
	require.NoError(t, backoff.Validate(backoff.FromCenkalti(func() cenkalti.BackOff { return stop })), "has no state")
}

func TestCenkaltiLeavesTheBackOffAlone(t *testing.T) {
	t.Parallel()
	b := cenkalti.NewExponentialBackOff()
	p := backoff.FromCenkalti(func() cenkalti.BackOff { return b })
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 3 {
		_, retry := p.Delay(backoff.Failure{Count: 1, First: first, Now: first.Add(time.Hour)})
		assert.False(t, retry)
	}
	assert.Equal(t, 15*time.Minute, b.MaxElapsedTime)
}

func TestCenkaltiEndAndRemarks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inContext := func() cenkalti.BackOff { return cenkalti.WithContext(exact(0)(), ctx) }
	requireSeries(t, backoff.FromCenkalti(inContext))

	const cancelled = "backoff.FromCenkalti: once the context given to WithContext is cancelled, failures are not retried any more"
	for _, test := range []struct {
		name    string
		policy  backoff.Policy
		ends    bool
		remarks []string
	}{
		{
			"default limit", backoff.FromCenkalti(func() cenkalti.BackOff { return cenkalti.NewExponentialBackOff() }), true,
			[]string{"backoff.FromCenkalti: the elapsed-time limit of 15m0s is the age of the message, counted from its first failure"},
		},
		{"no limit", backoff.FromCenkalti(exact(0)), false, nil},
		{"option", backoff.FromCenkalti(exact(0), backoff.WithMaxAge(time.Hour)), true, nil},
		{"option instead of limit", backoff.FromCenkalti(exact(time.Minute), backoff.WithMaxAge(time.Hour)), true, nil},
		{"constant", backoff.FromCenkalti(constant(time.Second)), false, nil},
		{"zero", backoff.FromCenkalti(func() cenkalti.BackOff { return &cenkalti.ZeroBackOff{} }), false, nil},
		{"stop", backoff.FromCenkalti(func() cenkalti.BackOff { return &cenkalti.StopBackOff{} }), true, nil},
		{
			"wrapped", backoff.FromCenkalti(of(exact(time.Minute), 3)), false,
			[]string{"backoff.FromCenkalti: an elapsed-time limit inside the *backoff.backOffTries has no effect; set it with backoff.WithMaxAge"},
		},
		{"wrapped with option", backoff.FromCenkalti(of(exact(time.Minute), 3), backoff.WithMaxAge(time.Hour)), true, nil},
		{
			"in a context", backoff.FromCenkalti(inContext), false,
			[]string{"backoff.FromCenkalti: an elapsed-time limit inside the *backoff.backOffContext has no effect; set it with backoff.WithMaxAge", cancelled},
		},
		{"in a context with option", backoff.FromCenkalti(inContext, backoff.WithMaxAge(time.Hour)), true, []string{cancelled}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, backoff.Validate(test.policy))
			assert.Equal(t, test.remarks, backoff.Remarks(test.policy))
			assert.Equal(t, test.remarks, backoff.Remarks(backoff.Limit{Policy: test.policy, Retries: 3}))
			err := backoff.CheckEnd(test.policy)
			if test.ends {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, backoff.ErrNoEnd)
			require.ErrorContains(t, err, "backoff.Limit")
			require.ErrorContains(t, err, "backoff.WithMaxAge")
		})
	}
}
