package backoff

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/nils"
)

// described is a policy of this package. It states its Delay, its description and its facts.
type described interface {
	describe() description
	about() facts
}

// description is a policy before any failure. It has the optional methods that [Validate],
// [CheckEnd], [Delays] and [Remarks] look for. A policy begins with [describing], and sets only
// the fields in which it differs.
type description struct {
	problems        // of its fields
	parts    []part // the policies that it wraps, none in a series
	ends     bool   // it ends, or no end is wanted; else it ends if its parts do
	bounds   bounds // set by the wrappers around it

	// series returns the delays of a policy without parts, or nil if it cannot tell.
	series func(b bounds) []time.Duration
	// within returns the bounds for the parts of a policy that has the bounds b itself.
	within func(b bounds) bounds
	// each returns the delays that come of one delay of the series or of a part.
	each func(d time.Duration) []time.Duration

	seed   uint64                // not 0: it draws the same delays for every message
	fewer  string                // how to have fewer delays; only if each returns several
	remark func(b bounds) string // one more remark, or empty
}

// part is a policy in another one.
type part struct {
	policy Policy
	where  string // in front of each line about it; empty if it is the only part
	wrong  error  // of the part itself, or nil
}

// bounds are set by the wrappers around a policy, so that it lists no delay that cannot come.
type bounds struct {
	longest time.Duration // delays above it count as longest; 0 means that none is set
	retries int           // the retries that are left
}

const unlimited = math.MaxInt

var unbounded = bounds{retries: unlimited}

// describing returns the description of a policy that changes nothing about its parts.
func describing(name string, ends bool, parts ...part) description {
	return description{
		problems: problems{name: name}, parts: parts, ends: ends, bounds: unbounded,
		series: func(bounds) []time.Duration { return []time.Duration{} },
		within: func(b bounds) bounds { return b },
		each:   func(d time.Duration) []time.Duration { return []time.Duration{d} },
		remark: func(bounds) string { return "" },
	}
}

// optional returns p as a T, an interface with an optional method. A policy of this package has
// all of them by its description, and so has a user's type that embeds one. But no bounds are
// set for that, because its Delay may differ.
func optional[T any](p Policy, b bounds) T {
	if t, has := p.(T); has && !nils.Is(p) {
		return t
	}
	if own, is := p.(described); is && !nils.Is(p) {
		d := own.describe()
		if isOwn(p) {
			d.bounds = b
		}
		return any(d).(T)
	}
	return any(unknown{p}).(T)
}

// unknown has the optional methods of a policy without them.
type unknown struct{ policy Policy }

func (unknown) Validate() error         { return nil }
func (unknown) Delays() []time.Duration { return nil }
func (unknown) Remarks() []string       { return nil }

func (u unknown) CheckEnd() error {
	if nils.Is(u.policy) || neverRetries(u.policy) {
		return nil
	}
	return noEnd(fmt.Sprintf("%T", u.policy), "")
}

// isOwn reports whether this package defines the type of p. A user's type that embeds a policy
// inherits its methods, also the unexported ones, but may change Delay.
func isOwn(p Policy) bool {
	return reflect.TypeOf(p).PkgPath() == reflect.TypeFor[None]().PkgPath()
}

// Validate joins the problems of the fields and of the parts.
func (d description) Validate() error {
	for _, in := range d.parts {
		d.errs = append(d.errs, in.wrong)
		if in.where == "" && nils.Is(in.policy) {
			d.wrong(true, "Policy is %s: give it the policy to wrap", describeNil(in.policy))
		} else {
			d.errs = append(d.errs, in.locate(Validate(in.policy)))
		}
	}
	return d.join()
}

// CheckEnd joins the errors of the parts that have no end.
func (d description) CheckEnd() error {
	if d.ends {
		return nil
	}
	if len(d.parts) == 0 {
		return noEnd(d.name, "set Retries, ")
	}
	var errs []error
	for _, in := range d.parts {
		if in.where == "" {
			return CheckEnd(in.policy)
		}
		errs = append(errs, in.locate(CheckEnd(in.policy)))
	}
	return errors.Join(errs...)
}

// Delays returns every delay within the bounds, or nil if a part cannot tell.
func (d description) Delays() []time.Duration { return d.change(d.unchanged()) }

