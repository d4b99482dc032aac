package middleware

import (
	"slices"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// maxTree bounds how much of an error's tree is looked at: one that wraps
// itself would keep a handler's goroutine for ever.
const maxTree = 10_000

// walk calls visit for err and everything it wraps, depth first, until visit
// returns false.
func walk(err error, visit func(error) bool) {
	pending := []error{err}
	for seen := 0; len(pending) > 0 && seen < maxTree; seen++ {
		last := len(pending) - 1
		next := pending[last]
		pending = pending[:last]
		if next == nil {
			continue
		}
		if !visit(next) {
			return
		}
		wrapped := wrappedBy(next)
		slices.Reverse(wrapped)
		pending = append(pending, wrapped...)
	}
}

// wrappedBy returns the errors directly below err, in a slice of its own.
func wrappedBy(err error) []error {
	switch e := err.(type) {
	case interface{ WrappedErrors() []error }: // hashicorp's multierror
		return slices.Clone(e.WrappedErrors())
	case interface{ Unwrap() []error }:
		return slices.Clone(e.Unwrap())
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	case wmiddleware.RecoveredPanicError:
		if value, ok := e.V.(error); ok {
			return []error{value}
		}
	}
	return nil
}

// as is errors.As for err alone, without what it wraps.
func as[T error](err error) (T, bool) {
	if e, ok := err.(T); ok {
		return e, true
	}
	var e T
	x, ok := err.(interface{ As(target any) bool })
	return e, ok && x.As(&e)
}
