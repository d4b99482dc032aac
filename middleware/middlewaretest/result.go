package middlewaretest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware/header"
)

// Outcome is what became of a message.
type Outcome string

// The outcomes of a Run.
const (
	// Handled: the handler succeeded and the message is acked.
	Handled Outcome = "handled"
	// DeadLettered: the message is in the dead-letter queue.
	DeadLettered Outcome = "dead-lettered"
	// Nacked: an error reached the router. On a broker the message would be
	// handled again, no attempt counted.
	Nacked Outcome = "nacked"
	// Waiting: the message was still being retried or set aside after MaxAttempts
	// deliveries.
	Waiting Outcome = "waiting"
)

// Result is how a Run ended.
type Result struct {
	Outcome Outcome
	// Attempts is how often the message was delivered, not counting what was no
	// attempt: that it was set aside, or dead-lettered without being handled.
	Attempts int
	// Delays are those the middleware asked for between the attempts.
	Delays []time.Duration
	// SetAside are the delays for which the message was set aside.
	SetAside []time.Duration
	// Notes are what travelled with the message last: those of the dead letter,
	// with Reason, or of the last retry. Zero if there was none.
	Notes header.RetryState
	// Produced are the messages the handler returned. Empty unless Handled.
	Produced []*message.Message
	// Err is what the router would have been given. Nil unless Nacked, or the
	// handler failed after it had acked the message itself.
	Err error
}

// Elapsed is the sum of all delays, also of those for which the message was set
// aside.
func (r Result) Elapsed() time.Duration {
	var sum time.Duration
	for _, d := range slices.Concat(r.Delays, r.SetAside) {
		sum += d
	}
	return sum
}

// String returns one line, "dead-lettered (exhausted) after 3 attempts, delays
// 1s 10s, set aside 1m0s" for example.
func (r Result) String() string {
	var s strings.Builder
	s.WriteString(string(r.Outcome))
	if r.Outcome == DeadLettered {
		fmt.Fprintf(&s, " (%s)", r.Notes.Reason)
	}
	fmt.Fprintf(&s, " after %d attempt", r.Attempts)
	if r.Attempts != 1 {
		s.WriteByte('s')
	}
	writeDelays(&s, ", delays", r.Delays)
	writeDelays(&s, ", set aside", r.SetAside)
	if r.Err != nil {
		fmt.Fprintf(&s, ": %v", r.Err)
	}
	return s.String()
}

func writeDelays(s *strings.Builder, title string, delays []time.Duration) {
	for i, d := range delays {
		if i == 0 {
			s.WriteString(title)
		}
		fmt.Fprintf(s, " %v", d)
	}
}
