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
			assert.Equal(t, test.reason, got.reason)
			assert.Equal(t, test.delay, got.delay)
			assert.Equal(t, test.count, got.count)
			assert.True(t, got.first.Equal(test.first))
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
			assert.Equal(t, test.attempts, attempts)
		})
	}
}

func TestDecideAboutLater(t *testing.T) {
	t.Parallel()
	day := limits{policy: backoff.List{2 * time.Second, 5 * time.Second}, maxSnooze: 24 * time.Hour}
	with := func(change func(*limits)) limits {
		l := day
		change(&l)
		return l
	}
	hourAge := with(func(l *limits) { l.maxAge = time.Hour })

	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		want   outcome // its count is that of a failure
	}{
		"at attempt 1": {
			limits: day, mark: snoozeFor(time.Minute), want: outcome{snoozed: true, delay: time.Minute, count: 1},
		},
		"whatever the policy": {
			limits: with(func(l *limits) { l.policy = backoff.None{} }), mark: snoozeFor(time.Minute),
			want: outcome{snoozed: true, delay: time.Minute, count: 1},
		},
		"at the last attempt": {
			limits: with(func(l *limits) { l.maxAttempts = 3 }), mark: snoozeFor(time.Minute), state: state{Failures: 2},
			want: outcome{snoozed: true, delay: time.Minute, count: 3},
		},
		"no delay is the shortest": {
			limits: day, mark: snoozeFor(0), want: outcome{snoozed: true, delay: time.Millisecond, count: 1},
		},
		"for longer than a queue can wait": {
			limits: with(func(l *limits) { l.maxSnooze = math.MaxInt64 }), mark: snoozeFor(math.MaxInt64),
			want: outcome{snoozed: true, delay: backoff.MaxDelay, count: 1},
		},

		"back at the very limit": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(-23 * time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},
		"back just after it: a failure, not before": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(-23*time.Hour - 1)},
			want: outcome{overdue: true, delay: time.Hour, count: 1},
		},
		"longer than the limit at once: a failure": {
			limits: day, mark: snoozeFor(25 * time.Hour), want: outcome{overdue: true, delay: 25 * time.Hour, count: 1},
		},
		"past the limit, delay of the policy": {
			limits: day, mark: snoozeFor(time.Second), state: state{Failures: 1, FirstSeen: noon.Add(-25 * time.Hour)},
			want: outcome{overdue: true, delay: 5 * time.Second, count: 2},
		},
		"past the limit, no attempt left": {
			limits: day, mark: snoozeFor(time.Second), state: state{Failures: 2, FirstSeen: noon.Add(-25 * time.Hour)},
			want: outcome{overdue: true, reason: header.ReasonExhausted, count: 3},
		},
		"first seen in the year 1": {
			limits: day, mark: snoozeFor(time.Second), state: state{FirstSeen: time.Time{}.Add(1)},
			want: outcome{overdue: true, delay: 2 * time.Second, count: 1},
		},
		"first seen forged to lie ahead counts as now": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(1000 * time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},

		"deadline: back at the very deadline": {
			limits: day, mark: snoozeFor(time.Hour), state: state{Deadline: noon.Add(time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},
		"deadline: back just after it": {
			limits: day, mark: snoozeFor(time.Hour), state: state{Deadline: noon.Add(time.Hour - 1)},
			want: outcome{reason: header.ReasonDeadline, count: 1},
		},
		"deadline comes before the limit": {
			limits: day, mark: snoozeFor(25 * time.Hour), state: state{Deadline: noon.Add(time.Hour)},
			want: outcome{reason: header.ReasonDeadline, count: 1},
		},
		"age: no failure, no age": {
			limits: hourAge, mark: snoozeFor(2 * time.Hour), want: outcome{snoozed: true, delay: 2 * time.Hour, count: 1},
		},
		"age: back at the very limit": {
			limits: hourAge, mark: snoozeFor(time.Minute), state: state{Failures: 1, FirstFailure: noon.Add(-59 * time.Minute)},
			want: outcome{snoozed: true, delay: time.Minute, count: 2},
		},
		"age: back just after it": {
			limits: hourAge, mark: snoozeFor(time.Minute), state: state{Failures: 1, FirstFailure: noon.Add(-59*time.Minute - 1)},
			want: outcome{reason: header.ReasonMaxAge, count: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon})
			test.want.first = got.first
			assert.Equal(t, test.want, got)
		})
	}
}

