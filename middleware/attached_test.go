package middleware_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
)

func TestHowFarADeliveryHasCome(t *testing.T) {
	t.Parallel()
	d := &middleware.Attached{Delivery: delivery{Queue: "orders"}}
	d.Attach(message.NewMessage("uuid", nil))
	assert.False(t, d.Unsettled())
	assert.Empty(t, d.Handler())
	gone := &middleware.Attached{Delivery: delivery{Queue: "orders", Gone: closedChan()}}
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
	assert.False(t, gone.Unsettled())
}

// The Subscriber logs and tells while the handler has the message, so the ids of Attach count.
// Without a message the ids are the delivery's.
func TestLogFieldsAreThoseOfTheArrival(t *testing.T) {
	t.Parallel()
	detached := &middleware.Attached{Delivery: delivery{MessageID: "m-1", CorrelationID: "c-0"}}
	want := watermill.LogFields{"attempt": 1, "message_id": "m-1", "correlation_id": "c-0"}
	assert.Equal(t, want, detached.LogFields())

	msg := message.NewMessage("u-1", nil)
	wmiddleware.SetCorrelationID("c-1", msg)
	d := &middleware.Attached{Delivery: delivery{CorrelationID: "c-0"}}
	d.Attach(msg)
	msg.UUID = "u-2"
	msg.Metadata = message.Metadata{wmiddleware.CorrelationIDMetadataKey: "c-2"}
	want = watermill.LogFields{
		"attempt": 1, "message_id": "u-1", "message_uuid": "u-1", "correlation_id": "c-1",
	}
	assert.Equal(t, want, d.LogFields())
	e := d.Event(msg.Context(), middleware.EventRequeued, time.Now())
	if e.MessageID != "u-1" || e.MessageUUID != "u-1" || e.CorrelationID != "c-1" {
		t.Errorf("told %+v", e)
	}
}

// The Subscriber asks while the handler may write the message's context, so the context of the
// entry counts.
func TestEntryContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	assert.Nil(t, new(middleware.Attached).EntryContext())
	d := &middleware.Attached{Delivery: delivery{Queue: "orders"}}
	msg := message.NewMessage("u-1", nil)
	arrived := msg.Context()
	d.Attach(msg)
	assert.True(t, d.EntryContext() == arrived)
	entered := context.WithValue(msg.Context(), key{}, "outer")
	msg.SetContext(entered)
	_, err := newRetry(t, unused{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(context.WithValue(entered, key{}, "inner"))
		assert.Same(t, entered, d.EntryContext())
		return nil, nil
	})(msg)
	require.NoError(t, err)
}

// A delivery that is attached again, as middlewaretest does, is a new one.
func TestAttachForgetsWhichMiddlewareWasTheOuterOne(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	d := middleware.Attached{Delivery: delivery{Queue: "orders"}}
	for range 2 {
		msg := message.NewMessage("uuid", nil)
		d.Attach(msg)
		acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), msg)
	}
	for i, call := range broker.Calls() {
		assert.False(t, call.State.Inner, "delivery %d", i+1)
	}
}
