package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// logged runs one failing delivery and returns the only line that was logged.
func logged(
	t *testing.T, level watermill.LogLevel, h message.HandlerFunc, msg *message.Message,
) watermill.CapturedMessage {
	t.Helper()
	logger := watermill.NewCaptureLogger()
	_, _ = newRetry(t, newBroker(), withLogger(logger)).Middleware(h)(msg)
	lines := logger.Captured()
	require.Len(t, lines, 1)
	require.Len(t, lines[level], 1)
	return lines[level][0]
}

func TestLogOfARetry(t *testing.T) {
	t.Parallel()
	msg := newMessage(delivery{State: state{Failures: 1}})
	msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "c-1")
	line := logged(t, watermill.InfoLogLevel, failsWith(errBoom), msg)
	want := watermill.LogFields{
		"message_id": msg.UUID, "message_uuid": msg.UUID, "correlation_id": "c-1", "handler": "",
		"queue": "orders", "topic": "",
		"attempt": 2, "delay": 10 * time.Second, "class": "retryable", "error": "boom",
	}
	assert.Equal(t, "Message will be retried", line.Msg)
	assert.Equal(t, want, line.Fields)
}

// The line has the delay of the wait queue, and beside it the delay that was asked for if the two
// differ by more than a tenth.
func TestLogOfADelayThatIsRoundedUp(t *testing.T) {
	t.Parallel()
	for given, asked := range map[time.Duration]any{
		time.Millisecond: nil, 1100 * time.Millisecond: nil, 1101 * time.Millisecond: time.Second,
		5 * time.Second: time.Second,
	} {
		msg := newMessage(delivery{Given: func(time.Duration) time.Duration { return given }})
		line := logged(t, watermill.InfoLogLevel, failsWith(errBoom), msg)
		assert.Equal(t, max(given, time.Second), line.Fields["delay"])
		assert.Equal(t, asked, line.Fields["asked"])
	}
	// A Republisher that knows only afterwards.
	logger := watermill.NewCaptureLogger()
	_, _ = newRetry(
		t, slower{}, withLogger(logger),
	).Middleware(failsWith(errBoom))(newMessage(delivery{}))
	line := logger.Captured()[watermill.InfoLogLevel][0]
	assert.Equal(t, 5*time.Second, line.Fields["delay"])
	assert.Equal(t, time.Second, line.Fields["asked"])
}

// DelayedRetry logs and tells when the handler has returned: the ids count that the
// handler has left.
func TestLogAndEventsHaveTheIDsThatTheHandlerLeft(t *testing.T) {
	t.Parallel()
	var told events
	logger := watermill.NewCaptureLogger()
	h := newRetry(t, newBroker(), withLogger(logger), withObserver(&told)).Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			msg.UUID = "u-2"
			msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "c-2")
			return nil, errBoom
		})
	acked(t, h, newMessage(delivery{MessageID: "m-1"}))
	fields := logger.Captured()[watermill.InfoLogLevel][0].Fields
	assert.Equal(t, "m-1", fields["message_id"])
	assert.Equal(t, "u-2", fields["message_uuid"])
	assert.Equal(t, "c-2", fields["correlation_id"])
	if e := told.all[0]; e.MessageID != "m-1" || e.MessageUUID != "u-2" || e.CorrelationID != "c-2" {
		t.Errorf("told %+v", e)
	}
}

func TestLogOfADeadLetter(t *testing.T) {
	t.Parallel()
	msg := newMessage(delivery{})
	line := logged(t, watermill.ErrorLogLevel, failsWith(middleware.Permanent(errBoom)), msg)
	want := watermill.LogFields{
		"message_id": msg.UUID, "message_uuid": msg.UUID, "handler": "", "queue": "orders", "topic": "",
		"attempt": 1, "class": "permanent", "reason": "permanent",
	}
	assert.Equal(t, "Message dead-lettered", line.Msg)
	assert.Equal(t, "boom", line.Err.Error())
	assert.Equal(t, want, line.Fields)
	wantErrors(t, line.Err, errBoom)
}

