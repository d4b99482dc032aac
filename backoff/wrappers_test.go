package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func TestLimitSeries(t *testing.T) {
	t.Parallel()
	testSeries(t, []expected{
		{"ends the endless", limit(constantly(s, 0), 2), "1s 1s"},
		{"cuts a longer one", limit(backoff.List{s, 2 * s, 3 * s}, 2), "1s 2s"},
		{"leaves a shorter one", limit(backoff.List{s}, 2), "1s"},
		{"zero", limit(backoff.List{s}, 0), ""},
		{"inner limit wins", limit(limit(constantly(s, 0), 1), 9), "1s"},
		{"outer limit wins", limit(limit(constantly(s, 0), 9), 1), "1s"},
		{"bounds a foreign one", limit(foreign{wait: -s, retry: true}, 1), "1ms"},
		{"invalid retries", limit(backoff.List{s}, -1), ""},
		{"nil", limit(nil, 1), ""},
		{"nil pointer", limit((*backoff.List)(nil), 1), ""},
	}...)
}

func TestCapSeries(t *testing.T) {
	t.Parallel()
	testSeries(t, []expected{
		{
			"cuts longer delays", capped(backoff.List{s, time.Minute, time.Hour}, 5*time.Minute), "1s 1m 5m",
		},
		{"also in the middle", capped(backoff.List{s, time.Hour, 2 * s}, 3*s), "1s 3s 2s"},
		{"leaves an equal delay", capped(backoff.List{s, 2 * s}, 2*s), "1s 2s"},
		{"inner cap wins", capped(capped(backoff.List{time.Hour}, s), time.Minute), "1s"},
		{"outer cap wins", capped(capped(backoff.List{time.Hour}, time.Minute), s), "1s"},
		{"adds no retry", capped(backoff.None{}, s), ""},
		{"bounds a foreign one", capped(limit(foreign{wait: -s, retry: true}, 1), s), "1ms"},
		{"max under a millisecond", capped(backoff.List{s}, 1), "1ms"},
		{"max of ten years", capped(backoff.List{87_600 * time.Hour}, 87_600*time.Hour), "87600h"},
		{"invalid max 0", capped(backoff.List{s}, 0), "1s"},
		{"invalid max, negative", capped(backoff.List{s}, math.MinInt64), "1s"},
		{"invalid max, too long", capped(backoff.List{s}, math.MaxInt64), "1s"},
		{"nil", capped(nil, s), ""},
		{"nil pointer", capped((*backoff.List)(nil), s), ""},
	}...)
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	minute := constantly(time.Minute, 3)
	of := func(policy backoff.Policy) backoff.MaxAge { return aged(policy, 10*time.Minute) }
	long, before, after := time.Duration(math.MaxInt64), time.Unix(-1<<40, 0), time.Unix(1<<40, 0)
	in := start.Add
	for _, test := range []struct {
		name       string
		policy     backoff.MaxAge
		count      int
		first, now time.Time
		retry      bool
	}{
		{"first failure", of(minute), 1, start, start, true},
		{"age reached exactly", of(minute), 1, start, in(9 * time.Minute), true},
		{"age exceeded", of(minute), 1, start, in(9*time.Minute + 1), false},
		{"already too old", of(minute), 1, start, in(time.Hour), false},
		{"policy ends earlier", of(minute), 4, start, start, false},
		{"one delay reaches age exactly", aged(minute, time.Minute), 1, start, start, true},
		{"one delay exceeds age", aged(minute, time.Minute-1), 1, start, start, false},
		{"inner age is shorter", of(aged(minute, time.Minute)), 1, start, in(s), false},
		{"outer age is shorter", of(aged(minute, time.Hour)), 1, start, in(10 * time.Minute), false},
		{"first unknown", of(minute), 1, time.Time{}, start, true},
		{"now unknown", of(minute), 1, start, time.Time{}, true},
		{"both unknown", of(minute), 1, time.Time{}, time.Time{}, true},
		{"unknown, one delay exceeds age", aged(minute, s), 1, time.Time{}, time.Time{}, false},
		{"clock went back", of(minute), 1, start, in(-time.Hour), true},
		{"age of the message overflows", of(minute), 1, before, after, false},
		{"greatest age", aged(minute, long), 1, start, in(2_000_000 * time.Hour), true},
		{"greatest age exceeded", aged(minute, long), 1, before, after, false},
		{"under a millisecond", aged(minute, 1), 1, start, start, false},
		{"invalid age 0", aged(minute, 0), 1, start, start, false},
		{"invalid age", aged(minute, math.MinInt64), 1, start, in(time.Hour), false},
		{"nil", of(nil), 1, start, start, false},
		{"nil pointer", of((*backoff.List)(nil)), 1, start, start, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := test.policy.Delay(
				backoff.Failure{Count: test.count, First: test.first, Now: test.now})
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

// Given attempts that fail at once, when a message grows old, then these are the
// times of its later attempts.
func TestMaxAgeTimes(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]string{
		s - 1: "", s: "1s", 10 * s: "1s 3s 7s", 15*s - 1: "1s 3s 7s", 15 * s: "1s 3s 7s 15s",
	} {
		attempts, at := []time.Duration{}, time.Duration(0)
		for count := 1; ; count++ {
			wait, retry := aged(doubling, age).Delay(
				backoff.Failure{Count: count, First: start, Now: start.Add(at)})
			if !retry {
				break
			}
			at += wait
			attempts = append(attempts, at)
		}
		assert.Equal(t, durations(t, want), attempts, "age %s", age)
	}
}

func TestUnbounded(t *testing.T) {
	t.Parallel()
	p := unbounded(linear(s, s, time.Minute, 0))
	requireAt(t, p, map[int]time.Duration{
		math.MinInt: s, 1: s, 2: 2 * s, 1_000_000: time.Minute, math.MaxInt: time.Minute,
	})
	require.NoError(t, backoff.Validate(p))
	require.NoError(t, backoff.CheckEnd(p))
	require.ErrorIs(t, backoff.CheckEnd(p.Policy), backoff.ErrNoEnd)
	delays, known := backoff.Delays(p)
	require.True(t, known)
	assert.Len(t, delays, 60)
	requireDelays(t, unbounded(foreign{}), "?")
}

func TestUnboundedAddsNoRetry(t *testing.T) {
	t.Parallel()
	requireSeries(t, unbounded(backoff.List{s}), "1s")
	requireSeries(t, unbounded(nil), "")
	requireSeries(t, unbounded((*backoff.List)(nil)), "")
}

func TestWrappersValidate(t *testing.T) {
	t.Parallel()
	const (
		toWrap   = "Policy is nil: give it the policy to wrap"
		positive = " is not positive: a delay is at least 1ms"
		entry    = "\nbackoff.List: entry [0] -1s" + positive
		noCap    = " is not positive: use Policy without backoff.Cap for no cap"
		noAge    = " is not positive: use Policy without backoff.MaxAge for no limit, " +
			"backoff.None to never retry"
	)
	all := aged(capped(limit(backoff.ByError{
		Cases:   []backoff.Case{{Policy: fibonacci(0, -1, -1)}},
		Default: unbounded(capped(nil, 0)),
	}, -1), 0), -s)
	testValidate(t, []expected{
		{"limit", limit(backoff.None{}, 0), ""},
		{"limit, everything", limit(nil, -1), lines("backoff.Limit",
			"Retries -1 is negative: use 0 to never retry", toWrap)},
		{"limit, nil pointer", limit((*backoff.Linear)(nil), 0), lines("backoff.Limit",
			"Policy is a nil *backoff.Linear: give it the policy to wrap")},
		{"limit, nil func", limit(backoff.PolicyFunc(nil), 0), lines("backoff.Limit",
			"Policy is a nil backoff.PolicyFunc: give it the policy to wrap")},
		{"limit, and its policy", limit(backoff.List{-s}, -2), lines("backoff.Limit",
			"Retries -2 is negative: use 0 to never retry") + entry},
		{"cap", capped(backoff.List{time.Hour}, time.Nanosecond), ""},
		{"cap, the longest", capped(backoff.None{}, backoff.MaxDelay), ""},
		{"cap, everything", capped(nil, 0), lines("backoff.Cap", "Max 0s"+noCap, toWrap)},
		{"cap, and its policy", capped(backoff.List{-s}, 87_601*time.Hour), lines("backoff.Cap",
			"Max 87601h0m0s is above 87600h0m0s, the longest TTL of a RabbitMQ queue: "+
				"use at most backoff.MaxDelay") + entry},
		{"max age, the longest", aged(backoff.None{}, math.MaxInt64), ""},
		{"max age, everything", aged(nil, 0), lines("backoff.MaxAge", "Age 0s"+noAge, toWrap)},
		{"max age, and its policy", aged(backoff.List{-s}, -s), lines("backoff.MaxAge",
			"Age -1s"+noAge) + entry},
		{"unbounded, nil", unbounded(nil), "backoff.Unbounded: " + toWrap},
		{"unbounded, its policy", unbounded(backoff.Constant{}), lines("backoff.Constant",
			"Interval 0s"+positive)},
		{"all of them", all, lines("backoff.MaxAge", "Age -1s"+noAge) + "\n" +
			lines("backoff.Cap", "Max 0s"+noCap) + "\n" +
			lines("backoff.Limit", "Retries -1 is negative: use 0 to never retry") + "\n" +
			lines("backoff.ByError: case [0]", "Match is nil: use backoff.Is with an error, "+
				"backoff.As or a func of your own", "backoff.Fibonacci: Initial 0s"+positive,
				"backoff.Fibonacci: Max -1ns is negative: use 0 for no cap", "backoff.Fibonacci: "+
					"Retries -1 is negative: use backoff.None to never retry, 0 for no end") + "\n" +
			lines("backoff.ByError: Default: backoff.Cap", "Max 0s"+noCap, toWrap)},
	}...)
}

func TestCapCheckEnd(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.CheckEnd(capped(backoff.List{s}, s)))
	require.NoError(t, backoff.CheckEnd(capped(unbounded(constantly(s, 0)), s)))
	require.NoError(t, backoff.CheckEnd(capped(nil, s)), "never retries")
	endless := linear(s, s, 0, 0)
	require.Equal(t, backoff.CheckEnd(endless), backoff.CheckEnd(capped(endless, s)))
	require.ErrorIs(t, backoff.CheckEnd(capped(foreign{}, s)), backoff.ErrNoEnd)
	require.NoError(t, backoff.CheckEnd(limit(foreign{}, 1)))
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
	testDelays(t, requireListed, []expected{
		{"of an endless series", limit(doubling, 3), "1s 2s 4s"},
		{"of a longer series", limit(backoff.List{s, 2 * s, 3 * s}, 2), "1s 2s"},
		{"of a shorter series", limit(backoff.List{s}, 2), "1s"},
		{"nested", limit(unbounded(limit(doubling, 2)), 3), "1s 2s"},
		{"zero", limit(backoff.List{s}, 0), ""},
		{"zero of a policy that cannot list", limit(foreign{retry: true}, 0), ""},
		{"of a policy that cannot list", limit(foreign{retry: true}, 3), "?"},
		{"of a lister that depends on more", limit(embeds{}, 1), "1m 1h"},
		{"many retries, inner lists", limit(constantly(s, 0), math.MaxInt), "1s"},
		{"many retries, inner cannot list", limit(doubling, 1001), "?"},
		{"of fibonacci", limit(fibonacci(s, 0, 0), 4), "1s 2s 3s 5s"},
		{"of a cap", limit(capped(doubling, 3*s), 2), "1s 2s"},
		{"of a cap on such a lister", limit(capped(embeds{}, 30*time.Minute), 1), "1m 30m"},
		{"of a max age", limit(aged(backoff.List{s, time.Minute}, time.Hour), 1), "1s 1m"},
		{
			"of a choice by error", limit(choice(backoff.List{time.Minute}, backoff.List{s, 2 * s}), 1),
			"1s 2s 1m",
		},
		{"nil", limit(nil, 3), "?"},
	}...)
}

// A Limit bounds a jitter also within another wrapper.
func TestLimitDelaysOfAWrappedJitter(t *testing.T) {
	t.Parallel()
	drawn := full(doubling, 2)
	for _, p := range []backoff.Policy{capped(drawn, time.Hour), unbounded(drawn), limit(drawn, 9)} {
		requireDelays(t, limit(p, 2), "500ms 1s 2s")
	}
	requireDelays(t, limit(backoff.AtOnce{Policy: drawn}, 2), "500ms 1s")
}

// series embeds a series and changes its delays.
type series struct{ backoff.Exponential }

func (series) Delay(backoff.Failure) (time.Duration, bool) { return 7 * s, true }

func (series) Delays() []time.Duration { return []time.Duration{7 * s} }

func TestCapDelays(t *testing.T) {
	t.Parallel()
	testDelays(t, requireListed, []expected{
		{
			"of a list", capped(backoff.List{s, time.Hour, time.Minute, 2 * time.Hour}, 2*time.Minute),
			"1s 1m 2m",
		},
		{"of a constant", capped(constantly(time.Hour, 0), time.Minute), "1m"},
		{"of a series that ends", capped(exponential(s, 2, 0, 3), 3*s), "1s 2s 3s"},
		{"of a series that ends below", capped(fibonacci(s, 0, 2), time.Hour), "1s 2s"},
		{"of a series with a lower max", capped(exponential(s, 2, 3*s, 0), time.Hour), "1s 2s 3s"},
		{"of a linear series with a lower max", capped(linear(s, s, 2*s, 0), time.Hour), "1s 2s"},
		{
			"of a fibonacci series with a lower max", capped(fibonacci(s, 4*s, 0), time.Hour), "1s 2s 3s 4s",
		},
		{"of an endless exponential", capped(doubling, 5*s), "1s 2s 4s 5s"},
		{"of an endless linear", capped(linear(s, s, 0, 0), 3*s), "1s 2s 3s"},
		{"of an endless fibonacci", capped(fibonacci(s, 0, 0), 4*s), "1s 2s 3s 4s"},
		{"of an unbounded one", capped(unbounded(doubling), 3*s), "1s 2s 3s"},
		{"of a long limit", capped(limit(doubling, 5000), 3*s), "1s 2s 3s"},
		{"of a cap", capped(capped(doubling, time.Hour), 3*s), "1s 2s 3s"},
		{"below initial", capped(linear(time.Minute, s, 0, 0), s), "1s"},
		{"of a type that embeds a series", capped(series{doubling}, 5*s), "5s"},
		{"a thousand under the cap", capped(linear(s, s, 0, 0), 1001*s), "?"},
		{"of a policy that never retries", capped(backoff.None{}, s), ""},
		{"of a policy that cannot list", capped(foreign{retry: true}, s), "?"},
		{"nil", capped(nil, s), "?"},
	}...)
}

func TestMaxAgeDelays(t *testing.T) {
	t.Parallel()
	testDelays(t, requireListed, []expected{
		{"of a list", aged(backoff.List{time.Hour, s, time.Minute}, time.Minute), "1s 1m"},
		{"of a series that ends", aged(exponential(s, 2, 0, 2), time.Hour), "1s 2s"},
		{"of an endless exponential", aged(doubling, 5*s), "1s 2s 4s"},
		{"of an endless exponential, on a step", aged(doubling, 4*s), "1s 2s 4s"},
		{"of an endless exponential, before a step", aged(doubling, 4*s-1), "1s 2s"},
		{"of an endless linear", aged(linear(s, s, 0, 0), 3*s), "1s 2s 3s"},
		{"of an endless fibonacci", aged(fibonacci(s, 0, 0), 4*s), "1s 2s 3s"},
		{"of a cap", aged(capped(doubling, 3*s), time.Hour), "1s 2s 3s"},
		{"of a long limit", aged(limit(doubling, 5000), 3*s), "1s 2s"},
		{"of ten years", aged(fibonacci(50_000*time.Hour, 0, 0), 87_600*time.Hour), "50000h 87600h"},
		{"just below ten years", aged(fibonacci(50_000*time.Hour, 0, 0), 87_600*time.Hour-1), "50000h"},
		{"greatest age", aged(fibonacci(50_000*time.Hour, 0, 0), math.MaxInt64), "50000h 87600h"},
		{"of longer ones only", aged(backoff.List{time.Hour}, time.Minute), ""},
		{"of a policy that never retries", aged(backoff.None{}, time.Minute), ""},
		{"of a policy that cannot list", aged(foreign{retry: true}, time.Minute), "?"},
		{"under a millisecond", aged(foreign{retry: true}, ms-1), ""},
		{"too many", aged(linear(s, s, 0, 0), 24*time.Hour), "?"},
		{"nil", aged(nil, time.Minute), "?"},
	}...)
}

func TestCapLeavesTheListAlone(t *testing.T) {
	t.Parallel()
	list, told := backoff.List{time.Hour, s}, []time.Duration{time.Hour, s}
	backoff.Delays(capped(list, time.Minute))
	backoff.Delays(capped(talkative{listed: told}, time.Minute))
	assert.Equal(t, backoff.List{time.Hour, s}, list)
	assert.Equal(t, []time.Duration{time.Hour, s}, told)
}

func TestWrappersRemark(t *testing.T) {
	t.Parallel()
	const (
		gap   = "mind the gap"
		noEnd = "backoff.Unbounded: the policy has no end; a message that keeps failing is retried " +
			"until something else stops it"
	)
	tenYears := fibonacci(s, 0, 50)
	require.NotEmpty(t, backoff.Remarks(tenYears))
	endless := unbounded(constantly(s, 0))
	minutes := backoff.List{time.Minute, time.Hour}
	testRemarks(t, []remarked{
		{"cap, as the remark asks", capped(tenYears, time.Hour), nil},
		{"cap, of policy", capped(talkative{}, time.Hour), []string{gap}},
		{"cap, of unbounded", capped(endless, time.Hour), []string{noEnd}},
		{"cap, nil", capped(nil, 0), nil},
		{"max age, nothing to tell", aged(minutes, time.Minute), nil},
		{"max age, ten years are never reached", aged(tenYears, time.Hour), nil},
		{"max age, of policy", aged(talkative{}, time.Hour), []string{gap}},
		{"max age, no delay is short enough", aged(minutes, time.Minute-1), []string{
			"backoff.MaxAge: Age 59.999999999s is shorter than every delay of backoff.List: " +
				"there is no retry",
		}},
		{"max age, both", aged(talkative{listed: minutes[1:]}, time.Minute), []string{
			"backoff.MaxAge: Age 1m0s is shorter than every delay of backoff_test.talkative: " +
				"there is no retry", gap,
		}},
		{"max age, policy never retries", aged(backoff.None{}, time.Minute), nil},
		{"max age, nil", aged(nil, 0), nil},
		{"unbounded", endless, []string{noEnd}},
		{"unbounded in a limit", limit(endless, 3), []string{noEnd}},
		{"unbounded, of policy", unbounded(talkative{}), []string{noEnd, gap}},
		{"unbounded, nil", unbounded(nil), nil},
		{"unbounded, but it ends", unbounded(backoff.List{s}), []string{
			"backoff.Unbounded adds nothing to backoff.List, " +
				"which ends by itself or already says that it does not",
		}},
		{"by error", choice(backoff.List{s}, talkative{}, unbounded(talkative{})), []string{
			"backoff.ByError: case [1]: " + gap,
			"backoff.ByError: Default: " + noEnd, "backoff.ByError: Default: " + gap,
		}},
		{"by error, nil", backoff.ByError{}, nil},
	}...)
}

func TestWrappersShowTheFailure(t *testing.T) {
	t.Parallel()
	given := backoff.Failure{
		Count: 7, Err: errBroken, First: start, Now: start.Add(time.Hour), Last: time.Minute,
	}
	var seen []backoff.Failure
	spy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		seen = append(seen, f)
		return time.Hour, true
	})
	for name, p := range map[string]backoff.Policy{
		"limit":             limit(spy, 9),
		"unbounded":         unbounded(spy),
		"cap":               capped(spy, s),
		"max age":           aged(spy, s),
		"by error":          choice(spy, backoff.None{}),
		"by error, default": choice(spy),
		"full jitter":       backoff.FullJitter{Policy: spy},
		"equal jitter":      equalJitter(spy),
		"bounded jitter":    boundedJitter(spy, 1),
	} {
		seen = nil
		p.Delay(given)
		assert.Equal(t, []backoff.Failure{given}, seen, name)
	}
}

