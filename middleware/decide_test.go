package middleware

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

var (
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	errTest = errors.New("boom")
)

// Short names for the tables.
type state = header.RetryState

const (
	second, minute, hour = time.Second, time.Minute, time.Hour

	gaveUp    = header.ReasonPermanent
	exhausted = header.ReasonExhausted
	tooOld    = header.ReasonMaxAge
	late      = header.ReasonDeadline
)

var panicking = backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { panic("policy") })

func after(d time.Duration) mark { return mark{class: header.ClassRetryable, floor: d} }

func TestDecide(t *testing.T) {
	t.Parallel()
	list := limits{policy: backoff.List{2 * second, 5 * second, 15 * second}}
	with := func(change func(*limits)) limits {
		l := list
		change(&l)
		return l
	}
	endless := limits{policy: backoff.Constant{Interval: minute}}
	hourAge := limits{policy: backoff.Constant{Interval: 10 * minute}, maxAge: hour}
	panics := limits{policy: panicking}
	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		reason header.Reason
		delay  time.Duration
		count  int
		first  time.Time
	}{
		"first failure":           {delay: 2 * second},
		"second failure":          {state: state{Failures: 1}, delay: 5 * second, count: 2},
		"last retry":              {state: state{Failures: 2}, delay: 15 * second, count: 3},
		"one past the last retry": {state: state{Failures: 3}, reason: exhausted, count: 4},
		"far past the last retry": {state: state{Failures: 99}, reason: exhausted, count: 100},
		"no retries":              {limits: limits{policy: backoff.None{}}, reason: exhausted},
		"permanent":               {mark: mark{class: header.ClassPermanent}, reason: gaveUp},
		"permanent comes before exhausted": {
			mark: mark{class: header.ClassPermanent}, state: state{Failures: 3},
			reason: gaveUp, count: 4,
		},
		"first failure is kept": {
			state: state{Failures: 1, FirstFailure: noon.Add(-hour)},
			delay: 5 * second, count: 2, first: noon.Add(-hour),
		},
		"first failure forged to lie ahead counts as now": {
			state: state{Failures: 1, FirstFailure: noon.Add(hour)},
			delay: 5 * second, count: 2,
		},

		"one attempt: never retried": {
			limits: with(func(l *limits) { l.maxAttempts = 1 }), reason: exhausted,
		},
		"two attempts: the first is retried": {
			limits: with(func(l *limits) { l.maxAttempts = 2 }), delay: 2 * second,
		},
		"two attempts: the second is not": {
			limits: with(func(l *limits) { l.maxAttempts = 2 }), state: state{Failures: 1},
			reason: exhausted, count: 2,
		},
		"more attempts than the policy has": {
			limits: with(func(l *limits) { l.maxAttempts = 9 }), state: state{Failures: 3},
			reason: exhausted, count: 4,
		},

		"floor above the delay": {mark: after(minute), delay: minute},
		"floor below the delay": {mark: after(second), delay: 2 * second},
		"floor of a message with no retry": {
			mark: after(minute), state: state{Failures: 3}, reason: exhausted, count: 4,
		},
		"floor above the longest delay": {mark: after(math.MaxInt64), delay: 315_360_000 * second},

		"age: next attempt at the very limit": {
			limits: hourAge, state: state{Failures: 5, FirstFailure: noon.Add(-50 * minute)},
			delay: 10 * minute, count: 6, first: noon.Add(-50 * minute),
		},
		"age: next attempt just after it": {
			limits: hourAge, state: state{Failures: 5, FirstFailure: noon.Add(-50*minute - 1)},
			reason: tooOld, count: 6, first: noon.Add(-50*minute - 1),
		},
		"age: the floor counts": {limits: hourAge, mark: after(61 * minute), reason: tooOld},
		"age: first failure in the year 1": {
			limits: hourAge, state: state{Failures: 1, FirstFailure: time.Time{}.Add(1)},
			reason: tooOld, count: 2, first: time.Time{}.Add(1),
		},
		"age: longest possible": {
			limits: limits{policy: backoff.Constant{Interval: minute}, maxAge: math.MaxInt64},
			delay:  minute,
		},

		"deadline: next attempt at the very deadline": {
			limits: endless, state: state{Deadline: noon.Add(minute)}, delay: minute,
		},
		"deadline: next attempt just after it": {
			limits: endless, state: state{Deadline: noon.Add(minute - 1)}, reason: late,
		},
		"deadline in the year 9999": {
			limits: endless, state: state{Deadline: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)},
			delay: minute,
		},

		"forged counter: negative": {state: state{Failures: -7}, delay: 2 * second},
		"forged counter: lowest":   {state: state{Failures: math.MinInt}, delay: 2 * second},
		"forged counter: highest": {
			state: state{Failures: math.MaxInt}, reason: exhausted, count: 1_000_000,
		},
		"forged counter: highest, no end": {
			limits: endless, state: state{Failures: math.MaxInt}, delay: minute, count: 1_000_000,
		},

		"policy panics: a minute": {limits: panics, delay: minute},
		"policy panics: but for a hundred failures": {
			limits: panics, state: state{Failures: 99}, reason: exhausted, count: 100,
		},
		"policy panics: attempts still count": {
			limits: limits{policy: panics.policy, maxAttempts: 2}, state: state{Failures: 1},
			reason: exhausted, count: 2,
		},
		"policy panics: age still counts": {
			limits: limits{policy: panics.policy, maxAge: second}, reason: tooOld,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.mark.class == "" {
				test.mark = after(0)
			}
			if test.limits.policy == nil {
				test.limits = list
			}
			if test.first.IsZero() {
				test.first = noon
			}
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon})
			assert.Equal(t, test.reason, got.reason)
			assert.Equal(t, test.delay, got.delay)
			assert.Equal(t, max(test.count, 1), got.count)
			assert.True(t, got.first.Equal(test.first))
		})
	}
}

