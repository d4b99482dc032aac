package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	if err != nil || len(produced) != 1 || &produced[0] != &out[0] {
		t.Errorf("got %v, %v", produced, err)
	}
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
	if !msg.Equals(before) || isClosed(msg.Acked()) || isClosed(msg.Nacked()) {
		t.Error("message was changed or settled")
	}
}

func TestNotesOfAFailure(t *testing.T) {
	t.Parallel()
	earlier := time.Now().Add(-time.Hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first"}}
	broker := newBroker()
	msg := newMessage(delivery{State: state{
		Failures: 1, FirstSeen: earlier, FirstFailure: earlier, NotBefore: earlier, History: past,
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: earlier.Add(24 * time.Hour),
	}})
	began := time.Now()
	acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), msg)
	n := broker.Calls()[0].State
	if n.Failures != 2 || n.Delay != 10*time.Second || n.Error != "boom" || n.Class != retryable ||
		!n.NotBefore.IsZero() {
		t.Errorf("got %+v", n)
	}
	assert.True(t, n.FirstSeen.Equal(earlier))
	assert.True(t, n.FirstFailure.Equal(earlier))
	assert.True(t, n.Deadline.Equal(earlier.Add(24*time.Hour)))
	assert.Equal(t, "shop", n.OriginExchange)
	assert.Equal(t, "order.created", n.OriginRoutingKey)
	if len(n.History) != 2 || n.History[0] != past[0] || n.History[1].Attempt != 2 ||
		n.History[1].At.Before(began) {
		t.Errorf("history is %+v", n.History)
	}
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
}

func TestOfTwoNestedTheOuterTakesNoTroubleForAFailure(t *testing.T) {
	t.Parallel()
	outer, inner := newBroker(), newBroker()
	inner.FailNext(1, middleware.ErrNotDelivered)
	h := newRetry(t, outer).Middleware(newRetry(t, inner).Middleware(failsWith(errBoom)))
	_, err := h(newMessage(delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrNotHandedOver, middleware.ErrNotDelivered)
	assert.Empty(t, outer.Calls())
}

func TestAMessageThatOnlyInheritedADeliveryHasNone(t *testing.T) {
	t.Parallel()
	consumed := newMessage(delivery{State: state{Failures: 2}})
	inherited := message.NewMessageWithContext(consumed.Context(), "uuid", nil)
	assert.Nil(t, middleware.DeliveryOf(inherited.Context(), inherited))
	if d := middleware.DeliveryOf(inherited.Context(), nil); d == nil || d.Message() != consumed {
		t.Errorf("DeliveryOf any message found %+v, want the delivery of the consumed message", d)
	}
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
	}{
		"stale":                     {newMessage(delivery{Gone: closedChan()}), nil},
		"context done":              {attached(done, delivery{}), errShutdown},
		"context done, no delivery": {message.NewMessageWithContext(done, "uuid", nil), errShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker()
			_, err := newRetry(t, broker).Middleware(func(*message.Message) ([]*message.Message, error) {
				t.Error("handler was called")
				return nil, nil
			})(test.msg)
			wantErrors(t, err, middleware.ErrInterrupted)
			if test.cause != nil {
				wantErrors(t, err, test.cause)
			}
			assert.Empty(t, broker.Calls())
		})
	}
}

// attached is a message with the context and the delivery.
func attached(ctx context.Context, d delivery) *message.Message {
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	(&middleware.Attached{Delivery: d}).Attach(msg)
	return msg
}

func TestInterruptedWhileTheHandlerRan(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(gone chan struct{}, cancel context.CancelFunc){
		"stale":        func(gone chan struct{}, _ context.CancelFunc) { close(gone) },
		"context done": func(_ chan struct{}, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker()
			for _, result := range []error{errBoom, nil} {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone := make(chan struct{})
				msg := attached(ctx, delivery{Gone: gone})
				_, err := newRetry(t, broker).Middleware(consumer(func(*message.Message) error {
					interrupt(gone, cancel)
					return result
				}))(msg)
				if result == nil && err != nil {
					t.Errorf("a success became %v", err)
				}
				if result != nil {
					wantErrors(t, err, errBoom, middleware.ErrInterrupted)
				}
			}
			assert.Empty(t, broker.Calls())
		})
	}
}

// A Timeout below replaces the context of the message and cancels it.
func TestTheContextOfEntryCounts(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	timeout := wmiddleware.Timeout(time.Nanosecond)(consumer(func(msg *message.Message) error {
		<-msg.Context().Done()
		return msg.Context().Err()
	}))
	msg := newMessage(delivery{})
	acked(t, newRetry(t, broker).Middleware(timeout), msg)
	assert.NotNil(t, msg.Context().Err())
	if calls := broker.Calls(); len(calls) != 1 ||
		calls[0].State.Error != "context deadline exceeded" || calls[0].Queue != "orders" {
		t.Errorf("got %+v", calls)
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
			middleware.DeliveryOf(ctx, msg) != nil
		return nil
	}))
	if _, err := retry.Middleware(failsWith(errBoom))(attached(ctx, delivery{})); err != nil ||
		!published {
		t.Errorf("got %v, published with all values and no end: %v", err, published)
	}
}

