package header

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
)

const (
	// maxName is AMQP's limit for an exchange and a routing key, in bytes.
	maxName = 255
	// maxTraceparentBytes bounds a forged traceparent. Version 00 has 55 bytes; later
	// versions may have more.
	maxTraceparentBytes = 128
)

// Headers returns the live headers of a message that belongs to queue. It leaves out the values
// that Parse finds without their header: zero values, the default exchange with queue as the
// origin, and values that follow from the history.
func (n RetryState) Headers(queue string) map[string]string {
	h := make(map[string]string, 8)
	n.EachHeader(queue, func(key, value string) { h[key] = value })
	return h
}

// EachHeader calls put for each header that Headers returns.
func (n *RetryState) EachHeader(queue string, put func(key, value string)) {
	put(Queue, queue)
	if n.OriginExchange != "" {
		put(keys.OriginExchange, n.OriginExchange)
	}
	if n.OriginExchange != "" || n.OriginRoutingKey != queue {
		put(keys.OriginRoutingKey, n.OriginRoutingKey)
	}
	if n.Inner {
		put(keys.Inner, "true")
	}
	if n.DeadlineFrom != "" {
		put(keys.DeadlineFrom, n.DeadlineFrom)
	}
	if span := traceparent(n.Traceparent); span != "" {
		put(keys.Traceparent, span)
	}
	var room [512]byte
	text, history := appendHistory(room[:0], n.History)
	w := writer{text: text}
	if len(text) > 0 {
		w.end(keys.History)
	}
	implied := impliedBy(history, n.Failures, n.Snoozed)
	if text := excerpt.Of(n.Error, keys.MaxErrorBytes); text != implied.Error {
		put(keys.Error, text)
	}
	if n.Class != implied.Class {
		put(keys.ErrorClass, string(n.Class))
	}
	w.count(keys.Failures, n.Failures)
	w.count(keys.Interruptions, n.Interruptions)
	w.time(keys.FirstFailure, n.FirstFailure, implied.FirstFailure)
	w.time(keys.FirstSeen, n.FirstSeen, n.FirstFailure)
	w.time(keys.WaitingSince, n.WaitingSince, implied.WaitingSince)
	w.time(keys.NotBefore, n.NotBefore, time.Time{})
	w.time(keys.Deadline, n.Deadline, time.Time{})
	w.delay(keys.Delay, n.Delay)
	w.delay(keys.Snoozed, n.Snoozed)
	w.flush(put)
}

// impliedBy returns the state that follows from the history of a message. Another value has its
// own header. The history says nothing if its entry of the last failure is missing.
func impliedBy(history []AttemptError, failures int, snoozed time.Duration) (n RetryState) {
	last := len(history) - 1
	if failures <= 0 || last < 0 || history[last].Attempt != failures {
		return n
	}
	n.Error = excerpt.Of(history[last].Error, keys.MaxEntryErrorBytes)
	n.Class = parseClass(string(history[last].Class))
	if snoozed == 0 {
		n.WaitingSince = history[last].At
	}
	// The entries of earlier rounds may come first.
	if first := len(history) - failures; first >= 0 && history[first].Attempt == 1 {
		n.FirstFailure = history[first].At
	}
	return n
}

// writer writes headers into one text, which costs one allocation for all.
type writer struct {
	text []byte
	keys [10]string
	ends [10]int // in text
	n    int
}

// end ends the value of a header.
func (w *writer) end(key string) {
	w.keys[w.n], w.ends[w.n] = key, len(w.text)
	w.n++
}

func (w *writer) count(key string, n int) {
	if n > 0 {
		w.text = strconv.AppendInt(w.text, int64(n), 10)
		w.end(key)
	}
}

// time leaves out the implied time. The header of a zero time is empty if another one is implied.
func (w *writer) time(key string, t, implied time.Time) {
	if t.Equal(implied) {
		return
	}
	if !t.IsZero() {
		w.text = t.UTC().AppendFormat(w.text, time.RFC3339Nano)
	}
	w.end(key)
}

func (w *writer) delay(key string, d time.Duration) {
	if d > 0 {
		w.text = append(w.text, d.String()...)
		w.end(key)
	}
}

func (w *writer) flush(put func(key, value string)) {
	text, begin := string(w.text), 0
	for i := range w.n {
		put(w.keys[i], text[begin:w.ends[i]])
		begin = w.ends[i]
	}
}

// DeadHeaders returns the headers of a dead letter of queue, which replace the live
// headers. The origin keeps its keys, so that it survives a move.
func (n RetryState) DeadHeaders(queue string) map[string]string {
	h := map[string]string{
		DeadQueue:             queue,
		DeadReason:            string(n.Reason),
		DeadFailures:          strconv.Itoa(n.Failures),
		keys.OriginExchange:   n.OriginExchange,
		keys.OriginRoutingKey: n.OriginRoutingKey,
	}
	putTime(h, DeadAt, n.DeadAt)
	putString(h, DeadHandler, n.Handler)
	putString(h, DeadError, excerpt.Of(n.Error, keys.MaxErrorBytes))
	putString(h, DeadClass, string(n.Class))
	history, _ := appendHistory(nil, n.History)
	putString(h, keys.DeadHistory, string(history))
	if n.Reason == ReasonDeadline {
		putTime(h, keys.DeadDeadline, n.Deadline)
		putString(h, keys.DeadDeadlineFrom, n.DeadlineFrom)
	}
	return h
}

