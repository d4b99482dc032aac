package topology

import (
	"context"
	"fmt"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

const (
	// frameOverhead is what a frame adds to its payload.
	frameOverhead = 8
	// brokerReserve is left for the headers that the broker adds when a message
	// leaves a wait queue and when it is delivered again: without it, a message
	// that could be published kills the connection of whoever consumes it (F16).
	brokerReserve = 4 << 10
	// countReserve is left in a dead letter for the headers with which a quorum
	// queue counts its deliveries, up to two of 26 bytes: without it the dead
	// letter can be read once, on 3.10 not at all (F25).
	countReserve = 64
	// leastRoom is what properties and headers of a message must have on its way to
	// a wait queue: up to 7 KiB where every name is as long as AMQP allows and the
	// history was left out.
	leastRoom = 8 << 10
	// hopReserve is left for the entry in x-death of each further wait queue that
	// the message passes, with three names of 255 bytes.
	hopReserve = 1 << 10
	// nonceReserve is left for the header that recognises a publish.
	nonceReserve = 64
	// maxHeaders is the most headers with which amqp091-go reads a message; one
	// with more ends the connection of whoever consumes it (F26).
	maxHeaders = 8192
	// brokerHeaders is left for those that the broker adds: seven when a message
	// leaves a wait queue (F1), two when it is delivered again (F2).
	brokerHeaders = 9
)

// room is what properties and headers of a message may take.
type room struct{ bytes, headers int }

// waitingRoom is that of a message that waits on the route and comes back, deadRoom
// that of a dead letter.
func waitingRoom(frame int, route Route) room {
	hops := max(0, route.Hops-1) * hopReserve
	return room{frame - frameOverhead - nonceReserve - brokerReserve - hops, maxHeaders - brokerHeaders - 1}
}

func deadRoom(frame int) room {
	return room{frame - frameOverhead - nonceReserve - countReserve, maxHeaders - brokerHeaders - 1}
}

// check says what does not fit; nil if all does.
func (r room) check(msg *amqp.Publishing) error {
	if size := wire.PropertiesSize(msg); size > r.bytes {
		return &tooLargeError{got: size, limit: r.bytes, unit: "bytes"}
	}
	if n := len(msg.Headers); n > r.headers {
		return &tooLargeError{got: n, limit: r.headers, unit: "headers"}
	}
	return nil
}

// defaultFrame is what RabbitMQ and amqp091-go agree on by default (F16).
const defaultFrame = 131072

// negotiatedFrame returns the largest frame that the broker takes on l's
// connection, which is connected, or an error where it is too small for a retry.
func negotiatedFrame(ctx context.Context, l *link.Link) (int, error) {
	conn, err := l.Conn(ctx)
	if err != nil {
		return 0, err
	}
	switch size := conn.Config.FrameSize; {
	case size <= 0:
		return defaultFrame, nil
	case size < leastFrame:
		return 0, fmt.Errorf("the broker takes frames of at most %d bytes, in which a message has no room for the headers that a retry adds, "+
			"so that every failure would be dead-lettered: set its frame_max to at least %d", size, leastFrame)
	default:
		return size, nil
	}
}

// checkFrame refuses a plan whose routes leave less than leastRoom in a frame.
func checkFrame(frame int, plan Plan) error {
	hops := 1
	if plan.Levels != nil {
		hops = plan.Levels.Levels
	}
	for _, rung := range plan.WaitSteps {
		hops = max(hops, rung.Hops)
	}
	if room := waitingRoom(frame, Route{Hops: hops}).bytes; room < leastRoom {
		return fmt.Errorf("a message of queue %q may pass %d wait queues, each of which adds to its headers, and frames of %d bytes are too small for that: "+
			"raise FrameSize and the broker's frame_max to at least %d, or use fewer levels", plan.Queue, hops, frame, frame+leastRoom-room)
	}
	return nil
}

// The order in which our notes are left out when a message's own headers leave
// too little room: history, error, and then all but the essential ones.
var (
	liveShrinking = []string{header.History, header.Error}
	deadShrinking = []string{header.DeadHistory, wmiddleware.ReasonForPoisonedKey, header.DeadError}
)

// essential are the notes that a message cannot be retried without.
var essential = map[string]bool{
	header.Queue: true, header.Failures: true, header.Inner: true, header.Via: true, header.NotBefore: true, header.Delay: true, header.Snoozed: true,
	header.Priority:  true,
	header.DeadQueue: true, header.DeadReason: true, header.DeadFailures: true,
}

// fit leaves out notes until properties and headers fit into r. The headers of
// others are never cut.
func fit(msg *amqp.Publishing, notes map[string]string, order []string, r room) error {
	if r.check(msg) == nil {
		return nil
	}
	for _, key := range order {
		delete(msg.Headers, key)
		if r.check(msg) == nil {
			return nil
		}
	}
	for key := range notes {
		if !essential[key] {
			delete(msg.Headers, key)
		}
	}
	return r.check(msg)
}
