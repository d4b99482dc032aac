package backoff

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"

	"github.com/millpond-go/millpond/internal/nils"
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
// also of random ones. The delays cannot be listed.
//
// A BackOff counts, a policy must not. So each Delay calls factory, resets the new
// BackOff and takes its result number Count, or number 10 000 if Count is above.
// If one of these results is cenkalti's Stop (-1), there is no retry. A result
// below 1 ms means 1 ms. If factory or BackOff panics, or returns nil, there is no
// retry; [Validate] reports the problems that the first call shows.
//
// factory is called from many goroutines. It must build a new BackOff, and the BackOffs it wraps,
// each time. Validate reports a factory that returns the same pointer twice.
//
// A *ExponentialBackOff stops after MaxElapsedTime, 15 minutes unless set. Here this limits the age
// of the message: there is no retry if First to Now plus the delay is more. Inside a wrapper
// (WithMaxRetries, WithContext) the limit cannot be seen: set it with [WithMaxAge]. [Remarks] says
// which limit applies. Do not use WithContext: when its context is cancelled, at shutdown for
// instance, no failure is retried any more.
//
// [CheckEnd] accepts an age limit or a *StopBackOff: put other policies in a [Limit].
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

const cenkaltiName = "backoff.FromCenkalti"

func (p fromCenkalti) Delay(f Failure) (wait time.Duration, retry bool) {
	b, _ := p.build()
	limit, limited := p.ageLimit(b)
	wait, err := replay(b, f.Count)
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
	found := problems{name: cenkaltiName}
	found.wrong(p.aged && p.maxAge <= 0,
		"WithMaxAge %s is not positive: leave it out for no limit", p.maxAge)
	first, err := p.build()
	second, again := p.build()
	err = cmp.Or(err, again)
	same := shared(first, second)
	found.wrong(same, "factory returns the same %T each time, a data race: build a new one in it",
		first)
	if err == nil && !same {
		_, err = replay(second, 1)
	}
	return found.join(err)
}

func (p fromCenkalti) CheckEnd() error {
	b, _ := p.build()
	_, limited := p.ageLimit(b)
	if _, stops := b.(*cenkalti.StopBackOff); limited || stops {
		return nil
	}
	return noEnd(fmt.Sprintf("%s (%T)", cenkaltiName, b), "set an age limit with backoff.WithMaxAge, ")
}

func (p fromCenkalti) Remarks() (remarks []string) {
	remark := func(is bool, format string, args ...any) {
		if is {
			remarks = append(remarks, cenkaltiName+": "+fmt.Sprintf(format, args...))
		}
	}
	b, _ := p.build()
	limit, limited := p.ageLimit(b)
	switch b.(type) {
	case *cenkalti.ConstantBackOff, *cenkalti.ZeroBackOff, *cenkalti.StopBackOff:
	case *cenkalti.ExponentialBackOff:
		remark(limited && !p.aged, "the elapsed-time limit of %s is the age of the message, "+
			"counted from its first failure", limit)
	default:
		remark(!limited, "an elapsed-time limit inside the %T has no effect; "+
			"set it with backoff.WithMaxAge", b)
	}
	_, canEnd := b.(cenkalti.BackOffContext)
	remark(canEnd, "once the context given to WithContext is cancelled, "+
		"failures are not retried any more")
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

// build calls the factory. A panic becomes an error, with a BackOff that never retries.
func (p fromCenkalti) build() (b cenkalti.BackOff, err error) {
	b = &cenkalti.StopBackOff{}
	if p.factory == nil {
		return b, errors.New(cenkaltiName +
			": factory is nil: give a func that returns a new BackOff")
	}
	defer recovered("factory", &err)
	built := p.factory()
	if nils.Is(built) {
		return b, fmt.Errorf("%s: factory returns %s: return a new BackOff",
			cenkaltiName, describeNil(built))
	}
	return built, nil
}

// replay returns result number count of b. A panic becomes an error.
func replay(b cenkalti.BackOff, count int) (wait time.Duration, err error) {
	defer recovered("BackOff", &err)
	if e, ok := b.(*cenkalti.ExponentialBackOff); ok {
		// A copy, because the factory may share it. Its clock starts at Reset, and
		// would measure this loop instead of the message's age.
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
		*err = fmt.Errorf("%s: %s panics: %v", cenkaltiName, what, value)
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