// A delay that no wait queue has exactly comes later than asked, and may come too late.
func TestLimitsCountTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	toTheMinute := func(asked time.Duration) time.Duration {
		return (asked + minute - 1).Truncate(minute)
	}
	retryable, snoozed := mark{class: header.ClassRetryable}, snoozeFor(2*second)
	policy := backoff.List{2 * second}
	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		want   outcome
	}{
		"age: in time": {
			limits{policy: policy, maxAge: minute}, retryable, state{}, outcome{delay: 2 * second},
		},
		"age: too late": {
			limits{policy: policy, maxAge: minute - 1}, retryable, state{}, outcome{reason: tooOld},
		},
		"deadline: in time": {
			limits{policy: policy}, retryable, state{Deadline: noon.Add(minute)}, outcome{delay: 2 * second},
		},
		"deadline: too late": {
			limits{policy: policy}, retryable, state{Deadline: noon.Add(minute - 1)}, outcome{reason: late},
		},
		"Snooze: in time": {
			limits{policy: policy, maxSnooze: minute},
			snoozed,
			state{},
			outcome{delay: 2 * second, snoozed: true},
		},
		"Snooze: over its limit": {
			limits{
				policy: policy, maxSnooze: minute - 1,
			}, snoozed, state{}, outcome{delay: 2 * second, overdue: true},
		},
		"Snooze: past the deadline": {
			limits{
				policy: policy, maxSnooze: hour,
			}, snoozed, state{Deadline: noon.Add(minute - 1)}, outcome{reason: late},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.limits.decide(
				failure{err: errTest, mark: test.mark, state: test.state, now: noon, given: toTheMinute},
			)
			test.want.count, test.want.first = 1, noon
			assert.Equal(t, test.want, got)
		})
	}
}

func TestPolicyIsShownTheWholeFailure(t *testing.T) {
	t.Parallel()
	var shown backoff.Failure
	l := limits{policy: backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		shown = f
		return second, true
	})}
	first := noon.Add(-hour)
	l.decide(failure{
		err: errTest, mark: mark{class: header.ClassRetryable}, now: noon,
		state: state{Failures: 3, FirstFailure: first, Delay: 7 * second},
	})
	want := backoff.Failure{Count: 4, Err: errTest, First: first, Now: noon, Last: 7 * second}
	assert.Equal(t, want, shown)
}

func TestExactlySoManyAttempts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limits   limits
		attempts int
	}{
		"no retries":         {limits{policy: backoff.None{}}, 1},
		"empty list":         {limits{policy: backoff.List{}}, 1},
		"list of three":      {limits{policy: backoff.List{1, 2, 3}}, 4},
		"five retries":       {limits{policy: backoff.Constant{Interval: second, Retries: 5}}, 6},
		"max attempts 1":     {limits{policy: backoff.Constant{Interval: second}, maxAttempts: 1}, 1},
		"max attempts 7":     {limits{policy: backoff.Constant{Interval: second}, maxAttempts: 7}, 7},
		"the lower one wins": {limits{policy: backoff.List{1, 2, 3}, maxAttempts: 3}, 3},
		"a minute of age": {
			limits{policy: backoff.Constant{Interval: 20 * second}, maxAge: minute}, 4,
		},
		"policy that panics": {limits{policy: panicking}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, attempts := noon, 0
			for state := (state{}); ; {
				attempts++
				f := failure{err: errTest, mark: mark{class: header.ClassRetryable}, state: state, now: now}
				d := test.limits.decide(f)
				if d.reason != "" {
					break
				}
				state = recorded(f, d, "boom")
				now = now.Add(d.delay)
			}
			assert.Equal(t, test.attempts, attempts)
		})
	}
}