func TestDeepNesting(t *testing.T) {
	t.Parallel()
	var p backoff.Policy = backoff.List{s, 0}
	for range 10_000 {
		p = limit(unbounded(p), 5)
	}
	requireSeries(t, p, "1s 1ms")
	assert.EqualError(t, backoff.Validate(p),
		"backoff.List: entry [1] 0s is not positive: a delay is at least 1ms")
	assert.NoError(t, backoff.CheckEnd(p))
	requireDelays(t, p, "1ms 1s")
}

func TestDeepNestingOfAllWrappers(t *testing.T) {
	t.Parallel()
	wrap := func(p backoff.Policy) backoff.Policy {
		return aged(choice(limit(capped(unbounded(p), time.Minute), 5), backoff.None{}), time.Hour)
	}
	var p, invalid backoff.Policy = fibonacci(30*s, 0, 0), backoff.List{s, 0}
	for range 1000 {
		p = wrap(p)
	}
	for range 100 {
		invalid = wrap(invalid)
	}
	wait, retry := p.Delay(backoff.Failure{Count: 5, Err: errBroken})
	assert.True(t, retry)
	assert.Equal(t, time.Minute, wait)
	for _, f := range []backoff.Failure{{Count: 6, Err: errBroken}, {Count: 1}} {
		_, retry = p.Delay(f)
		assert.False(t, retry)
	}
	assert.NoError(t, backoff.Validate(p))
	assert.ErrorContains(t, backoff.Validate(invalid), "backoff.List: entry [1] 0s is not positive")
	assert.NoError(t, backoff.CheckEnd(p))
	requireDelays(t, p, "30s 1m")
}

