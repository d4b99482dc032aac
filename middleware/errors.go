package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// What DelayedRetry returns instead of settling a failed message. The error
// also wraps the handler's own, if the handler was called. The router nacks.
var (
	// ErrInterrupted: the message's context was done or its delivery stale.
	// Nothing was published and no attempt was spent; the message is handled
	// again from its queue.
	ErrInterrupted = errors.New("handling was interrupted")
	// ErrNotHandedOver: the Republisher did not confirm, and holding the message
	// any longer was not possible. There may be a copy or none.
	ErrNotHandedOver = errors.New("failed message was not handed over")
)

// unsettledError says that DelayedRetry could not settle msg. It knows the
// message, so that an outer DelayedRetry does not take it for a failure of the
// handler.
type unsettledError struct {
	msg     *message.Message
	kind    error // ErrInterrupted or ErrNotHandedOver
	cause   error
	handler error  // nil if the handler was not called
	text    string // of handler, as it is logged
	tries   int    // of the hand-over
	held    time.Duration
}

func (e *unsettledError) Error() string {
	if e.handler == nil {
		return fmt.Sprintf("%v: %v", e.kind, e.cause)
	}
	return fmt.Sprintf("%v: %v; handler: %v", e.kind, e.cause, e.text)
}

func (e *unsettledError) Unwrap() []error {
	if e.handler == nil {
		return []error{e.kind, e.cause}
	}
	return []error{e.handler, e.kind, e.cause}
}

// errStale is the cause of an ErrInterrupted where no context is done.
var errStale = errors.New("delivery is stale")

// isUnsettled reports whether err comes from an inner DelayedRetry that could
// not settle this very message.
func isUnsettled(err error, msg *message.Message) (found bool) {
	_ = contain(func() {
		walk(err, func(err error) bool {
			e, ok := as[*unsettledError](err)
			found = ok && e.msg == msg
			return !found
		})
	})
	return found
}
