package backoff_test

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// trees makes policies of random policies.
type trees struct{ *rand.Rand }

// one returns one of these values.
func one[T any](r trees, values ...T) T { return values[r.IntN(len(values))] }

func (r trees) delay() time.Duration {
	return one(r, math.MinInt64, -s, 0, 1, 600*us, ms, 5*ms, 700*ms, s, s, 2*s, 3*s, 7*s, time.Minute,
		time.Hour, backoff.MaxDelay, backoff.MaxDelay+1, math.MaxInt64)
}

func (r trees) retries() int {
	return one(r, math.MinInt, -1, 0, 0, 0, 1, 2, 3, 5, 5000, math.MaxInt)
}

// leaf is a policy without another one. The function depends on everything in a failure.
func (r trees) leaf() backoff.Policy {
	first, step, longest, retries := r.delay(), r.delay(), one(r, 0, r.delay()), r.retries()
	return one[backoff.Policy](r,
		backoff.None{}, backoff.List{first, step, first, r.delay()}, backoff.List{s, first},
		backoff.List{}, constantly(first, retries), linear(first, step, longest, retries),
		exponential(first, one(r, -2, 0, 1, 1.1, 2, 3, math.MaxFloat64, math.Inf(1), math.NaN()),
			longest, retries),
		fibonacci(first, longest, retries), foreign{wait: first, retry: true}, never{},
		nil, (*backoff.List)(nil), backoff.PolicyFunc(nil), byKind,
		backoff.FromCenkalti(of(constant(s), 3), backoff.WithMaxAge(time.Hour)),
		backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
			h := fnv.New64()
			_, _ = h.Write([]byte(f.First.String() + f.Now.String() + f.Last.String()))
			if f.Err != nil {
				_, _ = h.Write([]byte(f.Err.Error()))
			}
			return time.Duration(h.Sum64()) ^ time.Duration(f.Count), h.Sum64()%8 > 0
		}))
}

// tree is a leaf in so many others.
func (r trees) tree(depth int) backoff.Policy {
	if depth == 0 {
		return r.leaf()
	}
	p, extra := r.tree(depth-1), one(r, -1, 0, 0.2, 1, 1e308, math.NaN(), math.Inf(1))
	waitSteps, seed := one(r, -1, 0, 0, 1, 2, 100), r.Uint64N(3)
	return one[backoff.Policy](r,
		limit(p, r.retries()), limit(p, r.retries()), capped(p, r.delay()), capped(p, r.delay()),
		aged(p, r.delay()), aged(p, r.delay()), unbounded(p), atOnce(p),
		choice(p, r.tree(depth-1)), choice(r.leaf(), r.leaf(), p),
		backoff.FullJitter{p, waitSteps, seed}, backoff.EqualJitter{p, waitSteps, seed},
		backoff.BoundedJitter{p, extra, waitSteps, seed})
}

// promise is what a policy says about a failure: the bounds of the delay, and whether there is a
// retry. That is not sure where it depends on a random delay.
type promise struct {
	low, high   time.Duration
	retry, sure bool
}

