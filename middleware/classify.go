package middleware

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/millpond-go/millpond/middleware/header"
)

// Classifier says what class an error has. It gets the handler's error as it is, so it should
// use errors.Is and errors.As. Many goroutines call it at once. A panic is logged and counts
// as no opinion.
type Classifier interface {
	// Classify returns the class of err, or false if it has no opinion. A class other than
	// ClassRetryable and ClassPermanent counts as no opinion.
	Classify(err error) (class header.Class, ok bool)
}

// ClassifierFunc is a function that is a Classifier.
type ClassifierFunc func(err error) (class header.Class, ok bool)

// Classify calls f.
func (f ClassifierFunc) Classify(err error) (header.Class, bool) { return f(err) }

// PermanentErrors takes an error for permanent if errors.Is finds one of errs in it, and has
// no opinion on other errors. A nil among errs matches nothing.
func PermanentErrors(errs ...error) Classifier { return PermanentIf(isOneOf(errs)) }

// RetryableErrors takes an error for retryable if errors.Is finds one of errs in it, and has
// no opinion on other errors. A nil among errs matches nothing.
func RetryableErrors(errs ...error) Classifier { return RetryableIf(isOneOf(errs)) }

// PermanentIf takes an error for permanent if match returns true, and has no opinion on other
// errors. For a type of error, match is backoff.As[*json.SyntaxError](). The constructor that gets
// the classifier refuses a nil match.
func PermanentIf(match func(err error) bool) Classifier {
	return classIf(header.ClassPermanent, match)
}

// RetryableIf takes an error for retryable if match returns true, and has no opinion on other
// errors. For a type of error, match is backoff.As[*json.SyntaxError](). The constructor that gets
// the classifier refuses a nil match.
func RetryableIf(match func(err error) bool) Classifier {
	return classIf(header.ClassRetryable, match)
}

// NetworkErrors takes temporary trouble of the network for retryable, also if the handler's
// error only wraps it:
//
//   - a connection that is refused, reset, aborted, closed or broken
//   - a host or network that is down or unreachable, no local address left
//   - a timeout of the network, but not a bare context.DeadlineExceeded, for which there is
//     RetryableErrors(context.DeadlineExceeded)
//   - a DNS lookup that failed for now; not a name that does not exist
//   - io.EOF and io.ErrUnexpectedEOF, the errors of a lost connection
//
// A decoder that runs out of input also returns io.EOF. Put a classifier for that error
// before this one.
func NetworkErrors() Classifier { return RetryableIf(anyIn(isNetworkError)) }

func classIf(class header.Class, match func(err error) bool) Classifier {
	if match == nil {
		return ClassifierFunc(nil)
	}
	return ClassifierFunc(func(err error) (header.Class, bool) {
		if !match(err) {
			return "", false
		}
		return class, true
	})
}

func isOneOf(errs []error) func(err error) bool {
	targets := slices.Clone(errs)
	return func(err error) bool {
		return slices.ContainsFunc(targets, func(target error) bool {
			return target != nil && errors.Is(err, target)
		})
	}
}

// anyIn reports whether match returns true for an error of the tree.
func anyIn(match func(error) bool) func(error) bool {
	return func(err error) (found bool) {
		walk(err, func(err error) bool {
			found = match(err)
			return !found
		})
		return found
	}
}

// isNetworkError looks at err alone, without the errors that it wraps.
func isNetworkError(err error) bool {
	if err == context.DeadlineExceeded {
		return false // it is a net.Error, but says nothing of a network
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == net.ErrClosed {
		return true
	}
	if slices.Contains(systemErrors, err) {
		return true
	}
	if lookup, ok := as[*net.DNSError](err); ok && lookup.IsTemporary {
		return true
	}
	timeout, ok := as[net.Error](err)
	return ok && timeout.Timeout()
}

// classes are the ways to find the class of an error.
type classes struct {
	snoozes     []snoozeRule
	classifiers []Classifier
	otherwise   header.Class
}

// of returns the class of err as a mark: the error's own mark, else the first match of
// WithSnoozeFor, else the first opinion of a classifier, else the default class. Code of the
// user that panics is a fault and has no opinion.
func (c classes) of(err error) (found mark, faults []fault) {
	var ok bool
	ask := func(what string, f func()) bool {
		ok = false
		if value := contain(f); value != nil {
			faults = append(faults, fault{what, value})
			return false
		}
		return ok
	}
	if ask("error panicked while it was unwrapped", func() { found, ok = markOf(err) }) {
		return found, faults
	}
	for _, rule := range c.snoozes {
		if ask("error panicked while it was compared", func() { ok = rule.match(err) }) {
			return rule.mark, faults
		}
	}
	for _, classifier := range c.classifiers {
		var class header.Class
		if !ask("classifier panicked", func() { class, ok = classifier.Classify(err) }) {
			continue
		}
		if class.Known() {
			return mark{class: class}, faults
		}
		faults = append(faults, fault{"classifier returned an unknown class", class})
	}
	return mark{class: c.otherwise}, faults
}

// contain calls f and returns the value that it panicked with, or nil.
func contain(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}
