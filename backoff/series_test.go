package backoff_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// The series that the documentation promises, and when their attempts begin if
// each fails at once.
func TestGoldenSeries(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name     string
		policy   backoff.Policy
		series   []time.Duration
		listed   []time.Duration
		attempts []time.Duration
	}{
		{
			"2s 5s 15s", backoff.List{2 * s, 5 * s, 15 * s},
			[]time.Duration{2 * s, 5 * s, 15 * s},
			[]time.Duration{2 * s, 5 * s, 15 * s},
			[]time.Duration{0, 2 * s, 7 * s, 22 * s},
		},
		{
			"1s 2s 3s", backoff.Linear{Initial: s, Step: s, Retries: 3},
			[]time.Duration{1 * s, 2 * s, 3 * s},
			[]time.Duration{1 * s, 2 * s, 3 * s},
			[]time.Duration{0, 1 * s, 3 * s, 6 * s},
		},
		{
			"1s 2s 4s 8s", backoff.Exponential{Initial: s, Factor: 2, Retries: 4},
			[]time.Duration{1 * s, 2 * s, 4 * s, 8 * s},
			[]time.Duration{1 * s, 2 * s, 4 * s, 8 * s},
			[]time.Duration{0, 1 * s, 3 * s, 7 * s, 15 * s},
		},
		{
			"1s 10s 100s 500s 500s", backoff.Exponential{Initial: s, Factor: 10, Max: 500 * s, Retries: 5},
			[]time.Duration{1 * s, 10 * s, 100 * s, 500 * s, 500 * s},
			[]time.Duration{1 * s, 10 * s, 100 * s, 500 * s},
			[]time.Duration{0, 1 * s, 11 * s, 111 * s, 611 * s, 1111 * s},
		},
		{
			"5s 2m 30m 6h 48h", backoff.List{5 * s, 2 * time.Minute, 30 * time.Minute, 6 * time.Hour, 48 * time.Hour},
			[]time.Duration{5 * s, 120 * s, 1800 * s, 21_600 * s, 172_800 * s},
			[]time.Duration{5 * s, 120 * s, 1800 * s, 21_600 * s, 172_800 * s},
			[]time.Duration{0, 5 * s, 125 * s, 1925 * s, 23_525 * s, 196_325 * s},
		},
		{
			"1s 2s 3s 5s 8s", backoff.Fibonacci{Initial: s, Retries: 5},
			[]time.Duration{1 * s, 2 * s, 3 * s, 5 * s, 8 * s},
			[]time.Duration{1 * s, 2 * s, 3 * s, 5 * s, 8 * s},
			[]time.Duration{0, 1 * s, 3 * s, 6 * s, 11 * s, 19 * s},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, backoff.Validate(test.policy))
			require.NoError(t, backoff.CheckEnd(test.policy))
			assert.Empty(t, backoff.Remarks(test.policy))
			requireSeries(t, test.policy, test.series...)

			delays, known := backoff.Delays(test.policy)
			assert.True(t, known)
			assert.Equal(t, test.listed, delays)

			attempts := []time.Duration{0}
			for count := 1; ; count++ {
				wait, retry := backoff.Next(test.policy, ofCount(count))
				if !retry {
					break
				}
				attempts = append(attempts, attempts[count-1]+wait)
			}
			assert.Equal(t, test.attempts, attempts)
		})
	}
}

func Example_series() {
	for _, policy := range []backoff.Policy{
		backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
		backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
		backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
		backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
		backoff.List{5 * time.Second, 2 * time.Minute, 30 * time.Minute, 6 * time.Hour, 48 * time.Hour},
		backoff.Fibonacci{Initial: time.Second, Retries: 5},
	} {
		var series []time.Duration
		for count := 1; ; count++ {
			wait, retry := backoff.Next(policy, backoff.Failure{Count: count})
			if !retry {
				break
			}
			series = append(series, wait)
		}
		fmt.Println(series)
	}
	// Output:
	// [2s 5s 15s]
	// [1s 2s 3s]
	// [1s 2s 4s 8s]
	// [1s 10s 1m40s 8m20s 8m20s]
	// [5s 2m0s 30m0s 6h0m0s 48h0m0s]
	// [1s 2s 3s 5s 8s]
}

func ExampleExponential_doubling() {
	policy := backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4}
	for count := 1; count <= 5; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 2s true
	// 4s true
	// 8s true
	// 0s false
}

func ExampleList_days() {
	policy := backoff.List{5 * time.Second, 2 * time.Minute, 30 * time.Minute, 6 * time.Hour, 48 * time.Hour}
	for count := 1; count <= 6; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 5s true
	// 2m0s true
	// 30m0s true
	// 6h0m0s true
	// 48h0m0s true
	// 0s false
}
