package consumer

import (
	"fmt"
	"slices"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// This file has the limits of the headers of a copy, and leaves headers out that do not fit.

const (
	// frameOverhead is the size that a frame adds to its payload.
	frameOverhead = 8
	// brokerReserve is left for the headers that the broker adds when a message leaves a wait
	// queue and when it is delivered again. Without it, a message that could be published
	// ends the connection of its consumer (F16).
	brokerReserve = 4 << 10
	// countReserve is left in a dead letter for the headers with which a quorum queue counts
	// its deliveries, up to two of 26 bytes. Without it the dead letter can be read once, on
	// RabbitMQ 3.10 not at all (F25).
	countReserve = 64
	// hopReserve is left for the entry in x-death of each further wait queue that the message
	// passes, with three names of 255 bytes.
	hopReserve = 1 << 10
	// nonceReserve is left for the header by which a publish is recognised.
	nonceReserve = 64
	// maxHeaders is the most headers with which amqp091-go reads a message. A message with
	// more ends the connection of its consumer (F26).
	maxHeaders = 8192
	// brokerHeaders is the number of headers that the broker adds: seven when a message leaves
	// a wait queue (F1), two when it is delivered again (F2).
	brokerHeaders = 9
)

// room is the limit of the properties and headers of a message.
type room struct {
	bytes, headers int
}

// waitingRoom is the room of a message that passes the wait queues of a route and comes back.
func waitingRoom(frame int, route *wait.Route) room {
	further := max(0, route.Hops-1) * hopReserve
	return room{
		bytes:   frame - frameOverhead - nonceReserve - brokerReserve - further,
		headers: maxHeaders - brokerHeaders - 1,
	}
}

// deadRoom is the room of a dead letter.
func deadRoom(frame int) room {
	return room{
		bytes:   frame - frameOverhead - nonceReserve - countReserve,
		headers: maxHeaders - brokerHeaders - 1,
	}
}

// WaitingRoom returns how many bytes the properties and headers of a message may take that
// passes the wait queues and comes back.
func WaitingRoom(frame, hops int) int { return waitingRoom(frame, &wait.Route{Hops: hops}).bytes }

// check returns an error that names the excess; nil if everything fits.
func (r room) check(msg *amqp.Publishing) error {
	if size := wire.PropertiesSize(msg); size > r.bytes {
		return &tooLargeError{got: size, limit: r.bytes, unit: "bytes"}
	}
	if n := len(msg.Headers); n > r.headers {
		return &tooLargeError{got: n, limit: r.headers, unit: "headers"}
	}
	return nil
}

// tooLargeError is the ErrTooLarge of one message.
type tooLargeError struct {
	got, limit int
	unit       string
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%v: %d %s, and at most %d fit", ErrTooLarge, e.got, e.unit, e.limit)
}

func (e *tooLargeError) Unwrap() error { return ErrTooLarge }

// kind is a kind of message with headers of a retry.
type kind struct {
	own   func(key string) bool // headers of a retry, which replace the arrived ones
	first []string              // left out first, in this order
	rest  []string              // other headers that a retry has
}

var (
	live = &kind{own: keys.IsLive, first: []string{keys.History, keys.Error}}
	dead = &kind{
		own:   keys.IsState,
		first: []string{keys.DeadHistory, wmiddleware.ReasonForPoisonedKey, header.DeadError},
		rest: []string{
			wmiddleware.PoisonedTopicKey, wmiddleware.PoisonedHandlerKey,
			wmiddleware.PoisonedSubscriberKey,
		},
	}
)

// essential are the headers of a retry that are never left out.
var essential = map[string]bool{
	header.Queue: true, keys.Failures: true, keys.Inner: true, keys.Via: true,
	keys.NotBefore: true, keys.Delay: true, keys.Snoozed: true, keys.Priority: true,
	keys.Line: true, keys.Key: true, keys.DeadKey: true, keys.DeadLine: true,
	header.DeadQueue: true, header.DeadReason: true, header.DeadFailures: true,
}

// FitWaiting leaves headers of a retry out of a message that waits on a route until the message
// fits into a frame.
func FitWaiting(msg *amqp.Publishing, frame int, route *wait.Route) error {
	return live.fit(msg, waitingRoom(frame, route))
}

// fit leaves out headers of a retry until properties and headers fit into r: the first ones in
// their order, and then all but the essential ones. It never cuts other headers.
func (k *kind) fit(msg *amqp.Publishing, r room) error {
	if r.check(msg) == nil {
		return nil
	}
	for _, key := range k.first {
		delete(msg.Headers, key)
		if r.check(msg) == nil {
			return nil
		}
	}
	for key := range msg.Headers {
		if k.own(key) && !essential[key] || slices.Contains(k.rest, key) {
			delete(msg.Headers, key)
		}
	}
	return r.check(msg)
}
