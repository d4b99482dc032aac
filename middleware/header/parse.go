package header

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
)

const (
	// maxName is AMQP's limit for an exchange and a routing key, in bytes.
	maxName = 255
	// maxTraceparentBytes bounds a forged traceparent. Version 00 has 55 bytes; later
	// versions may have more.
	maxTraceparentBytes = 128
)

// Headers returns the live headers of a message that belongs to queue. Zero values
// are left out.
func (n RetryState) Headers(queue string) map[string]string {
	h := make(map[string]string, len(liveKeys))
	h[Queue], h[OriginExchange], h[OriginRoutingKey] = queue, n.OriginExchange, n.OriginRoutingKey
	putCount(h, Failures, n.Failures)
	putCount(h, Interruptions, n.Interruptions)
	putTime(h, FirstSeen, n.FirstSeen)
	putTime(h, FirstFailure, n.FirstFailure)
	putTime(h, NotBefore, n.NotBefore)
	putTime(h, Deadline, n.Deadline)
	putString(h, DeadlineFrom, n.DeadlineFrom)
	putTime(h, WaitingSince, n.WaitingSince)
	putString(h, Traceparent, traceparent(n.Traceparent))
	putDelay(h, Delay, n.Delay)
	putDelay(h, Snoozed, n.Snoozed)
	if n.Inner {
		h[Inner] = "true"
	}
	putString(h, Error, excerpt.Of(n.Error, MaxErrorBytes))
	putString(h, ErrorClass, string(n.Class))
	putString(h, History, encodeHistory(n.History))
	return h
}

// DeadHeaders returns the headers of a dead letter of queue, which replace the live
// headers. The origin keeps its keys, so that it survives a move.
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

// Parse reads the state of a message that was consumed from queue. get looks up a
// header and reports whether it is there.
//
// The live headers count only if they name queue. Of the headers of a dead letter,
// on a message that was moved back, only the history and the origin count. A value
// that does not parse counts as absent, and every number is bounded.
func Parse(queue string, get func(key string) (string, bool)) RetryState {
	var n RetryState
	text := func(key string) string { v, _ := get(key); return v }
	n.History = decodeHistory(text(DeadHistory))
	if owner, live := get(Queue); !live || owner != queue {
		if owner, dead := get(DeadQueue); dead && owner == queue {
			n.readOrigin(text)
		}
		return n
	}
	n.readOrigin(text)
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
	n.Class = parseClass(text(ErrorClass))
	// The headers of a dead letter stay on a message that was moved back. Its live
	// history begins with their history.
	if live := decodeHistory(text(History)); len(live) > 0 {
		n.History = live
	}
	return n
}

// readOrigin reads the exchange and the routing key with which the message first
// came. A name that is too long is forged, and counts as absent.
func (n *RetryState) readOrigin(text func(key string) string) {
	exchange, routingKey := text(OriginExchange), text(OriginRoutingKey)
	if len(exchange) <= maxName && len(routingKey) <= maxName {
		n.OriginExchange, n.OriginRoutingKey = exchange, routingKey
	}
}

// ParseDead reads the state of a dead letter, and the queue whose handler gave up.
// queue is empty if this library did not dead-letter the message.
//
// It reads Failures, Error, Class, Handler, Reason, DeadAt, the origin and the
// history, and for [ReasonDeadline] Deadline and DeadlineFrom. A value that does not
// parse counts as absent, and every number is bounded.
func ParseDead(get func(key string) (string, bool)) (queue string, n RetryState) {
	text := func(key string) string { v, _ := get(key); return v }
	return text(DeadQueue), RetryState{
		Reason:           Reason(text(DeadReason)),
		DeadAt:           parseTime(text(DeadAt)),
		Handler:          text(DeadHandler),
		Failures:         parseCount(text(DeadFailures)),
		Error:            text(DeadError),
		Class:            parseClass(text(DeadClass)),
		History:          decodeHistory(text(DeadHistory)),
		Deadline:         parseTime(text(DeadDeadline)),
		DeadlineFrom:     deadlineFrom(text(DeadDeadlineFrom)),
		OriginExchange:   text(OriginExchange),
		OriginRoutingKey: text(OriginRoutingKey),
	}
}

// ParseReplays reads [Replays]. It returns 0 if the header is absent or does not
// parse, and at most [MaxFailures].
func ParseReplays(get func(key string) (string, bool)) int {
	text, _ := get(Replays)
	return parseCount(text)
}

// encodeHistory returns the newest entries that fit MaxHistoryBytes, as JSON.
func encodeHistory(entries []AttemptError) string {
	size, first := len("[]"), len(entries)
	parts := make([]string, len(entries))
	for first > 0 {
		e := entries[first-1]
		e.Error = excerpt.Of(e.Error, MaxEntryErrorBytes)
		e.Handler = excerpt.Of(e.Handler, MaxEntryErrorBytes)
		e.At = e.At.UTC()
		text, err := json.Marshal(e)
		if err != nil { // a year past 9999: drop this entry and all older ones
			break
		}
		if size += len(text) + len(","); size > MaxHistoryBytes {
			break
		}
		first--
		parts[first] = string(text)
	}
	if first == len(entries) {
		return ""
	}
	return "[" + strings.Join(parts[first:], ",") + "]"
}

// decodeHistory reads the text of encodeHistory, and any other text as no history.
func decodeHistory(text string) []AttemptError {
	if text == "" || len(text) > MaxHistoryBytes {
		return nil
	}
	var entries []AttemptError
	if json.Unmarshal([]byte(text), &entries) != nil {
		return nil
	}
	return entries
}

func putString(h map[string]string, key, value string) {
	if value != "" {
		h[key] = value
	}
}

func putCount(h map[string]string, key string, n int) {
	if n > 0 {
		h[key] = strconv.Itoa(n)
	}
}

func putTime(h map[string]string, key string, t time.Time) {
	if !t.IsZero() {
		h[key] = t.UTC().Format(time.RFC3339Nano)
	}
}

func putDelay(h map[string]string, key string, d time.Duration) {
	if d > 0 {
		h[key] = d.String()
	}
}

func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

func parseDelay(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0
	}
	return d
}

func parseCount(s string) int {
	n, err := strconv.ParseInt(s, 10, 64)
	// On overflow ParseInt returns the greatest or least int64.
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return int(min(max(n, 0), MaxFailures))
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
	case FromTimestamp, FromArrival, FromPublish:
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
