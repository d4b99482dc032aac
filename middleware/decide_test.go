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

// decided is a failure, and what becomes of its message.
type decided struct {
	limits limits
	mark   mark
	state  state
	want   outcome
}

func testDecide(
	t *testing.T, tests map[string]decided, given ...func(time.Duration) time.Duration,
) {
	t.Helper()
	for name, test := range tests {
		f := failure{err: errTest, mark: test.mark, state: test.state, now: noon}
		if given != nil {
			f.given = given[0]
		}
		got := test.limits.decide(f)
		test.want.first = noon
		if first := test.state.FirstFailure; !first.IsZero() && first.Before(noon) {
			test.want.first = first
		}
		assert.Equal(t, test.want, got, name)
	}
}

// Short names for the tables.
func again(delay time.Duration, count int) outcome { return outcome{delay: delay, count: count} }

func dead(reason header.Reason, count int) outcome { return outcome{reason: reason, count: count} }

func snoozed(delay time.Duration, count int) outcome {
	return outcome{snoozed: true, delay: delay, count: count}
}

func overdue(delay time.Duration, count int) outcome {
	return outcome{overdue: true, delay: delay, count: count}
}

// failedAt is the state after so many failures, the first of which was in the past.
func failedAt(failures int, first time.Duration) state {
	return state{Failures: failures, FirstFailure: noon.Add(first)}
}

func faulty(o outcome) outcome {
	o.faults = []fault{{"policy panicked, waiting a minute instead", "policy"}}
	return o
}

func seen(at time.Duration) state { return state{FirstSeen: noon.Add(at)} }

func due(in time.Duration) state { return state{Deadline: noon.Add(in)} }

