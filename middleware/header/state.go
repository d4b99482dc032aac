package header

import (
	"github.com/millpond-go/millpond/internal/excerpt"

	"strconv"
	"time"
)

// Notes are the retry state that travels beside a message as headers. The
// message itself is never changed.
type RetryState struct {
	// Failures so far.
	Failures int
	// FirstSeen is when the message was first republished or set aside.
	FirstSeen time.Time
	// FirstFailure is when the first attempt failed.
	FirstFailure time.Time
	// Delay is the delay asked for after the last failure; setting the message
	// aside does not change it.
	Delay time.Duration
	// SetAside is the delay for which the message was set aside last; zero if
	// the last attempt failed.
	Snoozed time.Duration
	// NotBefore is set while a delay is waited for in several rounds.
	NotBefore time.Time
	// Error is the text of the last error, cut to MaxErrorBytes.
	Error string
	// Class of the last error.
	Class Class
	// OriginExchange and OriginRoutingKey are where the message first came from.
	OriginExchange, OriginRoutingKey string
	// Inner is set where the last failure was decided on by a DelayedRetry that
	// has another one around it: only the limits of that one count before the
	// next attempt.
	Inner bool
	// Deadline is the end of the message's own expiration; zero if it has none.
	Deadline time.Time
	// DeadlineFrom says what the expiration is counted from, such as
	// DeadlineFromTimestamp. It is empty where there is no deadline, and where a version
	// that does not write it has noted the deadline.
	DeadlineFrom string
	// Interruptions is how often the message was set aside as a suspect of
	// killing the process. A handler that returns clears it of suspicion.
	Interruptions int
	// WaitingSince is when the message was republished or set aside last; the
	// rounds of a longer wait do not change it.
	WaitingSince time.Time
	// Traceparent is the span of the last attempt, as W3C Trace Context writes it:
	// what the tracing middleware of this attempt links to, and puts its own in
	// the place of. Empty where nobody traces.
	Traceparent string
	// History has an entry for each failed attempt, oldest first. After a dead
	// letter was moved back it begins with the attempts of the earlier rounds.
	History []AttemptError

	// Reason, Handler and DeadAt are set when the message is dead-lettered.
	Reason  Reason
	Handler string
	DeadAt  time.Time

	// Metadata are the keys of WithKeptMetadata, and their values, that the
	// message had when its handler returned. The Republisher writes those that
	// arrived otherwise as headers, of a dead letter as well. They are part of
	// the message: neither Headers nor ParseNotes knows them. The map is shared
	// by all copies of the notes; do not change it.
	Metadata map[string]string
}

// HasWaited reports whether the message was republished or snoozed before. Only such a
// message can be past a limit.
func (n *RetryState) HasWaited() bool { return n.Failures > 0 || !n.FirstSeen.IsZero() }

// MaxFailures bounds a forged counter: no policy in its senses gets there, and
// adding one to it cannot overflow.
const MaxFailures = 1_000_000

// liveKeys are the headers that Headers writes; see IsLiveKey.
var liveKeys = map[string]bool{
	Queue: true, Failures: true, FirstSeen: true, FirstFailure: true,
	Delay: true, Snoozed: true, Inner: true, NotBefore: true, Error: true, ErrorClass: true,
	OriginExchange: true, OriginRoutingKey: true, Deadline: true, DeadlineFrom: true,
	History: true, Interruptions: true, Via: true, WaitingSince: true, Traceparent: true,
	Priority: true, Publish: true,
}

// IsLiveKey reports whether key is one of the live notes: a header that counts
// only on the queue that wrote it, and that a dead letter does not carry.
func IsLive(key string) bool { return liveKeys[key] }

// deadKeys are the headers that DeadHeaders writes, but for the origin.
var deadKeys = map[string]bool{
	DeadReason: true, DeadAt: true, DeadQueue: true, DeadHandler: true,
	DeadFailures: true, DeadError: true, DeadClass: true, DeadHistory: true,
	DeadDeadline: true, DeadDeadlineFrom: true,
}

// IsNoteKey reports whether key is one of the live notes or of those of a dead
// letter.
func IsState(key string) bool { return liveKeys[key] || deadKeys[key] }

