package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestSuccessIsLeftAlone(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	out := []*message.Message{message.NewMessage("out", nil)}
	msg := newMessage(delivery{})
	before := msg.Copy()
	produced, err := newRetry(t, broker).Middleware(func(*message.Message) (
		[]*message.Message, error,
	) {
		return out, nil
	})(msg)
	assert.False(t, err != nil || len(produced) != 1 || &produced[0] != &out[0],
		"got %v, %v", produced, err)
	assert.True(t, msg.Equals(before))
	assert.Empty(t, broker.Calls())
}

func TestFailureIsHandedOver(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	msg := newMessage(delivery{})
	before := msg.Copy()
	produced, err := newRetry(t, broker).Middleware(func(*message.Message) (
		[]*message.Message, error,
	) {
		return []*message.Message{message.NewMessage("out", nil)}, errBoom
	})(msg)
	assert.Nil(t, produced)
	assert.NoError(t, err)
	calls := broker.Calls()
	if len(calls) != 1 || calls[0].Message != msg || calls[0].Dead || calls[0].Delay != time.Second {
		t.Fatalf("got %+v", calls)
	}
	assert.True(t, msg.Equals(before) && !isClosed(msg.Acked()) && !isClosed(msg.Nacked()),
		"message was changed or settled")
}

func TestAnErrorOfAMegabyteTravelsCut(t *testing.T) {
	t.Parallel()
	n := handle(t, failsWith(errors.New(strings.Repeat("€", 1<<20)))).State
	assert.LessOrEqual(t, len(n.Error), keys.MaxErrorBytes)
	assert.True(t, utf8.ValidString(n.Error))
	assert.LessOrEqual(t, len(n.History[0].Error), 256)
}

func TestAHandlerThatSettlesTheMessageItselfHasDecided(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message) bool{
		"nack": (*message.Message).Nack,
		"ack":  (*message.Message).Ack,
	} {
		broker := newBroker()
		_, err := newRetry(t, broker).Middleware(consumer(func(msg *message.Message) error {
			settle(msg)
			return errBoom
		}))(newMessage(delivery{}))
		assert.Same(t, errBoom, err, name)
		assert.Empty(t, broker.Calls(), name)
	}
}

func TestOfTwoNestedTheInnerActs(t *testing.T) {
	t.Parallel()
	outer, inner := newBroker(), newBroker()
	last := false
	h := newRetry(t, outer).Middleware(newRetry(t, inner, withMaxAttempts(1)).Middleware(
		consumer(func(msg *message.Message) error {
			last = middleware.LastAttempt(msg.Context())
			return errBoom
		}),
	))
	acked(t, h, newMessage(delivery{}))
	assert.Empty(t, outer.Calls())
	assert.Len(t, inner.DeadLetters(), 1)
	assert.True(t, last)

	// If the inner one cannot hand a failure over, the outer one does not try.
	inner.FailNext(1, middleware.ErrNotDelivered)
	_, err := h(newMessage(delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrNotHandedOver, middleware.ErrNotDelivered)
	assert.Empty(t, outer.Calls())
}

func TestAMessageThatOnlyInheritedADeliveryHasNone(t *testing.T) {
	t.Parallel()
	consumed := newMessage(delivery{State: state{Failures: 2}})
	inherited := message.NewMessageWithContext(consumed.Context(), "uuid", nil)
	assert.Nil(t, attached.Of(inherited.Context(), inherited))
	assert.Same(t, consumed, attached.Of(inherited.Context(), nil).Message)
	broker := newBroker()
	acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), inherited)
	if calls := broker.Calls(); calls[0].State.Failures != 1 || calls[0].Queue != "" {
		t.Errorf("got %+v", calls)
	}
}

func TestInterruptedBeforeTheHandler(t *testing.T) {
	t.Parallel()
	done, cancel := context.WithCancelCause(context.Background())
	errShutdown := errors.New("shutdown")
	cancel(errShutdown)
	for name, test := range map[string]struct {
		msg   *message.Message
		cause error
		text  string
	}{
		"stale": {
			newMessage(delivery{Gone: closedChan()}), nil, "handling was interrupted: delivery is stale",
		},
		"stale, and past its limit": {
			newMessage(delivery{Gone: closedChan(), State: state{Failures: 3}}), nil, "delivery is stale",
		},
		"context done": {arrived(done, delivery{}), errShutdown, "shutdown"},
		"context done, no delivery": {
			message.NewMessageWithContext(done, "uuid", nil), errShutdown, "shutdown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told events
			broker := newBroker()
			retry := newRetry(t, broker, withObserver(&told))
			_, err := retry.Middleware(mustNotBeCalled(t))(test.msg)
			wantErrors(t, err, middleware.ErrInterrupted)
			assert.ErrorContains(t, err, test.text)
			told.want(t, middleware.EventRequeued)
			assert.True(t, told.all[0].Err == err && !told.all[0].Called, "told %+v", told.all[0])
			if test.cause != nil {
				wantErrors(t, err, test.cause)
			}
			assert.Empty(t, broker.Calls())
		})
	}
}

