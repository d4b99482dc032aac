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

func TestMaxAge(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	of := func(policy backoff.Policy) backoff.MaxAge {
		return backoff.MaxAge{Policy: policy, Age: 10 * time.Minute}
	}
	minute := backoff.Constant{Interval: time.Minute, Retries: 3}
	for _, test := range []struct {
		name       string
		policy     backoff.MaxAge
		count      int
		first, now time.Time
		retry      bool
	}{
		{"first failure", of(minute), 1, first, first, true},
		{"age reached exactly", of(minute), 1, first, first.Add(9 * time.Minute), true},
		{"age exceeded", of(minute), 1, first, first.Add(9*time.Minute + 1), false},
		{"already too old", of(minute), 1, first, first.Add(time.Hour), false},
		{"policy ends earlier", of(minute), 4, first, first, false},
		{"one delay reaches age exactly", backoff.MaxAge{Policy: minute, Age: time.Minute}, 1, first, first, true},
		{"one delay exceeds age", backoff.MaxAge{Policy: minute, Age: time.Minute - 1}, 1, first, first, false},
		{"inner age is shorter", of(backoff.MaxAge{Policy: minute, Age: time.Minute}), 1, first, first.Add(time.Second), false},
		{"outer age is shorter", of(backoff.MaxAge{Policy: minute, Age: time.Hour}), 1, first, first.Add(10 * time.Minute), false},
		{"first unknown", of(minute), 1, time.Time{}, first, true},
		{"now unknown", of(minute), 1, first, time.Time{}, true},
		{"both unknown", of(minute), 1, time.Time{}, time.Time{}, true},
		{"unknown, one delay exceeds age", backoff.MaxAge{Policy: minute, Age: time.Second}, 1, time.Time{}, time.Time{}, false},
		{"clock went back", of(minute), 1, first, first.Add(-time.Hour), true},
		{"age of the message overflows", of(minute), 1, time.Unix(-1<<40, 0), time.Unix(1<<40, 0), false},
		{"greatest age", backoff.MaxAge{Policy: minute, Age: math.MaxInt64}, 1, first, first.Add(2_000_000 * time.Hour), true},
		{"greatest age exceeded", backoff.MaxAge{Policy: minute, Age: math.MaxInt64}, 1, time.Unix(-1<<40, 0), time.Unix(1<<40, 0), false},
		{"under a millisecond", backoff.MaxAge{Policy: minute, Age: 1}, 1, first, first, false},
		{"invalid age 0", backoff.MaxAge{Policy: minute}, 1, first, first, false},
		{"invalid age", backoff.MaxAge{Policy: minute, Age: math.MinInt64}, 1, first, first.Add(time.Hour), false},
		{"nil", of(nil), 1, first, first, false},
		{"nil pointer", of((*backoff.List)(nil)), 1, first, first, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := test.policy.Delay(backoff.Failure{Count: test.count, First: test.first, Now: test.now})
			assert.Equal(t, test.retry, retry)
			if retry {
				assert.Equal(t, time.Minute, wait)
			} else {
				assert.Zero(t, wait)
			}
			assert.NoError(t, backoff.CheckEnd(test.policy))
		})
	}
}

func TestMaxAgeTimes(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	doubling := backoff.Exponential{Initial: time.Second, Factor: 2}
	for _, test := range []struct {
		age  time.Duration
		want []time.Duration // of the attempts after the first
	}{
		{time.Second - 1, nil},
		{time.Second, []time.Duration{time.Second}},
		{10 * time.Second, []time.Duration{time.Second, 3 * time.Second, 7 * time.Second}},
		{15*time.Second - 1, []time.Duration{time.Second, 3 * time.Second, 7 * time.Second}},
		{15 * time.Second, []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}},
	} {
		var attempts []time.Duration
		var at time.Duration
		for count := 1; ; count++ {
			wait, retry := backoff.MaxAge{Policy: doubling, Age: test.age}.Delay(backoff.Failure{Count: count, First: first, Now: first.Add(at)})
			if !retry {
				break
			}
			at += wait
			attempts = append(attempts, at)
		}
		assert.Equal(t, test.want, attempts, "age %s", test.age)
	}
}

func TestMaxAgeValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Validate(backoff.MaxAge{Policy: backoff.None{}, Age: math.MaxInt64}))
	require.EqualError(t, backoff.Validate(backoff.MaxAge{}), `backoff.MaxAge: Age 0s is not positive: use Policy without backoff.MaxAge for no limit, backoff.None to never retry
backoff.MaxAge: Policy is nil: give it the policy to wrap`)
	require.EqualError(t, backoff.Validate(backoff.MaxAge{Policy: backoff.List{0}, Age: -time.Second}),
		`backoff.MaxAge: Age -1s is not positive: use Policy without backoff.MaxAge for no limit, backoff.None to never retry
backoff.List: entry [0] 0s is not positive: a delay is at least 1ms`)
}

func TestMaxAgeDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	doubling := backoff.Exponential{Initial: s, Factor: 2}
	for _, test := range []struct {
		name   string
		policy backoff.Policy
		want   []time.Duration // nil: cannot list
	}{
		{"of a list", backoff.MaxAge{Policy: backoff.List{time.Hour, s, time.Minute}, Age: time.Minute}, []time.Duration{s, time.Minute}},
		{"of a series that ends", backoff.MaxAge{Policy: backoff.Exponential{Initial: s, Factor: 2, Retries: 2}, Age: time.Hour}, []time.Duration{s, 2 * s}},
		{"of an endless exponential", backoff.MaxAge{Policy: doubling, Age: 5 * s}, []time.Duration{s, 2 * s, 4 * s}},
		{"of an endless exponential, on a step", backoff.MaxAge{Policy: doubling, Age: 4 * s}, []time.Duration{s, 2 * s, 4 * s}},
		{"of an endless exponential, before a step", backoff.MaxAge{Policy: doubling, Age: 4*s - 1}, []time.Duration{s, 2 * s}},
		{"of an endless linear", backoff.MaxAge{Policy: backoff.Linear{Initial: s, Step: s}, Age: 3 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of an endless fibonacci", backoff.MaxAge{Policy: backoff.Fibonacci{Initial: s}, Age: 4 * s}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a cap", backoff.MaxAge{Policy: backoff.Cap{Policy: doubling, Max: 3 * s}, Age: time.Hour}, []time.Duration{s, 2 * s, 3 * s}},
		{"of a long limit", backoff.MaxAge{Policy: backoff.Limit{Policy: doubling, Retries: 5000}, Age: 3 * s}, []time.Duration{s, 2 * s}},
		{"of ten years", backoff.MaxAge{Policy: backoff.Fibonacci{Initial: 50_000 * time.Hour}, Age: 87_600 * time.Hour}, []time.Duration{50_000 * time.Hour, 87_600 * time.Hour}},
		{"just below ten years", backoff.MaxAge{Policy: backoff.Fibonacci{Initial: 50_000 * time.Hour}, Age: 87_600*time.Hour - 1}, []time.Duration{50_000 * time.Hour}},
		{"greatest age", backoff.MaxAge{Policy: backoff.Fibonacci{Initial: 50_000 * time.Hour}, Age: math.MaxInt64}, []time.Duration{50_000 * time.Hour, 87_600 * time.Hour}},
		{"of longer ones only", backoff.MaxAge{Policy: backoff.List{time.Hour}, Age: time.Minute}, []time.Duration{}},
		{"of what never retries", backoff.MaxAge{Policy: backoff.None{}, Age: time.Minute}, []time.Duration{}},
		{"of what cannot list", backoff.MaxAge{Policy: foreign{retry: true}, Age: time.Minute}, nil},
		{"under a millisecond", backoff.MaxAge{Policy: foreign{retry: true}, Age: time.Millisecond - 1}, []time.Duration{}},
		{"too many", backoff.MaxAge{Policy: backoff.Linear{Initial: s, Step: s}, Age: 24 * time.Hour}, nil},
		{"nil", backoff.MaxAge{Age: time.Minute}, nil},
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

func TestMaxAgeRemarks(t *testing.T) {
	t.Parallel()
	tenYears := backoff.Fibonacci{Initial: time.Second, Retries: 50}
	require.NotEmpty(t, backoff.Remarks(tenYears))
	for _, test := range []struct {
		name   string
		policy backoff.MaxAge
		want   []string
	}{
		{"nothing to tell", backoff.MaxAge{Policy: backoff.List{time.Minute, time.Hour}, Age: time.Minute}, nil},
		{"ten years are never reached", backoff.MaxAge{Policy: tenYears, Age: time.Hour}, nil},
		{"of policy", backoff.MaxAge{Policy: talkative{}, Age: time.Hour}, []string{"mind the gap"}},
		{
			"no delay is short enough", backoff.MaxAge{Policy: backoff.List{time.Minute, time.Hour}, Age: time.Minute - 1},
			[]string{"backoff.MaxAge: Age 59.999999999s is shorter than every delay of backoff.List: there is no retry"},
		},
		{
			"both", backoff.MaxAge{Policy: talkative{listed: []time.Duration{time.Hour}}, Age: time.Minute},
			[]string{"backoff.MaxAge: Age 1m0s is shorter than every delay of backoff_test.talkative: there is no retry", "mind the gap"},
		},
		{"policy never retries", backoff.MaxAge{Policy: backoff.None{}, Age: time.Minute}, nil},
		{"nil", backoff.MaxAge{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, backoff.Remarks(test.policy))
		})
	}
}

func FuzzMaxAge(f *testing.F) {
	f.Add(int64(1e9), int64(10e9), int64(9e9), 1)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), math.MaxInt)
	f.Add(int64(1), int64(math.MinInt64), int64(math.MinInt64), 3)
	f.Fuzz(func(t *testing.T, initial, age, elapsed int64, count int) {
		first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		failure := backoff.Failure{Count: count, First: first, Now: first.Add(time.Duration(elapsed))}
		for _, policy := range []backoff.Policy{
			backoff.Exponential{Initial: time.Duration(initial), Factor: 2},
			backoff.Cap{Policy: backoff.Fibonacci{Initial: time.Duration(initial)}, Max: time.Hour},
			backoff.List{time.Duration(initial), time.Hour, time.Duration(initial)},
			foreign{wait: time.Duration(initial), retry: true},
		} {
			p := backoff.MaxAge{Policy: policy, Age: time.Duration(age)}
			requireBoundsAfter(t, p, failure)
			requireListedAfter(t, p, failure)
			whole, retried := backoff.Next(policy, failure)
			wait, retry := p.Delay(failure)
			// As unsigned numbers the sum does not overflow.
			inTime := age > 0 && uint64(max(elapsed, 0))+uint64(whole) <= uint64(age)
			require.Equal(t, retried && inTime, retry)
			if retry {
				require.Equal(t, whole, wait)
			}
		}
	})
}

func ExampleMaxAge() {
	policy := backoff.MaxAge{Policy: backoff.Exponential{Initial: time.Second, Factor: 2}, Age: 10 * time.Second}
	first := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	fmt.Println(policy.Delay(backoff.Failure{Count: 3, First: first, Now: first.Add(3 * time.Second)}))
	fmt.Println(policy.Delay(backoff.Failure{Count: 4, First: first, Now: first.Add(7 * time.Second)}))
	fmt.Println(backoff.Delays(policy))
	fmt.Println(backoff.CheckEnd(policy))
	// Output:
	// 4s true
	// 0s false
	// [1s 2s 4s 8s] true
	// <nil>
}
