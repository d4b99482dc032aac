package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// A middleware outside that calls twice used to have the message handed over twice.
func TestAMessageThatWasHandedOverIsNotHandedOverAgain(t *testing.T) {
	t.Parallel()
	broker, logger := middlewaretest.NewBroker(), watermill.NewCaptureLogger()
	calls := 0
	h := newRetry(t, broker, middleware.WithLogger(logger)).Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, errBoom
	})
	for range 3 {
		msg := newMessage(middleware.Delivery{})
		if produced, err := wmiddleware.Duplicator(h)(msg); produced != nil || err != nil {
			t.Errorf("got %v, %v", produced, err)
		}
	}
	if calls != 3 || len(broker.Calls()) != 3 {
		t.Errorf("%d calls of the handler and %d hand-overs of 3 messages", calls, len(broker.Calls()))
	}
	said := 0
	for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
		if line.Fields["queue"] == "orders" {
			said++
		}
	}
	if said != 1 {
		t.Errorf("said %d times, want once", said)
	}
}

// A message that carries the metadata from elsewhere is no sign of a PoisonQueue.
func TestADeadLetterMovedBackIsNotTakenForAWrongOrder(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	msg := newMessage(middleware.Delivery{})
	msg.Metadata.Set(wmiddleware.ReasonForPoisonedKey, "boom")
	acked(t, newRetry(t, unused{}, middleware.WithLogger(logger)).Middleware(succeeds), msg)
	if lines := logger.Captured(); len(lines) != 0 {
		t.Errorf("logged %+v", lines)
	}
}

func TestHowFarADeliveryHasCome(t *testing.T) {
	t.Parallel()
	d := &middleware.Attached{Delivery: middleware.Delivery{Queue: "orders"}}
	d.Attach(message.NewMessage("uuid", nil))
	if d.Unsettled() || d.Handler() != "" {
		t.Errorf("at first: %v, %q", d.Unsettled(), d.Handler())
	}
	gone := &middleware.Attached{Delivery: middleware.Delivery{Queue: "orders", Gone: closedChan()}}
	gone.Attach(message.NewMessage("uuid", nil))
	h := newRetry(t, unused{}).Middleware(succeeds)
	if _, err := h(gone.Message()); !errors.Is(err, middleware.ErrInterrupted) || !gone.Unsettled() {
		t.Errorf("after %v: unsettled %v", err, gone.Unsettled())
	}
	gone.Gone = nil // a middleware outside tries again, and now it works
	if _, err := h(gone.Message()); err != nil || gone.Unsettled() {
		t.Errorf("after %v: unsettled %v", err, gone.Unsettled())
	}
	gone.Attach(message.NewMessageWithContext(context.Background(), "uuid", nil))
	if gone.Unsettled() {
		t.Error("unsettled though it is attached anew")
	}
}
