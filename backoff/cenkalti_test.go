package backoff_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// exact is an exponential BackOff of cenkalti's that is not random: 1s 2s 4s 8s,
// at most limit in all.
func exact(limit time.Duration) func() cenkalti.BackOff {
	return func() cenkalti.BackOff {
		return cenkalti.NewExponentialBackOff(
			cenkalti.WithInitialInterval(time.Second), cenkalti.WithMultiplier(2), cenkalti.WithMaxInterval(8*time.Second),
			cenkalti.WithRandomizationFactor(0), cenkalti.WithMaxElapsedTime(limit))
	}
}

// of is a factory that wraps what another one builds in WithMaxRetries.
func of(factory func() cenkalti.BackOff, retries uint64) func() cenkalti.BackOff {
	return func() cenkalti.BackOff { return cenkalti.WithMaxRetries(factory(), retries) }
}

func constant(d time.Duration) func() cenkalti.BackOff {
	return func() cenkalti.BackOff { return cenkalti.NewConstantBackOff(d) }
}

// steps counts how often it is asked.
type steps struct{ asked *int }

func (b steps) Reset() {}

func (b steps) NextBackOff() time.Duration {
	*b.asked++
	return time.Duration(*b.asked) * time.Millisecond
}

func TestCenkaltiSeries(t *testing.T) {
	t.Parallel()
	requireSeries(t, backoff.FromCenkalti(of(exact(0), 5)), time.Second, 2*time.Second, 4*time.Second, 8*time.Second, 8*time.Second)
	requireSeries(t, backoff.FromCenkalti(of(constant(3*time.Second), 2)), 3*time.Second, 3*time.Second)
	requireSeries(t, backoff.FromCenkalti(of(constant(time.Second), 0)))
	requireSeries(t, backoff.FromCenkalti(func() cenkalti.BackOff { return &cenkalti.StopBackOff{} }))
	requireSeries(t, backoff.Limit{Policy: backoff.FromCenkalti(exact(0)), Retries: 2}, time.Second, 2*time.Second)
}

func TestCenkaltiBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		factory func() cenkalti.BackOff
		want    time.Duration
	}{
		{"zero", func() cenkalti.BackOff { return &cenkalti.ZeroBackOff{} }, time.Millisecond},
		{"negative, but not Stop", constant(-2), time.Millisecond},
		{"too long", constant(math.MaxInt64), 87_600 * time.Hour},
		{"count below 1", exact(0), time.Second},
		{"literal without a clock", func() cenkalti.BackOff {
			return &cenkalti.ExponentialBackOff{InitialInterval: time.Second, Multiplier: 2, MaxInterval: time.Minute}
		}, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := backoff.FromCenkalti(test.factory, nil)
			require.NoError(t, backoff.Validate(p))
			wait, retry := p.Delay(ofCount(-1))
			assert.True(t, retry)
			assert.Equal(t, test.want, wait)
		})
	}
}

func TestCenkaltiReplayIsBounded(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{math.MinInt: 1, 1: 1, 10_000: 10_000, 10_001: 10_000, math.MaxInt: 10_000} {
		var asked int
		p := backoff.FromCenkalti(func() cenkalti.BackOff { return steps{&asked} })
		wait, retry := p.Delay(ofCount(count))
		assert.True(t, retry)
		assert.Equal(t, time.Duration(want)*time.Millisecond, wait)
		assert.Equal(t, want, asked, "count %d", count)
	}
}

func TestCenkaltiDrawsAnew(t *testing.T) {
	t.Parallel()
	p := backoff.FromCenkalti(func() cenkalti.BackOff { return cenkalti.NewExponentialBackOff() })
	require.NoError(t, backoff.Validate(p))
	drawn := map[time.Duration]bool{}
	for range 100 {
		wait, retry := p.Delay(ofCount(1))
		require.True(t, retry)
		require.GreaterOrEqual(t, wait, 250*time.Millisecond)
		require.LessOrEqual(t, wait, 750*time.Millisecond)
		drawn[wait] = true
	}
	assert.Greater(t, len(drawn), 50)
	delays, known := backoff.Delays(p)
	assert.False(t, known)
	assert.Nil(t, delays)
}