func TestDecide(t *testing.T) {
	t.Parallel()
	policy := backoff.List{2 * second, 5 * second, 15 * second}
	list, fails, gives := limits{policy: policy}, after(0), mark{class: header.ClassPermanent}
	nine := limits{policy: policy, maxAttempts: 9}
	endless := limits{policy: backoff.Constant{Interval: minute}}
	longest := limits{policy: endless.policy, maxAge: math.MaxInt64}
	hourAge := limits{policy: backoff.Constant{Interval: 10 * minute}, maxAge: hour}
	panics, twice := limits{policy: panicking}, limits{policy: panicking, maxAttempts: 2}
	young := limits{policy: panicking, maxAge: second}
	year1 := state{Failures: 1, FirstFailure: time.Time{}.Add(1)}
	year9999 := state{Deadline: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
	testDecide(t, map[string]decided{
		"first failure":                    {list, fails, state{}, again(2*second, 1)},
		"far past the last retry":          {list, fails, state{Failures: 99}, dead(exhausted, 100)},
		"permanent":                        {list, gives, state{}, dead(gaveUp, 1)},
		"permanent comes before exhausted": {list, gives, state{Failures: 3}, dead(gaveUp, 4)},
		"fewer attempts than are allowed":  {nine, fails, state{Failures: 3}, dead(exhausted, 4)},
		"first failure is kept":            {list, fails, failedAt(1, -hour), again(5*second, 2)},
		"first failure forged to lie ahead counts as now": {
			list, fails, failedAt(1, hour), again(5*second, 2),
		},

		"floor above the delay":            {list, after(minute), state{}, again(minute, 1)},
		"floor below the delay":            {list, after(second), state{}, again(2*second, 1)},
		"floor of a message with no retry": {list, after(minute), state{Failures: 3}, dead(exhausted, 4)},
		"floor above the longest delay": {
			list, after(math.MaxInt64), state{}, again(315_360_000*second, 1),
		},

		"age: at the very limit": {
			hourAge, fails, failedAt(5, -50*minute), again(10*minute, 6),
		},
		"age: just after it":               {hourAge, fails, failedAt(5, -50*minute-1), dead(tooOld, 6)},
		"age: the floor counts":            {hourAge, after(61 * minute), state{}, dead(tooOld, 1)},
		"age: first failure in the year 1": {hourAge, fails, year1, dead(tooOld, 2)},
		"age: longest possible":            {longest, fails, state{}, again(minute, 1)},

		"deadline: at the very deadline": {endless, fails, due(minute), again(minute, 1)},
		"deadline: just after it":        {endless, fails, due(minute - 1), dead(late, 1)},
		"deadline in the year 9999":      {endless, fails, year9999, again(minute, 1)},

		"forged counter: negative": {list, fails, state{Failures: -7}, again(2*second, 1)},
		"forged counter: lowest":   {list, fails, state{Failures: math.MinInt}, again(2*second, 1)},
		"forged counter: highest": {
			list, fails, state{Failures: math.MaxInt}, dead(exhausted, 1_000_000),
		},
		"forged counter: highest, no end": {
			endless, fails, state{Failures: math.MaxInt}, again(minute, 1_000_000),
		},

		"policy panics: a minute": {panics, fails, state{}, faulty(again(minute, 1))},
		"policy panics: but for a hundred failures": {
			panics, fails, state{Failures: 99}, faulty(dead(exhausted, 100)),
		},
		"policy panics: attempts still count": {
			twice, fails, state{Failures: 1}, dead(exhausted, 2),
		},
		"policy panics: age still counts": {young, fails, state{}, faulty(dead(tooOld, 1))},
	})
}

// A delay that no wait queue has exactly comes later than asked, and may come too late.
func TestLimitsCountTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	policy, wait := backoff.List{2 * second}, 2*second
	list := limits{policy: policy, maxSnooze: hour}
	inTime, old := limits{policy: policy, maxAge: minute}, limits{policy: policy, maxAge: minute - 1}
	once := limits{policy: policy, maxSnooze: minute}
	briefly := limits{policy: policy, maxSnooze: minute - 1}
	fails, snooze := after(0), snoozeFor(wait)
	testDecide(t, map[string]decided{
		"age: in time":              {inTime, fails, state{}, again(wait, 1)},
		"age: too late":             {old, fails, state{}, dead(tooOld, 1)},
		"deadline: in time":         {list, fails, due(minute), again(wait, 1)},
		"deadline: too late":        {list, fails, due(minute - 1), dead(late, 1)},
		"Snooze: in time":           {once, snooze, state{}, snoozed(wait, 1)},
		"Snooze: over its limit":    {briefly, snooze, state{}, overdue(wait, 1)},
		"Snooze: past the deadline": {list, snooze, due(minute - 1), dead(late, 1)},
	}, func(asked time.Duration) time.Duration { return (asked + minute - 1).Truncate(minute) })
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
		assert.Equal(t, test.attempts, attempts, name)
	}
}

