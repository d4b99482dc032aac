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

func TestLimitSeries(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name   string
		policy backoff.Limit
		want   []time.Duration
	}{
		{"ends the endless", backoff.Limit{Policy: backoff.Constant{Interval: s}, Retries: 2}, []time.Duration{s, s}},
		{"cuts a longer one", backoff.Limit{Policy: backoff.List{s, 2 * s, 3 * s}, Retries: 2}, []time.Duration{s, 2 * s}},
		{"leaves a shorter one", backoff.Limit{Policy: backoff.List{s}, Retries: 2}, []time.Duration{s}},
		{"zero", backoff.Limit{Policy: backoff.List{s}}, nil},
		{"inner limit wins", backoff.Limit{Policy: backoff.Limit{Policy: backoff.Constant{Interval: s}, Retries: 1}, Retries: 9}, []time.Duration{s}},
		{"outer limit wins", backoff.Limit{Policy: backoff.Limit{Policy: backoff.Constant{Interval: s}, Retries: 9}, Retries: 1}, []time.Duration{s}},
		{"bounds a foreign one", backoff.Limit{Policy: foreign{wait: -s, retry: true}, Retries: 1}, []time.Duration{time.Millisecond}},
		{"invalid retries", backoff.Limit{Policy: backoff.List{s}, Retries: -1}, nil},
		{"nil", backoff.Limit{Retries: 1}, nil},
		{"nil pointer", backoff.Limit{Policy: (*backoff.List)(nil), Retries: 1}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			requireSeries(t, test.policy, test.want...)
			assert.NoError(t, backoff.CheckEnd(test.policy))
		})
	}
}

func TestLimitValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.Limit{Policy: backoff.None{}}))
	require.EqualError(t, backoff.Validate(backoff.Limit{Retries: -1}), `backoff.Limit: Retries -1 is negative: use 0 to never retry
backoff.Limit: Policy is nil: give it the policy to wrap`)
	require.EqualError(t, backoff.Validate(backoff.Limit{Policy: (*backoff.Linear)(nil)}),
		"backoff.Limit: Policy is a nil *backoff.Linear: give it the policy to wrap")
	require.EqualError(t, backoff.Validate(backoff.Limit{Policy: backoff.PolicyFunc(nil)}),
		"backoff.Limit: Policy is a nil backoff.PolicyFunc: give it the policy to wrap")
	require.EqualError(t, backoff.Validate(backoff.Limit{Policy: backoff.List{0}, Retries: -2}), `backoff.Limit: Retries -2 is negative: use 0 to never retry
backoff.List: entry [0] 0s is not positive: a delay is at least 1ms`)
}

// embeds changes the delays of the policy it embeds, and lists its own.
type embeds struct{ backoff.Constant }

func (p embeds) Delay(f backoff.Failure) (time.Duration, bool) {
	if f.Err == nil {
		return time.Minute, true
	}
	return time.Hour, true
}

func (p embeds) Delays() []time.Duration { return []time.Duration{time.Hour, time.Minute} }

func TestLimitDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	endless := backoff.Exponential{Initial: s, Factor: 2}
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		{"of an endless series", backoff.Limit{Policy: endless, Retries: 3}, []time.Duration{s, 2 * s, 4 * s}},
		{"of a longer series", backoff.Limit{Policy: backoff.List{s, 2 * s, 3 * s}, Retries: 2}, []time.Duration{s, 2 * s}},
		{"of a shorter series", backoff.Limit{Policy: backoff.List{s}, Retries: 2}, []time.Duration{s}},
		{"nested", backoff.Limit{Policy: backoff.Unbounded{Policy: backoff.Limit{Policy: endless, Retries: 2}}, Retries: 3}, []time.Duration{s, 2 * s}},
		{"zero", backoff.Limit{Policy: backoff.List{s}}, []time.Duration{}},
		{"zero of what cannot list", backoff.Limit{Policy: foreign{retry: true}}, []time.Duration{}},
		{"of what cannot list", backoff.Limit{Policy: foreign{retry: true}, Retries: 3}, nil},
		{"of what lists but depends on more", backoff.Limit{Policy: embeds{}, Retries: 1}, []time.Duration{time.Minute, time.Hour}},
		{"many retries, inner lists", backoff.Limit{Policy: backoff.Constant{Interval: s}, Retries: math.MaxInt}, []time.Duration{s}},
		{"many retries, inner cannot list", backoff.Limit{Policy: endless, Retries: 1001}, nil},
		{"of fibonacci", backoff.Limit{Policy: backoff.Fibonacci{Initial: s}, Retries: 4}, []time.Duration{s, 2 * s, 3 * s, 5 * s}},
		{"of a cap", backoff.Limit{Policy: backoff.Cap{Policy: endless, Max: 3 * s}, Retries: 2}, []time.Duration{s, 2 * s}},
		{"of a cap on what depends on more", backoff.Limit{Policy: backoff.Cap{Policy: embeds{}, Max: 30 * time.Minute}, Retries: 1}, []time.Duration{time.Minute, 30 * time.Minute}},
		{"of a max age", backoff.Limit{Policy: backoff.MaxAge{Policy: backoff.List{s, time.Minute}, Age: time.Hour}, Retries: 1}, []time.Duration{s, time.Minute}},
		{
			"of a choice by error",
			backoff.Limit{Policy: backoff.ByError{
				Cases:   []backoff.Case{{Match: backoff.Is(errBroken), Policy: backoff.List{time.Minute}}},
				Default: backoff.List{s, 2 * s},
			}, Retries: 1},
			[]time.Duration{s, 2 * s, time.Minute},
		},
		{"nil", backoff.Limit{Retries: 3}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			delays, known := backoff.Delays(test.policy)
			assert.Equal(t, test.want != nil, known)
			assert.Equal(t, test.want, delays)
		})
	}
}

func TestDeepNesting(t *testing.T) {
	t.Parallel()
	var p backoff.Policy = backoff.List{time.Second, 0}
	for range 10_000 {
		p = backoff.Limit{Policy: backoff.Unbounded{Policy: p}, Retries: 5}
	}
	requireSeries(t, p, time.Second, time.Millisecond)
	assert.EqualError(t, backoff.Validate(p), "backoff.List: entry [1] 0s is not positive: a delay is at least 1ms")
	assert.NoError(t, backoff.CheckEnd(p))
	delays, known := backoff.Delays(p)
	assert.True(t, known)
	assert.Equal(t, []time.Duration{time.Millisecond, time.Second}, delays)
}

func FuzzLimit(f *testing.F) {
	f.Add(int64(1e9), 2.0, int64(0), 3, 3)
	f.Add(int64(math.MinInt64), math.Inf(-1), int64(math.MaxInt64), -1, math.MaxInt)
	f.Fuzz(func(t *testing.T, initial int64, factor float64, limit int64, retries, count int) {
		inner := backoff.Exponential{Initial: time.Duration(initial), Factor: factor, Max: time.Duration(limit)}
		p := backoff.Limit{Policy: inner, Retries: retries}
		requireBounds(t, p, count)
		requireBounds(t, backoff.Limit{Policy: foreign{wait: time.Duration(initial), retry: true}, Retries: retries}, count)
		if _, retry := p.Delay(ofCount(count)); retry {
			require.LessOrEqual(t, max(count, 1), retries)
		}
	})
}

func ExampleLimit() {
	policy := backoff.Limit{Policy: backoff.Exponential{Initial: time.Second, Factor: 3}, Retries: 2}
	for count := 1; count <= 3; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	// Output:
	// 1s true
	// 3s true
	// 0s false
}
