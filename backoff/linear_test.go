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

func TestLinearSeries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Linear
		want   []time.Duration
	}{
		{"1s 2s 3s", backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3}, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}},
		{"other step", backoff.Linear{Initial: 5 * time.Second, Step: 10 * time.Second, Retries: 3}, []time.Duration{5 * time.Second, 15 * time.Second, 25 * time.Second}},
		{"capped between steps", backoff.Linear{Initial: time.Second, Step: 2 * time.Second, Max: 4 * time.Second, Retries: 4}, []time.Duration{time.Second, 3 * time.Second, 4 * time.Second, 4 * time.Second}},
		{"capped on a step", backoff.Linear{Initial: time.Second, Step: time.Second, Max: 2 * time.Second, Retries: 3}, []time.Duration{time.Second, 2 * time.Second, 2 * time.Second}},
		{"one retry", backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 1}, []time.Duration{time.Second}},
		{"under a millisecond", backoff.Linear{Initial: 600 * time.Microsecond, Step: 600 * time.Microsecond, Retries: 2}, []time.Duration{time.Millisecond, 1200 * time.Microsecond}},
		{"saturates", backoff.Linear{Initial: 50_000 * time.Hour, Step: 37_600 * time.Hour, Retries: 3}, []time.Duration{50_000 * time.Hour, 87_600 * time.Hour, 87_600 * time.Hour}},
		{"invalid step", backoff.Linear{Initial: time.Second, Step: -time.Hour, Retries: 2}, []time.Duration{time.Second, time.Second}},
		{"invalid retries", backoff.Linear{Initial: time.Second, Step: time.Second, Retries: -3}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
		})
	}
}

func TestLinearSaturates(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.Linear{Initial: time.Second, Step: time.Second}, map[int]time.Duration{
		math.MinInt: time.Second,
		-1:          time.Second,
		0:           time.Second,
		1_000_000:   1_000_000 * time.Second,
		315_359_999: 315_359_999 * time.Second,
		315_360_000: 315_360_000 * time.Second,
		315_360_001: 315_360_000 * time.Second,
		math.MaxInt: 315_360_000 * time.Second,
	})
	requireDelays(t, backoff.Linear{Initial: time.Second, Step: math.MaxInt64, Max: time.Minute}, map[int]time.Duration{
		1: time.Second, 2: time.Minute, math.MaxInt: time.Minute,
	})
}

func TestLinearValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Linear{Initial: time.Second, Step: time.Second, Max: time.Second}))
	require.NoError(t, backoff.Validate(backoff.Linear{Initial: backoff.MaxDelay, Step: backoff.MaxDelay, Max: backoff.MaxDelay, Retries: math.MaxInt}))

	require.EqualError(t, backoff.Validate(backoff.Linear{Max: -time.Second, Retries: -1}), `backoff.Linear: Initial 0s is not positive: a delay is at least 1ms
backoff.Linear: Step 0s is not positive: use backoff.Constant for equal delays
backoff.Linear: Max -1s is negative: use 0 for no cap
backoff.Linear: Retries -1 is negative: use backoff.None to never retry, 0 for no end`)
	require.EqualError(t, backoff.Validate(backoff.Linear{Initial: time.Minute, Step: 87_601 * time.Hour, Max: time.Second}),
		`backoff.Linear: Step 87601h0m0s is above 87600h0m0s, the longest TTL of a RabbitMQ queue: use at most backoff.MaxDelay
backoff.Linear: Max 1s is below Initial 1m0s: raise Max or lower Initial`)
	require.ErrorContains(t, backoff.Validate(backoff.Linear{Initial: time.Second, Step: time.Second, Max: 87_601 * time.Hour}), "Max 87601h0m0s is above")
}

func TestLinearDelays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.Linear
		want   []time.Duration // nil: cannot list
	}{
		{"by retries", backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3}, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}},
		{"by max", backoff.Linear{Initial: time.Second, Step: 2 * time.Second, Max: 4 * time.Second}, []time.Duration{time.Second, 3 * time.Second, 4 * time.Second}},
		{"retries before max", backoff.Linear{Initial: time.Second, Step: 2 * time.Second, Max: time.Hour, Retries: 2}, []time.Duration{time.Second, 3 * time.Second}},
		{"max before retries", backoff.Linear{Initial: time.Second, Step: time.Hour, Max: time.Minute, Retries: math.MaxInt}, []time.Duration{time.Second, time.Minute}},
		{"without bounds", backoff.Linear{Initial: time.Second, Step: time.Second}, nil},
		{"a billion", backoff.Linear{Initial: time.Second, Step: time.Millisecond, Retries: 1_000_000_000}, nil},
		{"a million to the cap", backoff.Linear{Initial: time.Second, Step: time.Millisecond, Max: time.Hour}, nil},
		{"a million under a millisecond", backoff.Linear{Initial: 1, Step: 1, Max: time.Millisecond}, []time.Duration{time.Millisecond}},
		{"never retries", backoff.Linear{Initial: time.Second, Step: time.Second, Retries: -1}, []time.Duration{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func TestLinearListsAThousand(t *testing.T) {
	t.Parallel()
	delays, known := backoff.Delays(backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 1000})
	require.True(t, known)
	require.Len(t, delays, 1000)
	assert.Equal(t, time.Second, delays[0])
	assert.Equal(t, 1000*time.Second, delays[999])

	_, known = backoff.Delays(backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 1001})
	assert.False(t, known)
}

func FuzzLinear(f *testing.F) {
	f.Add(int64(1e9), int64(1e9), int64(0), 3, 1)
	f.Add(int64(1), int64(math.MaxInt64), int64(math.MaxInt64), 0, math.MaxInt)
	f.Add(int64(-1), int64(0), int64(-1), -1, math.MinInt)
	f.Fuzz(func(t *testing.T, initial, step, limit int64, retries, count int) {
		p := backoff.Linear{Initial: time.Duration(initial), Step: time.Duration(step), Max: time.Duration(limit), Retries: retries}
		requireBounds(t, p, count)
		requireListed(t, p, count)
	})
}

func ExampleLinear() {
	policy := backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3}
	for count := 1; count <= 4; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 2s true
	// 3s true
	// 0s false
}
