package backoff

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// maxListed is the most distinct delays that a policy can list, because each would be a queue.
const maxListed = 1000

// Delays returns every delay that p may return, in rising order, each once and within 1 ms and
// [MaxDelay]. known is false, and delays nil, if p cannot tell or has more than 1000 delays. The
// caller owns the slice.
//
// The policies of this package leave out a first retry without a delay, because it needs no wait
// queue. So an empty slice that is known means that p never retries, or once without a delay.
//
// A jitter may return any delay. It lists a few of them, its wait steps, and draws no delay above
// the last one. Where each delay needs a queue, a drawn delay waits on the wait steps beside it.
//
// A policy takes part with a method
//
//	Delays() []time.Duration
//
// that returns nil if it cannot tell and an empty slice, not nil, if it never
// retries. It leaves out a first delay of 0. Order and duplicates do not matter. A
// type that embeds a policy and changes its Delay must change its Delays, too.
func Delays(p Policy) (delays []time.Duration, known bool) {
	if isNil(p) {
		return nil, false
	}
	lister, ok := p.(interface{ Delays() []time.Duration })
	if !ok {
		return nil, false
	}
	listed := lister.Delays()
	if listed == nil {
		return nil, false
	}
	delays = make([]time.Duration, len(listed))
	for i, d := range listed {
		delays[i] = clamp(d)
	}
	slices.Sort(delays)
	if delays = slices.Compact(delays); len(delays) > maxListed {
		return nil, false
	}
	return delays, true
}

// listed is Delays for the method of a wrapper: nil if p cannot tell.
func listed(p Policy) []time.Duration {
	delays, _ := Delays(p)
	return delays
}

// neverRetries reports whether p lists that it has no delay at all.
func neverRetries(p Policy) bool {
	delays, known := Delays(p)
	return known && len(delays) == 0 && !factsOf(p).atOnce
}

// Remarks returns facts about p that its user should know, one sentence an entry,
// or nil. Remarks are no errors; middleware.NewDelayedRetry logs them.
//
// A policy takes part with a method
//
//	Remarks() []string
//
// to which a wrapper adds Remarks of the policy it wraps.
func Remarks(p Policy) []string {
	if isNil(p) {
		return nil
	}
	if r, ok := p.(interface{ Remarks() []string }); ok {
		return r.Remarks()
	}
	return nil
}

// MaxRetries returns the most retries that p grants, for any failure. known is
// false if p has no end, or if only a failure would tell. It does not call Delay.
//
// It knows the policies of this package. A policy of another package is unknown,
// also if it embeds a policy of this package, because its Delay may differ. So are
// a pointer to a policy, a [PolicyFunc] and the policy of [FromCenkalti]. A [Limit]
// around an unknown policy makes the number known.
//
// n does not count the retries that a caller grants itself when the Match of a
// [ByError] panics: see [MaxMatchCount].
func MaxRetries(p Policy) (n int, known bool) {
	about := factsOf(p)
	if !about.ends {
		return 0, false
	}
	return max(about.retries, 0), true
}

// MaxMatchCount returns the highest Failure.Count for which p may call the Match
// of a [ByError]. It is 0 if p contains no ByError, and [math.MaxInt] if no [Limit]
// around the ByError ends the calls. A caller that recovers from the panic of a
// Match, and then grants a retry itself, grants none above this count.
func MaxMatchCount(p Policy) int { return max(factsOf(p).matches, 0) }

// facts tells other policies about one of this package, before any failure.
type facts struct {
	retries   int  // the most retries, if ends
	ends      bool // retries is known
	matches   int  // the highest count for which Delay may call a Match
	countOnly bool // the delays depend on Failure.Count alone
	drawn     bool // Delay may return a delay that Delays does not list
	atOnce    bool // the first retry may come without a delay
}

// factsOf returns the facts of the method about, and none without the method.
func factsOf(p Policy) facts {
	if teller, is := own[interface{ about() facts }](p); is {
		return teller.about()
	}
	return facts{}
}

// lower returns p with the Max of the growing series in it set to limit, if it was
// more or none. The delays up to limit do not change.
func lower(p Policy, limit time.Duration) Policy {
	if series, is := own[interface{ lower(time.Duration) Policy }](p); is {
		return series.lower(limit)
	}
	return p
}

// limited returns a jitter or an Adaptive around at most this many retries, and false
// if p is neither.
func limited(p Policy, retries int) (Policy, bool) {
	if jitter, is := own[interface{ limited(int) (Policy, bool) }](p); is {
		return jitter.limited(retries)
	}
	return p, false
}

// own returns p as a T if this package defines its type. A user's type that embeds
// a policy inherits its methods, also the unexported ones, but may change Delay.
func own[T any](p Policy) (t T, is bool) {
	if p == nil || reflect.TypeOf(p).PkgPath() != reflect.TypeFor[None]().PkgPath() {
		return t, false
	}
	t, is = p.(T)
	return t, is
}

