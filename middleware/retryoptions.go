package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/nils"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

// Option changes how a DelayedRetry decides or acts.
type Option func(*settings) error

type settings struct {
	limits    limits
	classes   classes
	logger    watermill.LoggerAdapter
	observers []Observer
	own       []Observer // of WithObserver
	kept      kept
	budgets   []spending
	errorText func(error) string // nil: errorText
	hooks     []func(context.Context, DeadLetter)
}

// WithClassifier adds classifiers. The first opinion wins, in the order of the classifiers; a
// mark on the error comes before all of them.
//
// Default: none, so that every error without a mark has the default class.
func WithClassifier(classifiers ...Classifier) Option {
	return func(s *settings) error {
		s.classes.classifiers = append(s.classes.classifiers, classifiers...)
		return noneNil("WithClassifier: classifier", classifiers)
	}
}

// WithDefaultClass sets the class of errors that have no mark, and on which no classifier has
// an opinion.
//
// Default: header.ClassRetryable.
func WithDefaultClass(class header.Class) Option {
	return func(s *settings) error {
		s.classes.otherwise = class
		if !class.Known() {
			return fmt.Errorf("WithDefaultClass: unknown class %q", class)
		}
		return nil
	}
}

// WithMaxAttempts limits the attempts, the first delivery included: with 1 a message is never
// retried. Less than 1 is an error. The policy may end earlier. A message that comes back with
// as many failures is dead-lettered without being handled.
//
// Default: the policy alone limits the attempts, and must do so.
func WithMaxAttempts(attempts int) Option {
	return func(s *settings) error {
		s.limits.maxAttempts = attempts
		if attempts < 1 {
			return fmt.Errorf("WithMaxAttempts: %d is less than 1", attempts)
		}
		return nil
	}
}

// WithMaxAge limits the time from the first failure to the last attempt. An attempt that would
// begin later, by the delay of its wait queue, is not asked for. An attempt that was asked for
// is made, however late its queue delivers it. The age must be positive.
//
// Default: no limit.
func WithMaxAge(age time.Duration) Option {
	return func(s *settings) error {
		s.limits.maxAge = age
		return positive("WithMaxAge", age)
	}
}

// WithSnoozeLimit limits how long Snooze may delay a message, counted from when it was first
// snoozed or republished. After that, Snooze means RetryAfter. The limit must be positive.
//
// Default: 24 hours.
func WithSnoozeLimit(limit time.Duration) Option {
	return func(s *settings) error {
		s.limits.maxSnooze = limit
		return positive("WithSnoozeLimit", limit)
	}
}

// WithSnoozeFor treats an error as if it had the mark Snooze with d, if errors.Is finds one of
// errs in it: the message comes back after d, and no attempt is spent. It is for code that
// cannot mark its errors, such as a circuit breaker between DelayedRetry and the handler:
//
//	middleware.WithSnoozeFor(30*time.Second, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)
//
// A mark on the error comes first, then WithSnoozeFor in the order of the options, then the
// classifiers. WithSnoozeLimit applies. Errors are a d that is not positive, no errs, and a
// nil among errs.
//
// Default: only the mark Snooze spends no attempt.
func WithSnoozeFor(d time.Duration, errs ...error) Option {
	return func(s *settings) error {
		s.classes.snoozes = append(s.classes.snoozes, snoozeRule{isOneOf(errs), snoozeFor(d)})
		problem := noneNil("WithSnoozeFor: error", errs)
		if len(errs) == 0 {
			problem = errors.New("WithSnoozeFor: no errors are named")
		}
		return errors.Join(positive("WithSnoozeFor", d), problem)
	}
}

// Selector says which failures a policy is for: a failure must match all fields that are set.
// Names match exactly. At least one field must be set.
type Selector struct {
	// Handler is the name of the handler in the router.
	//
	// Default: any.
	Handler string
	// Queue is the AMQP queue that the message was consumed from.
	//
	// Default: any.
	Queue string
	// Topic is Watermill's topic that the handler subscribes to.
	//
	// Default: any.
	Topic string
	// Error matches the errors on which it has an opinion, of either class; NetworkErrors()
	// for example. It is asked about retryable errors only. A panic is logged and matches
	// nothing.
	//
	// Default: any.
	Error Classifier
}

func (s Selector) empty() bool {
	return s.Handler == "" && s.Queue == "" && s.Topic == "" && s.Error == nil
}

