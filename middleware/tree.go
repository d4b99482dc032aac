package middleware

import (
	"slices"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// maxTree bounds how much of an error's tree is looked at: one that wraps
// itself would keep a handler's goroutine for ever.
const maxTree = 10_000

// walk calls visit for err and everything it wraps, depth first, until visit
// returns false. A chain, which is what most errors are, costs no memory.
func walk(err error, visit func(error) bool) {
	var pending []error
	for seen := 0; seen < maxTree; seen++ {
		if err == nil {
			if len(pending) == 0 {
				return
			}
			last := len(pending) - 1
			err, pending = pending[last], pending[:last]
			continue
		}
		if !visit(err) {
			return
		}
		var several []error
		several, err = wrappedBy(err)
		for _, one := range slices.Backward(several) {
			pending = append(pending, one)
		}
	}
}

// wrappedBy returns what is directly below err: several errors, or one.
func wrappedBy(err error) (several []error, one error) {
	switch e := err.(type) {
	case interface{ WrappedErrors() []error }: // hashicorp's multierror
		return e.WrappedErrors(), nil
	case interface{ Unwrap() []error }:
		return e.Unwrap(), nil
	case interface{ Unwrap() error }:
		return nil, e.Unwrap()
	case wmiddleware.RecoveredPanicError:
		if value, ok := e.V.(error); ok {
			return nil, value
		}
	}
	return nil, nil
}

// as is errors.As for err alone, without what it wraps.
func as[T error](err error) (found T, ok bool) {
	if e, ok := err.(T); ok {
		return e, true
	}
	x, ok := err.(interface{ As(target any) bool })
	if !ok {
		return found, false
	}
	target := new(T) // on the heap, and only here
	ok = x.As(target)
	return *target, ok
}
