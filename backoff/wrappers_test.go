package backoff_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

var errBroken = errors.New("broken")

// busyError is an error that nothing returns.
type busyError struct{}

func (*busyError) Error() string { return "busy" }

func TestWrappersShowTheFailure(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	given := backoff.Failure{Count: 7, Err: errBroken, First: first, Now: first.Add(time.Hour), Last: time.Minute}
	var seen []backoff.Failure
	spy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		seen = append(seen, f)
		return time.Hour, true
	})
	for name, p := range map[string]backoff.Policy{
		"limit":             backoff.Limit{Policy: spy, Retries: 9},
		"unbounded":         backoff.Unbounded{Policy: spy},
		"cap":               backoff.Cap{Policy: spy, Max: time.Second},
		"max age":           backoff.MaxAge{Policy: spy, Age: time.Second},
		"by error":          backoff.ByError{Cases: []backoff.Case{{Match: backoff.Is(errBroken), Policy: spy}}, Default: backoff.None{}},
		"by error, default": backoff.ByError{Default: spy},
		"full jitter":       backoff.FullJitter{Policy: spy},
		"equal jitter":      backoff.EqualJitter{Policy: spy},
		"bounded jitter":    backoff.BoundedJitter{Policy: spy, Extra: 1},
	} {
		seen = nil
		p.Delay(given)
		assert.Equal(t, []backoff.Failure{given}, seen, name)
	}
}

func TestWrappersReportEverything(t *testing.T) {
	t.Parallel()
	p := backoff.MaxAge{Age: -time.Second, Policy: backoff.Cap{Policy: backoff.Limit{Retries: -1, Policy: backoff.ByError{
		Cases:   []backoff.Case{{Policy: backoff.Fibonacci{Max: -1, Retries: -1}}},
		Default: backoff.Unbounded{Policy: backoff.Cap{}},
	}}}}
	require.EqualError(t, backoff.Validate(p), `backoff.MaxAge: Age -1s is not positive: use Policy without backoff.MaxAge for no limit, backoff.None to never retry
backoff.Cap: Max 0s is not positive: use Policy without backoff.Cap for no cap
backoff.Limit: Retries -1 is negative: use 0 to never retry
backoff.ByError: case [0]: Match is nil: use backoff.Is with an error, backoff.As or a func of your own
backoff.ByError: case [0]: backoff.Fibonacci: Initial 0s is not positive: a delay is at least 1ms
backoff.ByError: case [0]: backoff.Fibonacci: Max -1ns is negative: use 0 for no cap
backoff.ByError: case [0]: backoff.Fibonacci: Retries -1 is negative: use backoff.None to never retry, 0 for no end
backoff.ByError: Default: backoff.Cap: Max 0s is not positive: use Policy without backoff.Cap for no cap
backoff.ByError: Default: backoff.Cap: Policy is nil: give it the policy to wrap`)
}

func TestDeepNestingOfAllWrappers(t *testing.T) {
	t.Parallel()
	wrap := func(p backoff.Policy) backoff.Policy {
		return backoff.MaxAge{Age: time.Hour, Policy: backoff.ByError{
			Cases: []backoff.Case{{Match: backoff.Is(errBroken), Policy: backoff.Limit{Retries: 5, Policy: backoff.Cap{
				Max: time.Minute, Policy: backoff.Unbounded{Policy: p},
			}}}},
			Default: backoff.None{},
		}}
	}
	var p, invalid backoff.Policy = backoff.Fibonacci{Initial: 30 * time.Second}, backoff.List{time.Second, 0}
	for range 1000 {
		p = wrap(p)
	}
	for range 100 {
		invalid = wrap(invalid)
	}
	wait, retry := p.Delay(backoff.Failure{Count: 5, Err: errBroken})
	assert.True(t, retry)
	assert.Equal(t, time.Minute, wait)
	_, retry = p.Delay(backoff.Failure{Count: 6, Err: errBroken})
	assert.False(t, retry)
	_, retry = p.Delay(ofCount(1))
	assert.False(t, retry)

	assert.NoError(t, backoff.Validate(p))
	assert.ErrorContains(t, backoff.Validate(invalid), "backoff.List: entry [1] 0s is not positive")
	assert.NoError(t, backoff.CheckEnd(p))
	delays, known := backoff.Delays(p)
	assert.True(t, known)
	assert.Equal(t, []time.Duration{30 * time.Second, time.Minute}, delays)
}

// A Cap changes the policies in it before it lists them: thousands of them have to
// stay cheap.
func TestDeepNestingOfCaps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		"endless series":   {backoff.Exponential{Initial: time.Second, Factor: 2}, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}},
		"list":             {backoff.List{time.Hour, time.Second}, []time.Duration{time.Second, 3 * time.Second}},
		"cannot list":      {foreign{wait: time.Hour, retry: true}, nil},
		"lists a thousand": {backoff.Linear{Initial: time.Second, Step: time.Nanosecond}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := test.policy
			for range 2500 {
				p = backoff.Cap{Policy: backoff.Limit{Policy: backoff.Unbounded{Policy: p}, Retries: 2000}, Max: 3 * time.Second}
			}
			delays, known := backoff.Delays(p)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
			requireBounds(t, p, 7)
		})
	}
}
