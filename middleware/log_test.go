package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/header"
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

// An outcome is one line with the ids, the place and the attempt.
func TestLogOfAnOutcome(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]struct {
		err    error
		level  watermill.LogLevel
		fields watermill.LogFields
	}{
		"Message will be retried": {errBoom, watermill.InfoLogLevel, watermill.LogFields{
			"delay": 10 * time.Second, "class": "retryable", "error": "boom",
		}},
		"Message snoozed": {
			middleware.Snooze(errBoom, time.Minute),
			watermill.InfoLogLevel,
			watermill.LogFields{"delay": time.Minute, "error": "boom"},
		},
		"Message dead-lettered": {
			middleware.Permanent(errBoom),
			watermill.ErrorLogLevel,
			watermill.LogFields{"class": "permanent", "reason": "permanent"},
		},
	} {
		msg := newMessage(delivery{State: state{Failures: 1}})
		msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "c-1")
		line := logged(t, test.level, failsWith(test.err), msg)
		assert.Equal(t, want, line.Msg)
		assert.Equal(t, test.fields.Add(watermill.LogFields{
			"message_id": msg.UUID, "message_uuid": msg.UUID, "correlation_id": "c-1", "handler": "",
			"queue": "orders", "topic": "", "attempt": 2,
		}), line.Fields, want)
		if test.level == watermill.ErrorLogLevel {
			assert.EqualError(t, line.Err, "boom")
			assert.ErrorIs(t, line.Err, errBoom)
		}
	}
}

// The line has the delay of the wait queue, and beside it the delay that was asked for if the two
// differ by more than a tenth. Observers are told both.
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
	var told events
	logger := watermill.NewCaptureLogger()
	retry := newRetry(t, slower{}, withLogger(logger), withObserver(&told))
	acked(t, retry.Middleware(failsWith(errBoom)), newMessage(delivery{}))
	line := logger.Captured()[watermill.InfoLogLevel][0]
	assert.Equal(t, 5*time.Second, line.Fields["delay"])
	assert.Equal(t, time.Second, line.Fields["asked"])
	assert.Equal(t, time.Second, told.all[0].DelayAsked)
	assert.Equal(t, 5*time.Second, told.all[0].DelayGiven)
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

func TestNoStackAndNoLongTextIsLogged(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]message.HandlerFunc{
		"stack": wmiddleware.Recoverer(
			func(*message.Message) ([]*message.Message, error) { panic("no stock") },
		),
		"long": failsWith(errors.New(strings.Repeat("boom ", 1<<18))),
	} {
		text, _ := logged(t, watermill.InfoLogLevel, h, newMessage(delivery{})).Fields["error"].(string)
		assert.False(t, text == "" || len(text) > 512 || strings.Contains(text, ".go:"),
			"%s: logged %d bytes: %q", name, len(text), text)
	}
}

func TestLogOfAnInterruption(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(context.Background())
	h := consumer(func(*message.Message) error {
		cancel()
		return errBoom
	})
	line := logged(t, watermill.InfoLogLevel, h, arrived(cancelled, delivery{}))
	assert.Equal(t, "context canceled", line.Fields["cause"])
	assert.Equal(t, "boom", line.Fields["error"])
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
	acked(t, h, msg)
	assert.True(t, called && !isClosed(msg.Nacked()))
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
	require.False(t, returns(h, msg))
	assert.True(t, isClosed(msg.Acked()))
	assert.False(t, isClosed(msg.Nacked()))
}

// events keeps the events of an observer.
type events struct{ all []event }

func (o *events) Observe(_ context.Context, e event) { o.all = append(o.all, e) }

func (o *events) kinds() []middleware.EventKind {
	var kinds []middleware.EventKind
	for _, e := range o.all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (o *events) want(t *testing.T, kinds ...middleware.EventKind) {
	t.Helper()
	require.Equal(t, kinds, o.kinds())
}

// In a bubble every time is exact: the whole of each event is compared.
func TestEventsOfAMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 30 * time.Millisecond
		var told events
		broker := newBroker()
		retry := newRetry(t, broker, withObserver(&told), withClassifier(permanentErrors(errGone)))
		msg := middlewaretest.NewMessage(middleware.Delivery{
			Queue: "orders", MessageID: "m-1", CorrelationID: "c-1",
		}, nil)
		calls := 0
		later := middleware.Snooze(errBoom, time.Minute)
		broker.Run(retry.Middleware(consumer(func(*message.Message) error {
			calls++
			time.Sleep(took)
			switch calls {
			case 1:
				return errBoom
			case 2:
				return later
			}
			return errGone
		})), msg)

		// Run's clock stands still while a message waits. Run sets the time of the republish
		// back instead.
		began := time.Now().Add(-3 * took).UTC()
		common := event{
			Queue: "orders", MessageID: "m-1", CorrelationID: "c-1", MessageUUID: msg.UUID, Called: true,
			Duration: took,
		}
		retried, snoozed, dead := common, common, common
		retried.Kind, retried.At = middleware.EventRetried, began.Add(took)
		retried.Attempt, retried.Failures, retried.Class, retried.Err = 1, 1, "retryable", errBoom
		retried.DelayAsked, retried.DelayGiven = time.Second, time.Second
		snoozed.Kind, snoozed.At, snoozed.Attempt, snoozed.Failures = middleware.EventSnoozed, began.Add(
			2*took,
		), 2, 1
		snoozed.Err, snoozed.DelayAsked, snoozed.DelayGiven = later, time.Minute, time.Minute
		snoozed.DelayMeasured, snoozed.LastDelay, snoozed.Age = time.Second, time.Second, time.Second+took
		dead.Kind, dead.At = middleware.EventDeadLettered, began.Add(3*took)
		dead.Attempt, dead.Failures = 2, 2
		dead.Class, dead.Reason, dead.Err = "permanent", "permanent", errGone
		dead.DelayMeasured, dead.LastDelay = time.Minute, time.Minute
		dead.Age = time.Minute + time.Second + 2*took
		assert.Equal(t, []event{retried, snoozed, dead}, told.all)
	})
}

