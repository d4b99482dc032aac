package middleware_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
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
		delivery func() delivery
		ctx      time.Duration // until the context is done; 0: never
		failures int           // of the hand-over
		tries    int
		took     time.Duration
		want     []error // empty: handed over
	}{
		"until it succeeds": {failures: 4, tries: 5, took: 7500 * time.Millisecond},
		"25 minutes by default": {
			failures: 1000, tries: 303, took: 1497500 * time.Millisecond, want: held,
		},
		"as long as the Subscriber says": {
			delivery: func() delivery {
				return delivery{Arrived: time.Now(), HoldUntil: time.Now().Add(2 * time.Second)}
			},
			failures: 1000, tries: 3, took: 1500 * time.Millisecond, want: held,
		},
		"the Subscriber may hold for longer than 25 minutes": {
			delivery: func() delivery {
				return delivery{Arrived: time.Now(), HoldUntil: time.Now().Add(time.Hour)}
			},
			failures: 320, tries: 321, took: 1587500 * time.Millisecond,
		},
		"counted from the arrival": {
			delivery: func() delivery {
				return delivery{Arrived: time.Now().Add(-25*time.Minute + 2*time.Second)}
			},
			failures: 1000, tries: 3, took: 1500 * time.Millisecond, want: held,
		},
		"a handler that took longer than the limit: one try": {
			delivery: func() delivery {
				return delivery{Arrived: time.Now().Add(-30 * time.Minute)}
			},
			failures: 1000, tries: 1, want: held,
		},
		"until the delivery is stale": {
			delivery: func() delivery { return delivery{Gone: after(4 * time.Second)} },
			failures: 1000, tries: 4, took: 4 * time.Second,
			want: []error{errBoom, errUnconfirmed, middleware.ErrInterrupted},
		},
		"until the context is done": {
			ctx: 4 * time.Second, failures: 1000, tries: 4, took: 4 * time.Second,
			want: []error{errBoom, errUnconfirmed, middleware.ErrInterrupted, context.DeadlineExceeded},
		},
		"until shutdown": {
			delivery: func() delivery { return delivery{Closing: after(4 * time.Second)} },
			failures: 1000, tries: 4, took: 4 * time.Second, want: held,
		},
		"shutdown had begun: one try": {
			delivery: func() delivery { return delivery{Closing: closedChan()} },
			failures: 1000, tries: 1, want: held,
		},
		"no Arrived and no HoldUntil: 25 minutes": {
			delivery: func() delivery { return delivery{} },
			failures: 1000, tries: 303, took: 1497500 * time.Millisecond, want: held,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := delivery{Arrived: time.Now()}
				if test.delivery != nil {
					d = test.delivery()
				}
				ctx := context.Background()
				if test.ctx > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.ctx)
					defer cancel()
				}
				broker := newBroker()
				broker.FailNext(test.failures, errUnconfirmed)
				msg := arrived(ctx, d)
				began := time.Now()
				_, err := newRetry(t, broker).Middleware(failsWith(errBoom))(msg)

				assert.Equal(t, test.took, time.Since(began))
				calls := broker.Calls()
				assert.Len(t, calls, test.tries)
				for _, call := range calls {
					assert.False(t, call.Dead || call.State.Failures != 1, "tried %+v", call)
					assert.Equal(t, calls[0].State, call.State)
				}
				assert.Equal(t, (len(test.want) == 0), (err == nil))
				wantErrors(t, err, test.want...)
				assert.False(t, isClosed(msg.Acked()))
				assert.False(t, isClosed(msg.Nacked()))
			})
		})
	}
}

func TestADeadLetterIsHeldToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker()
		broker.FailNext(3, errUnconfirmed)
		_, err := newRetry(t, broker).Middleware(
			failsWith(middleware.Permanent(errBoom)),
		)(newMessage(delivery{}))
		assert.False(t, err != nil || len(broker.Calls()) != 4 || len(broker.DeadLetters()) != 1,
			"got %v, %+v", err, broker.Calls())
	})
}

func TestAMessageThatWasNotDeliveredIsNotHeld(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err      error
		failures int
	}{
		"retry": {errBoom, 0}, "snooze": {middleware.Snooze(errBoom, time.Minute), 0},
		"past its limit": {nil, 3},
	} {
		broker := newBroker()
		broker.FailNext(1, middleware.ErrNotDelivered)
		msg := newMessage(delivery{State: state{Failures: test.failures}})
		_, err := newRetry(t, broker).Middleware(failsWith(test.err))(msg)
		wantErrors(t, err, middleware.ErrNotDelivered, middleware.ErrNotHandedOver)
		assert.Equal(t, test.err != nil, errors.Is(err, errBoom), name)
		require.Len(t, broker.Calls(), 1, name)
	}
}