// promised returns what the description of a policy promises of the policies in it.
func promised(p backoff.Policy, f backoff.Failure) promise {
	f.Count = max(f.Count, 1)
	switch p := p.(type) {
	case backoff.Limit:
		if f.Count > p.Retries {
			return promise{sure: true}
		}
		return promised(p.Policy, f)
	case backoff.Unbounded:
		return promised(p.Policy, f)
	case backoff.Cap:
		is, most := promised(p.Policy, f), p.Max
		if most <= 0 { // invalid
			most = backoff.MaxDelay
		}
		is.low, is.high = min(is.low, max(most, ms)), min(is.high, max(most, ms))
		return is
	case backoff.MaxAge:
		age := uint64(0)
		if !f.First.IsZero() && f.Now.After(f.First) {
			age = uint64(f.Now.Sub(f.First))
		}
		inTime := func(wait time.Duration) bool {
			return p.Age >= ms && age+uint64(wait) <= uint64(p.Age)
		}
		is := promised(p.Policy, f)
		is.sure = is.sure && (!is.retry || inTime(is.low) == inTime(is.high))
		is.retry = is.retry && inTime(is.high)
		return is
	case backoff.AtOnce:
		if f.Count == 1 {
			return promise{retry: true, sure: true}
		}
		f.Count--
		is := promised(p.Policy, f)
		is.low, is.high = max(is.low, ms), max(is.high, ms)
		return is
	case backoff.ByError:
		for _, c := range p.Cases {
			if f.Err != nil && c.Match(f.Err) {
				return promised(c.Policy, f)
			}
		}
		return promised(p.Default, f)
	case backoff.FullJitter:
		is := promised(p.Policy, f)
		is.low = min(is.low, ms)
		return is
	case backoff.EqualJitter:
		is := promised(p.Policy, f)
		is.low /= 2
		return is
	case backoff.BoundedJitter:
		is := promised(p.Policy, f)
		if more := float64(is.high) * p.Extra; more > 0 {
			more = min(more, float64(backoff.MaxDelay))
			is.high = min(is.high+time.Duration(more)+1, backoff.MaxDelay)
		}
		return is
	}
	wait, retry := backoff.Next(p, f)
	return promise{wait, wait, retry, true}
}

// failures returns failures with all kinds of counts, errors and ages, also at the very limit of an
// age.
func (r trees) failures() (all []backoff.Failure) {
	counts := []int{math.MinInt, 0, 1, 2, 3, 4, 5, 6, 9, 5001, 1_000_000, math.MaxInt}
	for _, count := range counts {
		f := backoff.Failure{Count: count, First: start, Last: r.delay()}
		switch r.IntN(4) {
		case 0:
			f.First = time.Time{}
		case 1:
			f.Now = start.Add(r.delay())
		case 2:
			age, wait := r.delay(), r.delay()
			f.Now = start.Add(age - wait + one[time.Duration](r, -1, 0, 1))
		default:
			f.First, f.Now = time.Unix(-1<<40, 0), time.Unix(1<<40, 0)
		}
		other := f
		other.Err = errBroken
		all = append(all, f, other)
	}
	return all
}

// traits say which of the checks of a policy's answers are exact.
type traits struct {
	listed  bool // each delay that is listed can come, and is listed if the delays stop growing
	counted bool // each retry that is counted can come
	ends    bool // CheckEnd is asked about nothing but the end
	drawn   bool // a delay may come that is not listed
}

// traitsOf returns the traits of a policy. bounded says that a wrapper around it bounds its list.
func traitsOf(p backoff.Policy, bounded bool) (is traits) {
	switch p := p.(type) {
	case backoff.Limit:
		is = traitsOf(p.Policy, true)
		is.ends = true
	case backoff.Cap:
		is = traitsOf(p.Policy, true)
	case backoff.AtOnce:
		is = traitsOf(p.Policy, bounded)
		for _, err := range []error{nil, errBroken} {
			wait, retry := backoff.Next(p.Policy, backoff.Failure{Err: err})
			is.drawn = is.drawn || retry && wait == 0 // invalid
		}
	case backoff.Unbounded:
		is = traitsOf(p.Policy, bounded)
		is.ends = false
	case backoff.MaxAge:
		is = traitsOf(p.Policy, true)
		is.listed, is.counted, is.ends = is.listed && !bounded, false, false
	case backoff.ByError:
		is = traitsOf(p.Default, false)
		for _, c := range p.Cases {
			in := traitsOf(c.Policy, false)
			is.listed, is.counted = is.listed && in.listed, is.counted && in.counted
			is.ends, is.drawn = is.ends && in.ends, is.drawn || in.drawn
		}
		alone := len(p.Cases) < 2 // a second case never matches here
		is.listed, is.counted = is.listed && !bounded && alone, is.counted && alone
	case backoff.FullJitter:
		is = traitsOf(p.Policy, bounded)
		is.listed, is.drawn = false, true
	case backoff.EqualJitter:
		is = traitsOf(p.Policy, bounded)
		is.listed, is.drawn = false, true
	case backoff.BoundedJitter:
		is = traitsOf(p.Policy, bounded)
		is.listed, is.drawn = false, true
	case backoff.None, backoff.List, backoff.Constant, backoff.Linear, backoff.Exponential,
		backoff.Fibonacci:
		is = traits{listed: true, counted: true, ends: true}
	}
	return is
}

