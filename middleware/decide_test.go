package middleware

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/stretchr/testify/assert"
)

var (
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	errTest = errors.New("boom")
)

type state = header.RetryState

func TestDecide(t *testing.T) {
	t.Parallel()
	list := limits{policy: backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}}
	with := func(change func(*limits)) limits {
		l := list
		change(&l)
		return l
	}
	endless := limits{policy: backoff.Constant{Interval: time.Minute}}
	hourAge := limits{policy: backoff.Constant{Interval: 10 * time.Minute}, maxAge: time.Hour}
	panics := limits{policy: backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { panic("policy") })}
	retryable := mark{class: header.ClassRetryable}

	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		reason header.Reason
		delay  time.Duration
		count  int
		first  time.Time
	}{
		"first failure":           {limits: list, delay: 2 * time.Second, count: 1, first: noon},
		"second failure":          {limits: list, state: state{Failures: 1}, delay: 5 * time.Second, count: 2, first: noon},
		"last retry":              {limits: list, state: state{Failures: 2}, delay: 15 * time.Second, count: 3, first: noon},
		"one past the last retry": {limits: list, state: state{Failures: 3}, reason: header.ReasonExhausted, count: 4, first: noon},
		"far past the last retry": {limits: list, state: state{Failures: 99}, reason: header.ReasonExhausted, count: 100, first: noon},
		"no retries":              {limits: limits{policy: backoff.None{}}, reason: header.ReasonExhausted, count: 1, first: noon},
		"permanent":               {limits: list, mark: mark{class: header.ClassPermanent}, reason: header.ReasonPermanent, count: 1, first: noon},
		"permanent comes before exhausted": {
			limits: list, mark: mark{class: header.ClassPermanent}, state: state{Failures: 3},
			reason: header.ReasonPermanent, count: 4, first: noon,
		},
		"first failure is kept": {
			limits: list, state: state{Failures: 1, FirstFailure: noon.Add(-time.Hour)},
			delay: 5 * time.Second, count: 2, first: noon.Add(-time.Hour),
		},
		"first failure forged to lie ahead counts as now": {
			limits: list, state: state{Failures: 1, FirstFailure: noon.Add(time.Hour)},
			delay: 5 * time.Second, count: 2, first: noon,
		},

		"one attempt: never retried": {
			limits: with(func(l *limits) { l.maxAttempts = 1 }), reason: header.ReasonExhausted, count: 1, first: noon,
		},
		"two attempts: the first is retried": {
			limits: with(func(l *limits) { l.maxAttempts = 2 }), delay: 2 * time.Second, count: 1, first: noon,
		},
		"two attempts: the second is not": {
			limits: with(func(l *limits) { l.maxAttempts = 2 }), state: state{Failures: 1},
			reason: header.ReasonExhausted, count: 2, first: noon,
		},
		"more attempts than the policy has": {
			limits: with(func(l *limits) { l.maxAttempts = 9 }), state: state{Failures: 3},
			reason: header.ReasonExhausted, count: 4, first: noon,
		},

		"floor above the delay":            {limits: list, mark: mark{class: header.ClassRetryable, floor: time.Minute}, delay: time.Minute, count: 1, first: noon},
		"floor below the delay":            {limits: list, mark: mark{class: header.ClassRetryable, floor: time.Second}, delay: 2 * time.Second, count: 1, first: noon},
		"floor of a message with no retry": {limits: list, mark: mark{class: header.ClassRetryable, floor: time.Minute}, state: state{Failures: 3}, reason: header.ReasonExhausted, count: 4, first: noon},
		"floor above what a queue can wait": {
			limits: list, mark: mark{class: header.ClassRetryable, floor: math.MaxInt64}, delay: 315_360_000 * time.Second, count: 1, first: noon,
		},

		"age: next attempt at the very limit": {
			limits: hourAge, state: state{Failures: 5, FirstFailure: noon.Add(-50 * time.Minute)},
			delay: 10 * time.Minute, count: 6, first: noon.Add(-50 * time.Minute),
		},
		"age: next attempt just after it": {
			limits: hourAge, state: state{Failures: 5, FirstFailure: noon.Add(-50*time.Minute - 1)},
			reason: header.ReasonMaxAge, count: 6, first: noon.Add(-50*time.Minute - 1),
		},
		"age: the floor counts": {
			limits: hourAge, mark: mark{class: header.ClassRetryable, floor: 61 * time.Minute}, reason: header.ReasonMaxAge, count: 1, first: noon,
		},
		"age: first failure in the year 1": {
			limits: hourAge, state: state{Failures: 1, FirstFailure: time.Time{}.Add(1)},
			reason: header.ReasonMaxAge, count: 2, first: time.Time{}.Add(1),
		},
		"age: longest possible": {
			limits: limits{policy: backoff.Constant{Interval: time.Minute}, maxAge: math.MaxInt64},
			delay:  time.Minute, count: 1, first: noon,
		},

		"deadline: next attempt at the very deadline": {
			limits: endless, state: state{Deadline: noon.Add(time.Minute)}, delay: time.Minute, count: 1, first: noon,
		},
		"deadline: next attempt just after it": {
			limits: endless, state: state{Deadline: noon.Add(time.Minute - 1)}, reason: header.ReasonDeadline, count: 1, first: noon,
		},
		"deadline in the year 9999": {
			limits: endless, state: state{Deadline: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)},
			delay: time.Minute, count: 1, first: noon,
		},

		"forged counter: negative": {limits: list, state: state{Failures: -7}, delay: 2 * time.Second, count: 1, first: noon},
		"forged counter: lowest":   {limits: list, state: state{Failures: math.MinInt}, delay: 2 * time.Second, count: 1, first: noon},
		"forged counter: highest":  {limits: list, state: state{Failures: math.MaxInt}, reason: header.ReasonExhausted, count: 1_000_000, first: noon},
		"forged counter: highest, no end": {
			limits: endless, state: state{Failures: math.MaxInt}, delay: time.Minute, count: 1_000_000, first: noon,
		},

		"policy panics: a minute":                   {limits: panics, delay: time.Minute, count: 1, first: noon},
		"policy panics: but for a hundred failures": {limits: panics, state: state{Failures: 99}, reason: header.ReasonExhausted, count: 100, first: noon},
		"policy panics: attempts still count": {
			limits: limits{policy: panics.policy, maxAttempts: 2}, state: state{Failures: 1},
			reason: header.ReasonExhausted, count: 2, first: noon,
		},
		"policy panics: age still counts": {
			limits: limits{policy: panics.policy, maxAge: time.Second}, reason: header.ReasonMaxAge, count: 1, first: noon,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.mark.class == "" {
				test.mark = retryable
			}
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon})
			if got.reason != test.reason || got.delay != test.delay {
				t.Errorf("got reason %q, delay %v; want %q, %v", got.reason, got.delay, test.reason, test.delay)
			}
			if got.count != test.count || !got.first.Equal(test.first) {
				t.Errorf("got failure %d, the first at %v; want %d, %v", got.count, got.first, test.count, test.first)
			}
		})
	}
}