// WithPolicyFor gives the failures that match selector a policy of their own. The first match
// wins, in the order of the options. WithMaxAttempts, WithMaxAge and WithSnoozeLimit apply to
// all policies. All policies share one count: a message that failed twice under one policy is
// at its third failure under another.
//
// A selector that matches no handler is logged a minute after each handler has had a message.
//
// An empty selector is an error, and so is a selector that is never reached because an earlier
// one matches the same failures.
//
// Default: the policy of NewDelayedRetry decides about every failure.
func WithPolicyFor(selector Selector, policy backoff.Policy) Option {
	return func(s *settings) error {
		var problems []error
		number := len(s.limits.rules) + 1
		refuse := func(format string, args ...any) {
			prefix := fmt.Sprintf("WithPolicyFor %d: ", number)
			problems = append(problems, fmt.Errorf(prefix+format, args...))
		}
		if selector.empty() {
			refuse("selector is empty: give its policy to NewDelayedRetry")
		}
		if selector.Error != nil && nils.Is(selector.Error) {
			refuse("classifier of the selector is nil")
		}
		for i, earlier := range s.limits.rules {
			if !earlier.empty() && earlier.covers(selector) {
				refuse("never reached, because WithPolicyFor %d matches the same failures", i+1)
			}
		}
		s.limits.rules = append(s.limits.rules, rule{Selector: selector, policy: policy})
		return errors.Join(problems...)
	}
}

// WithLogger sets the logger: a line for each message that is retried or snoozed (info) or
// dead-lettered (error), and for each failure of the hand-over. No line holds a payload or a
// stack. watermill.NopLogger logs nothing.
//
// Default: the logger of the republisher, if it has one; else nothing is logged.
func WithLogger(logger watermill.LoggerAdapter) Option {
	return func(s *settings) error {
		s.logger = logger
		if nils.Is(logger) {
			return errors.New("WithLogger: logger is nil")
		}
		return nil
	}
}

// WithObserver adds observers, which are told of each event in their order, after the observers of
// the republisher. One that is among both is told once, unless its values cannot be compared, as
// those of ObserverFunc cannot. A Subscriber that was made with the DelayedRetry tells them its own
// decisions, too. News of brakes and of stranded queues are the Client's: an observer of everything
// belongs to topology.WithObserver. If two DelayedRetry are around a handler, the observers of the
// deciding one are told.
//
// WithDeadLetterHook has the history and the message of a dead letter. An Event has neither,
// because there is one for each message.
//
// Default: the observers of the republisher alone; without any no event is made.
func WithObserver(observers ...Observer) Option {
	return func(s *settings) error {
		s.observers = append(s.observers, observers...)
		return noneNil("WithObserver: observer", observers)
	}
}

// WithErrorText sets the text of a handler's error in the headers of the message, in its history
// and in the log. Everyone who may read a queue can read it, and an error often quotes its
// input; RedactURLs removes URLs. text is called once for each failure, with the handler's
// error or a *PanicError, and its result is cut like any text. If text panics, the error's
// type stands instead. Nil is an error. Classifiers, policies and hooks see the error itself.
//
// Default: the text of Error, and of a panic its value, never a stack.
func WithErrorText(text func(error) string) Option {
	return func(s *settings) error {
		s.errorText = text
		if text == nil {
			return errors.New("WithErrorText: text is nil")
		}
		return nil
	}
}

// DeadLetter is a message that was dead-lettered, for WithDeadLetterHook.
type DeadLetter struct {
	// Message is the message that was handled last, as the handler left it. If the Subscriber
	// has dead-lettered it, Message is made of the delivery without the Marshaler: its payload
	// is the body, its metadata the headers as text, its UUID the message id of the delivery.
	Message *message.Message
	// Queue is the AMQP queue that it was consumed from, Topic Watermill's topic. With
	// ReasonMisdirected Queue is the queue that the message belongs to.
	Queue, Topic string
	// Err is the handler's last error. It is nil if the handler was not called, because the
	// message arrived past its limit; State.Error is the text of the last error then, or says why
	// there is none. If the Subscriber has dead-lettered the message, Err is its cause.
	Err error
	// State went with the message: Reason, Handler, Class, Failures and, in History, every
	// attempt, oldest first. If there were very many, the oldest are missing.
	State header.RetryState
}

// WithDeadLetterHook calls hook for each dead letter of this process, after the broker has
// confirmed it, with any reason. Several hooks are called in their order, each once for a dead
// letter. Some dead letters the Subscriber makes without DelayedRetry: ReasonUndecodable,
// ReasonCrashLoop, ReasonMisdirected, and ReasonOversized of a message that the router nacked. A
// Subscriber calls the hooks of the DelayedRetries that it was made with.
//
// No hook of this process is called for a dead letter that another process makes: an operator by
// operate.Cancel (ReasonCancelled), or the broker by a policy.
//
// For a dead letter of DelayedRetry the hook runs in the handler's goroutine, with the context
// that the message entered DelayedRetry with. For one of the Subscriber it runs in another
// goroutine, with the context of the delivery. The context ends at the latest at
// Delivery.HoldUntil, shortly before the broker takes the delivery back.
//
// The message is acked after the hook, so the hook should be quick, and must return when its
// context is done. A hook that hangs all the same hangs as a handler does: it keeps its place of
// WithConcurrency, and the broker delivers the message again, which is dead-lettered again. The
// Subscriber waits for the hook of a dead letter that it made until HoldUntil only, and then acks
// the message and logs an error. A panic is logged and changes nothing.
// If the process ends meanwhile, the message may be dead-lettered and told twice.
//
// Default: only the log and the observers tell of a dead letter.
func WithDeadLetterHook(hook func(ctx context.Context, dead DeadLetter)) Option {
	return func(s *settings) error {
		s.hooks = append(s.hooks, hook)
		if hook == nil {
			return errors.New("WithDeadLetterHook: hook is nil")
		}
		return nil
	}
}

