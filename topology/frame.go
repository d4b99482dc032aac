package topology

import (
	"context"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
)

const (
	// frameOverhead is what a frame adds to its payload.
	frameOverhead = 8
	// brokerReserve is left for the headers that the broker adds when a message
	// leaves a wait queue and when it is delivered again: without it, a message
	// that could be published kills the connection of whoever consumes it (F16).
	brokerReserve = 4 << 10
	// nonceReserve is left for the header that recognises a publish.
	nonceReserve = 64
)

// defaultFrame is what RabbitMQ and amqp091-go agree on by default (F16).
const defaultFrame = 131072

// negotiatedFrame is the largest frame that the broker takes on l's connection,
// which is connected.
func negotiatedFrame(ctx context.Context, l *link.Link) (int, error) {
	conn, err := l.Conn(ctx)
	if err != nil {
		return 0, err
	}
	if size := conn.Config.FrameSize; size > 0 {
		return size, nil
	}
	return defaultFrame, nil
}

// The order in which our notes are left out when a message's own headers leave
// too little room: history, error, and then all but the essential ones.
var (
	liveShrinking = []string{middleware.HistoryKey, middleware.ErrorKey}
	deadShrinking = []string{middleware.DeadHistoryKey, wmiddleware.ReasonForPoisonedKey, middleware.DeadErrorKey}
)

// essential are the notes that a message cannot be retried without.
var essential = map[string]bool{
	middleware.QueueKey: true, middleware.FailuresKey: true, middleware.InnerKey: true, middleware.NotBeforeKey: true, middleware.DelayKey: true, middleware.SetAsideKey: true,
	middleware.DeadQueueKey: true, middleware.DeadReasonKey: true, middleware.DeadFailuresKey: true,
}

// fit leaves out notes until properties and headers fit into limit bytes. The
// headers of others are never cut.
func fit(msg *amqp.Publishing, notes map[string]string, order []string, limit int) error {
	if wire.PropertiesSize(msg) <= limit {
		return nil
	}
	for _, key := range order {
		delete(msg.Headers, key)
		if wire.PropertiesSize(msg) <= limit {
			return nil
		}
	}
	for key := range notes {
		if !essential[key] {
			delete(msg.Headers, key)
		}
	}
	if size := wire.PropertiesSize(msg); size > limit {
		return &tooLargeError{size: size, limit: limit}
	}
	return nil
}
