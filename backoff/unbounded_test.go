package backoff_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func TestUnbounded(t *testing.T) {
	t.Parallel()
	p := backoff.Unbounded{Policy: backoff.Linear{Initial: time.Second, Step: time.Second, Max: time.Minute}}
	requireDelays(t, p, map[int]time.Duration{
		math.MinInt: time.Second, 1: time.Second, 2: 2 * time.Second, 1_000_000: time.Minute, math.MaxInt: time.Minute,
	})
	require.NoError(t, backoff.Validate(p))
	require.NoError(t, backoff.CheckEnd(p))
	require.ErrorIs(t, backoff.CheckEnd(p.Policy), backoff.ErrNoEnd)
	delays, known := backoff.Delays(p)
	require.True(t, known)
	assert.Len(t, delays, 60)

	_, known = backoff.Delays(backoff.Unbounded{Policy: foreign{}})
	assert.False(t, known)
}

func TestUnboundedAddsNoRetry(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.Unbounded{Policy: backoff.List{time.Second}}, time.Second)
	requireSeries(t, backoff.Unbounded{})
	requireSeries(t, backoff.Unbounded{Policy: (*backoff.List)(nil)})
}

func TestUnboundedValidate(t *testing.T) {
	t.Parallel()
	require.EqualError(t, backoff.Validate(backoff.Unbounded{}), "backoff.Unbounded: Policy is nil: give it the policy to wrap")
	require.EqualError(t, backoff.Validate(backoff.Unbounded{Policy: backoff.Constant{}}),
		"backoff.Constant: Interval 0s is not positive: a delay is at least 1ms")
}

func TestUnboundedRemarks(t *testing.T) {
	t.Parallel()
	const loud = "backoff.Unbounded: the policy has no end; a message that keeps failing is retried until something else stops it"
	endless := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}
	assert.Equal(t, []string{loud}, backoff.Remarks(endless))
	assert.Equal(t, []string{loud}, backoff.Remarks(backoff.Limit{Policy: endless, Retries: 3}))
	assert.Equal(t, []string{"backoff.Unbounded adds nothing to backoff.List, which ends by itself or says already that it does not"},
		backoff.Remarks(backoff.Unbounded{Policy: backoff.List{time.Second}}))
	assert.Equal(t, []string{loud, "mind the gap"}, backoff.Remarks(backoff.Unbounded{Policy: talkative{}}))
	assert.Empty(t, backoff.Remarks(backoff.Unbounded{}))
}

func ExampleUnbounded() {
	policy := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Minute}}
	fmt.Println(policy.Delay(backoff.Failure{Count: 1_000_000}))
	fmt.Println(backoff.CheckEnd(policy))
	// Output:
	// 1m0s true
	// <nil>
}
