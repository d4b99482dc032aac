package middleware_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var errUnconfirmed = errors.New("publish was not confirmed")

// after is closed d from now.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

func TestHolding(t *testing.T) {
	t.Parallel()
	held := []error{errBoom, errUnconfirmed, middleware.ErrNotHandedOver}
	for name, test := range map[string]struct {
		delivery func() middleware.Delivery
		ctx      time.Duration // until the context is done; 0: never
		failures int           // of the hand-over
		tries    int
		took     time.Duration
		want     []error // empty: handed over
	}{
		"until it succeeds": {
			failures: 4, tries: 5, took: 7500 * time.Millisecond,
		},
		"two minutes": {
			failures: 28, tries: 29, took: 127500 * time.Millisecond,
		},
		"25 minutes by default": {
			failures: 1000, tries: 303, took: 1497500 * time.Millisecond, want: held,
		},
		"as long as the Subscriber says": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{Arrived: time.Now(), HoldUntil: time.Now().Add(2 * time.Second)}
			},
			failures: 1000, tries: 3, took: 1500 * time.Millisecond, want: held,
		},
		"as long as the Subscriber says, and no Arrived": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{HoldUntil: time.Now().Add(2 * time.Second)}
			},
			failures: 1000, tries: 3, took: 1500 * time.Millisecond, want: held,
		},
		"the Subscriber may hold for longer than 25 minutes": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{Arrived: time.Now(), HoldUntil: time.Now().Add(time.Hour)}
			},
			failures: 320, tries: 321, took: 1587500 * time.Millisecond,
		},
		"counted from the arrival": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{Arrived: time.Now().Add(-25*time.Minute + 2*time.Second)}
			},
			failures: 1000, tries: 3, took: 1500 * time.Millisecond, want: held,
		},
		"a handler that took longer than the limit: one try": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{Arrived: time.Now().Add(-30 * time.Minute)}
			},
			failures: 1000, tries: 1, want: held,
		},
		"a handler that took longer, and the one try succeeds": {
			delivery: func() middleware.Delivery {
				return middleware.Delivery{Arrived: time.Now().Add(-30 * time.Minute)}
			},
			tries: 1,
		},
		"until the delivery is stale": {
			delivery: func() middleware.Delivery { return middleware.Delivery{Gone: after(4 * time.Second)} },
			failures: 1000, tries: 4, took: 4 * time.Second,
			want: []error{errBoom, errUnconfirmed, middleware.ErrInterrupted},
		},
		"until the context is done": {
			ctx: 4 * time.Second, failures: 1000, tries: 4, took: 4 * time.Second,
			want: []error{errBoom, errUnconfirmed, middleware.ErrInterrupted, context.DeadlineExceeded},
		},
		"until shutdown": {
			delivery: func() middleware.Delivery { return middleware.Delivery{Closing: after(4 * time.Second)} },
			failures: 1000, tries: 4, took: 4 * time.Second, want: held,
		},
		"shutdown had begun: one try": {
			delivery: func() middleware.Delivery { return middleware.Delivery{Closing: closedChan()} },
			failures: 1000, tries: 1, want: held,
		},
		"shutdown had begun, and the one try succeeds": {
			delivery: func() middleware.Delivery { return middleware.Delivery{Closing: closedChan()} },
			tries:    1,
		},
		"one that arrived without a time": {
			delivery: func() middleware.Delivery { return middleware.Delivery{} },
			failures: 1000, tries: 303, took: 1497500 * time.Millisecond, want: held,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := middleware.Delivery{Arrived: time.Now()}
				if test.delivery != nil {
					d = test.delivery()
				}
				ctx := context.Background()
				if test.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.ctx)
					defer cancel()
				}
				broker := middlewaretest.NewBroker()
				broker.FailNext(test.failures, errUnconfirmed)
				msg := attached(ctx, d)
				began := time.Now()
				_, err := newRetry(t, broker).Middleware(failsWith(errBoom))(msg)

				if took := time.Since(began); took != test.took {
					t.Errorf("held for %v, want %v", took, test.took)
				}
				calls := broker.Calls()
				if len(calls) != test.tries {
					t.Errorf("%d tries, want %d", len(calls), test.tries)
				}
				for _, call := range calls {
					if call.Dead || call.Notes.Failures != 1 || !reflect.DeepEqual(call.Notes, calls[0].Notes) {
						t.Errorf("tried %+v", call)
					}
				}
				if (err == nil) != (len(test.want) == 0) {
					t.Errorf("got %v", err)
				}
				wantErrors(t, err, test.want...)
				if isClosed(msg.Acked()) || isClosed(msg.Nacked()) {
					t.Error("the message was settled by the middleware, not the router")
				}
			})
		})
	}
}

func TestADeadLetterIsHeldToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := middlewaretest.NewBroker()
		broker.FailNext(3, errUnconfirmed)
		_, err := newRetry(t, broker).Middleware(failsWith(middleware.Permanent(errBoom)))(newMessage(middleware.Delivery{}))
		if err != nil || len(broker.Calls()) != 4 || len(broker.DeadLetters()) != 1 {
			t.Errorf("got %v, %+v", err, broker.Calls())
		}
	})
}

func TestAMessageThatWasNotDeliveredIsNotHeld(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	broker.FailNext(1, middleware.ErrNotDelivered)
	_, err := newRetry(t, broker).Middleware(failsWith(errBoom))(newMessage(middleware.Delivery{}))
	wantErrors(t, err, errBoom, middleware.ErrNotDelivered, middleware.ErrNotHandedOver)
	require.Len(t, broker.Calls(), 1)
}

func TestATryThatTakesLongIsFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		retry := newRetry(t, republishFunc(func(context.Context, *message.Message) error {
			<-time.After(30 * time.Second)
			return nil
		}))
		d := middleware.Delivery{Gone: after(time.Second), Closing: after(time.Second)}
		if _, err := retry.Middleware(failsWith(errBoom))(newMessage(d)); err != nil {
			t.Errorf("confirmed, but got %v", err)
		}
	})
}

func TestLogOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := watermill.NewCaptureLogger()
		broker := middlewaretest.NewBroker()
		broker.FailNext(28, errUnconfirmed)
		_, err := newRetry(t, broker, middleware.WithLogger(logger)).
			Middleware(failsWith(errBoom))(newMessage(middleware.Delivery{}))
		require.NoError(t, err)
		var held []any
		for _, line := range logger.Captured()[watermill.ErrorLogLevel] {
			wantErrors(t, line.Err, errUnconfirmed)
			held = append(held, line.Fields["held"])
		}
		assert.Equal(t, []any{time.Duration(0), 62500 * time.Millisecond, 122500 * time.Millisecond}, held)
		info := logger.Captured()[watermill.InfoLogLevel]
		if len(info) != 2 || info[0].Fields["held"] != 127500*time.Millisecond || info[0].Fields["tries"] != 29 {
			t.Errorf("logged %+v", info)
		}
	})
}