func TestDecideAboutSnooze(t *testing.T) {
	t.Parallel()
	day := limits{policy: backoff.List{2 * second, 5 * second}, maxSnooze: 24 * hour}
	none, three, ages, long := day, day, day, day
	none.policy, three.maxAttempts, ages.maxAge = backoff.None{}, 3, hour
	long.maxSnooze = math.MaxInt64
	aMinute, anHour, moreThanADay := snoozeFor(minute), snoozeFor(hour), snoozeFor(25*hour)
	failedAndOld, exhaustedAndOld := seen(-25*hour), seen(-25*hour)
	failedAndOld.Failures, exhaustedAndOld.Failures = 1, 2
	testDecide(t, map[string]decided{
		"at attempt 1":             {day, aMinute, state{}, snoozed(minute, 1)},
		"any policy":               {none, aMinute, state{}, snoozed(minute, 1)},
		"at the last attempt":      {three, aMinute, state{Failures: 2}, snoozed(minute, 3)},
		"no delay is the shortest": {day, snoozeFor(0), state{}, snoozed(time.Millisecond, 1)},
		"for longer than a queue can wait": {
			long, snoozeFor(math.MaxInt64), state{}, snoozed(backoff.MaxDelay, 1),
		},

		"back at the very limit":                    {day, anHour, seen(-23 * hour), snoozed(hour, 1)},
		"back just after it: a failure, not before": {day, anHour, seen(-23*hour - 1), overdue(hour, 1)},
		"longer than the limit at once: a failure":  {day, moreThanADay, state{}, overdue(25*hour, 1)},
		"past the limit, delay of the policy": {
			day, snoozeFor(second), failedAndOld, overdue(5*second, 2),
		},
		"past the limit, no attempt left": {
			day, snoozeFor(second), exhaustedAndOld, outcome{overdue: true, reason: exhausted, count: 3},
		},
		"first seen in the year 1": {
			day, snoozeFor(second), state{FirstSeen: time.Time{}.Add(1)}, overdue(2*second, 1),
		},
		"first seen forged to lie ahead counts as now": {
			day, anHour, seen(1000 * hour), snoozed(hour, 1),
		},

		"deadline: back at the very deadline": {day, anHour, due(hour), snoozed(hour, 1)},
		"deadline: back just after it":        {day, anHour, due(hour - 1), dead(late, 1)},
		"deadline comes before the limit":     {day, moreThanADay, due(hour), dead(late, 1)},
		"age: no failure, no age":             {ages, snoozeFor(2 * hour), state{}, snoozed(2*hour, 1)},
		"age: back at the very limit": {
			ages, aMinute, failedAt(1, -59*minute), snoozed(minute, 2),
		},
		"age: back just after it": {
			ages, aMinute, failedAt(1, -59*minute-1), dead(tooOld, 2),
		},
	})
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
		err: errTest, mark: snoozeFor(minute), now: noon, state: brought, at: place{Handler: "billing"},
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
	assert.False(t, state.Failures != 2 || state.Snoozed != 0 || len(state.History) != 2,
		"got %+v", state)
}

func TestRecordOfARetry(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"}}
	f := failure{
		err: errTest, at: place{Handler: "billing"}, mark: mark{class: header.ClassRetryable}, now: noon,
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
		err: errTest, at: place{Handler: "billing"}, mark: mark{class: header.ClassPermanent}, now: noon,
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

// backoff.MaxRetries counts the retries of a policy. While a Match panics, DelayedRetry grants
// retries by itself, up to the 99th, unless a Limit ends the policy before.
func TestRetriesThatDelayedRetryMayGrant(t *testing.T) {
	t.Parallel()
	two, endless := backoff.List{1, 2}, backoff.Constant{Interval: second}
	long := backoff.Limit{Policy: endless, Retries: 200}
	choice := func(inCase, otherwise backoff.Policy) backoff.Policy {
		never := func(error) bool { return false }
		return backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: inCase}}, Default: otherwise}
	}
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   int // -1: not known
	}{
		"by error, short":            {choice(two, backoff.None{}), 99},
		"by error, a long case":      {choice(long, two), 200},
		"by error, case without end": {choice(endless, two), -1},
		"by error in a limit":        {backoff.Limit{Policy: choice(two, endless), Retries: 4}, 4},
		"by error in a high limit":   {backoff.Limit{Policy: choice(two, two), Retries: 4}, 4},
	} {
		assert.Equal(t, test.want, retriesOf(test.policy), name)
	}
}