func TestNoStackAndNoLongTextIsLogged(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]message.HandlerFunc{
		"stack": wmiddleware.Recoverer(
			func(*message.Message) ([]*message.Message, error) { panic("no stock") },
		),
		"long": failsWith(errors.New(strings.Repeat("boom ", 1<<18))),
	} {
		text, _ := logged(t, watermill.InfoLogLevel, h, newMessage(delivery{})).Fields["error"].(string)
		if text == "" || len(text) > 512 || strings.Contains(text, ".go:") {
			t.Errorf("%s: logged %d bytes: %q", name, len(text), text)
		}
	}
}

func TestLogOfAnInterruption(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(context.Background())
	h := consumer(func(*message.Message) error {
		cancel()
		return errBoom
	})
	line := logged(t, watermill.InfoLogLevel, h, attached(cancelled, delivery{}))
	assert.Equal(t, "context canceled", line.Fields["cause"])
	assert.Equal(t, "boom", line.Fields["error"])
}

// Outside of DelayedRetry a Timeout looks like a shutdown: the message would be
// handled again and again, no attempt counted.
func TestATimeoutInTheWrongPlaceIsNamed(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	retry := newRetry(t, newBroker(), withLogger(logger))
	waits := consumer(func(msg *message.Message) error {
		<-msg.Context().Done()
		return errBoom
	})
	_, err := wmiddleware.Timeout(time.Millisecond)(retry.Middleware(waits))(newMessage(delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrInterrupted)
	lines := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0].Msg, "Timeout middleware belongs inside")
}

func TestLogOfAPolicyThatPanics(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	broker := newBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.PolicyFunc(func(backoff.Failure) (
		time.Duration, bool,
	) {
		panic("of mine")
	}), withMaxAttempts(3), withLogger(logger))
	require.NoError(t, err)
	result := broker.Run(retry.Middleware(failsWith(errBoom)), newMessage(delivery{}))
	assert.Equal(t, "dead-lettered (exhausted) after 3 attempts, delays 1m0s 1m0s", result.String())
	line := logger.Captured()[watermill.ErrorLogLevel][0]
	assert.Equal(t, "Retry decision: policy panicked, waiting a minute instead", line.Msg)
	assert.Equal(t, "of mine", line.Fields["value"])
}

func TestTheHookIsShownTheDeadLetter(t *testing.T) {
	t.Parallel()
	type key struct{}
	broker := newBroker()
	var told []middleware.DeadLetter
	hook := func(ctx context.Context, dead middleware.DeadLetter) {
		assert.Equal(t, "trace", ctx.Value(key{}))
		assert.Len(t, broker.DeadLetters(), 1)
		told = append(told, dead)
	}
	h := newRetry(t, broker, middleware.WithDeadLetterHook(hook)).Middleware(failsWith(errBoom))
	msg := newMessage(delivery{})
	msg.SetContext(context.WithValue(msg.Context(), key{}, "trace"))
	result := broker.Run(h, msg)
	require.Len(t, told, 1)
	require.Equal(t, middlewaretest.DeadLettered, result.Outcome)
	dead := told[0]
	if dead.Err != errBoom || dead.Queue != "orders" || dead.Message.UUID != msg.UUID ||
		dead.State.Reason != exhausted {
		t.Errorf("got %+v", dead)
	}
	assert.Equal(t, broker.DeadLetters()[0].State, dead.State)
	var attempts []int
	for _, entry := range dead.State.History {
		attempts = append(attempts, entry.Attempt)
	}
	assert.Equal(t, []int{1, 2, 3}, attempts)
	assert.Equal(t, 3, dead.State.Failures)
	dead.State.History[0].Attempt = 9
	assert.NotEqual(t, 9, broker.DeadLetters()[0].State.History[0].Attempt)
}