func TestRecordOfSettingAside(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	brought := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: 7 * time.Second, Snoozed: time.Hour,
		NotBefore: noon, Interruptions: 2, Inner: true,
		Error: "first", Class: header.ClassRetryable, History: []header.AttemptError{{Attempt: 1, At: earlier, Error: "first"}},
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
	}
	f := failure{err: errTest, mark: snoozeFor(time.Minute), now: noon, state: brought, at: place{handler: "billing"}}
	want := brought
	want.Snoozed, want.NotBefore, want.Interruptions, want.WaitingSince = time.Minute, time.Time{}, 0, noon
	assert.Equal(t, want, recorded(f, outcome{snoozed: true, delay: time.Minute, count: 3}, "closed"))

	f.state = state{}
	want = state{FirstSeen: noon, Snoozed: time.Minute, WaitingSince: noon}
	assert.Equal(t, want, recorded(f, outcome{snoozed: true, delay: time.Minute, count: 1}, "closed"))
}

// What the policy sees as the delay given last is that of the last failure.
func TestSettingAsideIsHiddenFromThePolicy(t *testing.T) {
	t.Parallel()
	var last []time.Duration
	l := limits{maxSnooze: time.Hour, policy: backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		last = append(last, f.Last)
		return 3 * time.Second, true
	})}
	fails := mark{class: header.ClassRetryable}
	state := state{}
	for _, m := range []mark{fails, snoozeFor(time.Minute), snoozeFor(time.Minute), fails} {
		f := failure{err: errTest, mark: m, state: state, now: noon}
		state = recorded(f, l.decide(f), "")
	}
	assert.Equal(t, []time.Duration{0, 3 * time.Second}, last)
	if state.Failures != 2 || state.Snoozed != 0 || len(state.History) != 2 {
		t.Errorf("got %+v", state)
	}
}

// embedding changes the Delay of the List in it, and inherits the rest.
type embedding struct{ backoff.List }

func (embedding) Delay(backoff.Failure) (time.Duration, bool) { return time.Second, true }

