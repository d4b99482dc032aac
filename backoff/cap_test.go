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

func TestCapSeries(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct {
		name   string
		policy backoff.Cap
		want   []time.Duration
	}{
		{"cuts what is longer", backoff.Cap{Policy: backoff.List{s, time.Minute, time.Hour}, Max: 5 * time.Minute}, []time.Duration{s, time.Minute, 5 * time.Minute}},
		{"also in the middle", backoff.Cap{Policy: backoff.List{s, time.Hour, 2 * s}, Max: 3 * s}, []time.Duration{s, 3 * s, 2 * s}},
		{"leaves what is equal", backoff.Cap{Policy: backoff.List{s, 2 * s}, Max: 2 * s}, []time.Duration{s, 2 * s}},
		{"inner cap wins", backoff.Cap{Policy: backoff.Cap{Policy: backoff.List{time.Hour}, Max: s}, Max: time.Minute}, []time.Duration{s}},
		{"outer cap wins", backoff.Cap{Policy: backoff.Cap{Policy: backoff.List{time.Hour}, Max: time.Minute}, Max: s}, []time.Duration{s}},
		{"adds no retry", backoff.Cap{Policy: backoff.None{}, Max: s}, nil},
		{"bounds a foreign one", backoff.Cap{Policy: backoff.Limit{Policy: foreign{wait: -s, retry: true}, Retries: 1}, Max: s}, []time.Duration{ms}},
		{"max under a millisecond", backoff.Cap{Policy: backoff.List{s}, Max: 1}, []time.Duration{ms}},
		{"max of ten years", backoff.Cap{Policy: backoff.List{87_600 * time.Hour}, Max: 87_600 * time.Hour}, []time.Duration{87_600 * time.Hour}},
		{"invalid max 0", backoff.Cap{Policy: backoff.List{s}}, []time.Duration{s}},
		{"invalid max, negative", backoff.Cap{Policy: backoff.List{s}, Max: math.MinInt64}, []time.Duration{s}},
		{"invalid max, too long", backoff.Cap{Policy: backoff.List{s}, Max: math.MaxInt64}, []time.Duration{s}},
		{"nil", backoff.Cap{Max: s}, nil},
		{"nil pointer", backoff.Cap{Policy: (*backoff.List)(nil), Max: s}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
		})
	}
}

func TestCapValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Cap{Policy: backoff.List{time.Hour}, Max: time.Nanosecond}))
	require.NoError(t, backoff.Validate(backoff.Cap{Policy: backoff.None{}, Max: backoff.MaxDelay}))
	require.EqualError(t, backoff.Validate(backoff.Cap{}), `backoff.Cap: Max 0s is not positive: use Policy without backoff.Cap for no cap
backoff.Cap: Policy is nil: give it the policy to wrap`)
	require.EqualError(t, backoff.Validate(backoff.Cap{Policy: backoff.List{0}, Max: 87_601 * time.Hour}),
		`backoff.Cap: Max 87601h0m0s is above 87600h0m0s, the longest TTL of a RabbitMQ queue: use at most backoff.MaxDelay
backoff.List: entry [0] 0s is not positive: a delay is at least 1ms`)
}

func TestCapCheckEnd(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.CheckEnd(backoff.Cap{Policy: backoff.List{time.Second}, Max: time.Second}))
	require.NoError(t, backoff.CheckEnd(backoff.Cap{Policy: backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}, Max: time.Second}))
	require.NoError(t, backoff.CheckEnd(backoff.Cap{Max: time.Second}), "never retries")
	endless := backoff.Linear{Initial: time.Second, Step: time.Second}
	require.Equal(t, backoff.CheckEnd(endless), backoff.CheckEnd(backoff.Cap{Policy: endless, Max: time.Second}))
	require.ErrorIs(t, backoff.CheckEnd(backoff.Cap{Policy: foreign{}, Max: time.Second}), backoff.ErrNoEnd)
}

// series embeds a series and changes its delays.
type series struct{ backoff.Exponential }

func (series) Delay(backoff.Failure) (time.Duration, bool) { return 7 * time.Second, true }

func (series) Delays() []time.Duration { return []time.Duration{7 * time.Second} }

func TestCapDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	doubling := backoff.Exponential{Initial: s, Factor: 2}
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		{"of a list", backoff.Cap{Policy: backoff.List{s, time.Hour, time.Minute, 2 * time.Hour}, Max: 2 * time.Minute}, []time.Duration{s, time.Minute, 2 * time.Minute}},
		{"of a constant", backoff.Cap{Policy: backoff.Constant{Interval: time.Hour}, Max: time.Minute}, []time.Duration{time.Minute}},
		{"of a series that ends", backoff.Cap{Policy: backoff.Exponential{Initial: s, Factor: 2, Retries: 3}, Max: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a series that ends below", backoff.Cap{Policy: backoff.Fibonacci{Initial: s, Retries: 2}, Max: time.Hour}, []time.Duration{s, 2 * s}},
		{"of a series with a lower max", backoff.Cap{Policy: backoff.Exponential{Initial: s, Factor: 2, Max: 3 * s}, Max: time.Hour}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a linear series with a lower max", backoff.Cap{Policy: backoff.Linear{Initial: s, Step: s, Max: 2 * s}, Max: time.Hour}, []time.Duration{s, 2 * s}},
		{"of a fibonacci series with a lower max", backoff.Cap{Policy: backoff.Fibonacci{Initial: s, Max: 4 * s}, Max: time.Hour}, []time.Duration{s, 2 * s, 3 * s, 4 * s}},
		{"of an endless exponential", backoff.Cap{Policy: doubling, Max: 5 * s}, []time.Duration{s, 2 * s, 4 * s, 5 * s}},
		{"of an endless linear", backoff.Cap{Policy: backoff.Linear{Initial: s, Step: s}, Max: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of an endless fibonacci", backoff.Cap{Policy: backoff.Fibonacci{Initial: s}, Max: 4 * s}, []time.Duration{s, 2 * s, 3 * s, 4 * s}},
		{"of an unbounded one", backoff.Cap{Policy: backoff.Unbounded{Policy: doubling}, Max: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a long limit", backoff.Cap{Policy: backoff.Limit{Policy: doubling, Retries: 5000}, Max: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a cap", backoff.Cap{Policy: backoff.Cap{Policy: doubling, Max: time.Hour}, Max: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"below initial", backoff.Cap{Policy: backoff.Linear{Initial: time.Minute, Step: s}, Max: s}, []time.Duration{s}},
		{"of a type that embeds a series", backoff.Cap{Policy: series{doubling}, Max: 5 * s}, []time.Duration{5 * s}},
		{"a thousand under the cap", backoff.Cap{Policy: backoff.Linear{Initial: s, Step: s}, Max: 1001 * s}, nil},
		{"of what never retries", backoff.Cap{Policy: backoff.None{}, Max: s}, []time.Duration{}},
		{"of what cannot list", backoff.Cap{Policy: foreign{retry: true}, Max: s}, nil},
		{"nil", backoff.Cap{Max: s}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
			for count := range 10 {
				requireListed(t, test.policy, count)
			}
		})
	}
}

func TestCapLeavesTheListAlone(t *testing.T) {
	t.Parallel()
	list := backoff.List{time.Hour, time.Second}
	listed := []time.Duration{time.Hour, time.Second}
	backoff.Delays(backoff.Cap{Policy: list, Max: time.Minute})
	backoff.Delays(backoff.Cap{Policy: talkative{listed: listed}, Max: time.Minute})
	assert.Equal(t, backoff.List{time.Hour, time.Second}, list)
	assert.Equal(t, []time.Duration{time.Hour, time.Second}, listed)
}

func TestCapRemarks(t *testing.T) {
	t.Parallel()
	tenYears := backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 30}
	require.NotEmpty(t, backoff.Remarks(tenYears))
	assert.Empty(t, backoff.Remarks(backoff.Cap{Policy: tenYears, Max: time.Hour}), "is what the remark asks for")
	assert.Equal(t, []string{"mind the gap"}, backoff.Remarks(backoff.Cap{Policy: talkative{}, Max: time.Hour}))
	assert.Len(t, backoff.Remarks(backoff.Cap{Policy: backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}, Max: time.Hour}), 1)
	assert.Empty(t, backoff.Remarks(backoff.Cap{}))
}

func FuzzCap(f *testing.F) {
	f.Add(int64(1e9), 2.0, int64(0), int64(5e9), 3, 3)
	f.Add(int64(1), math.Inf(1), int64(-1), int64(math.MaxInt64), 0, math.MaxInt)
	f.Add(int64(5e9), 0.0, int64(1), int64(1), 5000, 4)
	f.Fuzz(func(t *testing.T, initial int64, factor float64, inner, limit int64, retries, count int) {
		for _, policy := range []backoff.Policy{
			backoff.Exponential{Initial: time.Duration(initial), Factor: factor, Max: time.Duration(inner), Retries: retries},
			backoff.Limit{Policy: backoff.Fibonacci{Initial: time.Duration(initial), Max: time.Duration(inner)}, Retries: retries},
			backoff.Unbounded{Policy: backoff.Linear{Initial: time.Duration(initial), Step: time.Duration(initial), Max: time.Duration(inner)}},
			backoff.List{time.Duration(initial), time.Duration(inner)},
			foreign{wait: time.Duration(initial), retry: true},
		} {
			p := backoff.Cap{Policy: policy, Max: time.Duration(limit)}
			requireBounds(t, p, count)
			requireListed(t, p, count)
			whole, retried := backoff.Next(policy, ofCount(count))
			wait, retry := p.Delay(ofCount(count))
			require.Equal(t, retried, retry)
			require.LessOrEqual(t, wait, whole)
			if backoff.Validate(p) == nil && limit >= int64(time.Millisecond) {
				require.LessOrEqual(t, wait, time.Duration(limit))
			}
		}
	})
}

func ExampleCap() {
	policy := backoff.Cap{Policy: backoff.List{time.Second, time.Minute, time.Hour}, Max: 5 * time.Minute}
	for count := 1; count <= 4; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 1m0s true
	// 5m0s true
	// 0s false
}