// Parse reads the state of a message that was consumed from queue. get looks up a
// header and reports whether it is there.
//
// The live headers count only if they name queue. A value without a header follows from the
// history. Of the headers of a dead letter, on a message that was moved back, only the history
// and the origin count. A value that does not parse is zero, and every number is bounded.
func Parse(queue string, get func(key string) (string, bool)) RetryState {
	var n RetryState
	text := func(key string) string { v, _ := get(key); return v }
	if owner, live := get(Queue); !live || owner != queue {
		n.History = decodeHistory(text(keys.DeadHistory))
		if owner, dead := get(DeadQueue); dead && owner == queue {
			n.readOrigin(text)
		}
		return n
	}
	n.readOrigin(text)
	if _, known := get(keys.OriginRoutingKey); !known && n.OriginExchange == "" {
		n.OriginRoutingKey = queue
	}
	n.Failures = parseCount(text(keys.Failures))
	n.Interruptions = parseCount(text(keys.Interruptions))
	n.NotBefore = parseTime(text(keys.NotBefore))
	n.Deadline = parseTime(text(keys.Deadline))
	n.DeadlineFrom = deadlineFrom(text(keys.DeadlineFrom))
	n.Traceparent = traceparent(text(keys.Traceparent))
	n.Delay = parseDelay(text(keys.Delay))
	n.Snoozed = parseDelay(text(keys.Snoozed))
	n.Inner = text(keys.Inner) == "true"
	n.History = decodeHistory(text(keys.History))
	implied := impliedBy(n.History, n.Failures, n.Snoozed)
	n.FirstFailure = parseTimeOr(get, keys.FirstFailure, implied.FirstFailure)
	n.FirstSeen = parseTimeOr(get, keys.FirstSeen, n.FirstFailure)
	n.WaitingSince = parseTimeOr(get, keys.WaitingSince, implied.WaitingSince)
	n.Error, n.Class = implied.Error, implied.Class
	if text, ok := get(keys.Error); ok {
		n.Error = text
	}
	if text, ok := get(keys.ErrorClass); ok {
		n.Class = parseClass(text)
	}
	// The headers of a dead letter stay on a message that was moved back. Its live
	// history begins with their history.
	if len(n.History) == 0 {
		n.History = decodeHistory(text(keys.DeadHistory))
	}
	return n
}

// readOrigin reads the exchange and the routing key with which the message first
// came. A name that is too long is forged, and counts as absent.
func (n *RetryState) readOrigin(text func(key string) string) {
	exchange, routingKey := text(keys.OriginExchange), text(keys.OriginRoutingKey)
	if len(exchange) <= maxName && len(routingKey) <= maxName {
		n.OriginExchange, n.OriginRoutingKey = exchange, routingKey
	}
}

// ParseDead reads the state of a dead letter, and the queue whose handler gave up.
// queue is empty if this library did not dead-letter the message.
//
// It reads Failures, Error, Class, Handler, Reason, DeadAt, the origin and the
// history, and for [ReasonDeadline] Deadline and DeadlineFrom. A value that does not
// parse is zero, and every number is bounded.
func ParseDead(get func(key string) (string, bool)) (queue string, n RetryState) {
	text := func(key string) string { v, _ := get(key); return v }
	return text(DeadQueue), RetryState{
		Reason:           Reason(text(DeadReason)),
		DeadAt:           parseTime(text(DeadAt)),
		Handler:          text(DeadHandler),
		Failures:         parseCount(text(DeadFailures)),
		Error:            text(DeadError),
		Class:            parseClass(text(DeadClass)),
		History:          decodeHistory(text(keys.DeadHistory)),
		Deadline:         parseTime(text(keys.DeadDeadline)),
		DeadlineFrom:     deadlineFrom(text(keys.DeadDeadlineFrom)),
		OriginExchange:   text(keys.OriginExchange),
		OriginRoutingKey: text(keys.OriginRoutingKey),
	}
}

// ParseReplays reads [Replays]. It returns 0 if the header is absent or does not
// parse, and at most [MaxFailures].
func ParseReplays(get func(key string) (string, bool)) int {
	text, _ := get(Replays)
	return parseCount(text)
}

func putString(h map[string]string, key, value string) {
	if value != "" {
		h[key] = value
	}
}

func putTime(h map[string]string, key string, t time.Time) {
	if !t.IsZero() {
		h[key] = t.UTC().Format(time.RFC3339Nano)
	}
}

// Most headers are absent. The parsers below return early, because an error costs allocations.

func parseTime(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// parseTimeOr returns a time without a header as implied.
func parseTimeOr(get func(string) (string, bool), key string, implied time.Time) time.Time {
	if text, ok := get(key); ok {
		return parseTime(text)
	}
	return implied
}

func parseDelay(s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0
	}
	return d
}

func parseCount(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	// On overflow ParseInt returns the greatest or least int64.
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return int(min(max(n, 0), keys.MaxFailures))
}

func parseClass(s string) Class {
	if c := Class(s); c.Known() {
		return c
	}
	return ""
}

// deadlineFrom returns s if it is a value of DeadlineFrom.
func deadlineFrom(s string) string {
	switch s {
	case keys.FromTimestamp, keys.FromArrival, keys.FromPublish:
		return s
	}
	return ""
}

// traceparent returns s if it may be one: lower-case hexadecimal and dashes.
func traceparent(s string) string {
	foreign := func(r rune) bool { return !strings.ContainsRune("0123456789abcdef-", r) }
	if len(s) > maxTraceparentBytes || strings.ContainsFunc(s, foreign) {
		return ""
	}
	return s
}
