package middleware

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

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
		"list":                       {two, 2},
		"no end":                     {endless, -1},
		"func":                       {backoff.PolicyFunc(two.Delay), -1},
		"by error, short":            {choice(two, backoff.None{}), 99},
		"by error, a long case":      {choice(long, two), 200},
		"by error, long":             {backoff.ByError{Default: long}, 200},
		"by error, case without end": {choice(endless, two), -1},
		"by error without end":       {choice(two, endless), -1},
		"by error in a limit":        {backoff.Limit{Policy: choice(two, endless), Retries: 4}, 4},
		"by error in a high limit":   {backoff.Limit{Policy: choice(two, two), Retries: 4}, 4},
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
		"the rule for the queue": {rules, state{Failures: 5}, place{queue: "slow"}, false, ""},
		"past the rule for the queue": {
			rules, state{Failures: 6}, place{queue: "slow"}, false, exhausted,
		},
		"perhaps the rule for an error": {rules, state{Failures: 4}, place{queue: "orders"}, false, ""},
		"past the rule for an error": {
			rules, state{Failures: 5}, place{queue: "orders"}, false, exhausted,
		},
		"the rule that is shorter": {
			rules, state{Failures: 1}, place{handler: "mail", queue: "mails"}, false, "",
		},
		"past the rule that is shorter": {
			rules, state{Failures: 2}, place{handler: "mail", queue: "mails"}, false, exhausted,
		},
		"the longest rule that matches": {
			rules, state{Failures: 4}, place{handler: "mail", queue: "orders"}, false, "",
		},
		"past the longest of those": {
			rules, state{Failures: 5}, place{handler: "mail", queue: "orders"}, false, exhausted,
		},
		"an end not known among those": {
			rules, state{Failures: 1 << 62}, place{topic: "endless"}, false, "",
		},
		"an end not known comes after those": {
			rules, state{Failures: 6}, place{queue: "slow", topic: "endless"}, false, exhausted,
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
			if unfit(k) != "" || (k != key && k != other) || (v != value && v != otherValue) {
				t.Errorf("kept %q: %q", k, v)
			}
		}
		assert.False(t, total > maxMetadataBytes)
		assert.Equal(t, len(s.kept), len(got)+logs)
	})
}
