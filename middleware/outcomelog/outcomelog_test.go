package outcomelog_test

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

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/outcomelog"
)

// handle runs a message through a DelayedRetry with the observer.
func handle(
	t *testing.T, o middleware.Observer, h func(attempt int) error,
) (*message.Message, middlewaretest.Result) {
	t.Helper()
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second, 10 * time.Second},
		middleware.WithObserver(o))
	require.NoError(t, err)
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("secret payload"))
	msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "c-1")
	return msg, broker.Run(retry.Middleware(middlewaretest.Consumer(func(m *message.Message) error {
		return h(middleware.Attempt(m.Context()))
	})), msg)
}

// The success of the third attempt has its attempts and the time since the first failure, which
// includes both waits.
func TestSuccessesAreLoggedWithTheirTotalTime(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	msg, _ := handle(t, outcomelog.New(logger, middleware.EventHandled), func(attempt int) error {
		if attempt < 3 {
			return errors.New("no stock")
		}
		return nil
	})
	lines := logger.Captured()
	require.Len(t, lines, 1)
	require.Len(t, lines[watermill.InfoLogLevel], 1, "failures have no line here")
	line := lines[watermill.InfoLogLevel][0]
	assert.Equal(t, "Outcome of a message", line.Msg)
	total, took := line.Fields["total_time"].(time.Duration), line.Fields["duration"].(time.Duration)
	assert.InDelta(t, 11, total.Seconds(), 1)
	assert.Less(t, took, time.Second)
	delete(line.Fields, "total_time")
	delete(line.Fields, "duration")
	assert.Equal(t, watermill.LogFields{
		"outcome": "handled", "attempt": 3, "queue": "orders", "message_id": msg.UUID,
		"message_uuid": msg.UUID, "correlation_id": "c-1",
	}, line.Fields)
}

func TestFirstSuccessHasTheTimeOfItsHandler(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	handle(t, outcomelog.New(logger), func(int) error { return nil })
	fields := logger.Captured()[watermill.InfoLogLevel][0].Fields
	require.Equal(t, fields["duration"], fields["total_time"])
	require.Equal(t, 1, fields["attempt"])
}

// Without kinds there is one line for each delivery of the message.
func TestEveryOutcomeIsLogged(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	_, result := handle(t, outcomelog.New(logger), func(attempt int) error {
		if attempt == 3 {
			return middleware.Permanent(errors.New("no such article"))
		}
		return errors.New("no stock")
	})
	require.Equal(t, middlewaretest.DeadLettered, result.Outcome)
	lines := logger.Captured()
	require.Len(t, lines[watermill.InfoLogLevel], 2)
	for i, delay := range []time.Duration{time.Second, 10 * time.Second} {
		fields := lines[watermill.InfoLogLevel][i].Fields
		assert.Equal(t, "retried", fields["outcome"])
		assert.Equal(t, i+1, fields["attempt"])
		assert.Equal(t, "retryable", fields["class"])
		assert.Equal(t, delay, fields["delay"])
		assert.Equal(t, "no stock", fields["error"])
	}
	require.Len(t, lines[watermill.ErrorLogLevel], 1)
	dead := lines[watermill.ErrorLogLevel][0]
	require.EqualError(t, dead.Err, "no such article")
	assert.Equal(t, "dead_lettered", dead.Fields["outcome"])
	assert.Equal(t, "permanent", dead.Fields["reason"])
	assert.Equal(t, 3, dead.Fields["attempt"])
}

// Each kind of event either ends a delivery and is logged once, or is never logged.
func TestOutcomesAreTheEventsThatEndADelivery(t *testing.T) {
	t.Parallel()
	for kind, want := range map[middleware.EventKind]bool{
		middleware.EventHandled: true, middleware.EventRetried: true, middleware.EventSnoozed: true,
		middleware.EventDeadLettered: true, middleware.EventRequeued: true,
		middleware.EventSelfSettled: true, middleware.EventCrashRound: true,
		middleware.EventFailing: false, middleware.EventRecovered: false,
		middleware.EventBudgetClosed: false, middleware.EventBudgetOpened: false,
		middleware.EventStranded: false,
	} {
		all, alone := watermill.NewCaptureLogger(), watermill.NewCaptureLogger()
		event := middleware.Event{
			Kind: kind, Queue: "orders", Handler: "billing", Topic: "orders", OverBudget: true,
			Class: header.ClassRetryable, Interruptions: 2, Err: errors.New("boom"),
		}
		outcomelog.New(all).Observe(context.Background(), event)
		outcomelog.New(alone, kind).Observe(context.Background(), event)
		for _, logger := range []*watermill.CaptureLoggerAdapter{all, alone} {
			n := 0
			for _, lines := range logger.Captured() {
				n += len(lines)
			}
			assert.Equal(t, want, n == 1, kind)
			assert.LessOrEqual(t, n, 1, kind)
		}
	}
	outcomelog.New(nil).Observe(context.Background(), middleware.Event{Kind: middleware.EventHandled})
}

// The error of a panic is its value alone, and a long text is cut.
func TestErrorsAreCut(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	retries := outcomelog.New(logger, middleware.EventRetried)
	handle(t, retries, func(int) error { panic("out of stock") })
	for _, line := range logger.Captured()[watermill.InfoLogLevel] {
		require.NotContains(t, line.Fields["error"], "goroutine")
		require.Contains(t, line.Fields["error"], "out of stock")
	}
}
