// Package keys has the headers of a message that only this library writes and reads, and the bounds
// of their values. The headers that users name are in package header. docs/wire.md has all of them.
package keys

import "strings"

// Keys that package header has for users, too, with their meaning.
const (
	Queue        = "millpond-queue"
	DeadReason   = "millpond-dead-reason"
	DeadAt       = "millpond-dead-at"
	DeadQueue    = "millpond-dead-queue"
	DeadHandler  = "millpond-dead-handler"
	DeadFailures = "millpond-dead-failures"
	DeadError    = "millpond-dead-error"
	DeadClass    = "millpond-dead-class"
)

// Keys of the live headers, of a message that waits or returns. All values are
// strings: times are RFC 3339 with nanoseconds in UTC, durations as Go prints them,
// numbers decimal. No key begins with "x-", because headers exchanges ignore such
// keys (broker fact F8). docs/wire.md says which value a missing header has.
const (
	// FirstSeen is the time at which the message was first republished or snoozed.
	FirstSeen = "millpond-first-seen"
	// FirstFailure is the time at which the first attempt failed.
	FirstFailure = "millpond-first-failure"
	// Delay is the delay asked for after the last failure.
	Delay = "millpond-delay"
	// Snoozed is the delay of the last snooze. It is absent if the last attempt
	// failed.
	Snoozed = "millpond-set-aside"
	// Via says whether the message passes an exchange of the user on its way back, and
	// which, where a topology.Strategy lets it. The broker reads it.
	Via = "millpond-return"
	// Level and the number of a level are a header that a version before v0.1.0 wrote. It is no
	// longer written, and no copy of a message takes it along.
	Level = "millpond-level-"
	// Inner is "true" if a DelayedRetry inside another one decided on the last
	// failure.
	Inner = "millpond-inner"
	// NotBefore is present while a message waits in several rounds: the handler does
	// not get it earlier.
	NotBefore = "millpond-not-before"
	// Error is the text of the last error, cut.
	Error = "millpond-error"
	// ErrorClass is the class of the last error: "retryable" or "permanent".
	ErrorClass = "millpond-class"
	// OriginExchange is the exchange from which the message first came.
	OriginExchange = "millpond-origin-exchange"
	// OriginRoutingKey is the routing key with which the message first came.
	OriginRoutingKey = "millpond-origin-routing-key"
	// Deadline is the end of the message's own expiration.
	Deadline = "millpond-deadline"
	// DeadlineFrom names the start of the expiration: [FromTimestamp],
	// [FromArrival] or [FromPublish].
	DeadlineFrom = "millpond-deadline-from"
	// History is the history as JSON, one entry an attempt, bounded.
	History = "millpond-history"
	// Interruptions counts how often the message was set aside as a suspect of
	// crashing the process that handles it.
	Interruptions = "millpond-interruptions"
	// WaitingSince is the time at which the message was last republished or snoozed.
	WaitingSince = "millpond-waiting-since"
	// Traceparent is the span of the attempt before this one, as W3C Trace Context
	// writes it.
	Traceparent = "millpond-traceparent"
	// Priority is the priority with which the message first arrived. It is present
	// while a message of a priority above 4 waits in a quorum queue, which it enters
	// with priority 4 (broker fact F32).
	Priority = "millpond-priority"
	// Publish is the nonce of the last publish.
	Publish = "millpond-publish"
	// Key is the key of a message in the line of a queue that is handled in order. It is
	// absent on a message without a key.
	Key = "millpond-key"
	// Line is the kind of a message in the line, such as "wait" or "block", and its number.
	// See docs/ordering.md.
	Line = "millpond-line"
	// Unreadable replaces all headers of a message that the client library cannot
	// read. The value holds their bytes, as AMQP writes a table. Such a message is
	// dead-lettered.
	Unreadable = "millpond-unreadable"
	// Failures counts the failures so far.
	Failures = "millpond-failures"
)

// Keys of a dead letter, which replace the live headers.
const (
	// DeadHistory is the history as JSON, with the attempts of earlier rounds.
	DeadHistory = "millpond-dead-history"
	// DeadDeadline and DeadDeadlineFrom are [Deadline] and [DeadlineFrom] of a message
	// that was dead-lettered for [ReasonDeadline].
	DeadDeadline     = "millpond-dead-deadline"
	DeadDeadlineFrom = "millpond-dead-deadline-from"
	// DeadKey is [Key] of a message that was handled in order.
	DeadKey = "millpond-dead-key"
	// DeadLine names the mark that keeps the key waiting behind the message, if there is
	// one, with the number of the message in its key.
	DeadLine = "millpond-dead-line"
)

// Replay is the key of the mark by which operate.Operator.Ramp knows its letters again: the name of
// the run, a dot, and a number. It stays on the message until the next such run.
const Replay = "millpond-replay"

// Values of [DeadlineFrom]: the start of the expiration.
const (
	// FromTimestamp is the timestamp that the producer set.
	FromTimestamp = "timestamp"
	// FromArrival is the arrival of the message, if it has no timestamp or a timestamp
	// that cannot be the time of publishing.
	FromArrival = "arrival"
	// FromPublish is the time at which a delayed message was published.
	FromPublish = "publish"
)

// Bounds of the values.
const (
	// MaxFailures bounds a forged count. No sensible policy grants as many retries,
	// and adding 1 to it cannot overflow.
	MaxFailures = 1_000_000
	// MaxErrorBytes bounds the text of the last error. All headers of a message share
	// one frame of 128 KiB (broker fact F16).
	MaxErrorBytes = 2048
	// MaxHistoryBytes bounds the history. The oldest entries are dropped first.
	MaxHistoryBytes = 16 << 10
	// MaxEntryErrorBytes bounds the text of an error in the history.
	MaxEntryErrorBytes = 256
)

// Live are the live headers. It is only read.
var Live = map[string]bool{
	Queue: true, Failures: true, FirstSeen: true, FirstFailure: true, Delay: true, Snoozed: true,
	Inner: true, NotBefore: true, Error: true, ErrorClass: true, OriginExchange: true,
	OriginRoutingKey: true, Deadline: true, DeadlineFrom: true, History: true, Interruptions: true,
	Via: true, WaitingSince: true, Traceparent: true, Priority: true, Publish: true,
	Key: true, Line: true,
}

// deadKeys are the headers that DeadHeaders writes, except the origin.
var deadKeys = map[string]bool{
	DeadReason: true, DeadAt: true, DeadQueue: true, DeadHandler: true, DeadFailures: true,
	DeadError: true, DeadClass: true, DeadHistory: true, DeadDeadline: true, DeadDeadlineFrom: true,
	DeadKey: true, DeadLine: true,
}

// IsLive reports whether key is a live header, which counts only on the queue that
// wrote it. A dead letter carries none, except the origin.
func IsLive(key string) bool { return Live[key] || strings.HasPrefix(key, Level) }

// IsState reports whether key is a live header or a header of a dead letter.
func IsState(key string) bool { return IsLive(key) || deadKeys[key] }
