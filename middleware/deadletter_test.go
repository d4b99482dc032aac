package middleware_test

import (
	"context"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestTheHookIsShownTheDeadLetter(t *testing.T) {
	t.Parallel()
	type key struct{}
	broker := middlewaretest.NewBroker()
	var told []middleware.DeadLetter
	h := newRetry(t, broker, middleware.WithDeadLetterHook(func(ctx context.Context, dead middleware.DeadLetter) {
		if ctx.Value(key{}) != "trace" || len(broker.DeadLetters()) != 1 {
			t.Error("without the context, or before it was confirmed")
		}
		told = append(told, dead)
	})).Middleware(failsWith(errBoom))
	msg := newMessage(middleware.Delivery{})
	msg.SetContext(context.WithValue(msg.Context(), key{}, "trace"))
	result := broker.Run(h, msg)
	if len(told) != 1 || result.Outcome != middlewaretest.DeadLettered {
		t.Fatalf("told %d times: %s", len(told), result)
	}
	dead := told[0]
	if dead.Err != errBoom || dead.Queue != "orders" || dead.Message.UUID != msg.UUID || dead.State.Reason != header.ReasonExhausted {
		t.Errorf("got %+v", dead)
	}
	assert.Equal(t, broker.DeadLetters()[0].Notes, dead.State)
	var attempts []int
	for _, entry := range dead.State.History {
		attempts = append(attempts, entry.Attempt)
	}
	if !reflect.DeepEqual(attempts, []int{1, 2, 3}) || dead.State.Failures != 3 {
		t.Errorf("attempts %v, %d failures", attempts, dead.State.Failures)
	}
	dead.State.History[0].Attempt = 9
	if broker.DeadLetters()[0].Notes.History[0].Attempt == 9 {
		t.Error("the history is not a copy")
	}
}

func TestTheHookOfAMessageThatWasNotHandled(t *testing.T) {
	t.Parallel()
	var told []middleware.DeadLetter
	h := newRetry(t, middlewaretest.NewBroker(), middleware.WithDeadLetterHook(func(_ context.Context, dead middleware.DeadLetter) {
		told = append(told, dead)
	})).Middleware(mustNotBeCalled(t))
	_, err := h(newMessage(middleware.Delivery{State: state{Failures: 3, Error: "third"}}))
	if err != nil || len(told) != 1 || told[0].Err != nil || told[0].State.Error != "third" {
		t.Errorf("got %v, %+v", err, told)
	}
}

func TestTheHookIsNotCalled(t *testing.T) {
	t.Parallel()
	refuses := middlewaretest.NewBroker()
	refuses.FailNext(1, middleware.ErrNotDelivered)
	for name, test := range map[string]struct {
		broker *middlewaretest.Broker
		err    error
	}{
		"success":       {middlewaretest.NewBroker(), nil},
		"retry":         {middlewaretest.NewBroker(), errBoom},
		"set aside":     {middlewaretest.NewBroker(), middleware.Snooze(errBoom, time.Minute)},
		"not confirmed": {refuses, middleware.Permanent(errBoom)},
	} {
		hook := middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { t.Errorf("%s: called", name) })
		_, _ = newRetry(t, test.broker, hook).Middleware(failsWith(test.err))(newMessage(middleware.Delivery{}))
	}
}

func TestAHookThatPanicsIsLoggedAndTheNextOneCalled(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	called := false
	h := newRetry(t, middlewaretest.NewBroker(), middleware.WithLogger(logger),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { panic("of mine") }),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { called = true }),
	).Middleware(failsWith(middleware.Permanent(errBoom)))
	msg := newMessage(middleware.Delivery{})
	if _, err := h(msg); err != nil || !called || isClosed(msg.Nacked()) {
		t.Errorf("got %v, the next one called: %v", err, called)
	}
	lines := logger.Captured()[watermill.ErrorLogLevel]
	if len(lines) != 2 || lines[1].Msg != "Dead-letter hook panicked" || lines[1].Fields["value"] != "of mine" {
		t.Errorf("logged %+v", lines)
	}
}

// The router would wait for ever, and a nack would handle the message again.
func TestAHookThatEndsItsGoroutineLeavesTheMessageAcked(t *testing.T) {
	t.Parallel()
	h := newRetry(t, middlewaretest.NewBroker(), middleware.WithDeadLetterHook(
		func(context.Context, middleware.DeadLetter) { runtime.Goexit() },
	)).Middleware(failsWith(middleware.Permanent(errBoom)))
	msg := newMessage(middleware.Delivery{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h(msg)
	}()
	<-ended
	if !isClosed(msg.Acked()) || isClosed(msg.Nacked()) {
		t.Error("not acked")
	}
}

func TestANilHookIsRefused(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(unused{}, tenfold, middleware.WithDeadLetterHook(nil), middleware.WithSnoozeLimit(0))
	want := "new delayed retry: WithDeadLetterHook: hook is nil\nWithSnoozeLimit: 0s is not positive"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