// ErrNoEnd is wrapped by the error of [CheckEnd]: the policy is not known to stop
// retrying, and is not in an [Unbounded].
var ErrNoEnd = errors.New("policy is not known to stop retrying")

// Validate returns every problem of p and of the policies it wraps, as one error made by
// [errors.Join], or nil. A p that is nil, or a nil pointer or func, is an error.
//
// A policy takes part with a method
//
//	Validate() error
//
// in which a wrapper joins its own problems with Validate of the policy it wraps.
// A policy without the method is valid.
func Validate(p Policy) error {
	if isNil(p) {
		return fmt.Errorf("policy is %s: use backoff.None to never retry", describeNil(p))
	}
	if v, ok := p.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// CheckEnd returns nil if p is known to stop retrying, or if an [Unbounded] says
// that no end is wanted. Otherwise it returns an error that wraps [ErrNoEnd] and
// names the ways out. It does not validate: a nil p never retries, so it ends.
//
// A policy takes part with a method
//
//	CheckEnd() error
//
// that returns nil if it stops by itself. A wrapper that adds no end returns
// CheckEnd of the policy it wraps. Without the method, only a policy that lists no
// delay at all (see [Delays]) is known to stop.
func CheckEnd(p Policy) error {
	if isNil(p) {
		return nil
	}
	if c, ok := p.(interface{ CheckEnd() error }); ok {
		err := c.CheckEnd()
		if err != nil && !errors.Is(err, ErrNoEnd) {
			return fmt.Errorf("%w: %w", ErrNoEnd, err)
		}
		return err
	}
	if neverRetries(p) {
		return nil
	}
	return noEnd(fmt.Sprintf("%T", p), "")
}

// noEnd wraps ErrNoEnd for the named policy. ownWay is the way out that only this
// policy has, with a trailing comma and blank, or empty.
func noEnd(name, ownWay string) error {
	return fmt.Errorf("%s: %w: %swrap it in backoff.Limit or backoff.MaxAge, "+
		"use middleware.WithMaxAttempts or middleware.WithMaxAge, "+
		"or wrap it in backoff.Unbounded if no end is wanted", name, ErrNoEnd, ownWay)
}

// checkRetries is CheckEnd for a policy with a Retries field.
func checkRetries(name string, retries int) error {
	if retries == 0 {
		return noEnd(name, "set Retries, ")
	}
	return nil
}

// problems collects the problems of the policy called name.
type problems struct {
	name string
	errs []error
}

func (p *problems) add(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(p.name+": "+format, args...))
}

func (p *problems) join(others ...error) error { return errors.Join(append(p.errs, others...)...) }

// delay checks a field that is a delay.
func (p *problems) delay(field string, d time.Duration) {
	if d <= 0 {
		p.add("%s %s is not positive: a delay is at least 1ms", field, d)
	}
	p.long(field, d)
}

// long checks a field that may be no more than MaxDelay.
func (p *problems) long(field string, d time.Duration) {
	if d > MaxDelay {
		p.add("%s %s is above %s, the longest TTL of a RabbitMQ queue: use at most backoff.MaxDelay",
			field, d, MaxDelay)
	}
}

// limit checks a Max, of which 0 means none, against the Initial it caps.
func (p *problems) limit(limit, initial time.Duration) {
	switch {
	case limit < 0:
		p.add("Max %s is negative: use 0 for no cap", limit)
	case limit > 0 && limit < initial:
		p.add("Max %s is below Initial %s: raise Max or lower Initial", limit, initial)
	}
	p.long("Max", limit)
}

// retries checks a Retries field of which 0 means no end.
func (p *problems) retries(retries int) {
	if retries < 0 {
		p.add("Retries %d is negative: use backoff.None to never retry, 0 for no end", retries)
	}
}

// steps checks the WaitSteps of a jitter, of which 0 means the default.
func (p *problems) steps(steps int) {
	switch {
	case steps < 0:
		p.add("WaitSteps %d is negative: use 0 for %d", steps, defaultSteps)
	case steps == 1:
		p.add("WaitSteps 1 spreads nothing: use at least 2, or 0 for %d", defaultSteps)
	case steps > maxSteps:
		p.add("WaitSteps %d would be as many queues for each delay: use at most %d, or 0 for %d",
			steps, maxSteps, defaultSteps)
	}
}

// inner checks the policy that a wrapper wraps.
func (p *problems) inner(policy Policy) {
	if isNil(policy) {
		p.add("Policy is %s: give it the policy to wrap", describeNil(policy))
	} else if err := Validate(policy); err != nil {
		p.errs = append(p.errs, err)
	}
}

// part adds err, unless it is nil, as a problem of the part with this name.
func (p *problems) part(name string, err error) {
	if err != nil {
		p.errs = append(p.errs, &partError{where: p.name + ": " + name + ": ", err: err})
	}
}

// partError is err with where in front of every line, because err may be several errors joined.
type partError struct {
	where string
	err   error
}

func (e *partError) Error() string {
	return e.where + strings.ReplaceAll(e.err.Error(), "\n", "\n"+e.where)
}

func (e *partError) Unwrap() error { return e.err }
