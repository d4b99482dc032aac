package backoff

import "errors"

// Is returns a Match for a [Case] that is true for target and for every error
// that wraps it, in the sense of [errors.Is]. Of a nil target, a sentinel that was
// never set, it returns nil, which [Validate] reports.
func Is(target error) func(err error) bool {
	if target == nil {
		return nil
	}
	return func(err error) bool { return errors.Is(err, target) }
}

// As returns a Match for a [Case] that is true for every error that is a T or
// wraps one, in the sense of [errors.As]. T is the type of an error as it is
// returned, often a pointer, or an interface such as net.Error.
func As[T error]() func(err error) bool {
	return func(err error) bool {
		var target T
		return errors.As(err, &target)
	}
}
