package middleware

import (
	"errors"
	"slices"

	"github.com/millpond-go/millpond/middleware/header"
)

// PermanentErrors takes every error for permanent that is one of errs in the
// sense of errors.Is, and has no opinion on others. Nil values among errs match
// nothing.
func PermanentErrors(errs ...error) Classifier { return PermanentIf(isOneOf(errs)) }

// RetryableErrors takes every error for retryable that is one of errs in the
// sense of errors.Is, and has no opinion on others. Nil values among errs match
// nothing.
func RetryableErrors(errs ...error) Classifier { return RetryableIf(isOneOf(errs)) }

// PermanentType takes every error for permanent that is a T in the sense of
// errors.As, and has no opinion on others. T may be an interface:
// PermanentType[error] matches every error.
func PermanentType[T error]() Classifier { return PermanentIf(isA[T]) }

// RetryableType takes every error for retryable that is a T in the sense of
// errors.As, and has no opinion on others. T may be an interface:
// RetryableType[error] matches every error.
func RetryableType[T error]() Classifier { return RetryableIf(isA[T]) }

// PermanentIf takes every error for permanent that match returns true for, and
// has no opinion on others. A nil match is refused where the classifier is
// handed over.
func PermanentIf(match func(err error) bool) Classifier { return classIf(header.ClassPermanent, match) }

// RetryableIf takes every error for retryable that match returns true for, and
// has no opinion on others. A nil match is refused where the classifier is
// handed over.
func RetryableIf(match func(err error) bool) Classifier { return classIf(header.ClassRetryable, match) }

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

func isA[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}
