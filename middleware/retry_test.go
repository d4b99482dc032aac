package middleware_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestSuccessIsLeftAlone(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	out := []*message.Message{message.NewMessage("out", nil)}
	msg := newMessage(middleware.Delivery{})
	before := msg.Copy()
	produced, err := newRetry(t, broker).Middleware(func(*message.Message) ([]*message.Message, error) {
		return out, nil
	})(msg)
	if err != nil || len(produced) != 1 || &produced[0] != &out[0] {
		t.Errorf("got %v, %v", produced, err)
	}
	if !msg.Equals(before) || len(broker.Calls()) != 0 {
		t.Errorf("message changed, or handed over: %v", broker.Calls())
	}
}

func TestFailureIsHandedOver(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	msg := newMessage(middleware.Delivery{})
	before := msg.Copy()
	produced, err := newRetry(t, broker).Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("out", nil)}, errBoom
	})(msg)
	if produced != nil || err != nil {
		t.Errorf("got %v, %v; want nothing, so that the router acks and publishes nothing", produced, err)
	}
	calls := broker.Calls()
	if len(calls) != 1 || calls[0].Message != msg || calls[0].Dead || calls[0].Delay != time.Second {
		t.Fatalf("got %+v", calls)
	}
	if !msg.Equals(before) || isClosed(msg.Acked()) || isClosed(msg.Nacked()) {
		t.Error("message was changed or settled")
	}
}

func TestNotesOfAFailure(t *testing.T) {
	t.Parallel()
	earlier := time.Now().Add(-time.Hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first"}}
	broker := middlewaretest.NewBroker()
	msg := newMessage(middleware.Delivery{State: state{
		Failures: 1, FirstSeen: earlier, FirstFailure: earlier, NotBefore: earlier, History: past,
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: earlier.Add(24 * time.Hour),
	}})
	began := time.Now()
	acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), msg)
	n := broker.Calls()[0].Notes
	if n.Failures != 2 || n.Delay != 10*time.Second || n.Error != "boom" || n.Class != retryable || !n.NotBefore.IsZero() {
		t.Errorf("got %+v", n)
	}
	if !n.FirstSeen.Equal(earlier) || !n.FirstFailure.Equal(earlier) || !n.Deadline.Equal(earlier.Add(24*time.Hour)) {
		t.Errorf("times were not carried over: %+v", n)
	}
	if n.OriginExchange != "shop" || n.OriginRoutingKey != "order.created" {
		t.Errorf("origin was not carried over: %+v", n)
	}
	if len(n.History) != 2 || n.History[0] != past[0] || n.History[1].Attempt != 2 || n.History[1].At.Before(began) {
		t.Errorf("history is %+v", n.History)
	}
}

func TestAnErrorOfAMegabyteTravelsCut(t *testing.T) {
	t.Parallel()
	n := handle(t, failsWith(errors.New(strings.Repeat("€", 1<<20)))).Notes
	if len(n.Error) > header.MaxErrorBytes || !utf8.ValidString(n.Error) || len(n.History[0].Error) > 256 {
		t.Errorf("%d and %d bytes", len(n.Error), len(n.History[0].Error))
	}
}

func TestAHandlerThatSettlesTheMessageItselfHasDecided(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message) bool{
		"nack": (*message.Message).Nack,
		"ack":  (*message.Message).Ack,
	} {
		broker := middlewaretest.NewBroker()
		_, err := newRetry(t, broker).Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
			settle(msg)
			return errBoom
		}))(newMessage(middleware.Delivery{}))
		if err != errBoom || len(broker.Calls()) != 0 {
			t.Errorf("%s: got %v, %+v", name, err, broker.Calls())
		}
	}
}

func TestOfTwoNestedTheInnerActs(t *testing.T) {
	t.Parallel()
	outer, inner := middlewaretest.NewBroker(), middlewaretest.NewBroker()
	last := false
	h := newRetry(t, outer).Middleware(newRetry(t, inner, middleware.WithMaxAttempts(1)).Middleware(
		middlewaretest.Consumer(func(msg *message.Message) error {
			last = middleware.LastAttempt(msg.Context())
			return errBoom
		}),
	))
	acked(t, h, newMessage(middleware.Delivery{}))
	if len(outer.Calls()) != 0 || len(inner.DeadLetters()) != 1 {
		t.Errorf("outer %+v, inner %+v", outer.Calls(), inner.Calls())
	}
	if !last {
		t.Error("LastAttempt asked the outer one")
	}
}

func TestOfTwoNestedTheOuterTakesNoTroubleForAFailure(t *testing.T) {
	t.Parallel()
	outer, inner := middlewaretest.NewBroker(), middlewaretest.NewBroker()
	inner.FailNext(1, middleware.ErrNotDelivered)
	h := newRetry(t, outer).Middleware(newRetry(t, inner).Middleware(failsWith(errBoom)))
	_, err := h(newMessage(middleware.Delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrNotHandedOver, middleware.ErrNotDelivered)
	assert.Empty(t, outer.Calls())
}

func TestAMessageThatOnlyInheritedADeliveryHasNone(t *testing.T) {
	t.Parallel()
	consumed := newMessage(middleware.Delivery{State: state{Failures: 2}})
	inherited := message.NewMessageWithContext(consumed.Context(), "uuid", nil)
	if middleware.DeliveryOf(inherited.Context(), inherited) != nil {
		t.Error("DeliveryOf found one")
	}
	if d := middleware.DeliveryOf(inherited.Context(), nil); d == nil || d.Message() != consumed {
		t.Errorf("DeliveryOf any message found %+v, want that of the message consumed", d)
	}
	broker := middlewaretest.NewBroker()
	acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), inherited)
	if calls := broker.Calls(); calls[0].Notes.Failures != 1 || calls[0].Queue != "" {
		t.Errorf("got %+v", calls)
	}
}