// WithKeptMetadata names metadata keys that are kept: the next attempt and the dead letter see
// the values that a handler or a middleware set before the failure. All other changes of the
// metadata are lost, because the copy is the message as it arrived. Deleting a kept key has no
// effect. A value is logged and not kept if it is not UTF-8, or if all kept metadata of the
// message would exceed 8 KiB.
//
// Errors are an empty key, a key that is not UTF-8 or longer than 255 bytes, and a key of this
// library or the broker: "millpond-…", "x-…", CC and BCC.
//
// Default: Watermill's correlation id, which is always kept.
func WithKeptMetadata(keys ...string) Option {
	return func(s *settings) error {
		var problems []error
		for _, key := range keys {
			if why := unfit(key); why != "" {
				problems = append(problems, fmt.Errorf("WithKeptMetadata: key %.300q %s", key, why))
			} else if !slices.Contains(s.kept, key) {
				s.kept = append(s.kept, key)
			}
		}
		return errors.Join(problems...)
	}
}

// unfit says why a key cannot be kept; empty if it can.
func unfit(key string) string {
	const longest = 255 // of a header's name: a longer one ends the connection
	switch {
	case key == "":
		return "is empty"
	case len(key) > longest:
		return fmt.Sprintf("is longer than %d bytes", longest)
	case !utf8.ValidString(key):
		return "is not UTF-8"
	case strings.HasPrefix(key, "millpond-"):
		return "belongs to this library"
	case strings.HasPrefix(key, "x-"), key == "CC", key == "BCC":
		return "belongs to the broker"
	}
	return ""
}

// newSettings applies the options and returns every problem in one error.
func newSettings(
	republisher Republisher, policy backoff.Policy, options []Option,
) (settings, error) {
	s := settings{
		limits:  limits{policy: policy, maxSnooze: 24 * time.Hour},
		classes: classes{otherwise: header.ClassRetryable},
		kept:    slices.Clone(alwaysKept),
	}
	var problems []error
	if nils.Is(republisher) {
		problems = append(problems, errors.New("republisher is nil"))
	}
	for i, option := range options {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i))
			continue
		}
		problems = append(problems, option(&s))
	}
	s.inherit(republisher)
	for i, p := range s.limits.policies() {
		if err := s.check(p); err != nil && i > 0 {
			problems = append(problems, fmt.Errorf("WithPolicyFor %d: %w", i, err))
		} else {
			problems = append(problems, err)
		}
	}
	return s, errors.Join(append(problems, s.checkBudgets())...)
}

// inherit takes the logger of the republisher, if no option names one, and puts its observers
// before those of the options.
func (s *settings) inherit(republisher Republisher) {
	s.own = s.observers
	if c, ok := clientOf(republisher); ok {
		if s.logger == nil {
			s.logger = c.Logger
		}
		s.observers = observe.Union(c.Observers.([]Observer), s.own)
	}
	if nils.Is(s.logger) {
		s.logger = watermill.NopLogger{}
	}
}

func clientOf(republisher Republisher) (c seam.Client, ok bool) {
	if seam.ClientOf == nil || nils.Is(republisher) {
		return c, false
	}
	return seam.ClientOf(republisher)
}

// check refuses a policy that is invalid, or has no end although none is set.
func (s *settings) check(policy backoff.Policy) error {
	err := backoff.Validate(policy)
	if s.limits.maxAttempts > 0 || s.limits.maxAge > 0 {
		return err
	}
	return errors.Join(err, backoff.CheckEnd(policy))
}

func positive(option string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s: %v is not positive", option, d)
	}
	if d < time.Millisecond {
		return fmt.Errorf("%s: %v is below 1ms: is its unit missing, as in 5*time.Second?", option, d)
	}
	return nil
}

// noneNil refuses nil among the arguments of an option.
func noneNil[T any](name string, all []T) error {
	var problems []error
	for i, one := range all {
		if nils.Is(one) {
			problems = append(problems, fmt.Errorf("%s %d is nil", name, i))
		}
	}
	return errors.Join(problems...)
}
