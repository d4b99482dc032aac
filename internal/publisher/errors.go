package publisher

import (
	"errors"
	"fmt"
)

var (
	// ErrNotSent: nothing was sent, because there was no connection, the broker
	// had blocked publishing, the call's time was up before its turn, or the
	// message cannot be sent at all: a header of a type that AMQP lacks, a name
	// or property over 255 bytes, headers over a frame.
	ErrNotSent = errors.New("not sent")
	// ErrUnknown: it was sent, but whether the broker has stored it is unknown.
	ErrUnknown = errors.New("outcome unknown")
	// ErrRefused: the broker answered with a nack; it has not stored it.
	ErrRefused = errors.New("refused by the broker")
	// ErrClosed is returned once Close was called.
	ErrClosed = errors.New("publisher is closed")
)

// ReturnedError: no queue took the message. The broker confirms such a message
// all the same (broker fact F4).
type ReturnedError struct {
	Exchange, RoutingKey string
	Code                 uint16
	Text                 string
}

func (e *ReturnedError) Error() string {
	return fmt.Sprintf("returned by the broker: no queue for exchange %q, routing key %q (%d %s)",
		e.Exchange, e.RoutingKey, e.Code, e.Text)
}