func TestDecideAboutSnooze(t *testing.T) {
	t.Parallel()
	day := limits{policy: backoff.List{2 * second, 5 * second}, maxSnooze: 24 * hour}
	with := func(change func(*limits)) limits {
		l := day
		change(&l)
		return l
	}
	hourAge := with(func(l *limits) { l.maxAge = hour })

	snoozed := func(delay time.Duration, count int) outcome {
		return outcome{snoozed: true, delay: delay, count: count}
	}
	overdue := func(delay time.Duration, count int) outcome {
		return outcome{overdue: true, delay: delay, count: count}
	}
	for name, test := range map[string]struct {
		limits limits // zero: day
		mark   mark
		state  header.RetryState
		want   outcome // counts as after a failure
	}{
		"at attempt 1": {mark: snoozeFor(minute), want: snoozed(minute, 1)},
		"any policy": {
			limits: with(func(l *limits) { l.policy = backoff.None{} }), mark: snoozeFor(minute),
			want: snoozed(minute, 1),
		},
		"at the last attempt": {
			limits: with(
				func(l *limits) { l.maxAttempts = 3 },
			), mark: snoozeFor(minute), state: state{Failures: 2},
			want: snoozed(minute, 3),
		},
		"no delay is the shortest": {mark: snoozeFor(0), want: snoozed(time.Millisecond, 1)},
		"for longer than a queue can wait": {
			limits: with(func(l *limits) { l.maxSnooze = math.MaxInt64 }), mark: snoozeFor(math.MaxInt64),
			want: snoozed(backoff.MaxDelay, 1),
		},

		"back at the very limit": {
			mark: snoozeFor(hour), state: state{FirstSeen: noon.Add(-23 * hour)},
			want: snoozed(hour, 1),
		},
		"back just after it: a failure, not before": {
			mark: snoozeFor(hour), state: state{FirstSeen: noon.Add(-23*hour - 1)},
			want: overdue(hour, 1),
		},
		"longer than the limit at once: a failure": {
			mark: snoozeFor(25 * hour), want: overdue(25*hour, 1),
		},
		"past the limit, delay of the policy": {
			mark: snoozeFor(second), state: state{Failures: 1, FirstSeen: noon.Add(-25 * hour)},
			want: overdue(5*second, 2),
		},
		"past the limit, no attempt left": {
			mark: snoozeFor(second), state: state{Failures: 2, FirstSeen: noon.Add(-25 * hour)},
			want: outcome{overdue: true, reason: exhausted, count: 3},
		},
		"first seen in the year 1": {
			mark: snoozeFor(second), state: state{FirstSeen: time.Time{}.Add(1)},
			want: overdue(2*second, 1),
		},
		"first seen forged to lie ahead counts as now": {
			mark: snoozeFor(hour), state: state{FirstSeen: noon.Add(1000 * hour)},
			want: snoozed(hour, 1),
		},

		"deadline: back at the very deadline": {
			mark: snoozeFor(hour), state: state{Deadline: noon.Add(hour)},
			want: snoozed(hour, 1),
		},
		"deadline: back just after it": {
			mark: snoozeFor(hour), state: state{Deadline: noon.Add(hour - 1)},
			want: outcome{reason: late, count: 1},
		},
		"deadline comes before the limit": {
			mark: snoozeFor(25 * hour), state: state{Deadline: noon.Add(hour)},
			want: outcome{reason: late, count: 1},
		},
		"age: no failure, no age": {limits: hourAge, mark: snoozeFor(2 * hour), want: snoozed(2*hour, 1)},
		"age: back at the very limit": {
			limits: hourAge, mark: snoozeFor(minute), state: state{
				Failures: 1, FirstFailure: noon.Add(-59 * minute),
			},
			want: snoozed(minute, 2),
		},
		"age: back just after it": {
			limits: hourAge, mark: snoozeFor(minute), state: state{
				Failures: 1, FirstFailure: noon.Add(-59*minute - 1),
			},
			want: outcome{reason: tooOld, count: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.limits.policy == nil {
				test.limits = day
			}
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon})
			test.want.first = got.first
			assert.Equal(t, test.want, got)
		})
	}
}

