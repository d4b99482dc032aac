package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

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
		{"cap", capped(backoff.List{time.Hour}, time.Millisecond), ""},
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
	}...)
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

// FuzzPolicies compares lists with the delays that come. Here are those that it cannot tell.
func TestWrappersDelays(t *testing.T) {
	t.Parallel()
	years := fibonacci(50_000*time.Hour, 0, 0)
	testDelays(t, requireListed, []expected{
		{"limit, zero of a policy that cannot list", limit(foreign{retry: true}, 0), ""},
		{"limit, of a policy that cannot list", limit(foreign{retry: true}, 3), "?"},
		{"limit, of a lister that depends on more", limit(embeds{}, 1), "1m 1h"},
		{"limit, many retries, inner cannot list", limit(doubling, 1001), "?"},
		{"limit, of a cap on such a lister", limit(capped(embeds{}, 30*time.Minute), 1), "1m 30m"},
		{"limit, of a max age", limit(aged(backoff.List{s, time.Minute}, time.Hour), 1), "1s 1m"},
		{
			"limit, of a choice by error",
			limit(choice(backoff.List{time.Minute}, backoff.List{s, 2 * s}), 1), "1s 2s 1m",
		},
		{"limit, nil", limit(nil, 3), "?"},
		{"cap, of a long limit", capped(limit(unbounded(doubling), 5000), 3*s), "1s 2s 3s"},
		{"cap, of a type that embeds a series", capped(series{doubling}, 5*s), "5s"},
		{"cap, a thousand under it", capped(linear(s, s, 0, 0), 1001*s), "?"},
		{"cap, of a policy that cannot list", capped(foreign{retry: true}, s), "?"},
		{"cap, nil", capped(nil, s), "?"},
		{"max age, of ten years", aged(years, 87_600*time.Hour), "50000h 87600h"},
		{"max age, just below ten years", aged(years, 87_600*time.Hour-1), "50000h"},
		{"max age, the greatest", aged(years, math.MaxInt64), "50000h 87600h"},
		{"max age, of a policy that cannot list", aged(foreign{retry: true}, time.Minute), "?"},
		{"max age, under a millisecond", aged(foreign{retry: true}, ms-1), ""},
		{"max age, too many", aged(linear(s, s, 0, 0), 24*time.Hour), "?"},
		{"max age, nil", aged(nil, time.Minute), "?"},
		{"unbounded, of a policy that cannot list", unbounded(foreign{}), "?"},
		{"at once, of a series without end", atOnce(doubling), "?"},
	}...)
	requireDelays(t, limit(atOnce(full(doubling, 2)), 3), "500ms 1s 2s")
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

func atOnce(p backoff.Policy) backoff.AtOnce { return backoff.AtOnce{Policy: p} }

func TestAtOnceValidate(t *testing.T) {
	t.Parallel()
	const twice = "Policy begins without a delay itself, and only the first retry may: " +
		"use Policy without backoff.AtOnce"
	testValidate(t, []expected{
		{"valid", atOnce(constantly(s, 2)), ""},
		{"first entry of a list", backoff.List{0, s}, ""},
		{"later entry", backoff.List{0, 0}, "backoff.List: entry [1] 0s is not positive: " +
			"a delay is at least 1ms"},
		{"nil", atOnce(nil), "backoff.AtOnce: Policy is nil: give it the policy to wrap"},
		{"twice", atOnce(atOnce(constantly(s, 2))), lines("backoff.AtOnce", twice)},
		{"a list that begins with 0", atOnce(limit(backoff.List{0, s}, 2)), lines("backoff.AtOnce",
			twice)},
		{"a list of which nothing is left", atOnce(limit(backoff.List{0}, 0)), ""},
		{"an invalid policy", atOnce(constantly(0, 2)), "backoff.Constant: Interval 0s is not " +
			"positive: a delay is at least 1ms"},
	}...)
}

func TestAtOnceCounts(t *testing.T) {
	t.Parallel()
	most, known := backoff.MaxRetries(atOnce(constantly(s, math.MaxInt)))
	assert.True(t, known)
	assert.Equal(t, math.MaxInt, most, "one more would overflow")
	assert.Equal(t, 4, backoff.MaxMatchCount(atOnce(limit(choice(backoff.List{s}), 3))))
	assert.Empty(t, backoff.Remarks(aged(backoff.List{0, time.Hour}, time.Minute)),
		"one retry is left")
}