var errGone = errors.New("gone")

// A panic is told with its stack, which no text of the event has.
func TestEventOfAPanic(t *testing.T) {
	t.Parallel()
	var told events
	handle(t, func(*message.Message) ([]*message.Message, error) { panic("no stock") },
		withObserver(&told))
	told.want(t, middleware.EventRetried)
	var panicked *middleware.PanicError
	if e := told.all[0]; !errors.As(e.Err, &panicked) || len(panicked.Stack) == 0 ||
		e.ErrorText() != "panic: no stock" {
		t.Errorf("told %+v, %q", e, e.ErrorText())
	}
	assert.Empty(t, (event{}).ErrorText())
}

func TestEventsWhileTheMachineryFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told events
		broker := newBroker()
		retry := newRetry(t, broker, withObserver(&told))
		broker.FailNext(2, errUnconfirmed)
		held := middleware.Delivery{HoldUntil: time.Now().Add(2 * time.Second)}
		acked(t, retry.Middleware(failsWith(errBoom)), newMessage(held))
		told.want(t, middleware.EventFailing, middleware.EventFailing, middleware.EventRecovered,
			middleware.EventRetried)
		for i, want := range []event{
			{Tries: 1, Err: errUnconfirmed},
			{Tries: 2, Err: errUnconfirmed, Held: 500 * time.Millisecond},
			{Tries: 3, Held: 1500 * time.Millisecond},
		} {
			if got := told.all[i]; got.Tries != want.Tries || got.Held != want.Held ||
				!errors.Is(got.Err, want.Err) {
				t.Errorf("told %+v, want %+v", got, want)
			}
		}

		told.all = nil
		broker.FailNext(9, errUnconfirmed)
		held.HoldUntil = time.Now().Add(2 * time.Second)
		_, err := retry.Middleware(failsWith(errBoom))(newMessage(held))
		told.want(t, middleware.EventFailing, middleware.EventFailing, middleware.EventFailing,
			middleware.EventRequeued)
		last := told.all[3]
		if last.Err != err || last.Tries != 3 || last.Held != 1500*time.Millisecond || !last.Called {
			t.Errorf("told %+v", last)
		}
		wantErrors(t, last.Err, middleware.ErrNotHandedOver, errBoom, errUnconfirmed)
	})
}

func TestEventOfAMessageThatTheHandlerSettled(t *testing.T) {
	t.Parallel()
	var told events
	_, err := newRetry(t, unused{}, withObserver(&told)).Middleware(consumer(
		func(msg *message.Message) error { msg.Ack(); return errBoom }))(
		newMessage(middleware.Delivery{}),
	)
	wantErrors(t, err, errBoom)
	told.want(t, middleware.EventSelfSettled)
}

// Of two DelayedRetry around a handler only one tells.
func TestNothingIsToldTwice(t *testing.T) {
	t.Parallel()
	closing := closedChan()
	for name, test := range map[string]struct {
		handler message.HandlerFunc
		broker  *middlewaretest.Broker
		want    middleware.EventKind
	}{
		"handled":  {succeeds, newBroker(), middleware.EventHandled},
		"retried":  {failsWith(errBoom), newBroker(), middleware.EventRetried},
		"returned": {failsWith(errBoom), newBroker(), middleware.EventRequeued},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told events
			inner := newRetry(t, test.broker, withObserver(&told))
			outer := newRetry(t, test.broker, withObserver(&told))
			delivery := middleware.Delivery{}
			if test.want == middleware.EventRequeued {
				test.broker.FailNext(1, middleware.ErrNotDelivered)
				delivery.Closing = closing
			}
			_, _ = outer.Middleware(inner.Middleware(test.handler))(newMessage(delivery))

			kinds := slices.DeleteFunc(
				told.kinds(), func(k middleware.EventKind) bool { return k == middleware.EventFailing },
			)
			assert.Equal(t, []middleware.EventKind{test.want}, kinds)
		})
	}
}

