package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
)

func TestSeries(t *testing.T) {
	t.Parallel()
	testSeries(t, []expected{
		{"list, begins at once", backoff.List{0, s, 2 * s}, "0s 1s 2s"},
		{"list, later entries of 0", backoff.List{0, 0, 0}, "0s 1ms 1ms"},
		{"list, not sorted", backoff.List{3 * s, s}, "3s 1s"},
		{"list, nil", backoff.List(nil), ""},
		{"list, under a millisecond", backoff.List{time.Nanosecond, 999 * us}, "1ms 1ms"},
		{"list, invalid", backoff.List{-s, 0, math.MaxInt64}, "1ms 1ms 87600h"},
		{"constant, three", constantly(5*s, 3), "5s 5s 5s"},
		{"constant, under a millisecond", constantly(us, 1), "1ms"},
		{"constant, invalid interval", constantly(-s, 1), "1ms"},
		{"constant, invalid interval, too long", constantly(math.MaxInt64, 1), "87600h"},
		{"constant, invalid retries", constantly(s, -1), ""},
		{"linear, other step", linear(5*s, 10*s, 0, 3), "5s 15s 25s"},
		{"linear, capped between steps", linear(s, 2*s, 4*s, 4), "1s 3s 4s 4s"},
		{"linear, under a millisecond", linear(600*us, 600*us, 0, 2), "1ms 1.2ms"},
		{"linear, saturates", linear(50_000*time.Hour, 37_600*time.Hour, 0, 3), "50000h 87600h 87600h"},
		{"linear, invalid step", linear(s, -time.Hour, 0, 2), "1s 1s"},
		{"exponential, factor 1.5", exponential(s, 1.5, 0, 4), "1s 1.5s 2.25s 3.375s"},
		{"exponential, factor 1.1 rounds", exponential(s, 1.1, 0, 4), "1s 1.1s 1.21s 1.331s"},
		{"exponential, factor 1", exponential(s, 1, 0, 3), "1s 1s 1s"},
		{"exponential, under a millisecond", exponential(400*us, 3, 0, 3), "1ms 1.2ms 3.6ms"},
		{"exponential, saturates", exponential(43_800*time.Hour, 2, 0, 4), "43800h 87600h 87600h 87600h"},
		{"exponential, exact above 2^53 ns", exponential(5000*time.Hour+1, 2, 0, 1), "5000h1ns"},
		{"exponential, invalid factor 0", exponential(s, 0, 0, 2), "1s 1s"},
		{"exponential, invalid factor NaN", exponential(s, math.NaN(), 0, 2), "1s 1s"},
		{"exponential, invalid factor Inf", exponential(s, math.Inf(1), 0, 2), "1s 87600h"},
		{"exponential, invalid initial", exponential(-s, 2, 0, 2), "1ms 1ms"},
		{"fibonacci, ten of them", fibonacci(s, 0, 10), "1s 2s 3s 5s 8s 13s 21s 34s 55s 89s"},
		{"fibonacci, other initial", fibonacci(1500*ms, 0, 4), "1.5s 3s 4.5s 7.5s"},
		{"fibonacci, capped between steps", fibonacci(s, 4*s, 5), "1s 2s 3s 4s 4s"},
		{"fibonacci, capped at once", fibonacci(s, s, 2), "1s 1s"},
		{"fibonacci, under a millisecond", fibonacci(400*us, 0, 4), "1ms 1ms 1.2ms 2ms"},
		{"fibonacci, saturates", fibonacci(40_000*time.Hour, 0, 4), "40000h 80000h 87600h 87600h"},
		{"fibonacci, invalid initial", fibonacci(-s, 0, 3), "1ms 1ms 1ms"},
		{"fibonacci, invalid initial, too long", fibonacci(math.MaxInt64, 0, 2), "87600h 87600h"},
		{"fibonacci, invalid max below initial", fibonacci(time.Hour, s, 2), "1s 1s"},
		{"fibonacci, invalid max", fibonacci(s, -s, 2), "1s 2s"},
	}...)
}

