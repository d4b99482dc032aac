package middleware

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

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
