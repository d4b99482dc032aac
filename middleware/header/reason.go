package header

// Class says whether another attempt can help.
type Class string

// The classes of an error.
const (
	// ClassRetryable is the class of errors after which a later attempt may succeed.
	ClassRetryable Class = "retryable"
	// ClassPermanent is the class of errors after which no attempt can succeed. The
	// message is dead-lettered at once.
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
	// ReasonExhausted: the policy or WithMaxAttempts allows no further attempt, or
	// would not have allowed this one.
	ReasonExhausted Reason = "exhausted"
	// ReasonMaxAge: the next attempt would come later than WithMaxAge allows.
	ReasonMaxAge Reason = "max_age"
	// ReasonDeadline: the next attempt, or already this one, comes after the message's
	// own expiration.
	ReasonDeadline Reason = "deadline"
	// ReasonOverBudget: the retry was over budget, and budget.Config.DeadLetter is set.
	ReasonOverBudget Reason = "over_budget"
	// ReasonUndecodable: the marshaler refused the delivery; no handler saw it.
	ReasonUndecodable Reason = "undecodable"
	// ReasonCrashLoop: the process ended again and again while it handled the message.
	ReasonCrashLoop Reason = "crash_loop"
	// ReasonOversized: the message's own headers leave no room for the retry state.
	ReasonOversized Reason = "oversized"
	// ReasonMisdirected: the message belongs to another queue and could not be sent
	// there. It came here because its routing key was changed while it waited.
	ReasonMisdirected Reason = "misdirected"
	// ReasonCancelled: an operator ended the wait of the message (operate.Cancel).
	ReasonCancelled Reason = "cancelled"
)
