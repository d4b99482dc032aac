package backoff_test

import (
	"context"
	"math"
	"testing"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

type factory = func() cenkalti.BackOff

// exact is an exponential BackOff of cenkalti's that is not random: 1s 2s 4s 8s, at
// most limit in all.
func exact(limit time.Duration) factory {
	return func() cenkalti.BackOff {
		return cenkalti.NewExponentialBackOff(
			cenkalti.WithInitialInterval(s), cenkalti.WithMultiplier(2),
			cenkalti.WithMaxInterval(8*s), cenkalti.WithRandomizationFactor(0),
			cenkalti.WithMaxElapsedTime(limit))
	}
}

// of is a factory that wraps the BackOff of another in WithMaxRetries.
func of(build factory, retries uint64) factory {
	return func() cenkalti.BackOff { return cenkalti.WithMaxRetries(build(), retries) }
}

func constant(d time.Duration) factory {
	return func() cenkalti.BackOff { return cenkalti.NewConstantBackOff(d) }
}

// returning is a factory that always returns this BackOff.
func returning(b cenkalti.BackOff) factory { return func() cenkalti.BackOff { return b } }

// steps counts how often it is asked.
type steps struct{ asked *int }

func (b steps) Reset() {}

func (b steps) NextBackOff() time.Duration {
	*b.asked++
	return time.Duration(*b.asked) * ms
}

func TestCenkaltiSeries(t *testing.T) {
	t.Parallel()
	testSeries(t, []expected{
		{"exponential", backoff.FromCenkalti(of(exact(0), 5)), "1s 2s 4s 8s 8s"},
		{"constant", backoff.FromCenkalti(of(constant(3*s), 2)), "3s 3s"},
		{"no retries", backoff.FromCenkalti(of(constant(s), 0)), ""},
		{"stop", backoff.FromCenkalti(returning(&cenkalti.StopBackOff{})), ""},
		{"in a limit", limit(backoff.FromCenkalti(exact(0)), 2), "1s 2s"},
	}...)
}

func TestCenkaltiBounds(t *testing.T) {
	t.Parallel()
	literal := cenkalti.ExponentialBackOff{InitialInterval: s, Multiplier: 2, MaxInterval: time.Minute}
	for _, test := range []struct {
		name  string
		build factory
		want  time.Duration
	}{
		{"zero", returning(&cenkalti.ZeroBackOff{}), ms},
		{"negative, but not Stop", constant(-2), ms},
		{"too long", constant(math.MaxInt64), 87_600 * time.Hour},
		{"count below 1", exact(0), s},
		{"literal without a clock", func() cenkalti.BackOff { b := literal; return &b }, s},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := backoff.FromCenkalti(test.build, nil)
			require.NoError(t, backoff.Validate(p))
			requireAt(t, p, map[int]time.Duration{-1: test.want})
		})
	}
}

func TestCenkaltiReplayIsBounded(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{
		math.MinInt: 1, 1: 1, 10_000: 10_000, 10_001: 10_000, math.MaxInt: 10_000,
	} {
		var asked int
		p := backoff.FromCenkalti(func() cenkalti.BackOff { return steps{&asked} })
		requireAt(t, p, map[int]time.Duration{count: time.Duration(want) * ms})
		assert.Equal(t, want, asked, "count %d", count)
	}
}

func TestCenkaltiAge(t *testing.T) {
	t.Parallel()
	const m, quarter = time.Minute, 15 * time.Minute
	from := backoff.FromCenkalti
	in := start.Add
	elapsed, limited := from(exact(quarter)), backoff.WithMaxAge(10*m)
	wrapped := from(of(exact(quarter), 5), limited)
	before, after := time.Unix(-1<<40, 0), time.Unix(1<<40, 0)
	for _, test := range []struct {
		name       string
		policy     backoff.Policy
		first, now time.Time
		retry      bool
	}{
		{"elapsed time reached exactly", elapsed, start, in(quarter - s), true},
		{"elapsed time exceeded", elapsed, start, in(quarter - s + 1), false},
		{"elapsed time below one delay", from(exact(ms)), start, start, false},
		{"option replaces elapsed time", from(exact(quarter), limited), start, in(10 * m), false},
		{"wrapped, option reached", wrapped, start, in(10*m - s), true},
		{"wrapped, option exceeded", wrapped, start, in(10 * m), false},
		{"wrapped, without option", from(of(exact(quarter), 5)), start, in(time.Hour), true},
		{"first unknown", elapsed, time.Time{}, start, true},
		{"clock went back", elapsed, start, in(-time.Hour), true},
		{"age overflows", from(exact(math.MaxInt64)), before, after, false},
		{
			"invalid option",
			from(exact(0), backoff.WithMaxAge(math.MinInt64)), start, in(time.Hour), false,
		},
	} {
		wait, retry := test.policy.Delay(backoff.Failure{Count: 1, First: test.first, Now: test.now})
		assert.Equal(t, test.retry, retry, test.name)
		if retry {
			assert.Equal(t, s, wait, test.name)
		}
	}
}