// arrived is a message with the context and the delivery.
func arrived(ctx context.Context, d delivery) *message.Message {
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	attach(d).Attach(msg)
	return msg
}

func TestInterruptedWhileTheHandlerRan(t *testing.T) {
	t.Parallel()
	for cause, interrupt := range map[string]func(gone chan struct{}, cancel context.CancelFunc){
		"delivery is stale": func(gone chan struct{}, _ context.CancelFunc) { close(gone) },
		"context canceled":  func(_ chan struct{}, cancel context.CancelFunc) { cancel() },
	} {
		broker := newBroker()
		for _, result := range []error{errBoom, nil} {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			gone := make(chan struct{})
			msg := arrived(ctx, delivery{Gone: gone})
			var told events
			retry := newRetry(t, broker, withObserver(&told))
			_, err := retry.Middleware(consumer(func(*message.Message) error {
				interrupt(gone, cancel)
				return result
			}))(msg)
			if result == nil {
				assert.NoError(t, err, "a success")
				continue
			}
			wantErrors(t, err, errBoom, middleware.ErrInterrupted)
			assert.EqualError(t, err, "handling was interrupted: "+cause+"; handler: boom")
			told.want(t, middleware.EventRequeued)
			assert.True(t, told.all[0].Err == err && told.all[0].Called, "told %+v", told.all[0])
			assert.True(t, attached.Of(msg.Context(), msg).Requeued.Load())
		}
		assert.Empty(t, broker.Calls(), cause)
	}
}

func TestAPublishThatHasBegunIsNotCancelled(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "trace"))
	defer cancel()
	published := false
	retry := newRetry(t, republishFunc(func(ctx context.Context, msg *message.Message) error {
		cancel()
		published = ctx.Err() == nil && ctx.Value(key{}) == "trace" &&
			attached.Of(ctx, msg) != nil
		return nil
	}))
	if _, err := retry.Middleware(failsWith(errBoom))(arrived(ctx, delivery{})); err != nil ||
		!published {
		t.Errorf("got %v, published with all values and no end: %v", err, published)
	}
}

// The router hears nothing of a goroutine that ends: without the nack the
// message would hang for ever.
func TestGoexitLeavesTheMessageNacked(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	exits := middleware.ClassifierFunc(func(error) (header.Class, bool) {
		runtime.Goexit()
		return "", false
	})
	for name, h := range map[string]message.HandlerFunc{
		"in the handler": newRetry(t, broker).Middleware(func(*message.Message) (
			[]*message.Message, error,
		) {
			runtime.Goexit()
			return nil, nil
		}),
		"in a classifier": newRetry(t, broker, withClassifier(exits)).Middleware(failsWith(errBoom)),
	} {
		msg := newMessage(delivery{})
		assert.False(t, returns(h, msg), name)
		assert.True(t, isClosed(msg.Nacked()), "%s: message is not nacked", name)
	}
	assert.Empty(t, broker.Calls())
}

// A message that carries the metadata from elsewhere is no sign of a PoisonQueue.
func TestADeadLetterMovedBackIsNotTakenForAWrongOrder(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	msg := newMessage(delivery{})
	msg.Metadata.Set(wmiddleware.ReasonForPoisonedKey, "boom")
	acked(t, newRetry(t, unused{}, withLogger(logger)).Middleware(succeeds), msg)
	assert.Empty(t, logger.Captured())
}

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
	var told events
	var shown []middleware.DeadLetter
	hook := func(_ context.Context, dead middleware.DeadLetter) { shown = append(shown, dead) }
	h := newRetry(t, broker, withLogger(logger), withObserver(&told),
		middleware.WithDeadLetterHook(hook)).Middleware(mustNotBeCalled(t))
	produced, err := h(msg)
	require.NoError(t, err)
	require.Empty(t, produced)
	dead := broker.DeadLetters()
	require.False(t, len(dead) != 1 || dead[0].Message != msg || dead[0].State.DeadAt.Before(began),
		"got %+v", broker.Calls())
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
	assert.Equal(t, "Message dead-lettered without being handled", line.Msg)
	assert.Equal(t, fields, line.Fields)
	assert.ErrorContains(t, line.Err,
		"message arrived past its limit: the policy was shortened while it waited")
	told.want(t, middleware.EventDeadLettered)
	if e := told.all[0]; e.Called || e.Err != nil || e.Reason != "exhausted" || e.Attempt != 4 ||
		e.Failures != 3 {
		t.Errorf("told %+v", e)
	}
	require.Len(t, shown, 1)
	assert.NoError(t, shown[0].Err)
	assert.Equal(t, "third", shown[0].State.Error)
}

