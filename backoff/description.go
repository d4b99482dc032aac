package backoff

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// described is a policy of this package. Besides its Delay it says only what is different about it.
type described interface {
	describe() description
	about() facts
}

// description is the part of a policy that is known before any failure. [Validate], [CheckEnd],
// [Delays] and [Remarks] answer from it. A field that is not set changes nothing.
type description struct {
	name  string                // in errors and remarks
	parts []part                // the policies that it wraps, none in a series
	check func(found *problems) // finds the problems of its own fields
	ends  bool                  // it ends, or no end is wanted, whatever its parts are

	// list returns the delays of a policy without parts, or nil if it cannot tell. Without it there
	// are none.
	list func(b bounds) []time.Duration
	// within returns the bounds of the parts in a policy that has the bounds b itself.
	within func(b bounds) bounds
	// each returns the delays that come of one delay of the list or of a part.
	each func(d time.Duration) []time.Duration

	seed    uint64                  // not 0: it draws the same delays for every message
	fewer   string                  // how to have fewer delays; only if each returns several
	remarks func(b bounds) []string // returns more remarks
}

// part is a policy in another one.
type part struct {
	policy  Policy
	where   string // in front of each line about it; empty if it is the only part
	problem string // of the part itself, or empty
}

// wrapped are the parts of a policy that wraps one other.
func wrapped(p Policy) []part { return []part{{policy: p}} }

// bounds are set by the wrappers around a policy, so that it lists no delays in vain.
type bounds struct {
	longest time.Duration // delays above it count as longest; 0 means that none is set
	retries int           // the retries that are left
}

const unlimited = math.MaxInt

var unbounded = bounds{retries: unlimited}

// of returns the bounds for p. The number of retries bounds the delays of p only if they depend on
// Failure.Count alone, or if p lists wait steps.
func (b bounds) of(p Policy) bounds {
	about := factsOf(p)
	if b.retries > 0 && !about.steps && (b.retries > maxListed || !about.countOnly) {
		b.retries = unlimited
	}
	return b
}

// descriptionOf returns the description of a policy of this package, and of a user's type that
// embeds one. The bounds are not for the user's type, because its Delay may differ.
func descriptionOf(p Policy, b bounds) (d description, within bounds, known bool) {
	teller, known := p.(described)
	if !known {
		return description{}, b, false
	}
	if !isOwn(p) {
		b = unbounded
	}
	return teller.describe(), b, true
}

// isOwn reports whether this package defines the type of p. A user's type that embeds a policy
// inherits its methods, also the unexported ones, but may change Delay.
func isOwn(p Policy) bool {
	return reflect.TypeOf(p).PkgPath() == reflect.TypeFor[None]().PkgPath()
}

// validate joins the problems of the fields and of the parts.
func (d description) validate() error {
	found := problems{name: d.name}
	if d.check != nil {
		d.check(&found)
	}
	for _, in := range d.parts {
		found.part(in)
	}
	return found.join()
}

// checkEnd joins the errors of the parts that have no end.
func (d description) checkEnd() error {
	if d.ends {
		return nil
	}
	if len(d.parts) == 0 {
		return noEnd(d.name, "set Retries, ")
	}
	var errs []error
	for _, in := range d.parts {
		if err := CheckEnd(in.policy); err != nil {
			errs = append(errs, in.locate(err))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// delays returns every delay within the bounds, in any order, or nil if a part cannot tell.
func (d description) delays(b bounds) []time.Duration { return d.change(d.unchanged(b)) }

// unchanged returns the delays of the list or of the parts.
func (d description) unchanged(b bounds) []time.Duration {
	if d.list != nil {
		return d.list(b)
	}
	if d.within != nil {
		b = d.within(b)
	}
	delays := []time.Duration{}
	for _, in := range d.parts {
		some, known := delaysOf(in.policy, b)
		if !known {
			return nil
		}
		delays = append(delays, some...)
	}
	return delays
}

// change returns the delays that come of these.
func (d description) change(unchanged []time.Duration) []time.Duration {
	if d.each == nil || unchanged == nil {
		return unchanged
	}
	delays := []time.Duration{}
	for _, one := range unchanged {
		delays = append(delays, d.each(one)...)
	}
	return delays
}

// allRemarks returns the remarks on the policy and on its parts.
func (d description) allRemarks(b bounds) []string {
	var remarks []string
	if d.seed != 0 {
		remarks = append(remarks, fmt.Sprintf("%s: Seed %d draws the same delays for every message; "+
			"use 0 outside of tests", d.name, d.seed))
	}
	if d.fewer != "" {
		alone := d.unchanged(b)
		if all, _ := distinct(d.change(alone)); len(all) > len(alone) {
			remarks = append(remarks, fmt.Sprintf("%s: topology.PerQueue and topology.Shared need up "+
				"to %d wait queues instead of %d; %s", d.name, len(all), len(alone), d.fewer))
		}
	}
	if d.remarks != nil {
		remarks = append(remarks, d.remarks(b)...)
	}
	if d.within != nil {
		b = d.within(b)
	}
	for _, in := range d.parts {
		for _, remark := range remarksOf(in.policy, b) {
			remarks = append(remarks, in.where+remark)
		}
	}
	return remarks
}

// facts are what other policies and [MaxRetries] ask about a policy. To ask must not allocate.
type facts struct {
	retries   int  // the most retries, if ends
	ends      bool // retries is known
	matches   int  // the highest count for which Delay may call a Match
	countOnly bool // the delays depend on Failure.Count alone
	drawn     bool // Delay may return a delay that Delays does not list
	steps     bool // Delays lists several wait steps for each delay, at most for the retries left
	atOnce    bool // the first retry may come without a delay
}

// whole returns the facts about a wrapper that passes no number of retries to a jitter in it.
func (f facts) whole() facts {
	f.steps = false
	return f
}

// varied returns the facts about a wrapper whose delays depend on more than Failure.Count.
func (f facts) varied() facts {
	f.countOnly, f.steps = false, false
	return f
}

// factsOf returns the facts about p, and none if p is not of this package.
func factsOf(p Policy) facts {
	if teller, is := p.(described); is && isOwn(p) {
		return teller.about()
	}
	return facts{}
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

// part checks a policy in the policy.
func (p *problems) part(in part) {
	if in.problem != "" {
		p.errs = append(p.errs, errors.New(in.where+in.problem))
	}
	if err := Validate(in.policy); in.where == "" && isNil(in.policy) {
		p.add("Policy is %s: give it the policy to wrap", describeNil(in.policy))
	} else if err != nil {
		p.errs = append(p.errs, in.locate(err))
	}
}

// locate returns err with the place of the part in front of every line.
func (in part) locate(err error) error {
	if in.where == "" {
		return err
	}
	return &partError{where: in.where, err: err}
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