func TestCenkaltiValidate(t *testing.T) {
	t.Parallel()
	const noFactory = "backoff.FromCenkalti: factory is nil: give a func that returns a new BackOff"
	for _, test := range []expected{
		{"nil factory", backoff.FromCenkalti(nil), noFactory},
		{
			"returns nil", backoff.FromCenkalti(returning(nil)),
			"backoff.FromCenkalti: factory returns nil: return a new BackOff",
		},
		{
			"returns a nil pointer",
			backoff.FromCenkalti(returning((*cenkalti.ExponentialBackOff)(nil))),
			"backoff.FromCenkalti: factory returns a nil *backoff.ExponentialBackOff: " +
				"return a new BackOff",
		},
		{
			"panics", backoff.FromCenkalti(func() cenkalti.BackOff { panic("no config") }),
			"backoff.FromCenkalti: factory panics: no config",
		},
		{
			"all problems", backoff.FromCenkalti(nil, backoff.WithMaxAge(0)),
			"backoff.FromCenkalti: WithMaxAge 0s is not positive: leave it out for no limit\n" + noFactory,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.EqualError(t, backoff.Validate(test.policy), test.want)
			requireSeries(t, test.policy, "")
			assert.NoError(t, backoff.CheckEnd(test.policy), "never retries")
			assert.Empty(t, backoff.Remarks(test.policy))
		})
	}
	broken := backoff.FromCenkalti(
		of(func() cenkalti.BackOff { return &cenkalti.ExponentialBackOff{} }, 3))
	requireSeries(t, broken, "")
	testValidate(t, []expected{
		{
			"BackOff panics", broken, "backoff.FromCenkalti: BackOff panics: " +
				"runtime error: invalid memory address or nil pointer dereference",
		},
		{
			"shared", backoff.FromCenkalti(returning(cenkalti.NewExponentialBackOff())),
			"backoff.FromCenkalti: factory returns the same *backoff.ExponentialBackOff each time, " +
				"a data race: build a new one in it",
		},
		{"shared without a state", backoff.FromCenkalti(returning(cenkalti.NewConstantBackOff(s))), ""},
		{"shared, stop", backoff.FromCenkalti(returning(&cenkalti.StopBackOff{})), ""},
	}...)
}

func TestCenkaltiLeavesTheBackOffAlone(t *testing.T) {
	t.Parallel()
	b := cenkalti.NewExponentialBackOff()
	p := backoff.FromCenkalti(returning(b))
	for range 3 {
		_, retry := p.Delay(backoff.Failure{Count: 1, First: start, Now: start.Add(time.Hour)})
		assert.False(t, retry)
	}
	assert.Equal(t, 15*time.Minute, b.MaxElapsedTime)
}

func TestCenkaltiEndAndRemarks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inContext := func() cenkalti.BackOff { return cenkalti.WithContext(exact(0)(), ctx) }
	requireSeries(t, backoff.FromCenkalti(inContext), "")

	const (
		elapsed = "backoff.FromCenkalti: the elapsed-time limit of 15m0s is the age of the message, " +
			"counted from its first failure"
		inTries = "backoff.FromCenkalti: an elapsed-time limit inside the *backoff.backOffTries " +
			"has no effect; set it with backoff.WithMaxAge"
		inCtx = "backoff.FromCenkalti: an elapsed-time limit inside the *backoff.backOffContext " +
			"has no effect; set it with backoff.WithMaxAge"
		cancelled = "backoff.FromCenkalti: once the context given to WithContext is cancelled, " +
			"failures are not retried any more"
	)
	hour := backoff.WithMaxAge(time.Hour)
	random := func() cenkalti.BackOff { return cenkalti.NewExponentialBackOff() }
	wrapped := of(exact(time.Minute), 3)
	for _, test := range []struct {
		name    string
		policy  backoff.Policy
		ends    bool
		remarks []string
	}{
		{"default limit", backoff.FromCenkalti(random), true, []string{elapsed}},
		{"no limit", backoff.FromCenkalti(exact(0)), false, nil},
		{"option", backoff.FromCenkalti(exact(0), hour), true, nil},
		{"option instead of limit", backoff.FromCenkalti(exact(time.Minute), hour), true, nil},
		{"constant", backoff.FromCenkalti(constant(s)), false, nil},
		{"zero", backoff.FromCenkalti(returning(&cenkalti.ZeroBackOff{})), false, nil},
		{"stop", backoff.FromCenkalti(returning(&cenkalti.StopBackOff{})), true, nil},
		{"wrapped", backoff.FromCenkalti(wrapped), false, []string{inTries}},
		{"wrapped with option", backoff.FromCenkalti(wrapped, hour), true, nil},
		{"in a context", backoff.FromCenkalti(inContext), false, []string{inCtx, cancelled}},
		{"in a context with option", backoff.FromCenkalti(inContext, hour), true, []string{cancelled}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, backoff.Validate(test.policy))
			assert.Equal(t, test.remarks, backoff.Remarks(test.policy))
			assert.Equal(t, test.remarks, backoff.Remarks(limit(test.policy, 3)))
			err := backoff.CheckEnd(test.policy)
			if test.ends {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, backoff.ErrNoEnd)
			require.ErrorContains(t, err, "backoff.Limit")
			require.ErrorContains(t, err, "backoff.WithMaxAge")
		})
	}
}