func TestMostRetries(t *testing.T) {
	t.Parallel()
	endless := backoff.Constant{Interval: time.Second}
	two := backoff.List{1, 2}
	fn := backoff.PolicyFunc(two.Delay)
	never := func(error) bool { return false }
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   int // -1: not known
	}{
		"none":                  {backoff.None{}, 0},
		"list":                  {two, 2},
		"nil list":              {backoff.List(nil), 0},
		"constant":              {backoff.Constant{Interval: 1, Retries: 3}, 3},
		"constant, no end":      {endless, -1},
		"linear":                {backoff.Linear{Initial: 1, Retries: 3}, 3},
		"linear, no end":        {backoff.Linear{Initial: 1}, -1},
		"exponential":           {backoff.Exponential{Initial: 1, Factor: 2, Retries: 3}, 3},
		"exponential, no end":   {backoff.Exponential{Initial: 1, Factor: 2}, -1},
		"fibonacci":             {backoff.Fibonacci{Initial: 1, Retries: 3}, 3},
		"fibonacci, no end":     {backoff.Fibonacci{Initial: 1}, -1},
		"full jitter":           {backoff.FullJitter{Policy: two}, 2},
		"equal jitter, no end":  {backoff.EqualJitter{Policy: endless}, -1},
		"bounded jitter":        {backoff.BoundedJitter{Policy: two, Extra: 1}, 2},
		"decorrelated":          {backoff.DecorrelatedJitter{Initial: 1, Retries: 3}, 3},
		"decorrelated, no end":  {backoff.DecorrelatedJitter{Initial: 1}, -1},
		"limit below":           {backoff.Limit{Policy: two, Retries: 1}, 1},
		"limit above":           {backoff.Limit{Policy: two, Retries: 9}, 2},
		"limit of none":         {backoff.Limit{Policy: two}, 0},
		"limit of no end":       {backoff.Limit{Policy: endless, Retries: 9}, 9},
		"limit of a func":       {backoff.Limit{Policy: fn, Retries: 9}, 9},
		"cap":                   {backoff.Cap{Policy: two, Max: 1}, 2},
		"cap, no end":           {backoff.Cap{Policy: endless, Max: 1}, -1},
		"age":                   {backoff.MaxAge{Policy: two, Age: time.Hour}, 2},
		"age, no end":           {backoff.MaxAge{Policy: endless, Age: time.Hour}, -1},
		"unbounded, but it is":  {backoff.Unbounded{Policy: two}, 2},
		"unbounded":             {backoff.Unbounded{Policy: endless}, -1},
		"by error, short":       {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: two}}, Default: backoff.None{}}, 99},
		"by error, a long case": {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: backoff.Limit{Policy: endless, Retries: 200}}}, Default: two}, 200},
		"by error, long":        {backoff.ByError{Default: backoff.Limit{Policy: endless, Retries: 200}}, 200},
		"by error, a case without end": {
			backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: endless}}, Default: two}, -1,
		},
		"by error without end":   {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: two}}, Default: endless}, -1},
		"by error in a limit":    {backoff.Limit{Policy: backoff.ByError{Default: endless}, Retries: 4}, 4},
		"func":                   {fn, -1},
		"pointer":                {&backoff.Limit{Policy: two, Retries: 1}, -1},
		"a type that embeds one": {embedding{two}, -1},
		"a limit of such":        {backoff.Limit{Policy: embedding{two}, Retries: 5}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, retriesOf(test.policy))
		})
	}
}

