package middleware_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func mustNotBeCalled(t *testing.T) message.HandlerFunc {
	t.Helper()
	return func(*message.Message) ([]*message.Message, error) {
		t.Error("handler was called")
		return nil, nil
	}
}

func TestAMessagePastItsLimitIsNotHandled(t *testing.T) {
	t.Parallel()
	earlier := time.Now().Add(-time.Hour)
	past := []header.AttemptError{{Attempt: 3, At: earlier, Error: "third"}}
	broker := newBroker()
	logger := watermill.NewCaptureLogger()
	msg := newMessage(delivery{State: state{
		Failures: 3, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Second, NotBefore: earlier,
		Error: "third",
		Class: retryable, History: past, OriginExchange: "shop", OriginRoutingKey: "order.created",
	}})
	began := time.Now()
	h := newRetry(t, broker, withLogger(logger)).Middleware(mustNotBeCalled(t))
	if produced, err := h(msg); produced != nil || err != nil {
		t.Errorf("got %v, %v; want nothing, so that the router acks", produced, err)
	}
	dead := broker.DeadLetters()
	if len(dead) != 1 || dead[0].Message != msg || dead[0].State.DeadAt.Before(began) {
		t.Fatalf("got %+v", broker.Calls())
	}
	n := dead[0].State
	n.DeadAt = time.Time{}
	want := state{
		Failures: 3, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Second, Error: "third",
		Class:   retryable,
		History: past, OriginExchange: "shop", OriginRoutingKey: "order.created", Reason: exhausted,
	}
	assert.Equal(t, want, n)

	lines := logger.Captured()
	require.Len(t, lines, 1)
	require.Len(t, lines[watermill.ErrorLogLevel], 1)
	line := lines[watermill.ErrorLogLevel][0]
	fields := watermill.LogFields{
		"message_id": msg.UUID, "message_uuid": msg.UUID, "handler": "", "queue": "orders", "topic": "",
		"attempt": 4, "reason": "exhausted",
	}
	if line.Msg != "Message dead-lettered without being handled" ||
		!reflect.DeepEqual(line.Fields, fields) ||
		!strings.HasPrefix(
			line.Err.Error(),
			"message arrived past its limit: its count is forged, another consumer has a longer policy",
		) {
		t.Errorf("logged %q, %v with\n%v, want\n%v", line.Msg, line.Err, line.Fields, fields)
	}
}

func TestTheGuardOfEachLimit(t *testing.T) {
	t.Parallel()
	hourAgo := time.Now().Add(-time.Hour)
	for name, test := range map[string]struct {
		notes   header.RetryState
		options []middleware.Option
		want    header.Reason // "": handled
	}{
		"policy, the last attempt": {state{Failures: 2}, nil, ""},
		"policy":                   {state{Failures: 3}, nil, exhausted},
		"forged, above any bound":  {state{Failures: 1 << 62}, nil, exhausted},
		"forged, below any bound":  {state{Failures: -1 << 62}, nil, ""},
		"attempts, the last":       {state{Failures: 1}, options{withMaxAttempts(2)}, ""},
		"attempts":                 {state{Failures: 2}, options{withMaxAttempts(2)}, exhausted},
		"age": {
			state{Failures: 1, FirstFailure: hourAgo}, options{withMaxAge(time.Minute)}, "",
		},
		"deadline, first delivery":  {state{Deadline: hourAgo}, nil, ""},
		"deadline, after a failure": {state{Failures: 1, Deadline: hourAgo}, nil, header.ReasonDeadline},
		"deadline, after a snooze": {
			state{FirstSeen: hourAgo, Deadline: hourAgo}, nil, header.ReasonDeadline,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker()
			called := false
			result := broker.Run(newRetry(
				t, broker, test.options...,
			).Middleware(func(*message.Message) ([]*message.Message, error) {
				called = true
				return nil, nil
			}), newMessage(delivery{State: test.notes}))
			assert.Equal(t, (test.want == ""), called)
			assert.Equal(t, test.want, result.State.Reason)
			if test.want != "" {
				assert.Contains(t, result.State.Error, "message arrived past its ", "no attempt left an error")
			}
			assert.Equal(t, called, (result.Attempts == 1))
			assert.False(t, result.State.Failures > 1_000_000)
		})
	}
}

func TestThePolicyOfAnErrorThatIsGoneCounts(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.None{}, policyFor(
		selector{Error: retryableErrors(errBoom)}, backoff.List{1, 1, 1, 1},
	))
	require.NoError(t, err)
	assert.Equal(
		t, 5, broker.Run(retry.Middleware(failsWith(errBoom)), newMessage(delivery{})).Attempts,
	)
}

// Given an outer DelayedRetry with a shorter policy, when the inner one grants a retry, then the
// outer one does not dead-letter the message, not even after a restart.
func TestOfTwoNestedTheInnerGuards(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	nested := func() message.HandlerFunc {
		inner, err := middleware.NewDelayedRetry(broker, backoff.List{1, 1, 1, 1})
		require.NoError(t, err)
		return newRetry(t, broker).Middleware(inner.Middleware(failsWith(errBoom)))
	}
	msg := newMessage(delivery{})
	for want := 1; want <= 5; want++ {
		acked(t, nested(), msg)
		call := broker.Calls()[want-1]
		require.Equal(t, want, call.State.Failures)
		require.Equal(t, (want == 5), call.Dead)
		headers := call.State.Headers("orders")
		msg = newMessage(delivery{State: header.Parse("orders", func(key string) (string, bool) {
			value, ok := headers[key]
			return value, ok
		})})
	}

	forged := newMessage(delivery{State: state{Failures: 9, Inner: true}})
	inner, _ := middleware.NewDelayedRetry(broker, backoff.List{1, 1, 1, 1})
	h := newRetry(t, broker).Middleware(inner.Middleware(mustNotBeCalled(t)))
	if _, err := h(forged); err != nil || len(broker.DeadLetters()) != 2 {
		t.Errorf("got %v, %+v", err, broker.DeadLetters())
	}
}

func TestAMessagePastItsLimitThatCannotBeHandedOverIsNacked(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	broker.FailNext(1, middleware.ErrNotDelivered)
	msg := newMessage(delivery{State: state{Failures: 3}})
	_, err := newRetry(t, broker).Middleware(mustNotBeCalled(t))(msg)
	wantErrors(t, err, middleware.ErrNotHandedOver, middleware.ErrNotDelivered)
}

func TestAStaleMessagePastItsLimitIsLeftAlone(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	msg := newMessage(delivery{Gone: closedChan(), State: state{Failures: 3}})
	_, err := newRetry(t, broker).Middleware(mustNotBeCalled(t))(msg)
	wantErrors(t, err, middleware.ErrInterrupted)
	assert.Empty(t, broker.Calls())
}
