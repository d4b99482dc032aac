package middleware

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
)

// Selector says which failures a policy is for: those that match all of the
// fields that are set. Names match exactly. At least one field must be set.
type Selector struct {
	// Handler is the name of the handler in the router. Default: any.
	Handler string
	// Queue is the AMQP queue the message was consumed from. Default: any.
	Queue string
	// Topic is Watermill's topic that the handler subscribes to. Default: any.
	Topic string
	// Error matches the errors on which it has an opinion, whichever class that
	// is; NetworkErrors() for example. It is asked about retryable errors only. One
	// that panics is logged and matches nothing. Default: any.
	Error Classifier
}

// WithPolicyFor gives the failures that match selector a policy of their own.
// The first that matches wins, in the order of the options. WithMaxAttempts,
// WithMaxAge and WithSnoozeLimit count for all policies. One number is counted:
// a message that failed twice under one policy is at its third failure under
// another. Without it, and for all other failures, the policy given to
// NewDelayedRetry counts.
//
// An empty selector is an error, and one that is never reached because an
// earlier one matches all that it does.
func WithPolicyFor(selector Selector, policy backoff.Policy) Option {
	return func(s *settings) {
		number := len(s.limits.rules) + 1
		if selector.empty() {
			s.refuse("WithPolicyFor %d: selector is empty: give its policy to NewDelayedRetry", number)
		}
		if selector.Error != nil && isNil(selector.Error) {
			s.refuse("WithPolicyFor %d: classifier of the selector is nil", number)
		}
		for i, earlier := range s.limits.rules {
			if !earlier.empty() && earlier.covers(selector) {
				s.refuse("WithPolicyFor %d: never reached, for WithPolicyFor %d matches all of it", number, i+1)
			}
		}
		s.limits.rules = append(s.limits.rules, rule{selector, policy})
	}
}

// Policies returns the policy given to NewDelayedRetry and then those of
// WithPolicyFor in their order, as topology.ForPolicy takes them. The caller owns
// the slice.
func (r *DelayedRetry) Policies() []backoff.Policy { return r.limits.policies() }

func (s Selector) empty() bool {
	return s.Handler == "" && s.Queue == "" && s.Topic == "" && s.Error == nil
}

// rule is a policy for some failures only.
type rule struct {
	Selector
	policy backoff.Policy
}

// place is where a message is handled.
type place struct{ handler, queue, topic string }

// placeOf reads the place from the context of a message and its delivery.
func placeOf(ctx context.Context, d *Delivery) place {
	return place{
		handler: message.HandlerNameFromCtx(ctx),
		queue:   d.Queue,
		topic:   message.SubscribeTopicFromCtx(ctx),
	}
}

// matches reports whether the rule may apply at the place, whatever the error.
func (r rule) matches(at place) bool {
	return anyOr(r.Handler, at.handler) && anyOr(r.Queue, at.queue) && anyOr(r.Topic, at.topic)
}

// covers reports whether the rule matches all that the selector does.
func (r rule) covers(s Selector) bool {
	return r.Error == nil && anyOr(r.Handler, s.Handler) && anyOr(r.Queue, s.Queue) && anyOr(r.Topic, s.Topic)
}

func anyOr(want, got string) bool { return want == "" || want == got }

// choose returns the policy for a failure; what panics is noted in d.
func (l limits) choose(f failure, d *decision) backoff.Policy {
	for i, rule := range l.rules {
		if !rule.matches(f.at) {
			continue
		}
		matched := rule.Error == nil
		if !matched {
			if value := contain(func() { _, matched = rule.Error.Classify(f.err) }); value != nil {
				d.faults = append(d.faults, fault{fmt.Sprintf("classifier of WithPolicyFor %d panicked", i+1), value})
				continue
			}
		}
		if matched {
			return rule.policy
		}
	}
	return l.policy
}

func (l limits) policies() []backoff.Policy {
	all := []backoff.Policy{l.policy}
	for _, rule := range l.rules {
		all = append(all, rule.policy)
	}
	return all
}
