package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

func atOnce(p backoff.Policy) backoff.AtOnce { return backoff.AtOnce{Policy: p} }

func TestAtOnceSeries(t *testing.T) {
	t.Parallel()
	talking := backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { return 0, true })
	testSeries(t, []expected{
		{"before a policy", atOnce(constantly(5*s, 2)), "0s 5s 5s"},
		{"alone", atOnce(backoff.None{}), "0s"},
		{"nil", atOnce(nil), "0s"},
		{"first entry of a list", backoff.List{0, s, 2 * s}, "0s 1s 2s"},
		{"the only entry", backoff.List{0}, "0s"},
		{"later entries of a list", backoff.List{0, 0, 0}, "0s 1ms 1ms"},
		{"twice", atOnce(backoff.List{0, s}), "0s 1ms 1s"},
		{"a function that always says 0", limit(talking, 3), "0s 1ms 1ms"},
		{"in a limit", limit(atOnce(constantly(s, 0)), 3), "0s 1s 1s"},
		{"in a cap", capped(atOnce(backoff.List{s, time.Hour}), time.Minute), "0s 1s 1m"},
		{"in a cap of a millisecond", capped(backoff.List{0, s}, ms), "0s 1ms"},
		{"in a jitter", full(backoff.List{0}, 0), "0s"},
		{"in an age", aged(backoff.List{0, s}, time.Minute), "0s 1s"},
		{"in an age under a millisecond", aged(backoff.List{0, s}, 1), ""},
		{"as a choice", choice(backoff.List{0, s}), "0s 1s"},
	}...)
}

func TestAtOnceDelays(t *testing.T) {
	t.Parallel()
	exponential := backoff.Exponential{Initial: s, Factor: 2}
	testDelays(t, requireSound, []expected{
		{"before a policy", atOnce(constantly(5*s, 2)), "5s"},
		{"alone", atOnce(backoff.None{}), ""},
		{"first entry of a list", backoff.List{0, s, 2 * s}, "1s 2s"},
		{"the only entry", backoff.List{0}, ""},
		{"not listed", atOnce(exponential), "?"},
		{"in a limit", limit(atOnce(exponential), 3), "1s 2s"},
		{"a limit of one retry", limit(atOnce(exponential), 1), ""},
		{"in a cap", capped(atOnce(exponential), 4*s), "1s 2s 4s"},
	}...)
	requireDelays(t, limit(atOnce(full(exponential, 2)), 3), "500ms 1s 2s")
}

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

func TestAtOnceEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		policy  backoff.Policy
		retries int // -1: not known
	}{
		{"adds a retry", atOnce(constantly(s, 2)), 3},
		{"alone", atOnce(backoff.None{}), 1},
		{"has no end", atOnce(constantly(s, 0)), -1},
		{"a list", backoff.List{0}, 1},
		{"the most there is", atOnce(constantly(s, math.MaxInt)), math.MaxInt},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n, known := backoff.MaxRetries(test.policy)
			require.Equal(t, test.retries >= 0, known)
			require.Equal(t, max(test.retries, 0), n)
			if known {
				require.NoError(t, backoff.CheckEnd(test.policy))
			} else {
				require.ErrorIs(t, backoff.CheckEnd(test.policy), backoff.ErrNoEnd)
			}
		})
	}
	assert.Equal(t, 4, backoff.MaxMatchCount(atOnce(limit(choice(backoff.List{s}), 3))))
	assert.Empty(t, backoff.Remarks(aged(backoff.List{0, time.Hour}, time.Minute)),
		"one retry is left")
}