func TestPastItsLimit(t *testing.T) {
	t.Parallel()
	two := limits{policy: backoff.List{1, 2}}
	endless := limits{policy: backoff.Constant{Interval: 1}, maxAge: minute}
	attempts := limits{policy: backoff.Constant{Interval: 1}, maxAttempts: 3}
	errs := RetryableErrors(errTest)
	rules := limits{policy: backoff.List{1, 2}, rules: []rule{
		{Selector: Selector{Queue: "slow"}, policy: backoff.List{1, 2, 3, 4, 5}},
		{Selector: Selector{Queue: "orders", Error: errs}, policy: backoff.List{1, 2, 3, 4}},
		{Selector: Selector{Handler: "mail"}, policy: backoff.List{1}},
		// never reached
		{Selector: Selector{Handler: "mail", Queue: "mails"}, policy: backoff.List{1, 2, 3, 4, 5, 6}},
		{Selector: Selector{Topic: "endless", Error: errs}, policy: backoff.Constant{Interval: 1}},
	}}
	for _, l := range []*limits{&two, &endless, &attempts, &rules} {
		l.countRetries()
	}
	var none place
	for name, test := range map[string]struct {
		limits limits
		state  header.RetryState
		at     place
		inner  bool
		want   header.Reason
	}{
		"first delivery":               {two, state{}, none, false, ""},
		"as many as there are retries": {two, state{Failures: 2}, none, false, ""},
		"one more":                     {two, state{Failures: 3}, none, false, exhausted},
		"far more":                     {two, state{Failures: 1 << 62}, none, false, exhausted},
		"less than none":               {two, state{Failures: -1}, none, false, ""},
		"end not known":                {endless, state{Failures: 1 << 62}, none, false, ""},
		"attempts left":                {attempts, state{Failures: 2}, none, false, ""},
		"no attempt left":              {attempts, state{Failures: 3}, none, false, exhausted},
		"old, but promised": {
			endless, state{Failures: 1, FirstFailure: noon.Add(-hour)}, none, false, "",
		},
		"deadline now":  {two, state{Failures: 1, Deadline: noon}, none, false, ""},
		"deadline past": {two, state{Failures: 1, Deadline: noon.Add(-1)}, none, false, late},
		"deadline past while it snoozed": {
			two, state{FirstSeen: noon, Deadline: noon.Add(-1)}, none, false, late,
		},
		"both past": {two, state{Failures: 3, Deadline: noon.Add(-1)}, none, false, exhausted},

		"granted by an inner one": {two, state{Failures: 9, Inner: true}, none, false, ""},
		"granted by this inner one": {
			two, state{Failures: 3, Inner: true}, none, true, exhausted,
		},
		"granted by an outer one":           {two, state{Failures: 9}, none, true, ""},
		"granted by an inner one, attempts": {attempts, state{Failures: 9, Inner: true}, none, false, ""},
		"granted by an inner one, too late": {
			two, state{Failures: 1, Inner: true, Deadline: noon.Add(-1)}, none, false, late,
		},
		"no rule for this place": {rules, state{Failures: 3}, none, false, exhausted},
		"the rule for the queue": {rules, state{Failures: 5}, place{Queue: "slow"}, false, ""},
		"past the rule for the queue": {
			rules, state{Failures: 6}, place{Queue: "slow"}, false, exhausted,
		},
		"perhaps the rule for an error": {rules, state{Failures: 4}, place{Queue: "orders"}, false, ""},
		"past the rule for an error": {
			rules, state{Failures: 5}, place{Queue: "orders"}, false, exhausted,
		},
		"the rule that is shorter": {
			rules, state{Failures: 1}, place{Handler: "mail", Queue: "mails"}, false, "",
		},
		"past the rule that is shorter": {
			rules, state{Failures: 2}, place{Handler: "mail", Queue: "mails"}, false, exhausted,
		},
		"the longest rule that matches": {
			rules, state{Failures: 4}, place{Handler: "mail", Queue: "orders"}, false, "",
		},
		"past the longest of those": {
			rules, state{Failures: 5}, place{Handler: "mail", Queue: "orders"}, false, exhausted,
		},
		"an end not known among those": {
			rules, state{Failures: 1 << 62}, place{Topic: "endless"}, false, "",
		},
		"an end not known comes after those": {
			rules, state{Failures: 6}, place{Queue: "slow", Topic: "endless"}, false, exhausted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want,
				test.limits.past(&test.state, test.at, test.inner, func() time.Time { return noon }))
		})
	}
}

