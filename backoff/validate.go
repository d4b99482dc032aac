package backoff

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// maxListed is the number of distinct delays above which a policy counts as one
// that cannot list them: each would be a queue.
const maxListed = 1000

// Validate returns everything that is wrong with p, and with the policies it
// wraps, as one error made by [errors.Join]; nil if nothing is. A p that is nil,
// or a nil pointer or func, is an error.
//
// A policy takes part with a method
//
//	Validate() error
//
// in which a wrapper joins its own problems with Validate of what it wraps.
// Without the method a policy is valid.
func Validate(p Policy) error {
	if isNil(p) {
		return fmt.Errorf("policy is %s: use backoff.None to never retry", describeNil(p))
	}
	if v, ok := p.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// CheckEnd returns an error that wraps [ErrNoEnd], and names the ways out,
// unless p is known to stop retrying or an [Unbounded] says that it shall not.
// It does not validate: a nil p never retries, so it has an end.
//
// A policy takes part with a method
//
//	CheckEnd() error
//
// that returns nil if it stops by itself; a wrapper that adds no end returns
// CheckEnd of what it wraps. Without the method, only a policy that lists no
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
	if delays, known := Delays(p); known && len(delays) == 0 {
		return nil
	}
	return noEnd(fmt.Sprintf("%T", p), "")
}

// Delays returns every delay that p may return, in rising order, each once and
// within 1 ms and [MaxDelay]. known is false, and delays nil, if p cannot tell,
// or has more than 1000 of them. No delays, but known, means that p never
// retries. The caller owns the slice.
//
// A jitter may return any delay. It lists a few, its wait steps, none of its delays
// above the last of them: where each delay needs a queue, a delay waits on the
// next longer wait step.
//
// A policy takes part with a method
//
//	Delays() []time.Duration
//
// that returns nil if it cannot tell and an empty slice that is not nil if it
// never retries. Order and duplicates do not matter. A type that embeds a policy
// and changes its Delay has to change its Delays, too.
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
	delays = slices.Compact(delays)
	if len(delays) > maxListed {
		return nil, false
	}
	return delays, true
}

// Remarks returns what the user should be told when p is handed over, one
// sentence an entry; nil if there is nothing. Remarks are no errors.
//
// A policy takes part with a method
//
//	Remarks() []string
//
// to which a wrapper adds Remarks of what it wraps.
func Remarks(p Policy) []string {
	if isNil(p) {
		return nil
	}
	if r, ok := p.(interface{ Remarks() []string }); ok {
		return r.Remarks()
	}
	return nil
}

// isNil reports whether v is nil or holds a nil pointer or func. A nil slice is
// a value like any other: a List without entries.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	value := reflect.ValueOf(v)
	switch value.Kind() {
	case reflect.Pointer, reflect.Func:
		return value.IsNil()
	default:
		return false
	}
}

// describeNil names a v for which isNil holds.
func describeNil(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprintf("a nil %T", v)
}