func TestPastItsLimit(t *testing.T) {
	t.Parallel()
	two := limits{policy: backoff.List{1, 2}}
	endless := limits{policy: backoff.Constant{Interval: 1}, maxAge: time.Minute}
	attempts := limits{policy: backoff.Constant{Interval: 1}, maxAttempts: 3}
	errs := RetryableErrors(errTest)
	rules := limits{policy: backoff.List{1, 2}, rules: []rule{
		{Selector: Selector{Queue: "slow"}, policy: backoff.List{1, 2, 3, 4, 5}},
		{Selector: Selector{Queue: "orders", Error: errs}, policy: backoff.List{1, 2, 3, 4}},
		{Selector: Selector{Handler: "mail"}, policy: backoff.List{1}},
		{Selector: Selector{Handler: "mail", Queue: "mails"}, policy: backoff.List{1, 2, 3, 4, 5, 6}}, // never reached
		{Selector: Selector{Topic: "endless", Error: errs}, policy: backoff.Constant{Interval: 1}},
	}}
	for _, l := range []*limits{&two, &endless, &attempts, &rules} {
		l.countRetries()
	}
	for name, test := range map[string]struct {
		limits limits
		state  header.RetryState
		at     place
		inner  bool
		want   header.Reason
	}{
		"first delivery":                   {two, state{}, place{}, false, ""},
		"as many as there are retries":     {two, state{Failures: 2}, place{}, false, ""},
		"one more":                         {two, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"far more":                         {two, state{Failures: 1 << 62}, place{}, false, header.ReasonExhausted},
		"less than none":                   {two, state{Failures: -1}, place{}, false, ""},
		"end not known":                    {endless, state{Failures: 1 << 62}, place{}, false, ""},
		"attempts left":                    {attempts, state{Failures: 2}, place{}, false, ""},
		"no attempt left":                  {attempts, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"old, but promised":                {endless, state{Failures: 1, FirstFailure: noon.Add(-time.Hour)}, place{}, false, ""},
		"deadline now":                     {two, state{Failures: 1, Deadline: noon}, place{}, false, ""},
		"deadline past":                    {two, state{Failures: 1, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"deadline past while it was aside": {two, state{FirstSeen: noon, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"both past":                        {two, state{Failures: 3, Deadline: noon.Add(-1)}, place{}, false, header.ReasonExhausted},

		"granted by an inner one":            {two, state{Failures: 9, Inner: true}, place{}, false, ""},
		"granted by this inner one":          {two, state{Failures: 3, Inner: true}, place{}, true, header.ReasonExhausted},
		"granted by an outer one":            {two, state{Failures: 9}, place{}, true, ""},
		"granted by an inner one, attempts":  {attempts, state{Failures: 9, Inner: true}, place{}, false, ""},
		"granted by an inner one, too late":  {two, state{Failures: 1, Inner: true, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"no rule for this place":             {rules, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"the rule for the queue":             {rules, state{Failures: 5}, place{queue: "slow"}, false, ""},
		"past the rule for the queue":        {rules, state{Failures: 6}, place{queue: "slow"}, false, header.ReasonExhausted},
		"perhaps the rule for an error":      {rules, state{Failures: 4}, place{queue: "orders"}, false, ""},
		"past the rule for an error":         {rules, state{Failures: 5}, place{queue: "orders"}, false, header.ReasonExhausted},
		"the rule that is shorter":           {rules, state{Failures: 1}, place{handler: "mail", queue: "mails"}, false, ""},
		"past the rule that is shorter":      {rules, state{Failures: 2}, place{handler: "mail", queue: "mails"}, false, header.ReasonExhausted},
		"the longest of those that match":    {rules, state{Failures: 4}, place{handler: "mail", queue: "orders"}, false, ""},
		"past the longest of those":          {rules, state{Failures: 5}, place{handler: "mail", queue: "orders"}, false, header.ReasonExhausted},
		"an end not known among those":       {rules, state{Failures: 1 << 62}, place{topic: "endless"}, false, ""},
		"an end not known comes after those": {rules, state{Failures: 6}, place{queue: "slow", topic: "endless"}, false, header.ReasonExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, test.limits.past(&test.state, test.at, test.inner, func() time.Time { return noon }))
		})
	}
}

func TestRecordOfARetry(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"}}
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassRetryable}, now: noon,
		state: state{
			Failures: 1, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Hour, NotBefore: noon,
			Error: "first", Class: header.ClassPermanent, History: past,
			OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		},
	}
	got := recorded(f, outcome{delay: time.Minute, count: 2, first: earlier}, "second")
	want := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Minute, WaitingSince: noon,
		Error: "second", Class: header.ClassRetryable, Handler: "billing",
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		History: []header.AttemptError{
			{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"},
			{Attempt: 2, At: noon, Handler: "billing", Class: header.ClassRetryable, Error: "second", Delay: "1m0s"},
		},
	}
	assert.Equal(t, want, got)
}

func TestRecordOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassPermanent}, now: noon,
		state: state{WaitingSince: noon.Add(-time.Minute)},
	}
	got := recorded(f, outcome{reason: header.ReasonPermanent, count: 1, first: noon}, "boom")
	want := state{
		Failures: 1, FirstSeen: noon, FirstFailure: noon, Error: "boom", Class: header.ClassPermanent,
		Handler: "billing", Reason: header.ReasonPermanent, DeadAt: noon,
		History: []header.AttemptError{{
			Attempt: 1, At: noon, Handler: "billing", Class: header.ClassPermanent, Error: "boom", Reason: header.ReasonPermanent,
		}},
	}
	assert.Equal(t, want, got)
}

func TestRecordReplacesAFirstSeenThatLiesAhead(t *testing.T) {
	t.Parallel()
	f := failure{err: errTest, now: noon, state: state{FirstSeen: noon.Add(time.Second)}}
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
