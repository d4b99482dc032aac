package header

import "time"

// RetryState is the state of a message's retries, which travels as headers.
type RetryState struct {
	// Failures counts the failures so far.
	Failures int
	// FirstSeen is the time at which the message was first republished or snoozed.
	FirstSeen time.Time
	// FirstFailure is the time at which the first attempt failed.
	FirstFailure time.Time
	// Delay is the delay asked for after the last failure. A snooze does not change
	// it.
	Delay time.Duration
	// Snoozed is the delay of the last snooze; zero if the last attempt failed.
	Snoozed time.Duration
	// NotBefore is set while a message waits in several rounds.
	NotBefore time.Time
	// Error is the text of the last error, cut to MaxErrorBytes.
	Error string
	// Class is the class of the last error.
	Class Class
	// OriginExchange and OriginRoutingKey are those with which the message first came.
	OriginExchange, OriginRoutingKey string
	// Inner is true if a DelayedRetry inside another one decided on the last failure.
	// Before the next attempt only the limits of the inner one count.
	Inner bool
	// Deadline is the end of the message's own expiration; zero if it has none.
	Deadline time.Time
	// DeadlineFrom names the start of the expiration, such as [FromTimestamp]. It is
	// empty without a deadline, and if the version that wrote the deadline did not
	// write the start.
	DeadlineFrom string
	// Interruptions counts how often the message was set aside as a suspect of
	// crashing the process. A handler that returns clears the suspicion.
	Interruptions int
	// WaitingSince is the time at which the message was last republished or snoozed.
	// The rounds of a longer wait do not change it.
	WaitingSince time.Time
	// Traceparent is the span of the last attempt, as W3C Trace Context writes it.
	// The tracing middleware links to it and then writes the span of this attempt.
	// It is empty without tracing.
	Traceparent string
	// History has an entry for each failed attempt, oldest first. After a dead letter
	// was moved back it begins with the attempts of the earlier rounds.
	History []AttemptError

	// Epoch is the fencing token of a queue that is handled in order: it rises with each
	// change of the process that handles the queue. A store that remembers the highest
	// epoch can refuse a process that was frozen and wakes up. It is zero without an order.
	Epoch uint64

	// Reason, Handler and DeadAt are set when the message is dead-lettered.
	Reason  Reason
	Handler string
	DeadAt  time.Time

	// Metadata holds the keys of WithKeptMetadata, with the values that the message
	// had when its handler returned. The Republisher writes the values that differ
	// from the arrived ones as headers, also to a dead letter. They are part of the
	// message: neither Headers nor Parse knows them. All copies of the state share the
	// map; do not change it.
	Metadata map[string]string
}

// HasWaited reports whether the message was republished or snoozed before. Only
// such a message can be past a limit.
func (n *RetryState) HasWaited() bool { return n.Failures > 0 || !n.FirstSeen.IsZero() }

// AttemptError is one failed attempt in the history of a message.
type AttemptError struct {
	// Attempt is the number of the attempt, 1 for the first delivery.
	Attempt int `json:"attempt"`
	// At is the time of the failure.
	At time.Time `json:"at"`
	// Handler is the name of the handler in the router.
	Handler string `json:"handler,omitempty"`
	// Class is the class of the error.
	Class Class `json:"class,omitempty"`
	// Error is the text of the error, cut.
	Error string `json:"error,omitempty"`
	// Delay is the delay asked for until the next attempt, as Go prints it. It is
	// empty on the last.
	Delay string `json:"delay,omitempty"`
	// Reason is the reason for dead-lettering; empty unless this was the last attempt.
	Reason Reason `json:"reason,omitempty"`
}
