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

func TestConstantSeries(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.Constant{Interval: 5 * time.Second, Retries: 3}, 5*time.Second, 5*time.Second, 5*time.Second)
	requireSeries(t, backoff.Constant{Interval: 5 * time.Second, Retries: 1}, 5*time.Second)
	requireSeries(t, backoff.Constant{Interval: time.Microsecond, Retries: 1}, time.Millisecond)
	requireSeries(t, backoff.Constant{Interval: -time.Second, Retries: 1}, time.Millisecond)
	requireSeries(t, backoff.Constant{Interval: math.MaxInt64, Retries: 1}, 87_600*time.Hour)
	requireSeries(t, backoff.Constant{Interval: time.Second, Retries: -1})
}

func TestConstantWithoutEnd(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.Constant{Interval: time.Second}, map[int]time.Duration{
		math.MinInt: time.Second, 0: time.Second, 1: time.Second, 1_000_000: time.Second, math.MaxInt: time.Second,
	})
}

func TestConstantValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Constant{Interval: time.Second}))
	require.NoError(t, backoff.Validate(backoff.Constant{Interval: backoff.MaxDelay, Retries: math.MaxInt}))

	require.EqualError(t, backoff.Validate(backoff.Constant{Retries: -1}), `backoff.Constant: Interval 0s is not positive: a delay is at least 1ms
backoff.Constant: Retries -1 is negative: use backoff.None to never retry, 0 for no end`)
	require.ErrorContains(t, backoff.Validate(backoff.Constant{Interval: backoff.MaxDelay + 1}), "Interval 87600h0m0.000000001s is above 87600h0m0s")
}

func TestConstantDelays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Constant
		want   []time.Duration
	}{
		{"bounded", backoff.Constant{Interval: 5 * time.Second, Retries: 7}, []time.Duration{5 * time.Second}},
		{"without end", backoff.Constant{Interval: 5 * time.Second}, []time.Duration{5 * time.Second}},
		{"short", backoff.Constant{Interval: time.Nanosecond}, []time.Duration{time.Millisecond}},
		{"never retries", backoff.Constant{Interval: time.Second, Retries: -1}, []time.Duration{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.True(t, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func ExampleConstant() {
	policy := backoff.Constant{Interval: 5 * time.Second, Retries: 2}
	for count := 1; count <= 3; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 5s true
	// 5s true
	// 0s false
}