// A delay that no wait queue has exactly comes later than asked, and may come too late.
func TestLimitsCountTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	toTheMinute := func(asked time.Duration) time.Duration {
		return (asked + time.Minute - 1).Truncate(time.Minute)
	}
	retryable, aside := mark{class: header.ClassRetryable}, mark{class: header.ClassRetryable, snooze: true, floor: 2 * time.Second}
	policy := backoff.List{2 * time.Second}
	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		want   outcome
	}{
		"age: in time":       {limits{policy: policy, maxAge: time.Minute}, retryable, state{}, outcome{delay: 2 * time.Second}},
		"age: too late":      {limits{policy: policy, maxAge: time.Minute - 1}, retryable, state{}, outcome{reason: header.ReasonMaxAge}},
		"deadline: in time":  {limits{policy: policy}, retryable, state{Deadline: noon.Add(time.Minute)}, outcome{delay: 2 * time.Second}},
		"deadline: too late": {limits{policy: policy}, retryable, state{Deadline: noon.Add(time.Minute - 1)}, outcome{reason: header.ReasonDeadline}},
		"Snooze: in time":    {limits{policy: policy, maxSnooze: time.Minute}, aside, state{}, outcome{delay: 2 * time.Second, snoozed: true}},
		"Snooze: over its limit": {
			limits{policy: policy, maxSnooze: time.Minute - 1}, aside, state{}, outcome{delay: 2 * time.Second, overdue: true},
		},
		"Snooze: past the deadline": {
			limits{policy: policy, maxSnooze: time.Hour}, aside, state{Deadline: noon.Add(time.Minute - 1)}, outcome{reason: header.ReasonDeadline},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon, given: toTheMinute})
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
		return time.Second, true
	})}
	first := noon.Add(-time.Hour)
	l.decide(failure{
		err: errTest, mark: mark{class: header.ClassRetryable}, now: noon,
		state: state{Failures: 3, FirstFailure: first, Delay: 7 * time.Second},
	})
	want := backoff.Failure{Count: 4, Err: errTest, First: first, Now: noon, Last: 7 * time.Second}
	if shown != want {
		t.Errorf("the policy saw %+v, want %+v", shown, want)
	}
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
		"five retries":       {limits{policy: backoff.Constant{Interval: time.Second, Retries: 5}}, 6},
		"max attempts 1":     {limits{policy: backoff.Constant{Interval: time.Second}, maxAttempts: 1}, 1},
		"max attempts 7":     {limits{policy: backoff.Constant{Interval: time.Second}, maxAttempts: 7}, 7},
		"the lower one wins": {limits{policy: backoff.List{1, 2, 3}, maxAttempts: 3}, 3},
		"a minute of age":    {limits{policy: backoff.Constant{Interval: 20 * time.Second}, maxAge: time.Minute}, 4},
		"policy that panics": {limits{policy: backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { panic(1) })}, 100},
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
			if attempts != test.attempts {
				t.Errorf("%d attempts, want %d", attempts, test.attempts)
			}
		})
	}
}