const correlation = wmiddleware.CorrelationIDMetadataKey

// setting returns a handler that sets the metadata and fails.
func setting(metadata map[string]string, err error) message.HandlerFunc {
	return consumer(func(msg *message.Message) error {
		maps.Copy(msg.Metadata, metadata)
		return err
	})
}

func TestMetadataThatIsKept(t *testing.T) {
	t.Parallel()
	keep := middleware.WithKeptMetadata
	for name, test := range map[string]struct {
		options []middleware.Option
		set     map[string]string
		want    map[string]string
	}{
		"by default": {
			nil, map[string]string{correlation: "c-1", "tenant": "7"}, map[string]string{correlation: "c-1"},
		},
		"an option adds": {
			options{keep("tenant")},
			map[string]string{correlation: "c-1", "tenant": "7"},
			map[string]string{correlation: "c-1", "tenant": "7"},
		},
		"named twice": {
			options{keep("tenant", "tenant", correlation)},
			map[string]string{"tenant": "7"},
			map[string]string{"tenant": "7"},
		},
		"empty": {
			options{keep("tenant")}, map[string]string{"tenant": ""}, map[string]string{"tenant": ""},
		},
		"longest": {
			options{keep("k")},
			map[string]string{"k": strings.Repeat("v", 8<<10-1)},
			map[string]string{"k": strings.Repeat("v", 8<<10-1)},
		},
		"too long with its key": {
			options{keep("k")}, map[string]string{"k": strings.Repeat("v", 8<<10)}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{
				errBoom, middleware.Permanent(errBoom), middleware.Snooze(errBoom, time.Minute),
			} {
				call := handle(t, setting(test.set, err), test.options...)
				assert.Equal(t, test.want, call.State.Metadata)
				for key := range test.want {
					assert.NotContains(t, call.State.Headers("orders"), key)
				}
			}
		})
	}
}

func TestMetadataThatCannotBeKeptIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value string
		why   string
	}{
		"not UTF-8":      {"\xff", "not UTF-8"},
		"too long":       {strings.Repeat("v", 8<<10), "too long"},
		"with the other": {strings.Repeat("v", 8<<10-1), "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logger := watermill.NewCaptureLogger()
			call := handle(t, setting(
				map[string]string{correlation: "c-1", "k": test.value, "z": "26"}, errBoom,
			),
				middleware.WithKeptMetadata("k", "z"), withLogger(logger))
			assert.Equal(t, (map[string]string{correlation: "c-1", "z": "26"}), call.State.Metadata)
			lines := logger.Captured()[watermill.ErrorLogLevel]
			if len(lines) != 1 || lines[0].Msg != "Metadata is not kept" ||
				lines[0].Fields["key"] != "k" || lines[0].Err.Error() != test.why {
				t.Errorf("logged %+v", lines)
			}
		})
	}
}

func TestKeysThatCannotBeKept(t *testing.T) {
	t.Parallel()
	for key, why := range map[string]string{
		"":                       `key "" is empty`,
		"x-death":                `key "x-death" belongs to the broker`,
		"CC":                     `key "CC" belongs to the broker`,
		"BCC":                    `key "BCC" belongs to the broker`,
		keys.Failures:            `key "millpond-failures" belongs to this library`,
		"millpond-":              `key "millpond-" belongs to this library`,
		"\xff":                   `key "\xff" is not UTF-8`,
		strings.Repeat("k", 256): "is longer than 255 bytes",
	} {
		_, err := middleware.NewDelayedRetry(
			unused{}, tenfold, middleware.WithKeptMetadata("fine", key, strings.Repeat("k", 255)),
		)
		assert.Error(t, err, key)
		assert.Contains(t, err.Error(), "WithKeptMetadata: ", key)
		assert.Contains(t, err.Error(), why, key)
		assert.NotContains(t, err.Error(), "\n", key)
	}
}

func TestKeptKeysAreNotSharedByTwoMiddlewares(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	a := newRetry(t, broker, middleware.WithKeptMetadata("a"))
	newRetry(t, broker, middleware.WithKeptMetadata("b"))
	h := a.Middleware(setting(map[string]string{"a": "1", "b": "2"}, errBoom))
	acked(t, h, newMessage(delivery{}))
	assert.Equal(t, map[string]string{"a": "1"}, broker.Calls()[0].State.Metadata)
}
