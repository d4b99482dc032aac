package middleware

// ParseDeadNotes reads the notes of a dead letter: the queue whose handler gave
// up, and Failures, Error, Class, Handler, Reason, DeadAt, the origin, the history
// and, of a letter of ReasonDeadline, Deadline and DeadlineFrom. queue is empty for
// a message that this library did not dead-letter. Whatever does not parse is taken as absent, and every number is bounded:
// whoever may publish to a queue may also write these headers.
func ParseDeadNotes(get func(key string) (string, bool)) (queue string, n Notes) {
	text := func(key string) string { v, _ := get(key); return v }
	queue = text(DeadQueueKey)
	n.Reason = Reason(text(DeadReasonKey))
	n.DeadAt = parseTime(text(DeadAtKey))
	n.Handler = text(DeadHandlerKey)
	n.Failures = parseCount(text(DeadFailuresKey))
	n.Error = text(DeadErrorKey)
	if class := Class(text(DeadClassKey)); known(class) {
		n.Class = class
	}
	n.History = decodeHistory(text(DeadHistoryKey))
	n.Deadline = parseTime(text(DeadDeadlineKey))
	n.DeadlineFrom = deadlineFrom(text(DeadDeadlineFromKey))
	n.OriginExchange, n.OriginRoutingKey = text(OriginExchangeKey), text(OriginRoutingKeyKey)
	return queue, n
}

// ParseReplays reads ReplaysKey: 0 where it is absent or does not parse, and at
// most a million.
func ParseReplays(get func(key string) (string, bool)) int {
	text, _ := get(ReplaysKey)
	return parseCount(text)
}