func TestTheTextOfAnInterruptionNamesItsCause(t *testing.T) {
	t.Parallel()
	retry := newRetry(t, newBroker())
	_, err := retry.Middleware(succeeds)(newMessage(delivery{Gone: closedChan()}))
	assert.Equal(t, "handling was interrupted: delivery is stale", err.Error())
	gone := make(chan struct{})
	_, err = retry.Middleware(consumer(func(*message.Message) error {
		close(gone)
		return errBoom
	}))(newMessage(delivery{Gone: gone}))
	assert.EqualError(t, err, "handling was interrupted: delivery is stale; handler: boom")
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
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = h(msg)
			t.Errorf("%s: returned", name)
		}()
		<-done
		assert.True(t, isClosed(msg.Nacked()), "%s: message is not nacked", name)
	}
	assert.Empty(t, broker.Calls())
}

// A middleware outside that calls twice used to have the message handed over twice.
func TestAMessageThatWasHandedOverIsNotHandedOverAgain(t *testing.T) {
	t.Parallel()
	broker, logger := newBroker(), watermill.NewCaptureLogger()
	calls := 0
	h := newRetry(
		t, broker, withLogger(logger),
	).Middleware(func(*message.Message) ([]*message.Message, error) {
		calls++
		return nil, errBoom
	})
	for range 3 {
		msg := newMessage(delivery{})
		if produced, err := wmiddleware.Duplicator(h)(msg); produced != nil || err != nil {
			t.Errorf("got %v, %v", produced, err)
		}
	}
	assert.Equal(t, 3, calls)
	assert.Len(t, broker.Calls(), 3)
	said := 0
	for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
		if line.Fields["queue"] == "orders" {
			said++
		}
	}
	assert.Equal(t, 1, said)
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

// looped is a Republisher for Watermill's in-process Pub/Sub, whose messages have no delivery: it
// publishes the message to its topic again at once, with the notes of no queue in its metadata.
type looped struct {
	*gochannel.GoChannel
}

func (l looped) Republish(
	ctx context.Context, msg *message.Message, _ time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	return middleware.Republished{}, l.send(message.SubscribeTopicFromCtx(ctx), msg, notes.Headers(""))
}

func (l looped) DeadLetter(_ context.Context, msg *message.Message, notes header.RetryState) error {
	return l.send("dlq", msg, notes.DeadHeaders(""))
}

func (l looped) send(topic string, msg *message.Message, headers map[string]string) error {
	again := msg.Copy()
	for key, value := range headers {
		again.Metadata.Set(key, value)
	}
	return l.Publish(topic, again)
}

// running is a router with one handler of topic "orders" behind a DelayedRetry.
// The messages of the handler go to topic "out".
func running(
	t *testing.T, h message.HandlerFunc, options ...middleware.Option,
) *gochannel.GoChannel {
	t.Helper()
	pubSub := gochannel.NewGoChannel(
		gochannel.Config{OutputChannelBuffer: 10, Persistent: true}, watermill.NopLogger{},
	)
	router, err := message.NewRouter(
		message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{},
	)
	require.NoError(t, err)
	router.AddMiddleware(newRetry(t, looped{pubSub}, options...).Middleware)
	router.AddHandler("billing", "orders", pubSub, "out", pubSub, h)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() { require.NoError(t, errors.Join(router.Close(), <-ended, pubSub.Close())) })
	return pubSub
}

// receive returns the next message of the topic, acked.
func receive(t *testing.T, pubSub *gochannel.GoChannel, topic string) *message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	messages, err := pubSub.Subscribe(ctx, topic)
	require.NoError(t, err)
	msg := <-messages
	require.NotNil(t, msg)
	msg.Ack()
	return msg
}

func TestInARouterAMessageIsRetriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var attempts []int
	pubSub := running(t, func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, middleware.Attempt(msg.Context()))
		out := []*message.Message{message.NewMessage("from attempt", []byte{byte(len(attempts))})}
		if len(attempts) < 3 {
			return out, errBoom
		}
		return out, nil
	})
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	assert.Equal(t, []byte{3}, []byte(receive(t, pubSub, "out").Payload))
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []int{1, 2, 3}, attempts)
}

func TestInARouterAMessageIsDeadLetteredAtLast(t *testing.T) {
	t.Parallel()
	pubSub := running(t, func(*message.Message) ([]*message.Message, error) { panic("no stock") })
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	dead := receive(t, pubSub, "dlq")
	for key, want := range map[string]string{
		header.DeadReason: "exhausted", header.DeadFailures: "3",
		header.DeadError: "panic: no stock", header.DeadHandler: "billing",
	} {
		assert.Equal(t, want, dead.Metadata[key])
	}
	assert.Equal(t, "order-7", dead.UUID)
}

// A handler goroutine that ended used to leave the router waiting for ever.
func TestInARouterGoexitDoesNotHang(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	deliveries := 0
	pubSub := running(t, func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		if deliveries++; deliveries == 1 {
			runtime.Goexit()
		}
		assert.Equal(t, 1, middleware.Attempt(msg.Context()))
		return []*message.Message{message.NewMessage("done", nil)}, nil
	})
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	receive(t, pubSub, "out")
}
