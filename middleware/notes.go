package middleware

import (
	"strconv"
	"time"
)

// Notes are the retry state that travels beside a message as headers. The
// message itself is never changed.
type Notes struct {
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
	SetAside time.Duration
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
	History []HistoryEntry

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

// maxFailures bounds a forged counter: no policy in its senses gets there, and
// adding one to it cannot overflow.
const maxFailures = 1_000_000

// liveKeys are the headers that Headers writes; see IsLiveKey.
var liveKeys = map[string]bool{
	QueueKey: true, FailuresKey: true, FirstSeenKey: true, FirstFailureKey: true,
	DelayKey: true, SetAsideKey: true, InnerKey: true, NotBeforeKey: true, ErrorKey: true, ClassKey: true,
	OriginExchangeKey: true, OriginRoutingKeyKey: true, DeadlineKey: true, DeadlineFromKey: true,
	HistoryKey: true, InterruptionsKey: true, ReturnKey: true, WaitingSinceKey: true, TraceparentKey: true,
	PriorityKey: true, PublishKey: true,
}

// IsLiveKey reports whether key is one of the live notes: a header that counts
// only on the queue that wrote it, and that a dead letter does not carry.
func IsLiveKey(key string) bool { return liveKeys[key] }

// deadKeys are the headers that DeadHeaders writes, but for the origin.
var deadKeys = map[string]bool{
	DeadReasonKey: true, DeadAtKey: true, DeadQueueKey: true, DeadHandlerKey: true,
	DeadFailuresKey: true, DeadErrorKey: true, DeadClassKey: true, DeadHistoryKey: true,
	DeadDeadlineKey: true, DeadDeadlineFromKey: true,
}

// IsNoteKey reports whether key is one of the live notes or of those of a dead
// letter.
func IsNoteKey(key string) bool { return liveKeys[key] || deadKeys[key] }

// Headers returns the live notes as headers that belong to queue. Zero values
// are left out.
func (n Notes) Headers(queue string) map[string]string {
	h := make(map[string]string, len(liveKeys))
	h[QueueKey], h[OriginExchangeKey], h[OriginRoutingKeyKey] = queue, n.OriginExchange, n.OriginRoutingKey
	if n.Failures > 0 {
		h[FailuresKey] = strconv.Itoa(n.Failures)
	}
	if n.Interruptions > 0 {
		h[InterruptionsKey] = strconv.Itoa(n.Interruptions)
	}
	putTime(h, FirstSeenKey, n.FirstSeen)
	putTime(h, FirstFailureKey, n.FirstFailure)
	putTime(h, NotBeforeKey, n.NotBefore)
	putTime(h, DeadlineKey, n.Deadline)
	putString(h, DeadlineFromKey, n.DeadlineFrom)
	putTime(h, WaitingSinceKey, n.WaitingSince)
	putString(h, TraceparentKey, traceparent(n.Traceparent))
	if n.Delay > 0 {
		h[DelayKey] = n.Delay.String()
	}
	if n.SetAside > 0 {
		h[SetAsideKey] = n.SetAside.String()
	}
	if n.Inner {
		h[InnerKey] = "true"
	}
	putString(h, ErrorKey, cutText(n.Error, MaxErrorBytes))
	putString(h, ClassKey, string(n.Class))
	putString(h, HistoryKey, encodeHistory(n.History))
	return h
}

// DeadHeaders returns the notes of a dead letter of queue, which stand instead
// of the live ones. The origin keeps its name, so that it outlives a move.
func (n Notes) DeadHeaders(queue string) map[string]string {
	h := map[string]string{
		DeadQueueKey:        queue,
		DeadReasonKey:       string(n.Reason),
		DeadFailuresKey:     strconv.Itoa(n.Failures),
		OriginExchangeKey:   n.OriginExchange,
		OriginRoutingKeyKey: n.OriginRoutingKey,
	}
	putTime(h, DeadAtKey, n.DeadAt)
	putString(h, DeadHandlerKey, n.Handler)
	putString(h, DeadErrorKey, cutText(n.Error, MaxErrorBytes))
	putString(h, DeadClassKey, string(n.Class))
	putString(h, DeadHistoryKey, encodeHistory(n.History))
	if n.Reason == ReasonDeadline {
		putTime(h, DeadDeadlineKey, n.Deadline)
		putString(h, DeadDeadlineFromKey, n.DeadlineFrom)
	}
	return h
}

// ParseNotes reads the notes of a message that was consumed from queue; get
// looks up a header and reports whether it is there. The live notes count only
// where they name queue. Of the notes of a dead letter, which is a message that
// was moved back, only the history and the origin count. Whatever does not
// parse is taken as absent, and every number is bounded: whoever may publish
// to a queue may also write these headers.
func ParseNotes(queue string, get func(key string) (string, bool)) Notes {
	var n Notes
	if past, ok := get(DeadHistoryKey); ok {
		n.History = decodeHistory(past)
	}
	owner, live := get(QueueKey)
	if live = live && owner == queue; !live {
		if owner, dead := get(DeadQueueKey); dead && owner == queue {
			n.readOrigin(get)
		}
		return n
	}

	text := func(key string) string { v, _ := get(key); return v }
	n.readOrigin(get)
	n.Failures = parseCount(text(FailuresKey))
	n.Interruptions = parseCount(text(InterruptionsKey))
	n.FirstSeen = parseTime(text(FirstSeenKey))
	n.FirstFailure = parseTime(text(FirstFailureKey))
	n.NotBefore = parseTime(text(NotBeforeKey))
	n.Deadline = parseTime(text(DeadlineKey))
	n.DeadlineFrom = deadlineFrom(text(DeadlineFromKey))
	n.WaitingSince = parseTime(text(WaitingSinceKey))
	n.Traceparent = traceparent(text(TraceparentKey))
	n.Delay = parseDelay(text(DelayKey))
	n.SetAside = parseDelay(text(SetAsideKey))
	n.Inner = text(InnerKey) == "true"
	n.Error = text(ErrorKey)
	if class := Class(text(ClassKey)); known(class) {
		n.Class = class
	}
	// The live history begins with that of the dead letter, whose headers are
	// still there after it was moved back.
	if live := decodeHistory(text(HistoryKey)); len(live) > 0 {
		n.History = live
	}
	return n
}

// maxName is AMQP's limit for an exchange and a routing key, in bytes.
const maxName = 255

// readOrigin reads where the message first came from. What is longer than a name
// can be is forged, and absent.
func (n *Notes) readOrigin(get func(key string) (string, bool)) {
	exchange, _ := get(OriginExchangeKey)
	routingKey, _ := get(OriginRoutingKeyKey)
	if len(exchange) <= maxName && len(routingKey) <= maxName {
		n.OriginExchange, n.OriginRoutingKey = exchange, routingKey
	}
}