// unchanged returns the delays of the series or of the parts.
func (d description) unchanged() []time.Duration {
	if len(d.parts) == 0 {
		return d.series(d.bounds)
	}
	delays := []time.Duration{}
	for _, in := range d.parts {
		some, known := delaysOf(in.policy, d.within(d.bounds))
		if !known {
			return nil
		}
		delays = append(delays, some...)
	}
	return delays
}

// change returns the delays that come of these.
func (d description) change(unchanged []time.Duration) []time.Duration {
	delays := unchanged[:0:0] // nil stays nil
	for _, one := range unchanged {
		delays = append(delays, d.each(one)...)
	}
	return delays
}

// Remarks returns the remarks on the policy and on its parts.
func (d description) Remarks() (remarks []string) {
	if d.seed != 0 {
		remarks = append(remarks, fmt.Sprintf("%s: Seed %d draws the same delays for every message; "+
			"use 0 outside of tests", d.name, d.seed))
	}
	if d.fewer != "" {
		alone := d.unchanged()
		if all, _ := distinct(d.change(alone)); len(all) > len(alone) {
			remarks = append(remarks, fmt.Sprintf("%s: topology.PerQueue and topology.Shared need up "+
				"to %d wait queues instead of %d; %s", d.name, len(all), len(alone), d.fewer))
		}
	}
	if remark := d.remark(d.bounds); remark != "" {
		remarks = append(remarks, d.name+remark)
	}
	for _, in := range d.parts {
		for _, remark := range remarksOf(in.policy, d.within(d.bounds)) {
			remarks = append(remarks, in.where+remark)
		}
	}
	return remarks
}

// locate returns err with the place of the part in front of every line.
func (in part) locate(err error) error {
	if err == nil || in.where == "" {
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

// facts are what other policies and [MaxRetries] ask about a policy. To ask must not allocate.
type facts struct {
	retries int  // the most retries, if ends
	ends    bool // retries is known
	matches int  // the highest count for which Delay may call a Match
	drawn   bool // Delay may return a delay that Delays does not list
	atOnce  bool // the first retry may come without a delay
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

// wrong adds a problem if it is there.
func (p *problems) wrong(is bool, format string, args ...any) {
	if is {
		p.errs = append(p.errs, fmt.Errorf(p.name+": "+format, args...))
	}
}

func (p *problems) join(more ...error) error { return errors.Join(append(p.errs, more...)...) }

// delay checks a field that is a delay.
func (p *problems) delay(field string, d time.Duration) {
	p.wrong(d <= 0, "%s %s is not positive: a delay is at least 1ms", field, d)
	p.long(field, d)
}

// long checks a field that may be no more than MaxDelay, and less than 1 ms by mistake only.
func (p *problems) long(field string, d time.Duration) {
	p.wrong(0 < d && d < minDelay, "%s %s is below 1ms: is its unit missing, as in 5*time.Second?",
		field, d)
	p.wrong(d > MaxDelay, "%s %s is above %s, the longest TTL of a RabbitMQ queue: "+
		"use at most backoff.MaxDelay", field, d, MaxDelay)
}

// limits checks a Max, of which 0 means none, against the Initial it caps, and Retries.
func (p *problems) limits(initial, limit time.Duration, retries int) {
	p.wrong(limit < 0, "Max %s is negative: use 0 for no cap", limit)
	p.wrong(0 < limit && limit < initial,
		"Max %s is below Initial %s: raise Max or lower Initial", limit, initial)
	p.long("Max", limit)
	p.retries(retries)
}

// retries checks a Retries field of which 0 means no end.
func (p *problems) retries(retries int) {
	p.wrong(retries < 0,
		"Retries %d is negative: use backoff.None to never retry, 0 for no end", retries)
}

// steps checks the WaitSteps of a jitter, of which 0 means the default.
func (p *problems) steps(n int) {
	p.wrong(n < 0, "WaitSteps %d is negative: use 0 for %d", n, defaultSteps)
	p.wrong(n == 1, "WaitSteps 1 spreads nothing: use at least 2, or 0 for %d", defaultSteps)
	p.wrong(n > maxSteps, "WaitSteps %d would be as many queues for each delay: "+
		"use at most %d, or 0 for %d", n, maxSteps, defaultSteps)
}
