package middleware_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestInterruptedBeforeTheHandler(t *testing.T) {
	t.Parallel()
	done, cancel := context.WithCancelCause(context.Background())
	errShutdown := errors.New("shutdown")
	cancel(errShutdown)
	for name, test := range map[string]struct {
		msg   *message.Message
		cause error
	}{
		"stale":        {newMessage(middleware.Delivery{Gone: closedChan()}), nil},
		"context done": {attached(done, middleware.Delivery{}), errShutdown},
		"context done, no delivery": {
			message.NewMessageWithContext(done, "uuid", nil), errShutdown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
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
func attached(ctx context.Context, d middleware.Delivery) *message.Message {
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
			broker := middlewaretest.NewBroker()
			for _, result := range []error{errBoom, nil} {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone := make(chan struct{})
				msg := attached(ctx, middleware.Delivery{Gone: gone})
				_, err := newRetry(t, broker).Middleware(middlewaretest.Consumer(func(*message.Message) error {
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
	broker := middlewaretest.NewBroker()
	timeout := wmiddleware.Timeout(time.Nanosecond)(middlewaretest.Consumer(func(msg *message.Message) error {
		<-msg.Context().Done()
		return msg.Context().Err()
	}))
	msg := newMessage(middleware.Delivery{})
	acked(t, newRetry(t, broker).Middleware(timeout), msg)
	if msg.Context().Err() == nil {
		t.Error("the test is void: the context of the message is not done")
	}
	if calls := broker.Calls(); len(calls) != 1 || calls[0].Notes.Error != "context deadline exceeded" || calls[0].Queue != "orders" {
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
		published = ctx.Err() == nil && ctx.Value(key{}) == "trace" && middleware.DeliveryOf(ctx, msg) != nil
		return nil
	}))
	if _, err := retry.Middleware(failsWith(errBoom))(attached(ctx, middleware.Delivery{})); err != nil || !published {
		t.Errorf("got %v, published with all values and no end: %v", err, published)
	}
}

func TestTheTextOfAnInterruptionNamesItsCause(t *testing.T) {
	t.Parallel()
	retry := newRetry(t, middlewaretest.NewBroker())
	_, err := retry.Middleware(succeeds)(newMessage(middleware.Delivery{Gone: closedChan()}))
	assert.Equal(t, "handling was interrupted: delivery is stale", err.Error())
	gone := make(chan struct{})
	_, err = retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		close(gone)
		return errBoom
	}))(newMessage(middleware.Delivery{Gone: gone}))
	if want := "handling was interrupted: delivery is stale; handler: boom"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
