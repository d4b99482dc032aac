package topology

import (
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// defaultTimestamps is what WithTimestampWindow sets by default.
var defaultTimestamps = timestampWindow{past: 24 * time.Hour, future: time.Minute}

// timestampWindow says which timestamps may be the time of publishing.
type timestampWindow struct{ past, future time.Duration }

// WithTimestampWindow sets which timestamps count as the time of publishing. A message
// with an expiration is not retried past the end of its expiration. The end is counted
// from the timestamp of the message if the timestamp lies less than past before the
// arrival of the message, or less than future after it. If the end would lie before the
// arrival, the timestamp is not the time of publishing: the broker counts from there and
// drops a message whose expiration is over. Such a message, a message whose timestamp
// lies outside the window, and a message without a timestamp are counted from the arrival.
// The header millpond-deadline-from says "timestamp" or "arrival".
//
// The arrival is that of the delivery that fails or is set aside first. A timestamp has
// whole seconds. With past 0 only timestamps ahead count; WithTimestampWindow(0, 0)
// counts every expiration from the arrival. A past that is longer than the expiration
// changes nothing. Negative values are refused.
//
// Default: 24 h and 1 min.
func WithTimestampWindow(past, future time.Duration) SubscriberOption {
	return func(o *subscriberOptions) error {
		if past < 0 || future < 0 {
			return fmt.Errorf("WithTimestampWindow: %v and %v must not be negative", past, future)
		}
		o.timestamps = timestampWindow{past: past, future: future}
		return nil
	}
}

// deadline returns the end of the message's own expiration, which the broker
// removes when the message waits (F15), and what the expiration is counted from. Both
// are zero for a message without an expiration.
func (w timestampWindow) deadline(raw *amqp.Delivery, arrived time.Time) (end time.Time, from string) {
	valid, ok := expiration(raw.Expiration)
	if !ok {
		return time.Time{}, ""
	}
	if w.holds(raw.Timestamp, arrived) {
		// The broker drops a message whose expiration is over before it delivers the
		// message (F37), so an end before the arrival was not counted from publishing.
		if end = raw.Timestamp.Add(valid); end.After(arrived) {
			return end, header.FromTimestamp
		}
	}
	return arrived.Add(valid), header.FromArrival
}

// holds reports whether t lies in the window around the arrival.
func (w timestampWindow) holds(t, arrived time.Time) bool {
	return !t.IsZero() && t.After(arrived.Add(-w.past)) && t.Before(arrived.Add(w.future))
}

// expiration reads the property of that name, whole milliseconds as text.
func expiration(text string) (valid time.Duration, ok bool) {
	if text == "" {
		return 0, false
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 {
		return 0, false
	}
	return time.Duration(min(ms, backoff.MaxDelay.Milliseconds())) * time.Millisecond, true
}
