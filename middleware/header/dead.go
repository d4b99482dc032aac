package header

// ParseDeadNotes reads the notes of a dead letter: the queue whose handler gave
// up, and Failures, Error, Class, Handler, Reason, DeadAt, the origin, the history
// and, of a letter of ReasonDeadline, Deadline and DeadlineFrom. queue is empty for
// a message that this library did not dead-letter. Whatever does not parse is taken as absent, and every number is bounded:
// whoever may publish to a queue may also write these headers.
func ParseDead(get func(key string) (string, bool)) (queue string, n RetryState) {
	text := func(key string) string { v, _ := get(key); return v }
	queue = text(DeadQueue)
	n.Reason = Reason(text(DeadReason))
	n.DeadAt = parseTime(text(DeadAt))
	n.Handler = text(DeadHandler)
	n.Failures = parseCount(text(DeadFailures))
	n.Error = text(DeadError)
	if class := Class(text(DeadClass)); class.Known() {
		n.Class = class
	}
	n.History = decodeHistory(text(DeadHistory))
	n.Deadline = parseTime(text(DeadDeadline))
	n.DeadlineFrom = deadlineFrom(text(DeadDeadlineFrom))
	n.OriginExchange, n.OriginRoutingKey = text(OriginExchange), text(OriginRoutingKey)
	return queue, n
}

// ParseReplays reads ReplaysKey: 0 where it is absent or does not parse, and at
// most a million.
func ParseReplays(get func(key string) (string, bool)) int {
	text, _ := get(Replays)
	return parseCount(text)
}
