package header

// Class says whether trying again can help.
type Class string

// The classes of an error.
const (
	// ClassRetryable: a later attempt may succeed.
	ClassRetryable Class = "retryable"
	// ClassPermanent: no attempt can succeed; the message is dead-lettered at once.
	ClassPermanent Class = "permanent"
)

// Known reports whether c is one of the classes that are defined here.
func (c Class) Known() bool { return c == ClassRetryable || c == ClassPermanent }

// Reason says why a message was dead-lettered.
type Reason string

// The reasons for dead-lettering.
const (
	// ReasonPermanent: the error is permanent.
	ReasonPermanent Reason = "permanent"
	// ReasonExhausted: the policy or WithMaxAttempts allows no further attempt,
	// or would not have allowed this one.
	ReasonExhausted Reason = "exhausted"
	// ReasonMaxAge: the next attempt would come later than WithMaxAge allows.
	ReasonMaxAge Reason = "max_age"
	// ReasonDeadline: the next attempt would come after the message's own
	// expiration, or this one does.
	ReasonDeadline Reason = "deadline"
	// ReasonOverBudget: the retry was over budget, and BudgetConfig.DeadLetter set.
	ReasonOverBudget Reason = "over_budget"
	// ReasonUndecodable: the marshaler refused the delivery; no handler saw it.
	ReasonUndecodable Reason = "undecodable"
	// ReasonCrashLoop: the process ended again and again while it handled the message.
	ReasonCrashLoop Reason = "crash_loop"
	// ReasonOversized: the message's own headers leave no room for the notes.
	ReasonOversized Reason = "oversized"
	// ReasonMisdirected: the message belongs to another queue and came here because its
	// routing key was changed while it waited, and it could not be sent on.
	ReasonMisdirected Reason = "misdirected"
	// ReasonCancelled: an operator took it out of its wait (operate.Cancel).
	ReasonCancelled Reason = "cancelled"
)