// A Cap changes the policies in it before it lists them: this must stay cheap for
// thousands of them.
func TestDeepNestingOfCaps(t *testing.T) {
	t.Parallel()
	tests := []expected{
		{"endless series", doubling, "1s 2s 3s"},
		{"list", backoff.List{time.Hour, s}, "1s 3s"},
		{"cannot list", foreign{wait: time.Hour, retry: true}, "?"},
		{"lists a thousand", linear(s, time.Nanosecond, 0, 0), "?"},
	}
	for i := range tests {
		for range 2500 {
			tests[i].policy = capped(limit(unbounded(tests[i].policy), 2000), 3*s)
		}
	}
	testDelays(t, requireBounds, tests...)
}

func FuzzWrappers(f *testing.F) {
	f.Add(int64(1e9), 2.0, int64(0), int64(5e9), int64(9e9), 3, 3)
	f.Add(int64(1e9), 2.0, int64(0), int64(10e9), int64(9e9), 5000, 1)
	f.Add(int64(math.MaxInt64), math.Inf(1), int64(-1), int64(math.MaxInt64), int64(math.MaxInt64), 0,
		math.MaxInt)
	f.Add(int64(math.MinInt64), math.Inf(-1), int64(math.MaxInt64), int64(1), int64(1), -1,
		math.MaxInt)
	f.Add(int64(5e9), 0.0, int64(1), int64(math.MinInt64), int64(math.MinInt64), 5000, 4)
	f.Fuzz(func(t *testing.T, a int64, factor float64, b, c, elapsed int64, retries, count int) {
		initial, inner, bound := time.Duration(a), time.Duration(b), time.Duration(c)
		failure := backoff.Failure{Count: count, First: start, Now: start.Add(time.Duration(elapsed))}
		for _, policy := range []backoff.Policy{
			exponential(initial, factor, inner, retries), exponential(initial, 2, 0, 0),
			limit(fibonacci(initial, inner, 0), retries), unbounded(linear(initial, initial, inner, 0)),
			capped(fibonacci(initial, 0, 0), time.Hour),
			backoff.List{initial, inner, initial},
			foreign{wait: initial, retry: true},
		} {
			whole, retried := backoff.Next(policy, failure)
			p := capped(policy, bound)
			requireSound(t, p, failure)
			wait, retry := p.Delay(failure)
			require.Equal(t, retried, retry)
			require.LessOrEqual(t, wait, whole)
			if backoff.Validate(p) == nil && bound >= ms {
				require.LessOrEqual(t, wait, bound)
			}

			old := aged(policy, bound)
			requireSound(t, old, failure)
			wait, retry = old.Delay(failure)
			// As unsigned numbers the sum does not overflow.
			inTime := c > 0 && uint64(max(elapsed, 0))+uint64(whole) <= uint64(c)
			require.Equal(t, retried && inTime, retry)
			if retry {
				require.Equal(t, whole, wait)
			}

			requireBounds(t, limit(policy, retries), failure)
			if _, retry := limit(policy, retries).Delay(failure); retry {
				require.LessOrEqual(t, max(count, 1), retries)
			}
		}
	})
}
