package backoff

import (
	"fmt"
	"iter"
	"math"
	"time"
)

// ByError is a policy that leaves it to another, chosen by the error:
//
//	backoff.ByError{
//		Cases: []backoff.Case{
//			{Match: backoff.As[net.Error](), Policy: backoff.Constant{Interval: time.Second, Retries: 5}},
//			{Match: backoff.Is(errRateLimited), Policy: backoff.Constant{Interval: time.Minute, Retries: 10}},
//			{Match: backoff.Is(sql.ErrConnDone), Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8}},
//		},
//		Default: backoff.None{}, // to the dead-letter queue
//	}
//
// The first case that matches wins. Only the last error is looked at, and the
// policy chosen sees the failure as it is: Count is the message's failures so
// far, whatever errors they had. A message that has failed three times on the
// network and then on the database waits the fourth delay of that series, 8s.
//
// middleware.LastAttempt shows the policy an error of no known kind, so that
// Default answers: with None there, it is true on every attempt.
type ByError struct {
	// Cases are tried in their order. Without any, Default is always taken. The
	// slice is used as it is: do not change it once it is handed over.
	Cases []Case
	// Default is asked where no case matches, and where there is no error. It must
	// not be nil: use [None] to never retry what no case knows.
	Default Policy
}

// Case is a policy for the errors that match.
type Case struct {
	// Match reports whether the case is meant for err, which is not nil but may
	// wrap others: see [Is] and [As]. It must not be nil; a nil one never matches.
	// It is called from many goroutines at once, and should depend on nothing but
	// err. Its panics pass through Delay; middleware.DelayedRetry contains them
	// and waits a minute, so that no message is lost.
	Match func(err error) bool
	// Policy is asked where Match is true. It must not be nil: use [None] to never
	// retry such errors.
	Policy Policy
}

// Delay returns what the policy of the first case does whose Match is true for
// Err, or else Default.
func (p ByError) Delay(f Failure) (wait time.Duration, retry bool) {
	return Next(p.choose(f.Err), f)
}

func (p ByError) choose(err error) Policy {
	if err == nil {
		return p.Default
	}
	for _, c := range p.Cases {
		if c.Match != nil && c.Match(err) {
			return c.Policy
		}
	}
	return p.Default
}

// Validate returns an error for everything that is nil, joined with those of
// every policy, each line with its case by the index from 0. It calls no Match.
func (p ByError) Validate() error {
	found := problems{name: "backoff.ByError"}
	for i, c := range p.Cases {
		if c.Match == nil {
			found.add("%s: Match is nil: use backoff.Is with an error, backoff.As or a func of your own", caseName(i))
		}
		found.part(caseName(i), Validate(c.Policy))
	}
	found.part(defaultName, Validate(p.Default))
	return found.join()
}

// CheckEnd returns an error that wraps [ErrNoEnd] unless every case and Default
// ends, joined of theirs, each line with its case.
func (p ByError) CheckEnd() error {
	found := problems{name: "backoff.ByError"}
	for name, policy := range p.policies() {
		found.part(name, CheckEnd(policy))
	}
	return found.join()
}

// Delays returns those of every case and of Default; nil if one of them lists
// none.
func (p ByError) Delays() []time.Duration {
	delays := []time.Duration{}
	for _, policy := range p.policies() {
		listed, known := Delays(policy)
		if !known {
			return nil
		}
		delays = append(delays, listed...)
	}
	return delays
}

// Remarks returns those on every case and on Default, each with its case.
func (p ByError) Remarks() []string {
	var remarks []string
	for name, policy := range p.policies() {
		for _, remark := range Remarks(policy) {
			remarks = append(remarks, "backoff.ByError: "+name+": "+remark)
		}
	}
	return remarks
}

// policies are those of the cases and Default, by name.
func (p ByError) policies() iter.Seq2[string, Policy] {
	return func(yield func(string, Policy) bool) {
		for i, c := range p.Cases {
			if !yield(caseName(i), c.Policy) {
				return
			}
		}
		yield(defaultName, p.Default)
	}
}

const defaultName = "Default"

func caseName(index int) string { return fmt.Sprintf("case [%d]", index) }

func (p ByError) about() facts {
	known := factsOf(p.Default)
	for _, c := range p.Cases {
		one := factsOf(c.Policy)
		known.retries, known.ends = max(known.retries, one.retries), known.ends && one.ends
		known.drawn = known.drawn || one.drawn
	}
	known.countOnly, known.matches = false, math.MaxInt
	return known
}
