package header

// Headers of a message that waits or returns: the live notes. All are strings;
// times are RFC 3339 with nanoseconds in UTC, durations as Go prints them.
// None begins with "x-", which headers exchanges ignore (broker fact F8).
const (
	// QueueKey names the queue the live notes belong to. Where it is not the
	// consuming queue the live notes are dropped.
	Queue = "millpond-queue"
	// FailuresKey counts the failures so far, decimal.
	Failures = "millpond-failures"
	// FirstSeenKey is when the message was first republished or set aside.
	FirstSeen = "millpond-first-seen"
	// FirstFailureKey is when the first attempt failed.
	FirstFailure = "millpond-first-failure"
	// DelayKey is the delay asked for after the last failure.
	Delay = "millpond-delay"
	// SetAsideKey is the delay for which the message was set aside last. It is
	// absent where the last attempt failed.
	Snoozed = "millpond-set-aside"
	// ReturnKey says whether the message passes the user's exchange when it returns,
	// where a topology.Strategy lets it. It is for the broker to read.
	Via = "millpond-return"
	// InnerKey is "true" where the last failure was decided on by a DelayedRetry
	// that has another one around it.
	Inner = "millpond-inner"
	// NotBeforeKey is set while a delay is waited for in several rounds: the
	// message is not handed to the handler before.
	NotBefore = "millpond-not-before"
	// ErrorKey is the last error, cut.
	Error = "millpond-error"
	// ClassKey is the class of the last error: "retryable" or "permanent".
	ErrorClass = "millpond-class"
	// OriginExchangeKey is the exchange the message first came from.
	OriginExchange = "millpond-origin-exchange"
	// OriginRoutingKeyKey is the routing key the message first came with.
	OriginRoutingKey = "millpond-origin-routing-key"
	// DeadlineKey is the end of the message's own expiration.
	Deadline = "millpond-deadline"
	// DeadlineFromKey says what the expiration is counted from: one of
	// DeadlineFromTimestamp, DeadlineFromArrival and DeadlineFromPublish.
	DeadlineFrom = "millpond-deadline-from"
	// HistoryKey is the history as JSON, one entry an attempt, bounded.
	History = "millpond-history"
	// InterruptionsKey counts how often the message was set aside as a suspect
	// of killing the process that handles it, decimal.
	Interruptions = "millpond-interruptions"
	// WaitingSinceKey is when the message was republished or set aside last.
	WaitingSince = "millpond-waiting-since"
	// TraceparentKey is the span of the attempt before this one, as W3C Trace
	// Context writes it.
	Traceparent = "millpond-traceparent"
	// PriorityKey is the priority that the message arrived with first, decimal. It is
	// there while a message of a priority above 4 waits in a quorum queue, which it
	// enters with priority 4 (broker fact F32).
	Priority = "millpond-priority"
	// PublishKey is the nonce of the last publish.
	Publish = "millpond-publish"
	// UnreadableKey stands for all headers of a message that the client library
	// cannot read; its value are their bytes, as AMQP writes a table. Such a message
	// is dead-lettered.
	Unreadable = "millpond-unreadable"
)

// Headers of a dead letter. They stand instead of the live notes, so that one
// that is moved back by any tool that keeps headers starts at attempt 1.
const (
	// DeadReasonKey says why the message was given up; see Reason.
	DeadReason = "millpond-dead-reason"
	// DeadAtKey is when it was given up.
	DeadAt = "millpond-dead-at"
	// DeadQueueKey is the queue whose handler gave up.
	DeadQueue = "millpond-dead-queue"
	// DeadHandlerKey is the name of that handler.
	DeadHandler = "millpond-dead-handler"
	// DeadFailuresKey counts its failures, decimal.
	DeadFailures = "millpond-dead-failures"
	// DeadErrorKey is the last error, cut.
	DeadError = "millpond-dead-error"
	// DeadClassKey is the class of the last error.
	DeadClass = "millpond-dead-class"
	// DeadHistoryKey is the history as JSON, also that of earlier rounds.
	DeadHistory = "millpond-dead-history"
	// DeadDeadlineKey and DeadDeadlineFromKey are DeadlineKey and DeadlineFromKey of a
	// message that was given up for ReasonDeadline.
	DeadDeadline     = "millpond-dead-deadline"
	DeadDeadlineFrom = "millpond-dead-deadline-from"
)

// Values of DeadlineFromKey and of Notes.DeadlineFrom.
const (
	// DeadlineFromTimestamp: the expiration is counted from the timestamp that the
	// producer has set.
	FromTimestamp = "timestamp"
	// DeadlineFromArrival: the expiration is counted from the arrival of the message,
	// which has no timestamp or one that cannot be the time of publishing.
	FromArrival = "arrival"
	// DeadlineFromPublish: the expiration of a delayed message is counted from the time
	// at which it was published.
	FromPublish = "publish"
)

// ReplaysKey counts how often a dead letter was moved back by the operator's tool
// (package operate), decimal. It belongs to neither kind of notes: it stays on
// the message.
const Replays = "millpond-replays"
