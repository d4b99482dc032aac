package backoff

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

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