func TestRecordOfASnooze(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-hour)
	brought := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: 7 * second, Snoozed: hour,
		NotBefore: noon, Interruptions: 2, Inner: true,
		Error: "first", Class: header.ClassRetryable, History: []header.AttemptError{
			{Attempt: 1, At: earlier, Error: "first"},
		},
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(hour),
	}
	f := failure{
		err: errTest, mark: snoozeFor(minute), now: noon, state: brought, at: place{handler: "billing"},
	}
	want := brought
	want.Snoozed, want.NotBefore, want.Interruptions, want.WaitingSince = minute, time.Time{}, 0, noon
	assert.Equal(t, want, recorded(f, outcome{snoozed: true, delay: minute, count: 3}, "closed"))

	f.state = state{}
	want = state{FirstSeen: noon, Snoozed: minute, WaitingSince: noon}
	assert.Equal(t, want, recorded(f, outcome{snoozed: true, delay: minute, count: 1}, "closed"))
}

// The policy sees the delay of the last failure as the last delay.
func TestSnoozeIsHiddenFromThePolicy(t *testing.T) {
	t.Parallel()
	var last []time.Duration
	l := limits{maxSnooze: hour, policy: backoff.PolicyFunc(func(f backoff.Failure) (
		time.Duration, bool,
	) {
		last = append(last, f.Last)
		return 3 * second, true
	})}
	fails := mark{class: header.ClassRetryable}
	state := state{}
	for _, m := range []mark{fails, snoozeFor(minute), snoozeFor(minute), fails} {
		f := failure{err: errTest, mark: m, state: state, now: noon}
		state = recorded(f, l.decide(f), "")
	}
	assert.Equal(t, []time.Duration{0, 3 * second}, last)
	if state.Failures != 2 || state.Snoozed != 0 || len(state.History) != 2 {
		t.Errorf("got %+v", state)
	}
}

func TestRecordOfARetry(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"}}
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassRetryable}, now: noon,
		state: state{
			Failures: 1, FirstSeen: earlier, FirstFailure: earlier, Delay: hour, NotBefore: noon,
			Error: "first", Class: header.ClassPermanent, History: past,
			OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(hour),
		},
	}
	got := recorded(f, outcome{delay: minute, count: 2, first: earlier}, "second")
	want := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: minute, WaitingSince: noon,
		Error: "second", Class: header.ClassRetryable, Handler: "billing",
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(hour),
		History: []header.AttemptError{
			{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"},
			{
				Attempt: 2, At: noon, Handler: "billing", Class: header.ClassRetryable, Error: "second",
				Delay: "1m0s",
			},
		},
	}
	assert.Equal(t, want, got)
}

func TestRecordOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassPermanent}, now: noon,
		state: state{WaitingSince: noon.Add(-minute)},
	}
	got := recorded(f, outcome{reason: gaveUp, count: 1, first: noon}, "boom")
	want := state{
		Failures: 1, FirstSeen: noon, FirstFailure: noon, Error: "boom", Class: header.ClassPermanent,
		Handler: "billing", Reason: gaveUp, DeadAt: noon,
		History: []header.AttemptError{{
			Attempt: 1, At: noon, Handler: "billing", Class: header.ClassPermanent, Error: "boom",
			Reason: gaveUp,
		}},
	}
	assert.Equal(t, want, got)
}

func TestRecordReplacesAFirstSeenThatLiesAhead(t *testing.T) {
	t.Parallel()
	f := failure{err: errTest, now: noon, state: state{FirstSeen: noon.Add(second)}}
	assert.True(t, recorded(f, outcome{count: 1, first: noon}, "").FirstSeen.Equal(noon))
}

func TestRecordDoesNotWriteIntoTheHistoryItWasGiven(t *testing.T) {
	t.Parallel()
	roomy := make([]header.AttemptError, 1, 8)
	f := failure{err: errTest, now: noon, state: state{History: roomy}}
	recorded(f, outcome{count: 2, first: noon}, "")
	assert.Equal(t, (header.AttemptError{}), roomy[:2][1])
}

// recorded returns the state that travels on after the outcome of a failure.
func recorded(f failure, o outcome, text string) header.RetryState {
	o.record(f, text)
	return o.state
}