// fuzzed is one of the policies whose end is known, or of those whose end is not.
func fuzzed(kind uint8, retries int, inner backoff.Policy) backoff.Policy {
	policies := []backoff.Policy{
		backoff.None{},
		make(backoff.List, retries),
		backoff.Constant{Interval: time.Second, Retries: retries},
		backoff.Linear{Initial: time.Second, Step: time.Second, Retries: retries},
		backoff.Exponential{Initial: time.Second, Factor: 2, Retries: retries},
		backoff.Fibonacci{Initial: time.Second, Retries: retries},
		backoff.Limit{Policy: inner, Retries: retries},
		backoff.Cap{Policy: inner, Max: time.Minute},
		backoff.MaxAge{Policy: inner, Age: 24 * time.Hour},
		backoff.Unbounded{Policy: inner},
		backoff.ByError{
			Cases:   []backoff.Case{{Match: func(error) bool { panic("match") }, Policy: inner}},
			Default: backoff.None{},
		},
		backoff.FullJitter{Policy: inner},
		backoff.EqualJitter{Policy: inner},
		backoff.BoundedJitter{Policy: inner, Extra: 0.5},
		backoff.DecorrelatedJitter{Initial: time.Second, Max: time.Minute, Retries: retries},
		backoff.PolicyFunc(inner.Delay),
	}
	return policies[int(kind)%len(policies)]
}

// Every retry that is granted is handled when it comes back. A count that no policy grants is
// stopped if the end of the policies is known.
func FuzzPastLimitKeepsPromises(f *testing.F) {
	f.Add(uint8(1), uint8(0), uint8(6), uint8(3), uint8(0), 3, false)
	f.Add(uint8(6), uint8(10), uint8(2), uint8(9), uint8(0), 99, true)
	f.Add(uint8(6), uint8(7), uint8(15), uint8(9), uint8(4), 4, true)
	f.Add(uint8(11), uint8(6), uint8(14), uint8(3), uint8(0), 3, true)
	f.Fuzz(func(
		t *testing.T, outer, kind, other, retries, attempts uint8, failures int, matches bool,
	) {
		policy := fuzzed(
			outer, int(retries%20), fuzzed(kind, int(retries%7), backoff.Constant{Interval: time.Second}),
		)
		l := limits{policy: policy, maxAttempts: int(attempts % 30), rules: []rule{{
			Selector: Selector{Error: RetryableIf(func(error) bool { return matches })},
			policy:   fuzzed(other, int(attempts%9), policy),
		}}}
		l.countRetries()
		fail := failure{
			err: errTest, mark: mark{class: header.ClassRetryable}, now: noon,
			state: state{Failures: failures, FirstFailure: noon, FirstSeen: noon},
		}
		d := l.decide(fail)
		if d.reason != "" {
			return
		}
		n := recorded(fail, d, "")
		assert.Empty(t, l.past(&n, place{}, false, func() time.Time { return noon.Add(d.delay) }))
		if most := l.mostRetries(place{}); most >= 0 && d.count > most {
			t.Errorf("failure %d was granted a retry, at most %d are known: %+v", d.count, most, l)
		}
	})
}

func FuzzKeptMetadata(f *testing.F) {
	f.Add("correlation_id", "c-1", "tenant", "7")
	f.Add("a", "\xff", "", "x")
	f.Fuzz(func(t *testing.T, key, value, other, otherValue string) {
		logs := 0
		s := settings{kept: kept{}}
		_ = WithKeptMetadata(key, other)(&s)
		got := s.kept.of(
			map[string]string{key: value, other: otherValue}, func(string, string) { logs++ },
		)
		total := 0
		for k, v := range got {
			total += len(k) + len(v)
			assert.False(t, unfit(k) != "" || (k != key && k != other) || (v != value && v != otherValue),
				"kept %q: %q", k, v)
		}
		assert.False(t, total > maxMetadataBytes)
		assert.Equal(t, len(s.kept), len(got)+logs)
	})
}
