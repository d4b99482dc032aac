package link

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBackoffPauses(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		backoff Backoff
		want    []time.Duration // after the first failed dial, the second, …
	}{
		{
			"watermill-amqp's default",
			Backoff{Initial: 500 * ms, Max: 60 * time.Second, Multiplier: 1.5},
			[]time.Duration{500 * ms, 750 * ms, 1125 * ms, 1687500 * time.Microsecond},
		},
		{
			"up to the maximum and no further",
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: 3},
			[]time.Duration{100 * ms, 300 * ms, 900 * ms, time.Second, time.Second},
		},
		{
			"constant",
			Backoff{Initial: 200 * ms, Max: time.Second, Multiplier: 1},
			[]time.Duration{200 * ms, 200 * ms, 200 * ms},
		},
		{
			"a multiplier under one does not shrink it",
			Backoff{Initial: 200 * ms, Max: time.Second, Multiplier: 0.5},
			[]time.Duration{200 * ms, 200 * ms},
		},
		{
			"a maximum under the initial pause",
			Backoff{Initial: 200 * ms, Max: 50 * ms, Multiplier: 2},
			[]time.Duration{200 * ms, 200 * ms},
		},
		{
			"the zero value does not spin",
			Backoff{},
			[]time.Duration{10 * ms, 10 * ms, 10 * ms},
		},
		{
			"a maximum under the least pause",
			Backoff{Initial: ms, Max: 2 * ms, Multiplier: 2},
			[]time.Duration{10 * ms, 10 * ms, 10 * ms},
		},
		{
			"negative",
			Backoff{Initial: -time.Second, Max: -time.Second, Multiplier: -2, Randomization: -1},
			[]time.Duration{10 * ms, 10 * ms},
		},
		{
			"infinite multiplier",
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: math.Inf(1)},
			[]time.Duration{100 * ms, time.Second, time.Second},
		},
		{
			"no numbers",
			Backoff{Initial: 100 * ms, Max: time.Second, Multiplier: math.NaN(), Randomization: math.NaN()},
			[]time.Duration{100 * ms, 100 * ms},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for failed, want := range c.want {
				assert.Equal(t, want, c.backoff.pause(failed), "after %d failed dials", failed)
			}
		})
	}
}

func TestBackoffStaysAtItsMaximumForEver(t *testing.T) {
	t.Parallel()
	b := Backoff{Initial: time.Millisecond, Max: 7 * time.Second, Multiplier: 2}
	for _, failed := range []int{13, 100, 5000, math.MaxInt} {
		assert.Equal(t, 7*time.Second, b.pause(failed), "after %d failed dials", failed)
	}
}

func TestBackoffSpreads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		backoff     Backoff
		least, most time.Duration
	}{
		{"by a half", Backoff{Initial: time.Second, Max: time.Minute, Randomization: 0.5}, 500 * time.Millisecond, 1500 * time.Millisecond},
		{"never down to a spin", Backoff{Initial: 20 * time.Millisecond, Randomization: 1}, 10 * time.Millisecond, 40 * time.Millisecond},
		{"by no more than all of it", Backoff{Initial: time.Second, Randomization: 9}, 10 * time.Millisecond, 2 * time.Second},
		{"without overflow", Backoff{Initial: math.MaxInt64, Max: math.MaxInt64, Randomization: 1}, 10 * time.Millisecond, math.MaxInt64},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			low, high := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
			for range 20000 {
				d := c.backoff.pause(0)
				low, high = min(low, d), max(high, d)
			}
			assert.GreaterOrEqual(t, low, c.least)
			assert.LessOrEqual(t, high, c.most)
			assert.Less(t, low+(high-low)/10, high, "hardly any spread")
		})
	}
}
