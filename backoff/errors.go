package backoff

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNoEnd is wrapped by the error of [CheckEnd]: the policy is not known to
// stop retrying, and no [Unbounded] says that it shall not.
var ErrNoEnd = errors.New("policy is not known to stop retrying")

// noEnd wraps ErrNoEnd for the named policy. ownWay is the way out that only
// this policy has, with a trailing comma and blank, or empty.
func noEnd(name, ownWay string) error {
	return fmt.Errorf("%s: %w: %swrap it in backoff.Limit or backoff.MaxAge, use middleware.WithMaxAttempts or middleware.WithMaxAge, "+
		"or wrap it in backoff.Unbounded if it shall never end", name, ErrNoEnd, ownWay)
}

// checkRetries is CheckEnd for a policy with a Retries field.
func checkRetries(name string, retries int) error {
	if retries == 0 {
		return noEnd(name, "set Retries, ")
	}
	return nil
}

// problems collects what is wrong with the policy called name.
type problems struct {
	name string
	errs []error
}

func (p *problems) add(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(p.name+": "+format, args...))
}

func (p *problems) join(others ...error) error {
	return errors.Join(append(p.errs, others...)...)
}

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
		p.add("%s %s is above %s, the longest TTL of a RabbitMQ queue: use at most backoff.MaxDelay", field, d, MaxDelay)
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

// wait steps checks the WaitSteps of a jitter, of which 0 means the default.
func (p *problems) rungs(rungs int) {
	switch {
	case rungs < 0:
		p.add("WaitSteps %d is negative: use 0 for %d", rungs, defaultRungs)
	case rungs == 1:
		p.add("WaitSteps 1 spreads nothing: use at least 2, or 0 for %d", defaultRungs)
	case rungs > maxRungs:
		p.add("WaitSteps %d would be as many queues for each delay: use at most %d, or 0 for %d", rungs, maxRungs, defaultRungs)
	}
}

// inner checks the policy that a wrapper wraps.
func (p *problems) inner(policy Policy) {
	if isNil(policy) {
		p.add("Policy is %s: give it the policy to wrap", describeNil(policy))
		return
	}
	if err := Validate(policy); err != nil {
		p.errs = append(p.errs, err)
	}
}

// part adds err, unless it is nil, as one of the part with this name.
func (p *problems) part(name string, err error) {
	if err != nil {
		p.errs = append(p.errs, &partError{where: p.name + ": " + name + ": ", err: err})
	}
}

// partError is err with where in front of every line: it may be joined of many.
type partError struct {
	where string
	err   error
}

func (e *partError) Error() string {
	return e.where + strings.ReplaceAll(e.err.Error(), "\n", "\n"+e.where)
}

func (e *partError) Unwrap() error { return e.err }