func TestSeriesSaturates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   map[int]time.Duration
	}{
		"list":     {backoff.List{2 * s, 5 * s}, map[int]time.Duration{-1: 2 * s}},
		"constant": {constantly(s, 0), map[int]time.Duration{-1: s, 1: s, 1_000_000: s, math.MaxInt: s}},
		"linear": {linear(s, s, 0, 0), map[int]time.Duration{
			-1: s, 1_000_000: 1_000_000 * s, 315_359_999: 315_359_999 * s,
			315_360_000: 315_360_000 * s, 315_360_001: 315_360_000 * s, math.MaxInt: 315_360_000 * s,
		}},
		"linear, capped": {
			linear(s, math.MaxInt64, time.Minute, 0),
			map[int]time.Duration{1: s, 2: time.Minute, math.MaxInt: time.Minute},
		},
		"exponential": {doubling, map[int]time.Duration{
			-1: s, 29: 268_435_456 * s, 30: 315_360_000 * s, 64: 315_360_000 * s,
			1_000_000: 315_360_000 * s, math.MaxInt: 315_360_000 * s,
		}},
		"exponential, capped": {
			exponential(s, math.MaxFloat64, time.Hour, 0),
			map[int]time.Duration{1: s, 2: time.Hour, math.MaxInt: time.Hour},
		},
		"fibonacci": {fibonacci(s, 0, 0), map[int]time.Duration{
			-1: s, 40: 165_580_141 * s, 41: 267_914_296 * s, 42: 315_360_000 * s,
			1_000_000: 315_360_000 * s, math.MaxInt: 315_360_000 * s,
		}},
		"fibonacci is exact": {fibonacci(time.Hour+1, 0, 0), map[int]time.Duration{
			20: 10_946*time.Hour + 10_946, 24: 75_025*time.Hour + 75_025, 25: 87_600 * time.Hour,
		}},
		"fibonacci of a nanosecond is exact": {fibonacci(1, 0, 0), map[int]time.Duration{
			1: ms, 40: 165_580_141, 82: 99_194_853_094_755_497, 84: 259_695_496_911_122_585,
			85: 87_600 * time.Hour,
		}},
		"fibonacci, invalid": {backoff.Fibonacci{}, map[int]time.Duration{1: ms, math.MaxInt: ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireAt(t, test.policy, test.want)
			if first, below := test.want[-1]; below { // a count below 1 is 1
				requireAt(t, test.policy, map[int]time.Duration{0: first, math.MinInt: first})
			}
		})
	}
}

func TestSeriesValidate(t *testing.T) {
	t.Parallel()
	const (
		minute, tenYears, tooLong = time.Minute, 87_600 * time.Hour, 87_601 * time.Hour
		positive                  = " is not positive: a delay is at least 1ms"
		number                    = " is not a finite number of at least 1: " +
			"use 2 to double each delay, backoff.Constant for equal delays"
		retries = "Retries -1 is negative: use backoff.None to never retry, 0 for no end"
		noCap   = "Max -1ns is negative: use 0 for no cap"
		below   = "Max 1s is below Initial 1m0s: raise Max or lower Initial"
		long    = " is above 87600h0m0s, the longest TTL of a RabbitMQ queue: " +
			"use at most backoff.MaxDelay"
	)
	nan, inf := math.NaN(), math.Inf(1)
	testValidate(t, []expected{
		{"list, nil", backoff.List(nil), ""},
		{"list", backoff.List{time.Millisecond, backoff.MaxDelay}, ""},
		{"list, without a unit", backoff.List{2, 5 * s}, "backoff.List: entry [0] 2ns is below 1ms: " +
			"is its unit missing, as in 5*time.Second?"},
		{"list, invalid entries", backoff.List{s, 0, -2 * s, tooLong}, lines("backoff.List",
			"entry [1] 0s"+positive, "entry [2] -2s"+positive, "entry [3] 87601h0m0s"+long)},
		{"constant", constantly(s, 0), ""},
		{"constant, the longest", constantly(backoff.MaxDelay, math.MaxInt), ""},
		{"constant, everything", constantly(0, -1), lines("backoff.Constant",
			"Interval 0s"+positive, retries)},
		{"constant, too long", constantly(backoff.MaxDelay+1, 0), lines("backoff.Constant",
			"Interval 87600h0m0.000000001s"+long)},
		{"linear", linear(s, s, s, 0), ""},
		{"linear, the longest", linear(tenYears, tenYears, tenYears, math.MaxInt), ""},
		{"linear, everything", linear(0, 0, -1, -1), lines("backoff.Linear", "Initial 0s"+positive,
			"Step 0s is not positive: use backoff.Constant for equal delays", noCap, retries)},
		{"linear, step too long", linear(minute, tooLong, s, 0), lines("backoff.Linear",
			"Step 87601h0m0s"+long, below)},
		{"linear, max too long", linear(s, s, tooLong, 0), "…Max 87601h0m0s" + long},
		{"exponential", exponential(s, 1, 0, 0), ""},
		{"exponential, the longest", exponential(s, 2, s, math.MaxInt), ""},
		{"exponential, everything", exponential(0, 0, -1, -1), lines("backoff.Exponential",
			"Initial 0s"+positive, "Factor 0"+number, noCap, retries)},
		{"exponential, factor below 1", exponential(s, 0.5, 0, 0), "…Factor 0.5" + number},
		{"exponential, factor NaN", exponential(s, nan, 0, 0), "…Factor NaN" + number},
		{"exponential, factor Inf", exponential(s, inf, 0, 0), "…Factor +Inf" + number},
		{"exponential, factor -Inf", exponential(s, -inf, 0, 0), "…Factor -Inf" + number},
		{"exponential, max below initial", exponential(minute, 2, s, 0), "…" + below},
		{"exponential, max too long", exponential(minute, 2, math.MaxInt64, 0), "…" + long},
		{"exponential, initial too long", exponential(tooLong, 2, 0, 0), "…Initial 87601h0m0s" + long},
		{"fibonacci", fibonacci(s, 0, 0), ""},
		{"fibonacci, the longest", fibonacci(tenYears, tenYears, math.MaxInt), ""},
		{"fibonacci, everything", fibonacci(0, -1, -1), lines("backoff.Fibonacci",
			"Initial 0s"+positive, noCap, retries)},
		{"fibonacci, max below initial", fibonacci(minute, s, 0), "backoff.Fibonacci: " + below},
		{"fibonacci, initial too long", fibonacci(tooLong, 0, 0), "…Initial 87601h0m0s" + long},
		{"fibonacci, max too long", fibonacci(s, math.MaxInt64, 0), "…" + long},
	}...)
}

