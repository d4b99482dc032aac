package backoff

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
)

// maxReplay bounds the work that a forged or huge count can cause.
const maxReplay = 10_000

// CenkaltiOption is an option of [FromCenkalti].
type CenkaltiOption func(*fromCenkalti)

// WithMaxAge stops retrying when the next attempt would come later than limit
// after the message's first failure. limit must be positive. It replaces the
// elapsed-time limit of an unwrapped *ExponentialBackOff.
//
// Default: the MaxElapsedTime of an unwrapped *ExponentialBackOff, else no limit.
func WithMaxAge(limit time.Duration) CenkaltiOption {
	return func(p *fromCenkalti) { p.maxAge, p.aged = limit, true }
}

// FromCenkalti makes a policy of any BackOff of github.com/cenkalti/backoff/v4,
// random ones included.
//
// A BackOff counts, a policy must not: each Delay asks factory for a new one,
// resets it and takes result number Count, or number 10 000 if Count is above.
// cenkalti's Stop (-1), wherever on the way, is no retry. A result below 1 ms
// means 1 ms. If factory or BackOff panics, or there is none, there is no retry;
// [Validate] reports what of this shows at the first call.
//
// factory is called from many goroutines and must build everything anew, what it
// wraps as well. Validate reports one that returns the same pointer twice.
//
// A *ExponentialBackOff stops after MaxElapsedTime, 15 minutes unless set. Here
// that is the age of the message: no retry if First to Now plus the delay is
// more. Inside a wrapper (WithMaxRetries, WithContext) this limit cannot be
// seen: give it with [WithMaxAge]. [Remarks] says which applies. Leave WithContext
// out: once its context is cancelled, at shutdown for instance, every failure is
// the last.
//
// [CheckEnd] knows an end only from an age limit, or of a *StopBackOff: put others
// in a [Limit]. The delays cannot be listed.
func FromCenkalti(factory func() cenkalti.BackOff, options ...CenkaltiOption) Policy {
	p := fromCenkalti{factory: factory}
	for _, option := range options {
		if option != nil {
			option(&p)
		}
	}
	return p
}

type fromCenkalti struct {
	factory func() cenkalti.BackOff
	maxAge  time.Duration
	aged    bool // maxAge was given
}

func (p fromCenkalti) Delay(f Failure) (wait time.Duration, retry bool) {
	b, err := p.build()
	if err != nil {
		return 0, false
	}
	limit, limited := p.ageLimit(b)
	wait, err = replay(b, f.Count)
	if err != nil || wait == cenkalti.Stop {
		return 0, false
	}
	wait = clamp(wait)
	if limited && (wait > limit || f.age() > limit-wait) {
		return 0, false
	}
	return wait, true
}

func (p fromCenkalti) Validate() error {
	found := problems{name: "backoff.FromCenkalti"}
	if p.aged && p.maxAge <= 0 {
		found.add("WithMaxAge %s is not positive: leave it out for no limit", p.maxAge)
	}
	first, err := p.build()
	if err != nil {
		return found.join(err)
	}
	second, err := p.build()
	if err != nil {
		return found.join(err)
	}
	if shared(first, second) {
		found.add("factory returns the same %T each time, a data race: build a new one in it", first)
		return found.join()
	}
	_, err = replay(second, 1)
	return found.join(err)
}

func (p fromCenkalti) CheckEnd() error {
	b, err := p.build()
	if err != nil {
		return nil // never retries
	}
	if _, limited := p.ageLimit(b); limited {
		return nil
	}
	if _, stops := b.(*cenkalti.StopBackOff); stops {
		return nil
	}
	return noEnd(fmt.Sprintf("backoff.FromCenkalti (%T)", b), "set an age limit with backoff.WithMaxAge, ")
}

func (p fromCenkalti) Remarks() []string {
	b, err := p.build()
	if err != nil {
		return nil
	}
	var remarks []string
	limit, limited := p.ageLimit(b)
	switch b.(type) {
	case *cenkalti.ConstantBackOff, *cenkalti.ZeroBackOff, *cenkalti.StopBackOff:
	case *cenkalti.ExponentialBackOff:
		if limited && !p.aged {
			remarks = append(remarks, fmt.Sprintf("backoff.FromCenkalti: the elapsed-time limit of %s is the age of the message, counted from its first failure", limit))
		}
	default:
		if !limited {
			remarks = append(remarks, fmt.Sprintf("backoff.FromCenkalti: an elapsed-time limit inside the %T has no effect; set it with backoff.WithMaxAge", b))
		}
	}
	if _, ok := b.(cenkalti.BackOffContext); ok {
		remarks = append(remarks, "backoff.FromCenkalti: once the context given to WithContext is cancelled, failures are not retried any more")
	}
	return remarks
}

// ageLimit is the longest age b allows; limited is false if there is none.
func (p fromCenkalti) ageLimit(b cenkalti.BackOff) (limit time.Duration, limited bool) {
	if p.aged {
		return p.maxAge, true
	}
	if e, ok := b.(*cenkalti.ExponentialBackOff); ok {
		return e.MaxElapsedTime, e.MaxElapsedTime != 0
	}
	return 0, false
}

// build asks the factory for a BackOff. A panic becomes an error.
func (p fromCenkalti) build() (b cenkalti.BackOff, err error) {
	if p.factory == nil {
		return nil, errors.New("backoff.FromCenkalti: factory is nil: give a func that returns a new BackOff")
	}
	defer recovered("factory", &err)
	b = p.factory()
	if isNil(b) {
		return nil, fmt.Errorf("backoff.FromCenkalti: factory returns %s: return a new BackOff", describeNil(b))
	}
	return b, nil
}

// replay returns result number count of b. A panic becomes an error.
func replay(b cenkalti.BackOff, count int) (wait time.Duration, err error) {
	defer recovered("BackOff", &err)
	if e, ok := b.(*cenkalti.ExponentialBackOff); ok {
		// A copy, in case the factory shares it after all. Its own clock starts
		// at Reset, and would measure this loop instead of the message's age.
		own := *e
		own.MaxElapsedTime, own.Clock = 0, cenkalti.SystemClock
		b = &own
	}
	b.Reset()
	for range min(max(count, 1), maxReplay) {
		if wait = b.NextBackOff(); wait == cenkalti.Stop {
			break
		}
	}
	return wait, nil
}

// recovered makes a panic an error. It must be deferred itself.
func recovered(what string, err *error) {
	if value := recover(); value != nil {
		*err = fmt.Errorf("backoff.FromCenkalti: %s panics: %v", what, value)
	}
}

// shared reports whether a and b are one BackOff with a state. Pointers to
// different values of size 0 may be equal, too.
func shared(a, b cenkalti.BackOff) bool {
	if _, stateless := a.(*cenkalti.ConstantBackOff); stateless {
		return false
	}
	t := reflect.TypeOf(a)
	return t.Kind() == reflect.Pointer && t.Elem().Size() > 0 && t == reflect.TypeOf(b) &&
		reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}