// Any policy in any others keeps the promises of each: when it retries, after which delay, and
// which delays and how many retries it lists. It shows the whole failure to the policy in it.
func FuzzPolicies(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := trees{rand.New(rand.NewPCG(seed, 0))}
		for range 20 {
			p := r.tree(r.IntN(4))
			var beside sync.WaitGroup
			beside.Go(func() { // a policy is asked by many goroutines at once
				backoff.Next(p, backoff.Failure{Err: errBroken})
				backoff.Delays(p)
				backoff.Remarks(p)
			})
			delays, known := backoff.Delays(p)
			for _, failure := range r.failures() {
				wait := requirePromise(t, p, failure)
				if known && wait > ms {
					require.NotEmpty(t, delays, "%#v", p)
					require.LessOrEqual(t, wait, delays[len(delays)-1], "%#v after %+v", p, failure)
				}
			}
			requireAnswers(t, p)
			beside.Wait()
		}
	})
}

func requirePromise(t *testing.T, p backoff.Policy, f backoff.Failure) (wait time.Duration) {
	t.Helper()
	wait, retry := backoff.Next(p, f)
	want := promised(p, f)
	if want.sure {
		require.Equal(t, want.retry, retry, "%#v after %+v", p, f)
	}
	if !retry {
		require.Zero(t, wait, "%#v after %+v", p, f)
		return 0
	}
	require.GreaterOrEqual(t, wait, want.low, "%#v after %+v", p, f)
	require.LessOrEqual(t, wait, want.high, "%#v after %+v", p, f)
	require.LessOrEqual(t, wait, backoff.MaxDelay)
	if f.Count > 1 || wait != 0 { // the first retry may come without a delay
		require.GreaterOrEqual(t, wait, ms)
	}
	return wait
}

// requireAnswers compares what p says about all of its retries with some of them.
func requireAnswers(t *testing.T, p backoff.Policy) {
	t.Helper()
	const counts = 80
	is, came, last := traitsOf(p, false), []time.Duration{}, 0
	settled := true // a longer delay is not to be expected
	for _, err := range []error{nil, errBroken} {
		before := time.Duration(0)
		for count := 1; count <= counts; count++ {
			wait, retry := backoff.Next(p, backoff.Failure{Count: count, Err: err})
			if retry {
				last = max(last, count)
			}
			if retry && wait != 0 {
				came = append(came, wait)
			}
			settled, before = settled && (count < counts || wait == before), wait
		}
	}
	slices.Sort(came)
	came = slices.Compact(came)
	delays, known := backoff.Delays(p)
	require.True(t, slices.IsSorted(delays))
	require.LessOrEqual(t, len(delays), 1000)
	if known && !is.drawn {
		require.Subset(t, delays, came, "%#v", p)
	}
	valid := backoff.Validate(p) == nil
	if !known {
		require.Nil(t, delays)
	}
	// A delay under a millisecond is one, and may grow for long.
	if len(came) > 0 && (came[0] <= ms || came[len(came)-1] == backoff.MaxDelay) {
		settled = false
	}
	if is.listed && settled && valid {
		require.Equal(t, append([]time.Duration{}, came...), delays, "%#v", p)
	}
	want := slices.Clone(delays)
	for i := range delays { // the caller owns them
		delays[i] = time.Hour + 1
	}
	again, _ := backoff.Delays(p)
	require.Equal(t, want, again)

	retries, known := backoff.MaxRetries(p)
	if is.counted && valid && known && retries <= counts {
		require.Equal(t, retries, last, "%#v", p)
	}
	if is.ends && valid {
		require.Equal(t, backoff.CheckEnd(p) == nil, known, "%#v", p)
	}
	backoff.Remarks(p)
}
