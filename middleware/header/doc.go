// Package header names the headers in which the retry state of a message travels,
// and reads and writes them. The message itself is never changed.
//
// A message that waits or returns carries live headers, which [RetryState.Headers]
// writes and [Parse] reads. They count only on the queue that wrote them, which
// [Queue] names. Elsewhere the message starts at attempt 1.
//
//	millpond-queue: orders   millpond-failures: 1   millpond-delay: 5s
//	millpond-history: [{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"no stock",…}]
//
// A value that follows from the history or from other headers has no header.
//
// A dead letter carries other headers in their place, which [RetryState.DeadHeaders]
// writes and [ParseDead] reads. So a dead letter that any tool moves back starts at
// attempt 1, with the history of the attempts before.
//
//	millpond-dead-queue: orders   millpond-dead-reason: exhausted   …
//
// Every client that may publish to a queue may write these headers, too. A value
// that does not parse is zero, and every number and length is bounded.
package header