// FuzzPolicies compares lists with the delays that come. Here are those that it cannot tell.
func TestSeriesDelays(t *testing.T) {
	t.Parallel()
	testDelays(t, requireListed, []expected{
		{"list, under a millisecond", backoff.List{5 * s, 2 * s, 5 * s, time.Nanosecond}, "1ms 2s 5s"},
		{"constant, short", constantly(time.Nanosecond, 0), "1ms"},
		{"linear, without bounds", linear(s, s, 0, 0), "?"},
		{"linear, a billion", linear(s, ms, 0, 1_000_000_000), "?"},
		{"linear, a million to the cap", linear(s, ms, time.Hour, 0), "?"},
		{"linear, a million under a millisecond", linear(1, 1, ms, 0), "1ms"},
		{"linear, max before retries", linear(s, time.Hour, time.Minute, math.MaxInt), "1s 1m"},
		{"exponential, without bounds", exponential(s, 2, 0, 0), "?"},
		{"exponential, too many", exponential(s, 1.0001, 0, 1_000_000_000), "?"},
		{"fibonacci, to ten years", fibonacci(30_000*time.Hour, 0, math.MaxInt), "30000h 60000h 87600h"},
		{"fibonacci, without bounds", fibonacci(s, 0, 0), "?"},
	}...)
}

func TestSeriesOfTenYearsIsRemarked(t *testing.T) {
	t.Parallel()
	const year, text = 8760 * time.Hour,
		" its delay grows to ten years (backoff.MaxDelay); set Max to cap it"
	for _, test := range []struct {
		policy backoff.Policy
		want   string
	}{
		{exponential(s, 2, 0, 30), "backoff.Exponential: with Retries 30"},
		{linear(year, year, 0, 11), "backoff.Linear: with Retries 11"},
		{fibonacci(s, 0, 42), "backoff.Fibonacci: with Retries 42"},
		{fibonacci(s, 0, 41), ""},
		{fibonacci(s, time.Hour, 42), ""},
		{exponential(s, 2, 0, 29), ""},
		{exponential(s, 2, time.Hour, 30), ""},
		{doubling, ""},
		{linear(s, s, 0, 3), ""},
	} {
		var want []string
		if test.want != "" {
			want = []string{test.want + text}
		}
		assert.Equal(t, want, backoff.Remarks(test.policy), "%#v", test.policy)
	}
}
