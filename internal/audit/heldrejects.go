package audit

import (
	"fmt"
	"time"
)

// delayedRetry is the delayed retry of a quorum queue, as argument and policy set it together. The
// policy's type goes before the argument's, and of two numbers the broker takes the less (F14).
type delayedRetry struct {
	kind string
	// A rejected message waits least times its delivery count, at most most.
	least, most time.Duration
}

func (f *Facts) delayedRetry() delayedRetry {
	number := func(key string) (ms int64) {
		argument, set := WholeNumber(f.Arguments["x-"+key])
		policy, ruled := WholeNumber(f.Policy[key])
		switch {
		case set && ruled:
			return min(argument, policy)
		case ruled:
			return policy
		}
		return argument
	}
	kind, ruled := f.Policy["delayed-retry-type"].(string)
	if !ruled {
		kind, _ = f.Arguments["x-delayed-retry-type"].(string)
	}
	least, most := number("delayed-retry-min"), number("delayed-retry-max")
	if most == 0 {
		most = least
	}
	return delayedRetry{
		kind, time.Duration(min(least, most)) * time.Millisecond, time.Duration(most) * time.Millisecond,
	}
}

// HeldRejects returns how long the queue holds a rejected message with a delivery count, as far as
// that can be seen; nil if it holds none, or not rejected ones alone. native.Strategy consumes only
// queues that do: there the count has failures.
func (f *Facts) HeldRejects() func(count int) time.Duration {
	has := f.delayedRetry()
	if !f.Version.AtLeast(4, 3) || f.Kind == Classic || !has.counts() || has.least == 0 {
		return nil
	}
	return Held(has.least, has.most)
}

// CheckHeld refuses delays that no queue can have.
func CheckHeld(least, most time.Duration) error {
	if least < time.Millisecond || most < least || least%time.Millisecond+most%time.Millisecond > 0 {
		return fmt.Errorf("a queue cannot hold rejected messages for %v to %v: set both to whole "+
			"milliseconds, at least one, and the longer delay not below the shorter", least, most)
	}
	return nil
}

// Holds reports whether a queue that holds rejected messages from least to most holds one for the
// delay at some delivery count.
func Holds(least, most, delay time.Duration) bool {
	return delay == most || delay > 0 && delay < most && delay%least == 0
}

// Held returns how long a queue that holds rejected messages from least to most holds one with a
// delivery count.
func Held(least, most time.Duration) func(count int) time.Duration {
	return func(count int) time.Duration {
		if count > int(most/least) {
			return most
		}
		return time.Duration(count) * least
	}
}

// RefuseRejects returns an error behind what if the queue does not hold rejected messages as the
// plan says. Without that, a rejected message comes back at once.
func (f *Facts) RefuseRejects(what string, p Plan) error {
	if p.RejectMin == 0 {
		return nil
	}
	want := fmt.Sprintf("x-delayed-retry-type failed, x-delayed-retry-min %d and "+
		"x-delayed-retry-max %d", p.RejectMin.Milliseconds(), p.RejectMax.Milliseconds())
	has := f.delayedRetry()
	ttl := f.Arguments["x-message-ttl"]
	if ruled, set := f.Policy["message-ttl"]; set {
		ttl = ruled
	}
	switch {
	case !f.Version.AtLeast(4, 3):
		return fmt.Errorf("%s RabbitMQ %d.%d ignores the delayed retry of a queue, so that rejected "+
			"messages would come back at once (F14): use another strategy, or RabbitMQ 4.3",
			what, f.Version.Major, f.Version.Minor)
	case f.Kind != "" && f.Kind != Quorum:
		return fmt.Errorf("%s it is a %s queue, and only a quorum queue holds rejected messages: "+
			"declare a new quorum queue with %s", what, f.Kind, want)
	case has.kind == "all":
		return fmt.Errorf("%s its delayed retry of the type all holds messages that are given back, "+
			"too, as at each end of a process: set x-delayed-retry-type, or delayed-retry-type of the "+
			"policy, to failed", what)
	case !has.counts() || has.least != p.RejectMin || has.most != p.RejectMax:
		return fmt.Errorf("%s it must hold rejected messages for %v to %v, and as far as its arguments "+
			"and policies can be seen, it %s: declare it with Queue.Arguments %s; or set a policy and use "+
			"WithManagement, without which policies cannot be seen",
			what, p.RejectMin, p.RejectMax, has, want)
	case ttl != nil:
		return fmt.Errorf("%s its message-ttl of %v ms takes rejected messages out of it, because they "+
			"stay in it from their first attempt to their last: remove the argument or the key of the "+
			"policy", what, ttl)
	case !f.DeadLetters && !f.deadLettersWith(p):
		return fmt.Errorf("%s a delivery limit counts its failures, and a policy may lower the limit at "+
			"any time: the broker would drop messages, because the queue has no dead-letter target: "+
			"declare it with Queue.Arguments x-dead-letter-exchange %q and x-dead-letter-routing-key %q, "+
			"or set them by a policy and use WithManagement", what, p.DeadExchange, p.DeadKey)
	}
	return nil
}

// RejectsUnseen reports whether only the silence of the management API keeps RefuseRejects from its
// answer: a policy may let the queue hold rejected messages.
func (f *Facts) RejectsUnseen() bool {
	return f.PolicyPending && f.Version.AtLeast(4, 3) && (f.Kind == "" || f.Kind == Quorum)
}

// deadLettersWith reports whether the target of dropped messages is the dead-letter queue of the
// plan, which Subscribe declares after its look at the queue.
func (f *Facts) deadLettersWith(p Plan) bool {
	return p.DeadExchange == "" && p.DeadKey != "" && f.Missing == fmt.Sprintf("queue %q", p.DeadKey)
}

// counts reports whether the queue holds messages that are rejected, and no others.
func (r delayedRetry) counts() bool { return r.kind == "failed" }

// String completes a sentence about a queue.
func (r delayedRetry) String() string {
	if !r.counts() || r.least == 0 {
		return "holds none"
	}
	return fmt.Sprintf("holds them for %v to %v", r.least, r.most)
}

// RefuseOrder returns an error behind what if the queue cannot be handled in order, although the
// plan says so: several consumers would be active at once, or its delivery limit is too low.
func (f *Facts) RefuseOrder(what string, p Plan) error {
	if p.Line == "" {
		return nil
	}
	if limit, _ := f.DeliveryLimit(); limit < DefaultDeliveryLimit {
		return fmt.Errorf("%s its delivery limit of %d is too low for messages that are handled in "+
			"order, because each end of a process counts for every message that it had: declare the queue "+
			"with Queue.Arguments x-delivery-limit of at least %d, or raise the policy", what, limit,
			DefaultDeliveryLimit)
	}
	if f.Arguments["x-single-active-consumer"] == true {
		return nil
	}
	return fmt.Errorf("%s it has no single active consumer, so its messages cannot be handled in "+
		"order: declare a new queue with Queue.Arguments x-single-active-consumer true, because a "+
		"queue that exists cannot get it, or use a strategy other than inorder.Strategy", what)
}