// Headers returns the live notes as headers that belong to queue. Zero values
// are left out.
func (n RetryState) Headers(queue string) map[string]string {
	h := make(map[string]string, len(liveKeys))
	h[Queue], h[OriginExchange], h[OriginRoutingKey] = queue, n.OriginExchange, n.OriginRoutingKey
	if n.Failures > 0 {
		h[Failures] = strconv.Itoa(n.Failures)
	}
	if n.Interruptions > 0 {
		h[Interruptions] = strconv.Itoa(n.Interruptions)
	}
	putTime(h, FirstSeen, n.FirstSeen)
	putTime(h, FirstFailure, n.FirstFailure)
	putTime(h, NotBefore, n.NotBefore)
	putTime(h, Deadline, n.Deadline)
	putString(h, DeadlineFrom, n.DeadlineFrom)
	putTime(h, WaitingSince, n.WaitingSince)
	putString(h, Traceparent, traceparent(n.Traceparent))
	if n.Delay > 0 {
		h[Delay] = n.Delay.String()
	}
	if n.Snoozed > 0 {
		h[Snoozed] = n.Snoozed.String()
	}
	if n.Inner {
		h[Inner] = "true"
	}
	putString(h, Error, excerpt.Of(n.Error, MaxErrorBytes))
	putString(h, ErrorClass, string(n.Class))
	putString(h, History, encodeHistory(n.History))
	return h
}

// DeadHeaders returns the notes of a dead letter of queue, which stand instead
// of the live ones. The origin keeps its name, so that it outlives a move.
func (n RetryState) DeadHeaders(queue string) map[string]string {
	h := map[string]string{
		DeadQueue:        queue,
		DeadReason:       string(n.Reason),
		DeadFailures:     strconv.Itoa(n.Failures),
		OriginExchange:   n.OriginExchange,
		OriginRoutingKey: n.OriginRoutingKey,
	}
	putTime(h, DeadAt, n.DeadAt)
	putString(h, DeadHandler, n.Handler)
	putString(h, DeadError, excerpt.Of(n.Error, MaxErrorBytes))
	putString(h, DeadClass, string(n.Class))
	putString(h, DeadHistory, encodeHistory(n.History))
	if n.Reason == ReasonDeadline {
		putTime(h, DeadDeadline, n.Deadline)
		putString(h, DeadDeadlineFrom, n.DeadlineFrom)
	}
	return h
}

// ParseNotes reads the notes of a message that was consumed from queue; get
// looks up a header and reports whether it is there. The live notes count only
// where they name queue. Of the notes of a dead letter, which is a message that
// was moved back, only the history and the origin count. Whatever does not
// parse is taken as absent, and every number is bounded: whoever may publish
// to a queue may also write these headers.
func Parse(queue string, get func(key string) (string, bool)) RetryState {
	var n RetryState
	if past, ok := get(DeadHistory); ok {
		n.History = decodeHistory(past)
	}
	owner, live := get(Queue)
	if live = live && owner == queue; !live {
		if owner, dead := get(DeadQueue); dead && owner == queue {
			n.readOrigin(get)
		}
		return n
	}

	text := func(key string) string { v, _ := get(key); return v }
	n.readOrigin(get)
	n.Failures = parseCount(text(Failures))
	n.Interruptions = parseCount(text(Interruptions))
	n.FirstSeen = parseTime(text(FirstSeen))
	n.FirstFailure = parseTime(text(FirstFailure))
	n.NotBefore = parseTime(text(NotBefore))
	n.Deadline = parseTime(text(Deadline))
	n.DeadlineFrom = deadlineFrom(text(DeadlineFrom))
	n.WaitingSince = parseTime(text(WaitingSince))
	n.Traceparent = traceparent(text(Traceparent))
	n.Delay = parseDelay(text(Delay))
	n.Snoozed = parseDelay(text(Snoozed))
	n.Inner = text(Inner) == "true"
	n.Error = text(Error)
	if class := Class(text(ErrorClass)); class.Known() {
		n.Class = class
	}
	// The live history begins with that of the dead letter, whose headers are
	// still there after it was moved back.
	if live := decodeHistory(text(History)); len(live) > 0 {
		n.History = live
	}
	return n
}

// maxName is AMQP's limit for an exchange and a routing key, in bytes.
const maxName = 255

// readOrigin reads where the message first came from. What is longer than a name
// can be is forged, and absent.
func (n *RetryState) readOrigin(get func(key string) (string, bool)) {
	exchange, _ := get(OriginExchange)
	routingKey, _ := get(OriginRoutingKey)
	if len(exchange) <= maxName && len(routingKey) <= maxName {
		n.OriginExchange, n.OriginRoutingKey = exchange, routingKey
	}
}