func TestTheHookOfAMessageThatWasNotHandled(t *testing.T) {
	t.Parallel()
	var told []middleware.DeadLetter
	hook := func(_ context.Context, dead middleware.DeadLetter) { told = append(told, dead) }
	h := newRetry(t, newBroker(), middleware.WithDeadLetterHook(hook)).Middleware(mustNotBeCalled(t))
	_, err := h(newMessage(delivery{State: state{Failures: 3, Error: "third"}}))
	if err != nil || len(told) != 1 || told[0].Err != nil || told[0].State.Error != "third" {
		t.Errorf("got %v, %+v", err, told)
	}
}

func TestTheHookIsNotCalled(t *testing.T) {
	t.Parallel()
	refuses := newBroker()
	refuses.FailNext(1, middleware.ErrNotDelivered)
	for name, test := range map[string]struct {
		broker *middlewaretest.Broker
		err    error
	}{
		"success":       {newBroker(), nil},
		"retry":         {newBroker(), errBoom},
		"snoozed":       {newBroker(), middleware.Snooze(errBoom, time.Minute)},
		"not confirmed": {refuses, middleware.Permanent(errBoom)},
	} {
		hook := middleware.WithDeadLetterHook(
			func(context.Context, middleware.DeadLetter) { t.Errorf("%s: called", name) },
		)
		_, _ = newRetry(t, test.broker, hook).Middleware(failsWith(test.err))(newMessage(delivery{}))
	}
}

func TestAHookThatPanicsIsLoggedAndTheNextOneCalled(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	called := false
	h := newRetry(t, newBroker(), withLogger(logger),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { panic("of mine") }),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { called = true }),
	).Middleware(failsWith(middleware.Permanent(errBoom)))
	msg := newMessage(delivery{})
	if _, err := h(msg); err != nil || !called || isClosed(msg.Nacked()) {
		t.Errorf("got %v, the next one called: %v", err, called)
	}
	lines := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, lines, 2)
	assert.Equal(t, "Dead-letter hook panicked", lines[1].Msg)
	assert.Equal(t, "of mine", lines[1].Fields["value"])
}

// A hook that heeds its context ends before the broker takes the delivery back.
func TestTheContextOfAHookDidNotEndWithTheHold(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(2 * time.Second)
	for name, until := range map[string]time.Time{
		"at HoldUntil": soon, "past it": soon.Add(-time.Hour),
	} {
		var deadline time.Time
		alive := false
		h := newRetry(t, newBroker(), middleware.WithDeadLetterHook(
			func(ctx context.Context, _ middleware.DeadLetter) {
				deadline, _ = ctx.Deadline()
				alive = ctx.Err() == nil
			},
		)).Middleware(failsWith(middleware.Permanent(errBoom)))
		before := time.Now()
		_, err := h(newMessage(delivery{Arrived: before, HoldUntil: until}))
		require.NoError(t, err, name)
		require.True(t, alive, name)
		require.WithinRange(t, deadline, before.Add(time.Second), time.Now().Add(2*time.Second), name)
	}
}

// The router would wait for ever, and a nack would handle the message again.
func TestAHookThatEndsItsGoroutineLeavesTheMessageAcked(t *testing.T) {
	t.Parallel()
	h := newRetry(t, newBroker(), middleware.WithDeadLetterHook(
		func(context.Context, middleware.DeadLetter) { runtime.Goexit() },
	)).Middleware(failsWith(middleware.Permanent(errBoom)))
	msg := newMessage(delivery{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h(msg)
	}()
	<-ended
	assert.True(t, isClosed(msg.Acked()))
	assert.False(t, isClosed(msg.Nacked()))
}

func TestANilHookIsRefused(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(
		unused{}, tenfold, middleware.WithDeadLetterHook(nil), middleware.WithSnoozeLimit(0),
	)
	want := "new delayed retry: WithDeadLetterHook: hook is nil\nWithSnoozeLimit: 0s is not positive"
	assert.EqualError(t, err, want)
}
