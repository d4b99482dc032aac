package middleware

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// defaultHoldLimit stays under RabbitMQ's consumer timeout of 30 minutes, after
// which the broker closes the channel (broker fact F16).
const defaultHoldLimit = 25 * time.Minute

// Option changes how a DelayedRetry decides or acts.
type Option func(*settings)

type settings struct {
	limits          limits
	classes         classes
	logger          watermill.LoggerAdapter
	holdLimit       time.Duration // 0: as long as the delivery may be held
	kept            kept
	budget          spending
	errorText       func(error) string // nil: errorText
	deadLetterHooks []func(context.Context, DeadLetter)
	tell            []func(context.Context, Event)
	problems        []error
}

// WithClassifier adds classifiers. The first that has an opinion wins, in the
// order they were given; a mark on the error comes before all of them. Without
// it every error without a mark has the default class.
func WithClassifier(classifiers ...Classifier) Option {
	return func(s *settings) {
		for i, c := range classifiers {
			if isNil(c) {
				s.refuse("WithClassifier: classifier %d is nil", i)
				continue
			}
			s.classes.classifiers = append(s.classes.classifiers, c)
		}
	}
}

// WithDefaultClass sets the class of errors that bear no mark and that no
// classifier has an opinion on. Without it they are retryable.
func WithDefaultClass(class header.Class) Option {
	return func(s *settings) {
		if !class.Known() {
			s.refuse("WithDefaultClass: unknown class %q", class)
		}
		s.classes.otherwise = class
	}
}

// WithMaxAttempts bounds the attempts, the first delivery included: with 1 a
// message is never retried. Less than 1 is an error. The policy may end
// earlier. Messages that come back with as many failures are dead-lettered
// without being handled. Without it the policy alone bounds them, and must.
func WithMaxAttempts(attempts int) Option {
	return func(s *settings) {
		if attempts < 1 {
			s.refuse("WithMaxAttempts: %d is less than 1", attempts)
		}
		s.limits.maxAttempts = attempts
	}
}

// WithMaxAge bounds the time from the first failure to the last attempt: one
// that would begin later, by the delay that its wait queue gives it, is not asked for.
// One that was asked for is made, however late its queue delivers it. It must be positive. Without it a message may grow
// as old as its retries take.
func WithMaxAge(age time.Duration) Option {
	return func(s *settings) {
		if age <= 0 {
			s.refuse("WithMaxAge: %v is not positive", age)
		}
		s.limits.maxAge = age
	}
}

// WithLogger sets the logger: a line for each message that is retried or set
// aside (info) or dead-lettered (error), and for trouble of the machinery. No line holds a
// payload or a stack. Without it nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(s *settings) {
		if isNil(logger) {
			s.refuse("WithLogger: logger is nil")
			return
		}
		s.logger = logger
	}
}

// WithHoldLimit shortens how long a failed message is held, counted from its
// arrival in this process, while it cannot be handed over. It must be positive.
// Without it a message is held until shortly before the broker takes it back: see
// topology.WithConsumerTimeout. Each time that a message is not held any longer
// counts against the delivery limit of a quorum queue before RabbitMQ 4.3.
func WithHoldLimit(limit time.Duration) Option {
	return func(s *settings) {
		if limit <= 0 {
			s.refuse("WithHoldLimit: %v is not positive", limit)
		}
		s.holdLimit = limit
	}
}

// newSettings applies the options and returns every problem in one error.
func newSettings(policy backoff.Policy, options []Option) (settings, error) {
	s := settings{
		limits:  limits{policy: policy, maxAside: defaultMaxAside},
		classes: classes{otherwise: header.ClassRetryable},
		logger:  watermill.NopLogger{},
		kept:    slices.Clone(alwaysKept),
	}
	for i, option := range options {
		if option == nil {
			s.refuse("option %d is nil", i)
			continue
		}
		option(&s)
	}

	s.check(policy, "")
	for i, rule := range s.limits.rules {
		s.check(rule.policy, fmt.Sprintf("WithPolicyFor %d: ", i+1))
	}
	s.checkBudget()
	return s, errors.Join(s.problems...)
}

// check refuses a policy that is invalid, or has no end where none is set.
func (s *settings) check(policy backoff.Policy, whose string) {
	if err := backoff.Validate(policy); err != nil {
		s.refuse("%s%w", whose, err)
	}
	if s.limits.maxAttempts > 0 || s.limits.maxAge > 0 {
		return
	}
	if err := backoff.CheckEnd(policy); err != nil {
		s.refuse("%s%w", whose, err)
	}
}

func (s *settings) refuse(format string, args ...any) {
	s.problems = append(s.problems, fmt.Errorf(format, args...))
}

// isNil reports whether v is nil or an interface around a nil pointer, function
// or the like.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return r.IsNil()
	default:
		return false
	}
}
