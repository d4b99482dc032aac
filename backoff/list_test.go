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

func TestListSeries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy backoff.List
		want   []time.Duration
	}{
		{"2s 5s 15s", backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}, []time.Duration{2 * time.Second, 5 * time.Second, 15 * time.Second}},
		{
			"5s 2m 30m 6h 2d",
			backoff.List{5 * time.Second, 2 * time.Minute, 30 * time.Minute, 6 * time.Hour, 48 * time.Hour},
			[]time.Duration{5 * time.Second, 120 * time.Second, 1800 * time.Second, 21_600 * time.Second, 172_800 * time.Second},
		},
		{"not sorted", backoff.List{3 * time.Second, time.Second}, []time.Duration{3 * time.Second, time.Second}},
		{"empty", backoff.List{}, nil},
		{"nil", nil, nil},
		{"under a millisecond", backoff.List{time.Nanosecond, 999 * time.Microsecond}, []time.Duration{time.Millisecond, time.Millisecond}},
		{"invalid", backoff.List{-time.Second, 0, math.MaxInt64}, []time.Duration{time.Millisecond, time.Millisecond, 87_600 * time.Hour}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
			assert.NoError(t, backoff.CheckEnd(test.policy))
			assert.Empty(t, backoff.Remarks(test.policy))
		})
	}
}

func TestListTimes(t *testing.T) {
	t.Parallel()
	p := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	var at time.Duration
	attempts := []time.Duration{at}
	for count := 1; ; count++ {
		wait, retry := p.Delay(ofCount(count))
		if !retry {
			break
		}
		at += wait
		attempts = append(attempts, at)
	}
	assert.Equal(t, []time.Duration{0, 2 * time.Second, 7 * time.Second, 22 * time.Second}, attempts)
}

func TestListCountBelowOne(t *testing.T) {
	t.Parallel()
	requireDelays(t, backoff.List{2 * time.Second, 5 * time.Second}, map[int]time.Duration{
		math.MinInt: 2 * time.Second, -1: 2 * time.Second, 0: 2 * time.Second,
	})
}

func TestListValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.List{}))
	require.NoError(t, backoff.Validate(backoff.List(nil)))
	require.NoError(t, backoff.Validate(backoff.List{time.Nanosecond, backoff.MaxDelay}))

	err := backoff.Validate(backoff.List{time.Second, 0, -2 * time.Second, 87_601 * time.Hour})
	require.EqualError(t, err, `backoff.List: entry [1] 0s is not positive: a delay is at least 1ms
backoff.List: entry [2] -2s is not positive: a delay is at least 1ms
backoff.List: entry [3] 87601h0m0s is above 87600h0m0s, the longest TTL of a RabbitMQ queue: use at most backoff.MaxDelay`)
}

func TestListDelays(t *testing.T) {
	t.Parallel()
	p := backoff.List{5 * time.Second, 2 * time.Second, 5 * time.Second, time.Nanosecond}
	delays, known := backoff.Delays(p)
	require.True(t, known)
	assert.Equal(t, []time.Duration{time.Millisecond, 2 * time.Second, 5 * time.Second}, delays)
	assert.Equal(t, backoff.List{5 * time.Second, 2 * time.Second, 5 * time.Second, time.Nanosecond}, p, "the list of the caller is left alone")

	p.Delays()[0] = time.Hour
	assert.Equal(t, 5*time.Second, p[0])

	for name, none := range map[string]backoff.List{"empty": {}, "nil": nil} {
		delays, known := backoff.Delays(none)
		assert.True(t, known, name)
		assert.NotNil(t, delays, name)
		assert.Empty(t, delays, name)
	}
}

func FuzzList(f *testing.F) {
	f.Add(int64(2e9), int64(5e9), int64(15e9), 1)
	f.Add(int64(0), int64(-1), int64(math.MaxInt64), 3)
	f.Add(int64(1), int64(math.MinInt64), int64(1), math.MaxInt)
	f.Fuzz(func(t *testing.T, a, b, c int64, count int) {
		p := backoff.List{time.Duration(a), time.Duration(b), time.Duration(c)}
		requireBounds(t, p, count)
		requireListed(t, p, count)
	})
}

func ExampleList() {
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	for count := 1; count <= 4; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 2s true
	// 5s true
	// 15s true
	// 0s false
}