var fourTimes = backoff.Constant{Interval: time.Second, Retries: 4}

func TestThePolicyOfAnErrorThatIsGoneCounts(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.None{}, policyFor(
		selector{Error: retryableErrors(errBoom)}, fourTimes,
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
		inner, err := middleware.NewDelayedRetry(broker, fourTimes)
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
	inner, _ := middleware.NewDelayedRetry(broker, fourTimes)
	h := newRetry(t, broker).Middleware(inner.Middleware(mustNotBeCalled(t)))
	acked(t, h, forged)
	assert.Len(t, broker.DeadLetters(), 2)
}

type routerKey int

// deliveredMessage is a message as a router hands it out: a cancellable context
// with the delivery in it, below the values of the router, and ten metadata keys.
func deliveredMessage(tb testing.TB, notes header.RetryState) *message.Message {
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	for i := range 10 {
		msg.Metadata.Set("key-"+strconv.Itoa(i), "value")
	}
	attach(delivery{
		Queue: "orders", Arrived: time.Now(), Gone: ctx.Done(), Closing: make(
			chan struct{},
		), State: notes,
	}).Attach(msg)
	for key := range routerKey(4) {
		msg.SetContext(context.WithValue(msg.Context(), key, "handler, subscriber and topic names"))
	}
	return msg
}

func succeeds(*message.Message) ([]*message.Message, error) { return nil, nil }

func newRetry(
	tb testing.TB, r middleware.Republisher, options ...middleware.Option,
) *middleware.DelayedRetry {
	tb.Helper()
	retry, err := middleware.NewDelayedRetry(
		r, backoff.List{time.Second, 10 * time.Second}, options...,
	)
	require.NoError(tb, err)
	return retry
}

// everything is a DelayedRetry with all that might get in the way of a success.
func everything(tb testing.TB) *middleware.DelayedRetry {
	return newRetry(tb, unused{},
		withClassifier(middleware.NetworkErrors()),
		withMaxAttempts(9), withMaxAge(time.Hour), middleware.WithSnoozeLimit(time.Hour),
		policyFor(selector{Handler: "billing", Error: middleware.NetworkErrors()}, fourTimes),
		policyFor(selector{Queue: "orders"}, fourTimes),
		middleware.WithKeptMetadata("key-1", "key-2"),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) {}),
	)
}

// States of a message that has failed once. The second one also expires, so the clock is asked.
var (
	second   = state{Failures: 1, FirstSeen: time.Now()}
	expiring = state{Failures: 1, FirstSeen: time.Now(), Deadline: time.Now().Add(24 * time.Hour)}
)

func TestSuccessPathAllocatesNothing(t *testing.T) {
	for name, run := range map[string]struct {
		retry *middleware.DelayedRetry
		notes header.RetryState
	}{
		"first delivery":               {newRetry(t, unused{}), state{}},
		"first delivery, all options":  {everything(t), state{}},
		"second delivery":              {newRetry(t, unused{}), second},
		"second delivery, all options": {everything(t), expiring},
	} {
		h := run.retry.Middleware(succeeds)
		msg := deliveredMessage(t, run.notes)
		assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }), name)
	}
}

func BenchmarkSuccess(b *testing.B) {
	for _, run := range []struct {
		name string
		h    message.HandlerFunc
	}{
		{"handler alone", succeeds},
		{"watermill Recoverer", wmiddleware.Recoverer(succeeds)},
		{"millpond DelayedRetry", newRetry(b, unused{}).Middleware(succeeds)},
	} {
		b.Run(run.name, func(b *testing.B) {
			msg := deliveredMessage(b, state{})
			b.ReportAllocs()
			for b.Loop() {
				_, _ = run.h(msg)
			}
		})
	}
}

// unused is a Republisher for messages that do not fail.
type unused struct{}

func (unused) Republish(
	context.Context, *message.Message, time.Duration, header.RetryState,
) (middleware.Republished, error) {
	panic("nothing failed")
}

func (unused) DeadLetter(context.Context, *message.Message, header.RetryState) error {
	panic("nothing failed")
}