// Watermill's Retry around calls the middleware again with the same message.
func TestASecondCallIsToldAsWell(t *testing.T) {
	t.Parallel()
	var told events
	h := newRetry(t, unused{}, withObserver(&told)).Middleware(succeeds)
	msg := newMessage(middleware.Delivery{})
	_, _ = h(msg)
	_, _ = h(msg)
	told.want(t, middleware.EventHandled, middleware.EventHandled)
}

func TestAnObserverThatPanicsChangesNothing(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	var told events
	broker := newBroker()
	retry := newRetry(t, broker, withLogger(logger), withObserver(
		middleware.ObserverFunc(func(context.Context, event) { panic("of mine") }), &told,
	))
	result := broker.Run(retry.Middleware(failsWith(errBoom)), newMessage(middleware.Delivery{}))
	assert.Equal(t, "dead-lettered (exhausted) after 3 attempts, delays 1s 10s", result.String())
	told.want(t, middleware.EventRetried, middleware.EventRetried, middleware.EventDeadLettered)
	panics := 0
	for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
		if line.Msg == "Observer panicked" && line.Fields["value"] == "of mine" {
			panics++
		}
	}
	assert.Equal(t, 1, panics)
}

// An observer that ends the goroutine leaves no message unsettled. The message is acked if the
// broker has confirmed a copy, else nacked.
func TestAnObserverThatEndsTheGoroutine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler message.HandlerFunc
		at      middleware.EventKind
		acked   bool
	}{
		"handled":     {succeeds, middleware.EventHandled, false},
		"handed over": {failsWith(errBoom), middleware.EventRetried, true},
		"failing":     {failsWith(errBoom), middleware.EventFailing, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker()
			if test.at == middleware.EventFailing {
				broker.FailNext(1, nil)
			}
			retry := newRetry(t, broker, withObserver(middleware.ObserverFunc(
				func(_ context.Context, e event) {
					if e.Kind == test.at {
						runtime.Goexit()
					}
				})))
			msg := newMessage(middleware.Delivery{})
			require.False(t, returns(retry.Middleware(test.handler), msg))
			assert.Equal(t, test.acked, isClosed(msg.Acked()))
			assert.NotEqual(t, test.acked, isClosed(msg.Nacked()))
		})
	}
}

// oversized is a Republisher for which no message has room for notes.
type oversized struct{ unused }

func (oversized) Republish(
	context.Context, *message.Message, time.Duration, header.RetryState,
) (middleware.Republished, error) {
	return middleware.Republished{Reason: header.ReasonOversized}, nil
}

// slower is a Republisher whose wait queue has a longer delay than it was asked for.
type slower struct{ unused }

func (slower) Republish(
	context.Context, *message.Message, time.Duration, header.RetryState,
) (middleware.Republished, error) {
	return middleware.Republished{Delay: 5 * time.Second}, nil
}

// The log used to say that such a message will be retried.
func TestAMessageThatCouldOnlyBeDeadLetteredIsNotCalledRetried(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"retry": errBoom, "snooze": middleware.Snooze(errBoom, time.Hour),
	} {
		var told events
		logger := watermill.NewCaptureLogger()
		retry := newRetry(t, oversized{}, withObserver(&told), withLogger(logger))
		acked(t, retry.Middleware(failsWith(err)), newMessage(middleware.Delivery{}))
		told.want(t, middleware.EventDeadLettered)
		if e := told.all[0]; e.Reason != "oversized" || e.DelayAsked != 0 {
			t.Errorf("%s: told %+v", name, e)
		}
		lines := logger.Captured()
		require.Len(t, lines, 1, name)
		require.Len(t, lines[watermill.ErrorLogLevel], 1, name)
		line := lines[watermill.ErrorLogLevel][0]
		_, delay := line.Fields["delay"]
		if line.Msg != "Message dead-lettered" || line.Fields["reason"] != "oversized" || delay {
			t.Errorf("%s: logged %q with %v", name, line.Msg, line.Fields)
		}
	}
}

// A budget closes with one message and opens with another. A message that it slows down or
// holds back says so.
func TestEventsOfABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told events
		s := newSpender(
			t, budget.Config{Share: 0.5, Minimum: 2, Probes: 1}, withObserver(&told),
		)
		s.expect(errBoom, "1s", "1m0s")
		told.want(t, middleware.EventRetried, middleware.EventBudgetClosed, middleware.EventRetried)
		if told.all[0].OverBudget || !told.all[2].OverBudget || told.all[2].DelayAsked != time.Minute {
			t.Errorf("told %+v", told.all)
		}
		told.all = nil
		s.expect(nil, "handled", "held back 1m0s")
		told.want(t, middleware.EventHandled, middleware.EventSnoozed)
		if e := told.all[1]; !e.OverBudget || e.Called || e.Err != nil || e.DelayAsked != time.Minute {
			t.Errorf("told %+v", e)
		}
		told.all = nil
		time.Sleep(11 * time.Second) // nothing is left in the window
		s.expect(nil, "handled")
		told.want(t, middleware.EventBudgetOpened, middleware.EventHandled)
	})
}