func TestCenkaltiAge(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tenMinutes := backoff.WithMaxAge(10 * time.Minute)
	for _, test := range []struct {
		name       string
		policy     backoff.Policy
		first, now time.Time
		retry      bool
	}{
		{"elapsed time reached exactly", backoff.FromCenkalti(exact(15 * time.Minute)), first, first.Add(14*time.Minute + 59*time.Second), true},
		{"elapsed time exceeded", backoff.FromCenkalti(exact(15 * time.Minute)), first, first.Add(14*time.Minute + 59*time.Second + 1), false},
		{"elapsed time unlimited", backoff.FromCenkalti(exact(0)), first, first.Add(1000 * time.Hour), true},
		{"elapsed time below one delay", backoff.FromCenkalti(exact(time.Millisecond)), first, first, false},
		{"elapsed time negative", backoff.FromCenkalti(exact(-time.Second)), first, first, false},
		{"option replaces elapsed time", backoff.FromCenkalti(exact(15*time.Minute), tenMinutes), first, first.Add(10 * time.Minute), false},
		{"option longer than elapsed time", backoff.FromCenkalti(exact(time.Minute), tenMinutes), first, first.Add(5 * time.Minute), true},
		{"wrapped, option reached", backoff.FromCenkalti(of(exact(15*time.Minute), 5), tenMinutes), first, first.Add(9*time.Minute + 59*time.Second), true},
		{"wrapped, option exceeded", backoff.FromCenkalti(of(exact(15*time.Minute), 5), tenMinutes), first, first.Add(10 * time.Minute), false},
		{"wrapped, without option", backoff.FromCenkalti(of(exact(15*time.Minute), 5)), first, first.Add(time.Hour), true},
		{"constant, option exceeded", backoff.FromCenkalti(constant(time.Second), tenMinutes), first, first.Add(10 * time.Minute), false},
		{"first unknown", backoff.FromCenkalti(exact(15 * time.Minute)), time.Time{}, first, true},
		{"now unknown", backoff.FromCenkalti(exact(15 * time.Minute)), first, time.Time{}, true},
		{"clock went back", backoff.FromCenkalti(exact(15 * time.Minute)), first, first.Add(-time.Hour), true},
		{"age overflows", backoff.FromCenkalti(exact(math.MaxInt64)), time.Unix(-1<<40, 0), time.Unix(1<<40, 0), false},
		{"invalid option", backoff.FromCenkalti(exact(0), backoff.WithMaxAge(math.MinInt64)), first, first.Add(time.Hour), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := test.policy.Delay(backoff.Failure{Count: 1, First: test.first, Now: test.now})
			assert.Equal(t, test.retry, retry)
			if retry {
				assert.Equal(t, time.Second, wait)
			}
		})
	}
}

func ExampleFromCenkalti() {
	policy := backoff.FromCenkalti(func() cenkalti.BackOff {
		return cenkalti.NewExponentialBackOff(cenkalti.WithInitialInterval(time.Second), cenkalti.WithMultiplier(2), cenkalti.WithRandomizationFactor(0))
	})
	for count := 1; count <= 3; count++ {
		fmt.Println(policy.Delay(backoff.Failure{Count: count}))
	}
	fmt.Println(backoff.Remarks(policy)[0])
	// Output:
	// 1s true
	// 2s true
	// 4s true
	// backoff.FromCenkalti: the elapsed-time limit of 15m0s is the age of the message, counted from its first failure
}

func ExampleWithMaxAge() {
	policy := backoff.FromCenkalti(func() cenkalti.BackOff {
		return cenkalti.WithMaxRetries(cenkalti.NewConstantBackOff(time.Minute), 100)
	}, backoff.WithMaxAge(time.Hour))
	first := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	fmt.Println(policy.Delay(backoff.Failure{Count: 59, First: first, Now: first.Add(59 * time.Minute)}))
	fmt.Println(policy.Delay(backoff.Failure{Count: 60, First: first, Now: first.Add(60 * time.Minute)}))
	// Output:
	// 1m0s true
	// 0s false
}
